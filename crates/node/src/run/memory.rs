//! What codecs keep of a worker's tensors from round to round, and how the outside takes it along.

use std::time::{Duration, Instant};

use sumpter_codec::{BLOCK, Draws};
use sumpter_engine::{CodecMemory, CodecMemoryError};
use sumpter_types::TensorId;

use crate::codecs::{CodecState, selection_of};
use crate::error::OpError;
use crate::run::WorkerRun;

impl WorkerRun {
    /// What the codec of this loop's part of a tensor has kept.
    pub(crate) fn codec_memory(&self, id: TensorId) -> Result<CodecState, OpError> {
        let memory = self.client.codec_memory(id);
        let memory = memory.map_err(|error| self.about_memory(id, &error))?;
        Ok(CodecState { memory, draws: self.draws(id) })
    }

    fn draws(&self, id: TensorId) -> Option<Draws> {
        let selection = selection_of(self.table.spec(id)?).ok()??;
        let first = selection.specs().iter().find_map(|spec| spec.draws)?;
        Some(first.after(self.client.next_own_round(id)?))
    }

    /// The codec of this loop's part of a tensor goes on from what another run has kept.
    pub(crate) fn set_codec_memory(
        &mut self,
        id: TensorId,
        memory: &CodecMemory,
    ) -> Result<(), OpError> {
        // Where it is never encoded, nothing is left out.
        let Some(coding) = self.table.tensor(id).and_then(|tensor| tensor.coding.keeper()) else {
            return Ok(());
        };
        let set = self.client.set_codec_memory(id, &coding, memory);
        set.map_err(|error| self.about_memory(id, &error))
    }

    /// What is to be said of blocks of a tensor that counted as zeros in its last round, if it is
    /// time to say something.
    pub(crate) fn skipped(&mut self, id: TensorId, now: Instant) -> Option<String> {
        let blocks = self.client.take_skipped_blocks(id);
        if blocks == 0 {
            return None;
        }
        let name = self.table.spec(id).map_or("?", |spec| spec.name.as_str());
        self.skips.add(name, blocks, now)
    }

    fn about_memory(&self, id: TensorId, error: &CodecMemoryError) -> OpError {
        let name = self.name(id).unwrap_or_default();
        OpError::Mismatch(format!("tensor '{name}': {error}"))
    }
}

/// How long nothing more is said of blocks that are not finite: a model that diverges has them in
/// every step.
const QUIET: Duration = Duration::from_secs(10);

/// Blocks that counted as zeros since they were not finite (`nan=skip`), and when that was said.
#[derive(Debug, Default)]
pub(crate) struct SkippedBlocks {
    unsaid: u64,
    rounds: u64,
    said: Option<Instant>,
}

impl SkippedBlocks {
    /// Counts blocks of a tensor. Returns a message with its name, unless there was one lately.
    fn add(&mut self, name: &str, blocks: u64, now: Instant) -> Option<String> {
        let is_quiet = self.said.is_some_and(|said| now.saturating_duration_since(said) < QUIET);
        if is_quiet {
            (self.unsaid, self.rounds) = (self.unsaid + blocks, self.rounds + 1);
            return None;
        }
        self.said = Some(now);
        let (unsaid, rounds) = (std::mem::take(&mut self.unsaid), std::mem::take(&mut self.rounds));
        let before = match unsaid {
            0 => String::new(),
            unsaid => format!("; {unsaid} more in {rounds} rounds before it"),
        };
        Some(format!(
            "tensor '{name}': {blocks} of its blocks of {BLOCK} elements had NaNs or infinities \
             and counted as zeros (nan=skip){before}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_not_finite_are_named_now_and_then_and_all_are_counted() {
        let (mut skips, begin) = (SkippedBlocks::default(), Instant::now());
        let mut add =
            |name, blocks, seconds| skips.add(name, blocks, begin + Duration::from_secs(seconds));
        let first = "tensor 'a': 2 of its blocks of 1024 elements had NaNs or infinities and \
                     counted as zeros (nan=skip)";
        assert_eq!(add("a", 2, 0).as_deref(), Some(first));
        assert_eq!((add("a", 3, 1), add("b", 4, 9)), (None, None));
        let later = add("b", 1, 10).unwrap();
        assert!(later.starts_with("tensor 'b': 1 of its blocks"), "{later}");
        assert!(later.ends_with("(nan=skip); 7 more in 2 rounds before it"), "{later}");
        assert_eq!(add("b", 1, 11), None);
    }
}
