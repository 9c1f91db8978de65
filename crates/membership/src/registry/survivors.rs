//! Runs that go on without a worker that died: the others complete the interrupted rounds among
//! themselves, in the next epoch.

use std::collections::BTreeSet;

use sumpter_types::{MemberId, Rank};

use super::Registry;
use super::epochs::State;
use super::job::{Job, Run, Stage};
use crate::event::MemberEvent;

impl Job {
    /// The fewest workers with which the run goes on when others die; `None` if it ends.
    fn least_survivors(&self) -> Option<usize> {
        let setting = |name| self.settings.get(name).map(String::as_str);
        let least: usize = setting("min_workers")?.parse().ok()?;
        (least > 0 && setting("redo") == Some("true")).then_some(least)
    }

    /// Whether the run goes on without a worker.
    pub fn may_lose(&self, rank: Rank) -> bool {
        let survivors = self.present.keys().filter(|other| **other != rank).count();
        self.least_survivors().is_some_and(|least| survivors >= least)
    }
}

impl Run {
    /// What the workers are told if all that live are out of data; from then on all have some.
    pub fn all_out_of_data(&mut self) -> Option<MemberEvent> {
        let living = self.view.living().count();
        let last = self.out_of_data.last().copied().filter(|_| self.out_of_data.len() == living)?;
        self.out_of_data.clear();
        Some(MemberEvent::AllOutOfData { last })
    }
}

impl Registry {
    /// Lets a run go on without a worker that died, if it may; whether it does.
    pub(super) fn outlive(&mut self, name: &str, rank: Rank, host: &str, reason: &str) -> bool {
        let Some(job) = self.jobs.get_mut(name) else { return false };
        if job.stage() != Stage::Running || !job.may_lose(rank) {
            return false;
        }
        job.present.remove(&rank);
        let Some(run) = job.running() else { return false };
        run.view.gone.insert(rank);
        run.out_of_data.retain(|other| *other != rank);
        if let State::Changing(progress) = &mut run.epochs.state {
            progress.remove(&rank);
        }
        let why = format!("rank {rank} on {host} was lost: {reason}");
        let Some(job) = self.jobs.get(name) else { return false };
        let Some(run) = &job.run else { return false };
        let wanted: BTreeSet<MemberId> = self.wanted(job, run);
        if wanted.is_empty() && job.needs_a_server() {
            // Whoever ends the run for want of a server says so.
            self.replan(name, &why);
            return true;
        }
        self.begin_epoch(name, &wanted, &why, &why);
        let run = self.jobs.get_mut(name).and_then(Job::running);
        if let Some(event) = run.and_then(Run::all_out_of_data) {
            self.tell_workers(name, &event);
        }
        true
    }
}
