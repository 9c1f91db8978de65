//! A partition whose contributions are encoded: lengths, and who gets what of a sum.

use sumpter_codec::Key;
use sumpter_sum::AlignedBuf;
use sumpter_types::{Rank, Round};

use super::partition::Partition;
use crate::coding::Coder;

impl Partition {
    /// What encodes the partition, if it is encoded.
    pub(super) fn coder(&self) -> Option<Coder<'_>> {
        let first = self.spec.coding.map_or(0, |coding| coding.block);
        self.codec.as_ref().map(|codec| Coder { codec, first })
    }

    /// Bytes of a contribution to a chunk.
    pub(super) fn contribution_len(&self, chunk: u32) -> usize {
        let len = self.spec.chunk_len(chunk) as usize;
        self.coder().map_or(len, |coder| coder.len(self.spec.dtype, len))
    }

    /// Bytes of what is sent of a chunk that is finished, to those who get the code, or to the one
    /// who gets the sum.
    pub(super) fn value_len(&self, chunk: u32, is_sum: bool) -> usize {
        let len = self.spec.chunk_len(chunk) as usize;
        match self.coder() {
            Some(coder) if is_sum && self.carrier().is_some() => {
                coder.carried_len(self.spec.dtype, len, self.contributors as u32)
            }
            Some(coder) => coder.sum_len(self.spec.dtype, len),
            None => len,
        }
    }

    /// Who gets sums in place of their codes.
    pub(super) fn carrier(&self) -> Option<Rank> {
        self.spec.coding?.carrier
    }

    /// Whether a rank gets nothing of the round in `slot` yet: what the code of the sum leaves out
    /// is kept by another, who does not have it.
    pub(super) fn holds_back(&self, slot: usize, rank: Rank) -> bool {
        self.carrier().is_some_and(|carrier| carrier != rank) && self.slots[slot].mirrored == 0
    }

    /// Decodes a finished chunk, where sums are encoded.
    pub(super) fn decode(&self, round: Round, chunk: u32, sum: &mut AlignedBuf) {
        let Some(coder) = self.coder().filter(|coder| coder.codec.spec().two_way) else { return };
        let mut out = AlignedBuf::new(self.spec.chunk_len(chunk) as usize);
        let offset = chunk as usize * self.spec.chunk_bytes as usize;
        let (key, code) = (Key::of_sum(self.tensor, round), &sum[..self.value_len(chunk, false)]);
        let decoded = coder.decode_sum((key, offset), code, (self.spec.dtype, &mut out));
        decoded.expect("a sum that was encoded here");
        *sum = out;
    }
}
