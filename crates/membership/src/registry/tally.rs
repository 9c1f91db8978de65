//! How often something has happened that a person may want to be woken for.

use std::collections::BTreeMap;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happened {
    WorkerLost,
    ServerLost,
    /// A member was refused, or an applicant could not prove the token.
    Refused,
    /// The servers of a running job changed, or one of its workers died.
    PlanChanged,
    JobEnded,
    JobFailed,
}

impl Happened {
    const ALL: [(Happened, &'static str); 6] = [
        (Happened::WorkerLost, "workers_lost"),
        (Happened::ServerLost, "servers_lost"),
        (Happened::Refused, "refused"),
        (Happened::PlanChanged, "plan_changes"),
        (Happened::JobEnded, "jobs_ended"),
        (Happened::JobFailed, "jobs_failed"),
    ];
}

/// Counts since the coordinator's start.
#[derive(Debug, Default)]
pub(super) struct Tally([u64; Happened::ALL.len()]);

impl Tally {
    pub fn count(&mut self, what: Happened) {
        self.0[what as usize] += 1;
    }

    /// The counts by name; those that are zero, too, so that each begins with a known number.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let name = |(what, name): (Happened, &str)| (name.to_owned(), self.0[what as usize]);
        Happened::ALL.map(name).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_counted_under_its_own_name() {
        let mut tally = Tally::default();
        for (index, (what, _)) in Happened::ALL.into_iter().enumerate() {
            (0..=index).for_each(|_| tally.count(what));
        }
        for (index, (_, name)) in Happened::ALL.into_iter().enumerate() {
            assert_eq!(tally.by_name()[name], index as u64 + 1);
        }
    }
}
