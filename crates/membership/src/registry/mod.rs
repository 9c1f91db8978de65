//! The coordinator's logic as a state machine without sockets, threads or a clock: (now, what a
//! member said or that it is gone) to (which member is told what).
//!
//! Invariants: a job's present workers agree on its size and settings; a run's workers go through
//! the same plans in the same order; all workers of a run are told of its tensors in the order of
//! their ids; a failed job is told of its failure once and forgotten when its last worker is gone.

mod admission;
mod agreement;
mod changes;
mod io;
mod job;
mod members;
mod messages;
mod past;
mod returns;
mod runs;
mod status;
mod tally;
#[cfg(test)]
mod tests;
mod tuning;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::time::Duration;

use sumpter_types::{MemberId, Role};
use tracing::{info, warn};

use crate::event::{FatalKind, MemberEvent};
use crate::tenants::base_name;
use admission::Admission;
use job::waiting::NOTICE_EVERY;
use job::{Gone, Job};
use members::Members;
use past::Past;
use tally::{Happened, Tally};

pub use io::{
    Event, Input, Join, Message, Options, Refusal, RunMember, RunMembers, ServerMemory, Serves,
    StallLimits, TuneReport, TuneRequest,
};

/// All jobs and members of a coordinator.
pub struct Registry {
    options: Options,
    draw: Box<dyn FnMut() -> u64 + Send>,
    members: Members,
    jobs: BTreeMap<String, Job>,
    past: Past,
    tally: Tally,
    only_job: Option<String>,
    /// How the last run of the only job ended.
    last_end: Option<MemberEvent>,
    /// The servers have been told that it is over.
    finished: bool,
    outbox: Vec<(MemberId, Event)>,
}

impl Registry {
    /// An empty registry; `draw` gives the runs' random numbers.
    #[must_use]
    pub fn new(options: Options, draw: Box<dyn FnMut() -> u64 + Send>) -> Self {
        Self {
            options,
            draw,
            members: Members::default(),
            jobs: BTreeMap::new(),
            past: Past::default(),
            tally: Tally::default(),
            only_job: None,
            last_end: None,
            finished: false,
            outbox: Vec::new(),
        }
    }

    /// Takes one input; returns what is to be told, in this order.
    pub fn step(&mut self, now: Duration, input: Input) -> Vec<(MemberId, Event)> {
        match input {
            Input::Join(member, join) => self.join(now, member, *join),
            Input::Message(member, message) => self.message(now, member, message),
            Input::Violation(member, what) => {
                let message = format!("the coordinator was sent what it does not take: {what}");
                self.dismiss(member, FatalKind::Protocol, message, what);
            }
            Input::Closed(member, reason) => self.remove(member, &Gone::Lost(reason)),
            Input::Tick => self.tick(now),
            Input::Drain(member) => self.drain(member),
            Input::Tune(name, changes) => self.tune(&name, changes),
            Input::Stop => self.stop(),
        }
        self.settle_drains();
        std::mem::take(&mut self.outbox)
    }

    /// Whether a run has begun whose workers have not all gone, and which has not failed.
    #[must_use]
    pub fn running(&self) -> bool {
        self.jobs.values().any(|job| job.run.is_some() && job.failure.is_none())
    }

    /// Whether a run was the last, and the servers have been told so.
    #[must_use]
    pub fn finished(&self) -> bool {
        self.finished
    }

    /// Whether there is no worker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }

