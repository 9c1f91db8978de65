//! How a tensor is compressed on its way: which codec, and which of its blocks a stretch is.

use std::ops::Range;
use std::sync::Arc;

use sumpter_codec::{At, BLOCK, Codec, CodecError, Key, Registry, Spec, blocks};
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{Dtype, Rank};
use sumpter_wire::{CodecId, CodingSpec, codec_id};

/// How a tensor's contributions and sums are encoded.
#[derive(Clone, Debug)]
pub struct Coding {
    codec: Codec,
    /// For sums.
    sums: Codec,
    /// The canonical text of the codec, and its id.
    text: Arc<str>,
    id: CodecId,
    /// Elements of the whole tensor.
    elements: u64,
    /// Those that are summed here.
    served: Range<u64>,
}

impl Coding {
    /// A codec for a tensor of so many elements, of which this client sums the `served` ones: they
    /// begin with a block.
    ///
    /// # Errors
    /// [`CodecError`] if there is no such codec, it does not fit the tensor, or it does not encode
    /// blocks.
    pub fn new(
        registry: &Registry,
        spec: &Spec,
        elements: u64,
        served: Range<u64>,
    ) -> Result<Coding, CodecError> {
        debug_assert!(served.start.is_multiple_of(BLOCK as u64), "served from within a block");
        spec.check_on_path()?;
        let (codec, text) = (registry.codec(spec, elements)?, spec.to_string());
        let (id, sums) = (codec_id(&text), codec.clone().without_memory());
        Ok(Coding { codec, sums, id, text: text.into(), elements, served })
    }

    /// The codec, as it is written.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The codec.
    #[must_use]
    pub fn codec(&self) -> &Codec {
        &self.codec
    }

    /// Where partitions of a coded tensor may be cut, and what chunks must be a multiple of, in
    /// bytes.
    #[must_use]
    pub fn granularity(dtype: Dtype) -> usize {
        BLOCK * dtype.size()
    }

    /// Elements of the whole tensor.
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.elements
    }

    /// Those of them that are summed here.
    #[must_use]
    pub fn served(&self) -> Range<u64> {
        self.served.clone()
    }

    pub(crate) fn id(&self) -> CodecId {
        self.id
    }

    /// Elements that are summed here.
    pub(crate) fn served_len(&self) -> usize {
        (self.served.end - self.served.start) as usize
    }

    /// What a lane is told of a partition that begins with a byte of the tensor.
    pub(crate) fn spec(&self, dtype: Dtype, origin: usize, carrier: Option<Rank>) -> CodingSpec {
        let block = self.coder().blocks_from(dtype, origin);
        CodingSpec { codec: self.id, elements: self.elements, block, carrier }
    }

    /// The same codec for sums, which have no past.
    pub(crate) fn sum_coder(&self) -> Coder<'_> {
        Coder { codec: &self.sums, ..self.coder() }
    }

    pub(crate) fn coder(&self) -> Coder<'_> {
        Coder { codec: &self.codec, first: self.served.start / BLOCK as u64 }
    }
}

/// Which sum: its round, where it begins, and the elements' type and bytes.
pub(crate) type SumOf = ((Key, usize), (Dtype, usize));

/// Bytes of a sum of `f32` of so many bytes of elements.
pub(crate) fn sum_bytes(dtype: Dtype, len: usize) -> usize {
    len / dtype.size() * size_of::<f32>()
}

/// A codec for what begins with a certain block: a tensor, or a partition of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Coder<'a> {
    pub codec: &'a Codec,
    pub first: u64,
}

impl<'a> Coder<'a> {
    /// Bytes of the code of so many bytes.
    pub(crate) fn len(self, dtype: Dtype, bytes: usize) -> usize {
        self.codec.encoded_len(bytes / dtype.size())
    }

    /// Bytes of a sum on its way.
    pub(crate) fn sum_len(self, dtype: Dtype, bytes: usize) -> usize {
        if self.codec.spec().two_way { self.len(dtype, bytes) } else { bytes }
    }

