//! What a round does to a variable: known from the start, or decided once its gradient is summed.
//!
//! A member that begins a round without saying what it does gets the sum of the gradient's squares
//! in return, as soon as all chunks are summed, and then says it. The rule is applied once all
//! members have said the same. A member may have lost its connection or its epoch in between, and
//! begins again with what it has decided; so members that have and such that have not may meet.

use sumpter_types::{Action, ExactSum, Update};
use sumpter_wire::PartitionSpec;

use super::accumulate::Chunk;

#[derive(Debug, Default)]
pub(super) struct Decision {
    /// What members have said.
    update: Option<Update>,
    /// By child.
    said: Vec<Said>,
    decided: usize,
    /// Whether a member began without saying it.
    deferred: bool,
    squares: Option<Box<Squares>>,
}

/// What a child has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Said {
    /// It has not begun.
    #[default]
    Nothing,
    /// It decides when it knows the norm.
    Deferred,
    Decided,
}

/// The sum of the squares of a partition's first chunks.
#[derive(Debug, Default)]
struct Squares {
    sum: ExactSum,
    chunks: u32,
}

impl Decision {
    /// Another round begins.
    pub(super) fn clear(&mut self, members: usize) {
        self.said.clear();
        self.said.resize(members, Said::Nothing);
        (self.update, self.decided, self.deferred, self.squares) = (None, 0, false, None);
    }

    /// A child says what the round does, or that it will.
    ///
    /// # Errors
    /// A text if others have said something else.
    pub(super) fn say(&mut self, child: usize, update: Update) -> Result<(), String> {
        let said = &mut self.said[child];
        if !update.is_decided() {
            if *said == Said::Nothing {
                (*said, self.deferred) = (Said::Deferred, true);
            }
            return Ok(());
        }
        let known = self.update.get_or_insert(update);
        if let Some(difference) = difference(known, &update) {
            return Err(difference);
        }
        if std::mem::replace(said, Said::Decided) != Said::Decided {
            self.decided += 1;
        }
        Ok(())
    }

    /// What the round does, if all members have said it.
    pub(super) fn update(&self) -> Option<Update> {
        self.update.filter(|_| self.decided == self.said.len())
    }

    /// Whether a member began the round without saying what it does.
    pub(super) fn is_deferred(&self) -> bool {
        self.deferred
    }

    /// Whether a child waits for the norm.
    pub(super) fn is_awaited_by(&self, child: usize) -> bool {
        self.said.get(child) == Some(&Said::Deferred)
    }

    /// The sum of the squares of all chunks, if they are summed.
    pub(super) fn squares(&self, chunks: u32) -> Option<&ExactSum> {
        self.squares.as_ref().filter(|squares| squares.chunks == chunks).map(|known| &known.sum)
    }

    /// The sum of the squares of all `chunks`, made elsewhere.
    pub(super) fn set_squares(&mut self, sum: ExactSum, chunks: u32) {
        self.squares = Some(Box::new(Squares { sum, chunks }));
    }

    /// Adds the squares of chunks that are summed, in order; whether these are all now.
    pub(super) fn add_squares(
        &mut self,
        spec: &PartitionSpec,
        chunks: &[Chunk],
        contributors: usize,
    ) -> bool {
        if !self.deferred || self.update().is_some() {
            return false;
        }
        let squares = self.squares.get_or_insert_default();
        let before = squares.chunks;
        while let Some(chunk) = chunks.get(squares.chunks as usize)
            && chunk.is_summed(contributors)
            && let Some(sum) = &chunk.sum
        {
            let len = spec.chunk_len(squares.chunks) as usize;
            sumpter_sum::add_squares(spec.dtype, &sum[..len], &mut squares.sum);
            squares.chunks += 1;
        }
        squares.chunks > before && squares.chunks == spec.chunks()
    }
}

/// How two decisions differ, in words.
fn difference(known: &Update, other: &Update) -> Option<String> {
    if known.action != other.action {
        let does = |update: &Update| match update.action {
            Action::Skip => "skips the round",
            Action::Apply | Action::Defer => "applies it",
        };
        return Some(format!("it {}, another rank {}", does(other), does(known)));
    }
    let (known, other) = (known.coefficients(), other.coefficients());
    let pairs = Update::NAMES.iter().zip(known.iter().zip(&other));
    let mut differing = pairs.filter(|(_, (a, b))| a.to_bits() != b.to_bits());
    let (name, (known, other)) = differing.next()?;
    Some(format!("the update's {name} is {other} there and {known} on others"))
}
