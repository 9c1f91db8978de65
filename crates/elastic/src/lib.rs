//! Forms the generations of elastic jobs, as a state machine without sockets, threads or a clock:
//! (now, a process' message or its loss) to (messages to processes).
//!
//! A process that wants to work asks for a seat. Once all that can come have come, all are told
//! their rank in the next *generation*, and join the ordinary job of that name. When a generation
//! breaks or makes room for newcomers, its processes ask again.
//!
//! Invariants: a generation's number is never given twice; its ranks are 0 to size - 1, each given
//! once; processes of the last generation come before newcomers, in their old order; a generation
//! is never larger than the limit of its processes, or smaller than what they need.
#![forbid(unsafe_code)]

mod job;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use job::{Decision, Job, Process};
use sumpter_membership::{MAX_WORLD, Tenants, check_name};
use sumpter_types::MemberId;

/// Elastic jobs at once.
const MAX_ELASTIC_JOBS: usize = 4096;
/// Generations of one elastic job: one a second for a century.
const MAX_GENERATION: u64 = 1 << 32;
/// A gap between ticks beyond this means that the coordinator itself stood still, and others'
/// silence says nothing about them.
const STALL: Duration = Duration::from_secs(1);

/// What a process says when it comes.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The elastic job's name.
    pub job: String,
    /// The fewest workers a generation may have.
    pub min_workers: u32,
    /// The most; no limit if 0.
    pub max_workers: u32,
    /// The first generation waits for so many while there is time.
    pub expected: u32,
    /// A name a process recognizes.
    pub host: String,
    /// Equal for processes of one machine.
    pub machine: String,
    /// How long a generation may take to form once no worker trains.
    pub start_timeout: Duration,
    /// Silence after which the process counts as dead.
    pub peer_timeout: Duration,
    /// Its last generation; 0 for a newcomer.
    pub generation: u64,
    /// Its rank there; for a newcomer its number among those that were started.
    pub rank: u32,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A process is there; it works in the generation it names, or will ask for a seat.
    Come(MemberId, Box<Request>),
    /// A process asks for a seat in the next generation.
    Ask(MemberId),
    /// A process is alive.
    Heartbeat(MemberId),
    /// A process has ended; the job is `done` if its work is.
    Leave(MemberId, bool),
    /// A process' stream ended without a word.
    Closed(MemberId),
    /// Time has passed.
    Tick,
}

/// A process' place in a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seating {
    /// The generation, from 1.
    pub generation: u64,
    /// Its rank.
    pub rank: u32,
    /// The workers of the generation.
    pub world_size: u32,
    /// Its number among those of its machine.
    pub local_rank: u32,
    /// The workers on its machine.
    pub local_size: u32,
}

/// The answer to a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// It has a seat.
    Seated(Seating),
    /// Others of its generation are gone, or newcomers could be taken in.
    Changed {
        /// Processes that are gone.
        lost: u32,
        /// Processes that could be taken in.
        newcomers: u32,
    },
    /// Who is missing.
    Waiting {
        /// In words.
        missing: Vec<String>,
        /// Since the generation began to form.
        seconds: f64,
    },
    /// The job has ended.
    Over,
    /// There is no seat, for this reason.
    Refused(String),
    /// Its heartbeat is acknowledged.
    HeartbeatSeen,
}

/// All elastic jobs of a coordinator.
pub struct Seats {
    jobs: BTreeMap<String, Job>,
    /// How long a job is remembered once no worker is left.
    remember: Duration,
    tenants: Arc<Tenants>,
    arrivals: u64,
    last_tick: Duration,
    outbox: Vec<(MemberId, Response)>,
}

impl Seats {
    /// Without jobs. A job without processes is remembered for a time: while it is, a process
    /// that comes after its end is refused with that reason, and does not begin it anew.
    /// The quotas are those of `tenants`.
    pub fn new(remember: Duration, tenants: Arc<Tenants>) -> Self {
        let (jobs, outbox) = (BTreeMap::new(), Vec::new());
        Self { jobs, remember, tenants, arrivals: 0, last_tick: Duration::ZERO, outbox }
    }