    fn join(&mut self, now: Duration, id: MemberId, join: Join) {
        if self.members.contains(id) {
            return;
        }
        let admission = Admission {
            members: &self.members,
            jobs: &self.jobs,
            past: &self.past,
            tenants: &self.options.tenants,
            only_job: self.only_job.as_deref(),
            finished: self.finished,
        };
        if let Err(refusal) = admission.admit(&join) {
            info!(host = %join.host, reason = %refusal.message, "refused a member");
            self.tally.count(Happened::Refused);
            if refusal.kind == FatalKind::Mismatch {
                self.fail_job(&join.job, FatalKind::Mismatch, |_| refusal.message.clone());
            }
            self.outbox.push((id, Event::Refused(refusal)));
            self.outbox.push((id, Event::Close));
            return;
        }
        let peer_timeout = join.peer_timeout.min(self.options.peer_timeout);
        let (role, name) = (join.role.clone(), join.job.clone());
        let silence = match role {
            Role::Worker { .. } => peer_timeout,
            Role::Server => join.server_timeout.min(self.options.server_timeout).min(peer_timeout),
        };
        self.outbox.push((id, Event::Welcome { peer_timeout, silence }));
        info!(member = %id, host = %join.host, ?role, job = %name, "a member joined");
        let settings = join.settings.clone();
        let known = join.rejoin.as_ref().and_then(|rejoin| rejoin.run.clone());
        self.members.insert(now, id, join, silence);
        match role {
            Role::Worker { rank, world_size, .. } => {
                if self.options.serves != Serves::ManyJobs {
                    self.only_job = Some(base_name(&name).to_owned());
                }
                if let Some(run) = known {
                    return self.worker_returns(now, id, (&name, rank, world_size), run);
                }
                if !self.jobs.contains_key(&name) {
                    self.past.forget_job(&name);
                }
                let job = self
                    .jobs
                    .entry(name.clone())
                    .or_insert_with(|| Job::new(now, NOTICE_EVERY, world_size, settings));
                job.present.insert(rank, id);
                self.start_if_complete(now, &name);
            }
            Role::Server => {
                let names: Vec<String> = self.jobs.keys().cloned().collect();
                for name in &names {
                    self.start_if_complete(now, name);
                    self.complete_return(now, name);
                }
            }
        }
    }

    /// Ends a member's session because of what it did or did not do.
    fn dismiss(&mut self, id: MemberId, kind: FatalKind, message: String, reason: String) {
        if self.members.contains(id) {
            self.tell(id, MemberEvent::Fatal { kind, message });
            self.outbox.push((id, Event::Close));
            self.remove(id, &Gone::Lost(reason));
        }
    }

    fn remove(&mut self, id: MemberId, how: &Gone) {
        let Some(member) = self.members.remove(id) else { return };
        let Join { job, role, host, .. } = &member.join;
        let worker = matches!(role, Role::Worker { .. });
        let who = match role {
            Role::Worker { rank, .. } => format!("rank {rank}"),
            Role::Server => "the server".to_owned(),
        };
        let status = member.status(self.members.last_tick(), id);
        self.past.member_gone(worker.then_some(job), status);
        match how {
            Gone::Left => info!(member = %id, "{who} on {host} has left"),
            Gone::Lost(reason) => {
                warn!(member = %id, "{who} on {host} was lost: {reason}");
                self.tally.count(match role {
                    Role::Worker { .. } => Happened::WorkerLost,
                    Role::Server => Happened::ServerLost,
                });
            }
        }
        match role {
            Role::Worker { rank, .. } => self.worker_gone(job, *rank, host, how),
            Role::Server => self.server_gone(id, host, how),
        }
    }

    fn tick(&mut self, now: Duration) {
        for (id, silence) in self.members.tick(now) {
            self.give_up(id, silence);
        }
        let names: Vec<String> = self.jobs.keys().cloned().collect();
        names.iter().for_each(|name| self.tick_job(now, name));
        self.settle_claims(now);
    }

    /// Ends a silent member's session. A server may come back: nothing of it was needed.
    fn give_up(&mut self, id: MemberId, silence: Duration) {
        let reason = format!("no heartbeat for {:.1} s", silence.as_secs_f64());
        let message = format!("the coordinator gave this process up: {reason}");
        let Some(member) = self.members.get(id) else { return };
        if member.join.role == Role::Server {
            self.tell(id, MemberEvent::GivenUp { message });
            self.outbox.push((id, Event::Close));
            self.remove(id, &Gone::Lost(reason));
        } else {
            self.dismiss(id, FatalKind::PeerLost, message, reason);
        }
    }

    /// A session could not prove to hold the token.
    pub fn refused(&mut self) {
        self.tally.count(Happened::Refused);
    }

    /// The servers that are here, and their hosts.
    pub fn hosts_of_servers(&self) -> impl Iterator<Item = (MemberId, &str)> {
        self.members.servers().map(|(id, member)| (id, member.join.host.as_str()))
    }

    fn tell(&mut self, id: MemberId, event: MemberEvent) {
        self.outbox.push((id, Event::Tell(event)));
    }

    fn tell_workers(&mut self, name: &str, event: &MemberEvent) {
        let Some(job) = self.jobs.get(name) else { return };
        let told = job.present.values().map(|id| (*id, Event::Tell(event.clone())));
        self.outbox.extend(told);
    }
}
