//! What a slice of a trace says was going on.

/// What was going on. The names are those of the file and of Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Activity {
    /// One training step of one worker.
    Step,
    /// A partition waited for its turn: behind more urgent ones, or for credit.
    Queued,
    /// A partition's bytes went to the other end of the link.
    Sending,
    /// Its sum, or the last contribution to it, was not there yet.
    Waiting,
    /// Its bytes arrived.
    Receiving,
    /// From the first addition to the last.
    Summing,
    /// The result was taken from the lane in the same process.
    Copying,
}

impl Activity {
    /// Every activity.
    pub const ALL: [Activity; 7] = [
        Activity::Step,
        Activity::Queued,
        Activity::Sending,
        Activity::Waiting,
        Activity::Receiving,
        Activity::Summing,
        Activity::Copying,
    ];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Activity::Step => "step",
            Activity::Queued => "queued",
            Activity::Sending => "sending",
            Activity::Waiting => "waiting",
            Activity::Receiving => "receiving",
            Activity::Summing => "summing",
            Activity::Copying => "copying",
        }
    }

    /// The activity of a name.
    #[must_use]
    pub fn of(name: &str) -> Option<Activity> {
        Activity::ALL.into_iter().find(|activity| activity.name() == name)
    }
}