    /// Takes one input; returns the events for processes, in this order.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<(MemberId, Response)> {
        match input {
            Input::Come(id, request) => self.come(now, id, *request),
            Input::Ask(id) => self.with_job_of(now, id, |process| process.asks = true),
            Input::Heartbeat(id) => {
                let process = self.jobs.values_mut().find_map(|job| job.processes.get_mut(&id));
                if let Some(process) = process {
                    process.heard = now;
                    self.outbox.push((id, Response::HeartbeatSeen));
                }
            }
            Input::Leave(id, done) => self.remove(now, id, done),
            Input::Closed(id) => self.remove(now, id, false),
            Input::Tick => self.tick(now),
        }
        std::mem::take(&mut self.outbox)
    }

    fn come(&mut self, now: Duration, id: MemberId, mut request: Request) {
        if let Err(what) = well_formed(&request).and_then(|()| self.make_room(&mut request)) {
            self.outbox.push((id, Response::Refused(what)));
            return;
        }
        let name = request.job.clone();
        let job = self.jobs.entry(name.clone()).or_default();
        job.generation = job.generation.max(request.generation);
        job.empty = None;
        self.arrivals += 1;
        let (arrival, asks) = (self.arrivals, false);
        job.processes.insert(id, Process { request, arrival, asks, heard: now, knows: (0, 0) });
        self.settle(now, &name);
    }

    /// Whether there is room for one more process; bounds its generations by the job's quota.
    fn make_room(&self, request: &mut Request) -> Result<(), String> {
        let name = &request.job;
        let quota = self.tenants.of(name).and_then(|tenant| tenant.max_workers);
        let most = quota.unwrap_or(MAX_WORLD);
        if request.min_workers > most {
            return Err(format!(
                "job '{name}' needs {} workers (min_workers), its quota is {most} (max_workers)",
                request.min_workers
            ));
        }
        request.max_workers = match request.max_workers {
            0 => most,
            asked => asked.min(most),
        };
        let Some(job) = self.jobs.get(name) else {
            return match self.jobs.len() {
                count if count >= MAX_ELASTIC_JOBS => Err(format!(
                    "the coordinator is full: it has {count} elastic jobs; start job '{name}' \
                     again when one of them has ended"
                )),
                _ => Ok(()),
            };
        };
        // A whole generation at work, and as many who wait to replace it.
        let processes = job.processes.len();
        if processes >= 2 * most as usize {
            return Err(format!(
                "job '{name}' has {processes} processes that work or wait for a seat, and at most \
                 {most} may work at once; start another when one of them has ended"
            ));
        }
        Ok(())
    }

    fn with_job_of(&mut self, now: Duration, id: MemberId, change: impl Fn(&mut Process)) {
        let Some(name) = self.job_of(id) else { return };
        let process = self.jobs.get_mut(&name).and_then(|job| job.processes.get_mut(&id));
        if let Some(process) = process {
            process.heard = now;
            change(process);
        }
        self.settle(now, &name);
    }

    fn remove(&mut self, now: Duration, id: MemberId, done: bool) {
        let Some(name) = self.job_of(id) else { return };
        let Some(job) = self.jobs.get_mut(&name) else { return };
        if let Some(process) = job.processes.remove(&id) {
            job.over |= done;
            job.lost += u32::from(!done && job.awaits(&process));
            job.empty = job.processes.is_empty().then_some(now);
        }
        self.settle(now, &name);
    }

    fn tick(&mut self, now: Duration) {
        let stalled = now.saturating_sub(self.last_tick) > STALL;
        self.last_tick = now;
        let mut silent = Vec::new();
        for job in self.jobs.values_mut() {
            for (id, process) in &mut job.processes {
                if stalled {
                    process.heard = now;
                } else if now.saturating_sub(process.heard) > process.request.peer_timeout {
                    silent.push(*id);
                }
            }
        }
        silent.into_iter().for_each(|id| self.remove(now, id, false));
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        names.iter().for_each(|name| self.settle(now, name));
        let remember = self.remember;
        self.jobs.retain(|_, job| match job.empty {
            Some(since) => now.saturating_sub(since) <= remember,
            None => true,
        });
    }

    fn job_of(&self, id: MemberId) -> Option<String> {
        let has = |job: &Job| job.processes.contains_key(&id);
        self.jobs.iter().find(|(_, job)| has(job)).map(|(name, _)| name.clone())
    }

    /// Forms the next generation, or gives it up, or announces what it waits for.
    fn settle(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        if job.over {
            let asking: Vec<MemberId> = job.asking().into_iter().map(|(id, _)| id).collect();
            for id in asking {
                job.processes.remove(&id);
                self.outbox.push((id, Response::Over));
            }
        } else {
            match job.decide(now) {
                Decision::Form(chosen) => job.form(&chosen, &mut self.outbox),
                Decision::GiveUp(message) => job.give_up(name, &message, &mut self.outbox),
                Decision::Wait(missing) => job.notify(now, &missing, &mut self.outbox),
            }
        }
        if job.processes.is_empty() {
            job.empty.get_or_insert(now);
        }
        job.announce(&mut self.outbox);
    }
}

fn well_formed(request: &Request) -> Result<(), String> {
    for (what, name) in
        [("job", &request.job), ("host", &request.host), ("machine", &request.machine)]
    {
        check_name(what, name)?;
    }
    if request.generation > MAX_GENERATION {
        return Err(format!(
            "generation {}; at most {MAX_GENERATION} are possible",
            request.generation
        ));
    }
    let Request { min_workers, max_workers, .. } = *request;
    if min_workers == 0 || (max_workers > 0 && max_workers < min_workers) {
        return Err(format!(
            "min_workers is {min_workers} and max_workers {max_workers}: an elastic job needs at \
             least 1 worker, and may not have more than the most"
        ));
    }
    Ok(())
}
