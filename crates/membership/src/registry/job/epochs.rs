//! The epochs of a run: whenever its servers or sizes change, or a worker dies that it can do
//! without, it goes on under a new plan.
//!
//! A change suspends the workers and prepares the servers of the new plan. Once every connected
//! worker has reported its progress, and every server of the plan is ready, the workers get the
//! plan and all progress. Whatever comes in between makes a newer epoch, and what was answered for
//! an older one counts for nothing. A start is the same without workers to suspend.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use bytes::Bytes;
use sumpter_types::{MemberId, Rank};

use super::returning::Returning;

/// How long a server must have been connected before a running job goes over to it, so that servers
/// that come together cost one change.
pub(crate) const QUIET: Duration = Duration::from_millis(200);

/// The state of a run's change of plan. The newest plan is the run's view.
#[derive(Debug)]
pub(crate) struct EpochChange {
    state: State,
    /// When the newest epoch began.
    since: Duration,
    /// Servers of the newest plan that have not said that they are ready.
    preparing: BTreeSet<MemberId>,
    /// Servers of earlier plans, which keep what they have until the workers have gone on.
    retired: BTreeSet<MemberId>,
    /// Servers that some worker cannot use; they are in no later plan.
    dropped: BTreeSet<MemberId>,
    /// Why the plan last changed.
    last_change: String,
}

/// What a run's workers do.
#[derive(Debug)]
enum State {
    /// They wait for their first plan.
    Starting,
    /// They work under the newest plan.
    Steady,
    /// They stop; the progress of those that have stopped.
    Changing(BTreeMap<Rank, Vec<u8>>),
    /// They work on, and come back one by one from a coordinator that was lost.
    Returning(Box<Returning>),
}

/// Where the workers of a run stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Starting,
    Steady,
    Changing,
    Returning,
}

/// The end of a change: how the workers go on.
#[derive(Debug, PartialEq)]
pub(crate) struct Completed {
    /// What each worker reported; `None` at the start of the run.
    pub progress: Option<Vec<(Rank, Bytes)>>,
    /// Servers whose part in the run is over.
    pub retired: BTreeSet<MemberId>,
}

/// Members that a change has waited for too long.
#[derive(Debug, PartialEq)]
pub(crate) enum Overdue {
    /// Servers that are not ready; they are dropped.
    Servers(BTreeSet<MemberId>),
    /// Workers that have not stopped.
    Ranks(Vec<Rank>),
}

impl EpochChange {
    /// Of a run that starts with these servers.
    pub fn starting(now: Duration, servers: BTreeSet<MemberId>) -> Self {
        Self::new(now, State::Starting, servers)
    }

    /// Of a run that comes back from a coordinator that was lost.
    pub fn returning(now: Duration) -> Self {
        Self::new(now, State::Returning(Box::default()), BTreeSet::new())
    }

    fn new(since: Duration, state: State, preparing: BTreeSet<MemberId>) -> Self {
        let (retired, dropped) = (BTreeSet::new(), BTreeSet::new());
        Self { state, since, preparing, retired, dropped, last_change: String::new() }
    }

    pub fn phase(&self) -> Phase {
        match self.state {
            State::Starting => Phase::Starting,
            State::Steady => Phase::Steady,
            State::Changing(_) => Phase::Changing,
            State::Returning(_) => Phase::Returning,
        }
    }

    pub fn since(&self) -> Duration {
        self.since
    }

    pub fn last_change(&self) -> &str {
        &self.last_change
    }

    pub fn preparing(&self) -> &BTreeSet<MemberId> {
        &self.preparing
    }

    pub fn retired(&self) -> &BTreeSet<MemberId> {
        &self.retired
    }

    /// Whether a later plan may have the server.
    pub fn may_use(&self, server: MemberId) -> bool {
        !self.dropped.contains(&server)
    }

    /// Some worker cannot use the server.
    pub fn drop_server(&mut self, server: MemberId) {
        self.dropped.insert(server);
    }

    /// The server is gone.
    pub fn server_gone(&mut self, server: MemberId) {
        self.retired.remove(&server);
    }

    /// The worker is gone.
    pub fn worker_gone(&mut self, rank: Rank) {
        if let State::Changing(progress) = &mut self.state {
            progress.remove(&rank);
        }
    }

    /// The next epoch begins, with these servers and without those that retire.
    pub fn begin(
        &mut self,
        now: Duration,
        servers: &BTreeSet<MemberId>,
        retire: impl IntoIterator<Item = MemberId>,
    ) {
        self.retired.extend(retire);
        // One that was to leave may be all that is left.
        self.retired.retain(|server| !servers.contains(server));
        self.preparing.clone_from(servers);
        self.since = now;
    }

    /// The workers stop for the epoch that begins.
    pub fn suspend(&mut self, why: &str) {
        self.state = State::Changing(BTreeMap::new());
        why.clone_into(&mut self.last_change);
    }

    /// A server is ready for the newest epoch; whether that was awaited.
    pub fn ready(&mut self, server: MemberId) -> bool {
        self.preparing.remove(&server)
    }

    /// A worker has stopped for the newest epoch, and reports its progress; whether that was
    /// awaited.
    pub fn progress(&mut self, rank: Rank, payload: Vec<u8>) -> bool {
        let State::Changing(progress) = &mut self.state else { return false };
        progress.entry(rank).or_insert(payload);
        true
    }

