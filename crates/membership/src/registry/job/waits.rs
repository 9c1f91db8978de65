//! For which ranks of a run its members have waited, also those that are gone: a sum that falls
//! when a server leaves would look like one that began anew.

use std::collections::BTreeMap;

use sumpter_types::{JobId, Late, MemberId, Rank};

/// Members that are gone and may yet come back, with the counts that they report then.
const REMEMBERED: usize = 64;

/// By rank: how often it came last, and the seconds of waiting for it.
type Total = BTreeMap<Rank, (u64, f64)>;

/// What members of a run have reported that are gone.
#[derive(Default)]
pub(crate) struct Waits {
    gone: BTreeMap<MemberId, Total>,
    /// Of those that have been gone the longest.
    older: Total,
}

impl Waits {
    /// A member is gone, with these as its last numbers.
    pub fn member_gone(&mut self, run: JobId, member: MemberId, late: &[Late]) {
        let mut total = Total::new();
        add(&mut total, late.iter().filter(|late| late.run == run).map(entry));
        if !total.is_empty() {
            self.gone.insert(member, total);
        }
        if self.gone.len() > REMEMBERED
            && let Some((_, oldest)) = self.gone.pop_first()
        {
            add(&mut self.older, oldest);
        }
    }

    /// It is back, and goes on counting where it was.
    pub fn member_back(&mut self, member: MemberId) {
        self.gone.remove(&member);
    }

    /// All members' waiting, by rank; `here` is of those that are not gone.
    pub fn total<'a>(
        &self,
        run: JobId,
        world_size: u32,
        here: impl Iterator<Item = &'a Late>,
    ) -> Vec<Late> {
        let mut total = self.older.clone();
        self.gone.values().for_each(|gone| add(&mut total, gone.clone()));
        add(&mut total, here.filter(|late| late.run == run).map(entry));
        let ranks = total.into_iter().filter(|(rank, _)| rank.0 < world_size);
        ranks.map(|(rank, (count, seconds))| Late { run, rank, count, seconds }).collect()
    }
}

fn entry(late: &Late) -> (Rank, (u64, f64)) {
    (late.rank, (late.count, late.seconds))
}

fn add(total: &mut Total, more: impl IntoIterator<Item = (Rank, (u64, f64))>) {
    for (rank, (count, seconds)) in more {
        let sum = total.entry(rank).or_default();
        // What a member reports is not checked.
        sum.0 = sum.0.saturating_add(count);
        sum.1 += seconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: JobId = JobId(7);

    fn late(run: JobId, rank: u32, count: u64) -> Late {
        Late { run, rank: Rank(rank), count, seconds: count as f64 / 4.0 }
    }

    fn counts(waits: &Waits, here: &[Late]) -> Vec<(u32, u64)> {
        let total = waits.total(RUN, 4, here.iter());
        assert!(total.iter().all(|late| late.seconds == late.count as f64 / 4.0));
        total.iter().map(|late| (late.rank.0, late.count)).collect()
    }

    #[test]
    fn what_a_member_reported_stays_in_the_sum_when_it_is_gone() {
        let mut waits = Waits::default();
        let (one, two) =
            ([late(RUN, 1, 3), late(JobId(8), 1, 9)], [late(RUN, 1, 2), late(RUN, 3, 1)]);
        let both: Vec<Late> = one.iter().chain(&two).cloned().collect();
        assert_eq!(counts(&waits, &both), [(1, 5), (3, 1)]);
        waits.member_gone(RUN, MemberId(5), &one);
        assert_eq!(counts(&waits, &two), [(1, 5), (3, 1)]);
        waits.member_gone(RUN, MemberId(6), &two);
        assert_eq!(counts(&waits, &[]), [(1, 5), (3, 1)]);
    }

    #[test]
    fn a_member_that_is_back_counts_once() {
        let mut waits = Waits::default();
        waits.member_gone(RUN, MemberId(5), &[late(RUN, 0, 3)]);
        waits.member_back(MemberId(5));
        assert_eq!(counts(&waits, &[late(RUN, 0, 4)]), [(0, 4)]);
    }

    #[test]
    fn memory_is_bounded_and_nothing_is_lost() {
        let mut waits = Waits::default();
        for member in 1..=1000 {
            waits.member_gone(RUN, MemberId(member), &[late(RUN, 2, 1)]);
        }
        assert_eq!(waits.gone.len(), REMEMBERED);
        assert_eq!(counts(&waits, &[]), [(2, 1000)]);
    }

    #[test]
    fn a_rank_that_the_run_has_not_is_left_out() {
        let here = [late(RUN, 4, 1), late(RUN, 3, u64::MAX), late(RUN, 3, 1)];
        let total = Waits::default().total(RUN, 4, here.iter());
        assert_eq!(total.iter().map(|l| (l.rank.0, l.count)).collect::<Vec<_>>(), [(3, u64::MAX)]);
    }
}