    /// Whether the carrier of a sum of so many contributions gets their codes, from which it makes
    /// the sum as the lane did: where these are fewer bytes than the sum.
    pub(crate) fn carries_codes(self, dtype: Dtype, bytes: usize, contributions: u32) -> bool {
        contributions as usize * self.len(dtype, bytes) < sum_bytes(dtype, bytes)
    }

    /// Bytes of what the carrier gets.
    pub(crate) fn carried_len(self, dtype: Dtype, bytes: usize, contributions: u32) -> usize {
        match self.carries_codes(dtype, bytes, contributions) {
            true => contributions as usize * self.len(dtype, bytes),
            false => sum_bytes(dtype, bytes),
        }
    }

    /// The sum, in `f32`, of codes that lie one behind the other, added in this order.
    ///
    /// # Errors
    /// If one of them is no code of the codec's.
    pub(crate) fn add_codes(
        self,
        ((key, offset), (dtype, len)): SumOf,
        codes: &[u8],
        pool: &mut BufferPool,
    ) -> Result<AlignedBuf, CodecError> {
        let (at, mut sum) = (self.at(key, dtype, offset), pool.take(sum_bytes(dtype, len)));
        let mut codes = codes.chunks_exact(self.len(dtype, len));
        let first = codes.next().expect("the codes of all contributions");
        let added = self.codec.decode(at, first, (Dtype::F32, &mut sum));
        match added
            .and_then(|()| codes.try_for_each(|code| self.codec.decode_add(at, code, &mut sum)))
        {
            Ok(()) => Ok(sum),
            Err(error) => {
                pool.give(sum);
                Err(error)
            }
        }
    }

    fn blocks_from(self, dtype: Dtype, offset: usize) -> u64 {
        debug_assert!(offset.is_multiple_of(Coding::granularity(dtype)), "a cut within a block");
        self.first + blocks(offset / dtype.size()) as u64
    }

    /// What begins at an offset in bytes, a multiple of the granularity.
    pub(crate) fn at(self, key: Key, dtype: Dtype, offset: usize) -> At<'a> {
        At { key, block: self.blocks_from(dtype, offset), maxima: &[] }
    }

    /// Decodes a sum to elements of a type, where sums are encoded.
    pub(crate) fn decode_sum(
        self,
        (key, offset): (Key, usize),
        code: &[u8],
        (dtype, out): (Dtype, &mut [u8]),
    ) -> Result<(), CodecError> {
        self.codec.decode(self.at(key, dtype, offset), code, (dtype, out))
    }

    /// The code of a sum of `f32`.
    pub(crate) fn encode_sum(
        self,
        ((key, offset), (dtype, len)): SumOf,
        sum: &[u8],
        pool: &mut BufferPool,
    ) -> AlignedBuf {
        let mut out = pool.take(self.len(dtype, len));
        let (at, (previous, next)) = (self.at(key, dtype, offset), Default::default());
        let encoded = self.codec.encode(at, (Dtype::F32, sum), previous, next, &mut out);
        encoded.expect("a sum of the length that was asked for");
        out
    }

    /// Makes what is sent of a sum: `sum` is of `f32`, or where codes are added as they are the sum
    /// of codes. Returns the buffer that is sent.
    pub(crate) fn finish(
        self,
        ((key, offset), (dtype, len)): SumOf,
        sum: AlignedBuf,
        pool: &mut BufferPool,
    ) -> AlignedBuf {
        let of = ((key, offset), (dtype, len));
        let out = match (self.codec.spec().two_way, self.codec.sums_encoded()) {
            (true, true) => return sum,
            (true, false) => self.encode_sum(of, &sum, pool),
            (false, false) if dtype == Dtype::F32 => return sum,
            (false, false) => {
                let mut out = pool.take(len);
                sumpter_codec::store_sums(dtype, &sum, &mut out);
                out
            }
            (false, true) => {
                let mut out = pool.take(len);
                let decoded = self.decode_sum((key, offset), &sum, (dtype, &mut out));
                decoded.expect("a sum of codes, which may be any bytes");
                out
            }
        };
        pool.give(sum);
        out
    }
}
