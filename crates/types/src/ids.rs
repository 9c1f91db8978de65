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
    /// One run of one job: a random number drawn by the coordinator when the run starts.
    JobId(u64)
);
id!(
    /// A subset of a job's workers that sums among itself; 0 is all of them.
    GroupId(u32)
);

impl Round {
    /// The round after this one.
    #[must_use]
    pub fn next(self) -> Round {
        Round(self.0.wrapping_add(1))
    }
}
