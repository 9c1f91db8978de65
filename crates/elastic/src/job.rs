//! One elastic job: its candidates, and when which of them form the next generation.

use std::collections::BTreeMap;
use std::time::Duration;

use sumpter_types::MemberId;

use crate::{Request, Response, Seating};

/// The interval of the message to waiting processes about what is missing.
const NOTICE_EVERY: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(super) struct Job {
    /// The last generation that was formed.
    pub(super) generation: u64,
    pub(super) processes: BTreeMap<MemberId, Process>,
    /// Since when the next generation has been forming.
    forming: Option<Duration>,
    next_notice: Duration,
    /// Processes of this generation that are gone.
    pub(super) lost: u32,
    /// A process has completed the work, so that no other need begin.
    pub(super) over: bool,
    /// Since when no worker has been left.
    pub(super) empty: Option<Duration>,
}

pub(super) struct Process {
    pub(super) request: Request,
    pub(super) arrival: u64,
    pub(super) asks: bool,
    pub(super) heard: Duration,
    /// What it was last notified of: lost processes and newcomers.
    pub(super) knows: (u32, u32),
}

impl Process {
    /// Ascending by who comes first: those of the last generation by rank, then newcomers.
    fn standing(&self) -> (std::cmp::Reverse<u64>, u32, u64) {
        let Request { generation, rank, .. } = self.request;
        (std::cmp::Reverse(generation), rank, self.arrival)
    }

    fn most(&self) -> u32 {
        match self.request.max_workers {
            0 => u32::MAX,
            most => most,
        }
    }
}

pub(super) enum Decision {
    Form(Vec<MemberId>),
    /// Too few have come; how many, in words.
    GiveUp(String),
    /// Who is missing, in words.
    Wait(Vec<String>),
}

impl Job {
    /// Whether the next generation waits for this process.
    pub(super) fn awaits(&self, process: &Process) -> bool {
        !process.asks && process.request.generation == self.generation && self.generation > 0
    }

    /// Those who ask for a seat, in the order of their ranks to be.
    pub(super) fn asking(&self) -> Vec<(MemberId, &Process)> {
        let processes = self.processes.iter().filter(|(_, process)| process.asks);
        let mut asking: Vec<_> = processes.map(|(id, process)| (*id, process)).collect();
        asking.sort_by_key(|(_, process)| process.standing());
        asking
    }

    pub(super) fn decide(&mut self, now: Duration) -> Decision {
        let asking = self.asking();
        let at_work = self.processes.values().filter(|process| self.awaits(process)).count();
        let broken = asking.iter().any(|(_, p)| p.request.generation == self.generation);
        let Some((_, first)) = asking.first() else {
            self.forming = None;
            return Decision::Wait(Vec::new());
        };
        if at_work > 0 && !broken {
            self.forming = None;
            return Decision::Wait(vec![format!("{at_work} workers to commit")]);
        }
        let count = u32::try_from(asking.len()).unwrap_or(u32::MAX);
        let most = asking.iter().map(|(_, p)| p.most()).min().unwrap_or(u32::MAX);
        let least = asking.iter().map(|(_, p)| p.request.min_workers).max().unwrap_or(1);
        let wanted = match self.generation {
            0 => least.max(first.request.expected.min(most)),
            _ => least,
        };
        let limit = first.request.start_timeout;
        let chosen: Vec<MemberId> = asking.iter().map(|(id, _)| *id).take(most as usize).collect();
        let begun = *self.forming.get_or_insert(now);
        let waited = now.saturating_sub(begun);
        let missing = self.missing(wanted.saturating_sub(count));
        match waited > limit {
            _ if at_work == 0 && count >= wanted => Decision::Form(chosen),
            true if count >= least => Decision::Form(chosen),
            true => Decision::GiveUp(format!(
                "{count} of at least {least} workers came within {:.0} s; missing: {}",
                limit.as_secs_f64(),
                missing.join(", ")
            )),
            false => Decision::Wait(missing),
        }
    }

    /// Who is waited for: the processes that work as before, and how many others.
    fn missing(&self, others: u32) -> Vec<String> {
        let at_work = self.processes.values().filter(|process| self.awaits(process));
        let mut missing: Vec<String> = at_work
            .map(|p| format!("rank {} on {} to stop", p.request.rank, p.request.host))
            .collect();
        if others > 0 {
            missing.push(format!("{others} more workers to start"));
        }
        missing
    }

    pub(super) fn form(&mut self, chosen: &[MemberId], outbox: &mut Vec<(MemberId, Response)>) {
        self.generation += 1;
        (self.forming, self.lost) = (None, 0);
        let machine = |id: &MemberId| self.processes.get(id).map(|p| p.request.machine.clone());
        let machines: Vec<Option<String>> = chosen.iter().map(machine).collect();
        for (rank, id) in chosen.iter().enumerate() {
            let same = |others: &[Option<String>]| {
                others.iter().filter(|other| **other == machines[rank]).count() as u32
            };
            let seating = Seating {
                generation: self.generation,
                rank: rank as u32,
                world_size: chosen.len() as u32,
                local_rank: same(&machines[..rank]),
                local_size: same(&machines),
            };
            if let Some(process) = self.processes.get_mut(id) {
                (process.asks, process.knows) = (false, (0, 0));
                (process.request.generation, process.request.rank) =
                    (self.generation, seating.rank);
                outbox.push((*id, Response::Seated(seating)));
            }
        }
    }

    pub(super) fn give_up(
        &mut self,
        name: &str,
        message: &str,
        outbox: &mut Vec<(MemberId, Response)>,
    ) {
        self.forming = None;
        let message = format!("job '{name}' cannot go on: {message}");
        let asking: Vec<MemberId> = self.asking().into_iter().map(|(id, _)| id).collect();
        for id in asking {
            self.processes.remove(&id);
            outbox.push((id, Response::Refused(message.clone())));
        }
    }

    pub(super) fn notify(
        &mut self,
        now: Duration,
        missing: &[String],
        outbox: &mut Vec<(MemberId, Response)>,
    ) {
        if missing.is_empty() || now < self.next_notice {
            return;
        }
        self.next_notice = now + NOTICE_EVERY;
        let seconds = self.forming.map_or(0.0, |since| now.saturating_sub(since).as_secs_f64());
        for (id, _) in self.asking() {
            outbox.push((id, Response::Waiting { missing: missing.to_vec(), seconds }));
        }
    }

    /// Notifies those at work of what has changed since they were last notified.
    pub(super) fn announce(&mut self, outbox: &mut Vec<(MemberId, Response)>) {
        let asking: Vec<_> = self.asking().iter().map(|(_, process)| process.most()).collect();
        let newcomers = asking.len() as u32;
        let generation = self.generation;
        let at_work = self.processes.values().filter(|process| self.awaits(process)).count() as u32;
        for (id, process) in &mut self.processes {
            if process.asks || process.request.generation != generation || generation == 0 {
                continue;
            }
            // A process without a place waits until one is free.
            let room = process.most().saturating_sub(at_work);
            let knows = (self.lost, newcomers.min(room));
            if process.knows != knows {
                process.knows = knows;
                outbox.push((*id, Response::Changed { lost: knows.0, newcomers: knows.1 }));
            }
        }
    }
}
