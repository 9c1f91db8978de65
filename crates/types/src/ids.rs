//! Newtypes for the small integers that travel in frames, so that a rank is never taken for a
//! round.

use std::fmt;

use serde::Serialize;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($repr:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        pub struct $name(pub $repr);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A worker's number in its job, `0..world_size`.
    Rank(u32)
);
id!(
    /// A tensor's number in the job's tensor table, in the order of declaration.
    TensorId(u32)
);
id!(
    /// One summation of one tensor by all its workers, counted from 0 for each tensor.
    Round(u32)
);
id!(
    /// The version of the plan a frame belongs to; frames of another epoch are refused.
    Epoch(u32)
);
id!(
    /// One run of one job: a random number drawn by the coordinator when the run starts. What each
    /// event loop of its workers serves is a run of its own to lanes, whose number has the loop's
    /// in its highest byte.
    JobId(u64)
);
id!(
    /// A subset of a job's workers that sums among itself; 0 is all of them.
    GroupId(u32)
);

/// The bits of a run's number below that of the event loop.
const DRAWN_BITS: u32 = 56;

impl JobId {
    /// The run of a random number.
    #[must_use]
    pub fn drawn(random: u64) -> JobId {
        JobId(random).run()
    }

    /// What event loop `number` of each worker serves of this run; of the first loop, the run.
    ///
    /// # Panics
    /// If the loop's number exceeds a byte.
    #[must_use]
    pub fn of_loop(self, number: u32) -> JobId {
        let number = u8::try_from(number).expect("settings allow fewer loops");
        JobId(self.run().0 | u64::from(number) << DRAWN_BITS)
    }

    /// The event loop of each worker that serves this.
    #[must_use]
    pub fn event_loop(self) -> u32 {
        (self.0 >> DRAWN_BITS) as u32
    }

    /// The run that this is a part of, as the coordinator has it.
    #[must_use]
    pub fn run(self) -> JobId {
        JobId(self.0 & ((1 << DRAWN_BITS) - 1))
    }
}

impl Round {
    /// The round after this one.
    #[must_use]
    pub fn next(self) -> Round {
        Round(self.0.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_run_lead_back_to_it() {
        let run = JobId::drawn(u64::MAX - 6);
        assert_eq!((run.of_loop(0), run.event_loop()), (run, 0));
        for number in [1, 2, 63, 255] {
            let part = run.of_loop(number);
            assert_ne!(part, run);
            assert_eq!((part.event_loop(), part.run()), (number, run));
            assert_eq!(part.of_loop(3), run.of_loop(3));
        }
    }
}