    /// Ends the change if all workers have stopped and all servers are ready.
    pub fn complete<'a>(
        &mut self,
        mut present: impl Iterator<Item = &'a Rank>,
    ) -> Option<Completed> {
        if !self.preparing.is_empty() {
            return None;
        }
        let progress = match &mut self.state {
            State::Steady | State::Returning(_) => return None,
            State::Starting => None,
            State::Changing(progress) => {
                if present.any(|rank| !progress.contains_key(rank)) {
                    return None;
                }
                Some(shared(std::mem::take(progress)))
            }
        };
        self.state = State::Steady;
        Some(Completed { progress, retired: std::mem::take(&mut self.retired) })
    }

    /// What keeps a change from being complete beyond `limit`.
    pub fn overdue<'a>(
        &mut self,
        now: Duration,
        limit: Duration,
        present: impl Iterator<Item = &'a Rank>,
    ) -> Option<Overdue> {
        let State::Changing(progress) = &self.state else { return None };
        if now.saturating_sub(self.since) < limit {
            return None;
        }
        if self.preparing.is_empty() {
            let silent = present.filter(|rank| !progress.contains_key(rank));
            return Some(Overdue::Ranks(silent.copied().collect()));
        }
        self.dropped.extend(&self.preparing);
        Some(Overdue::Servers(self.preparing.clone()))
    }

    /// What a returning run has still to settle.
    pub fn return_state(&self) -> Option<&Returning> {
        match &self.state {
            State::Returning(returning) => Some(returning),
            State::Starting | State::Steady | State::Changing(_) => None,
        }
    }

    pub fn return_state_mut(&mut self) -> Option<&mut Returning> {
        match &mut self.state {
            State::Returning(returning) => Some(returning),
            State::Starting | State::Steady | State::Changing(_) => None,
        }
    }

    /// Ends a return.
    pub fn end_return(&mut self, now: Duration) -> Option<Box<Returning>> {
        self.return_state()?;
        self.since = now;
        match std::mem::replace(&mut self.state, State::Steady) {
            State::Returning(returning) => Some(returning),
            State::Starting | State::Steady | State::Changing(_) => None,
        }
    }
}

/// Answers by rank, equal ones held once: between two rounds all workers say the same.
fn shared(answers: BTreeMap<Rank, Vec<u8>>) -> Vec<(Rank, Bytes)> {
    let mut known: HashSet<Bytes> = HashSet::new();
    let mut once = |answer: Vec<u8>| {
        if let Some(answer) = known.get(answer.as_slice()) {
            return answer.clone();
        }
        let answer = Bytes::from(answer);
        known.insert(answer.clone());
        answer
    };
    answers.into_iter().map(|(rank, answer)| (rank, once(answer))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MemberId = MemberId(1);
    const B: MemberId = MemberId(2);
    const LIMIT: Duration = Duration::from_secs(10);

    fn steady() -> EpochChange {
        let mut change = EpochChange::starting(Duration::ZERO, [A].into());
        assert_eq!(change.complete([].iter()), None);
        assert!(change.ready(A) && !change.ready(A));
        let started = Completed { progress: None, retired: BTreeSet::new() };
        assert_eq!(change.complete([Rank(0)].iter()), Some(started));
        change
    }

    #[test]
    fn a_change_ends_when_all_have_stopped_and_all_servers_are_ready() {
        let (mut change, ranks) = (steady(), [Rank(0), Rank(1)]);
        assert!(!change.progress(Rank(0), vec![1]));
        change.begin(LIMIT, &[B].into(), [A]);
        change.suspend("B joined");
        assert_eq!((change.phase(), change.last_change()), (Phase::Changing, "B joined"));
        assert!(change.progress(Rank(0), vec![1]) && change.ready(B));
        assert_eq!(change.complete(ranks.iter()), None);
        change.progress(Rank(1), vec![2]);
        let progress = Some(vec![(Rank(0), vec![1].into()), (Rank(1), vec![2].into())]);
        let completed = Completed { progress, retired: [A].into() };
        assert_eq!(change.complete(ranks.iter()), Some(completed));
        assert_eq!((change.phase(), change.retired().len()), (Phase::Steady, 0));
    }

    #[test]
    fn equal_answers_are_held_once() {
        let answers = [vec![1, 2], vec![3], vec![1, 2]];
        let held = shared((0..).map(Rank).zip(answers.clone()).collect());
        let same = |a: usize, b: usize| held[a].1.as_ptr() == held[b].1.as_ptr();
        assert!(same(0, 2) && !same(0, 1));
        assert!(held.iter().zip(&answers).all(|((_, held), answer)| **held == **answer));
    }

    #[test]
    fn overdue_servers_are_dropped_before_ranks_are_blamed() {
        let (mut change, ranks) = (steady(), [Rank(0)]);
        change.begin(Duration::ZERO, &[A, B].into(), []);
        change.suspend("B joined");
        change.ready(A);
        assert_eq!(change.overdue(LIMIT / 2, LIMIT, ranks.iter()), None);
        let late = Overdue::Servers([B].into());
        assert_eq!(change.overdue(LIMIT, LIMIT, ranks.iter()), Some(late));
        assert!(!change.may_use(B) && change.may_use(A));
        change.begin(LIMIT, &[].into(), []);
        let late = Overdue::Ranks(vec![Rank(0)]);
        assert_eq!(change.overdue(LIMIT * 2, LIMIT, ranks.iter()), Some(late));
    }
}
