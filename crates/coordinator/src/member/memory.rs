//! What a member remembers of its session: what a coordinator that comes back without its memory
//! must be told, and what has been asked of the old one in vain.

use std::collections::{BTreeMap, BTreeSet};

use sumpter_membership::{KnownRun, MemberEvent, Rejoin};
use sumpter_types::{Epoch, JobId, MemberId, Rank, Role};

use super::declarations::Declarations;
use super::session::Command;

#[derive(Debug, Default)]
pub(super) struct Memory {
    run: Option<KnownRun>,
    served: BTreeMap<JobId, Epoch>,
    /// Ranks that have finished or died.
    pub gone: BTreeSet<Rank>,
    /// The run has failed: there is nothing to come back to.
    failed: bool,
    /// Asked for and not answered.
    pub declarations: Declarations,
    refused: BTreeMap<String, String>,
    out_of_data: bool,
    drain: bool,
}

impl Memory {
    /// The worker's run.
    pub fn run(&self) -> Option<&KnownRun> {
        self.run.as_ref()
    }

    /// Takes in an event of the coordinator.
    pub fn on_event(&mut self, event: &MemberEvent, own: Option<Rank>) {
        match event {
            MemberEvent::Started(view) => {
                self.run = Some(KnownRun { view: view.clone(), ..KnownRun::default() });
            }
            MemberEvent::JobStarted(view) if view.coordinator_rank.is_none() => {
                self.served.insert(view.job, view.epoch);
            }
            MemberEvent::JobEnded { job } => drop(self.served.remove(job)),
            MemberEvent::Draining => self.drain = true,
            MemberEvent::Drained => self.drain = false,
            MemberEvent::WorkerLost { rank, .. } => {
                self.failed = true;
                self.gone.insert(*rank);
            }
            MemberEvent::WorkerLeft { rank } => drop(self.gone.insert(*rank)),
            MemberEvent::Tensors { specs, .. } => self.declarations.entered(specs),
            MemberEvent::TensorError { name, .. } => drop(self.refused.remove(name)),
            MemberEvent::OutOfData { rank } if Some(*rank) == own => self.out_of_data = false,
            MemberEvent::AllOutOfData { .. } => self.out_of_data = false,
            _ => {}
        }
        if let Some(run) = &mut self.run {
            apply_to_run(run, event);
        }
    }

    /// Takes in what the owner asks.
    pub fn ask(&mut self, command: &Command) {
        match command {
            Command::Refuse(name, message) => {
                self.refused.insert(name.clone(), message.clone());
            }
            Command::OutOfData => self.out_of_data = true,
            Command::Drain => self.drain = true,
            _ => {}
        }
    }

    /// What to report to a coordinator that has come back, if there is a run that goes on without
    /// one.
    pub fn rejoin(&self, member: MemberId, role: &Role) -> Option<Rejoin> {
        let (run, served) = match role {
            Role::Worker { .. } => (self.run.clone(), Default::default()),
            Role::Server => (None, self.served.clone()),
        };
        let survives = run.as_ref().is_some_and(|run| run.view.coordinator_rank.is_none());
        let comes_back = !self.failed && (survives || !served.is_empty());
        comes_back.then_some(Rejoin { member, run, served })
    }

    /// What a coordinator that has come back must be asked again, beside declarations.
    pub fn unanswered(&self) -> Vec<Command> {
        let out_of_data = self.out_of_data.then_some(Command::OutOfData);
        let drain = self.drain.then_some(Command::Drain);
        let refused = self.refused.iter();
        let refused = refused.map(|(name, why)| Command::Refuse(name.clone(), why.clone()));
        refused.chain(out_of_data).chain(drain).collect()
    }
}

fn apply_to_run(run: &mut KnownRun, event: &MemberEvent) {
    match event {
        MemberEvent::Suspend { epoch, .. } => run.suspended = Some(*epoch),
        MemberEvent::Resume { view, .. } => {
            run.view = view.clone();
            run.suspended = None;
        }
        MemberEvent::Tensors { specs, .. } => run.table.extend_from_slice(specs),
        MemberEvent::TensorError { name, message } => {
            run.refused.insert(name.clone(), message.clone());
        }
        MemberEvent::WorkerLeft { rank } => drop(run.left.insert(*rank)),
        MemberEvent::OutOfData { rank } if !run.idle.ranks.contains(rank) => {
            run.idle.ranks.push(*rank);
        }
        MemberEvent::AllOutOfData { last } => {
            run.idle.times += 1;
            run.idle.last = *last;
            run.idle.ranks.clear();
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_repeated_until_it_is_announced() {
        let mut memory = Memory::default();
        let refused = |memory: &Memory| {
            let commands = memory.unanswered().into_iter();
            let refused = commands.map(|command| match command {
                Command::Refuse(name, why) => (name, why),
                _ => panic!("another command"),
            });
            refused.collect::<Vec<_>>()
        };
        let announced = |name: &str| {
            let (name, message) = (name.to_owned(), "why".to_owned());
            MemberEvent::TensorError { name, message }
        };
        memory.ask(&Command::Refuse("t".to_owned(), "why".to_owned()));
        memory.on_event(&announced("u"), None);
        assert_eq!(refused(&memory), [("t".to_owned(), "why".to_owned())]);
        memory.on_event(&announced("t"), None);
        assert_eq!(refused(&memory), []);
    }
}
