//! How it stands, for a person who asks.

use std::collections::BTreeSet;
use std::time::Duration;

use sumpter_types::{JobStatus, MachineCount, MemberId, MemberStatus, Role, StatusReport};
use sumpter_wire::PROTOCOL_VERSION;

use super::Registry;
use super::io::{Join, RunMember, RunMembers};
use super::job::stalls::{Stall, longest};
use super::job::waiting::missing;
use super::job::{Job, Stage};
use super::members::Member;
use crate::tenants::base_name;

impl Registry {
    /// The state of one job, or of all.
    #[must_use]
    pub fn status(&self, now: Duration, only: Option<&str>) -> StatusReport {
        let asked = |name: &str| only.is_none_or(|only| only == name);
        let live = self.jobs.iter().filter(|(name, _)| asked(name));
        let over = self.past.jobs().filter(|job| asked(&job.name)).cloned();
        let jobs: Vec<_> =
            live.map(|(name, job)| self.job_status(now, name, job)).chain(over).collect();
        let serves = |id: u64| jobs.iter().any(|job| job.servers.contains(&id));
        let gone = self.past.servers().filter(|server| serves(server.member)).cloned();
        let here = self.members.servers().map(|(id, member)| member.status(now, id));
        let servers = here.chain(gone).collect();
        StatusReport {
            protocol_version: u32::from(PROTOCOL_VERSION),
            uptime_s: now.as_secs_f64(),
            jobs,
            servers,
            events: self.tally.by_name(),
        }
    }

    /// The members of the run of a job, or of the only one.
    ///
    /// # Errors
    /// A text if there is no such run, or none is named where there are several.
    pub fn run_members(&self, only: Option<&str>) -> Result<RunMembers, String> {
        let fits = |name: &str| only.is_none_or(|only| only == name || only == base_name(name));
        let running = self.jobs.iter().filter(|(name, job)| fits(name) && job.is_running());
        let running: Vec<(&String, &Job)> = running.collect();
        let (name, job) = match (&running[..], only) {
            ([one], _) => *one,
            ([], Some(only)) => return Err(format!("no job called '{only}' is running")),
            ([], None) => return Err("no job is running".to_owned()),
            (several, _) => {
                let names: Vec<&str> = several.iter().map(|(name, _)| name.as_str()).collect();
                return Err(format!("several jobs are running: {}; name one", names.join(", ")));
            }
        };
        let run = job.run.as_ref().expect("a job that is running has a run");
        let servers = run.view.servers.iter().map(|server| server.member);
        let asked = |id: MemberId| {
            let Join { host, role, .. } = &self.members.get(id)?.join;
            let rank = if let Role::Worker { rank, .. } = *role { Some(rank) } else { None };
            Some(RunMember { member: id, rank, host: host.clone() })
        };
        Ok(RunMembers {
            job: name.clone(),
            run: run.id,
            members: job.present.values().copied().chain(servers).filter_map(asked).collect(),
            tensors: run.agreement.table().names().map(str::to_owned).collect(),
        })
    }

    /// The operation of a job that has waited beyond its limit.
    pub(super) fn stall(&self, now: Duration, job: &Job) -> Option<Stall> {
        let run = job.run.as_ref().filter(|_| job.stage() == Stage::Running)?;
        let reports = self.members.reports(now, &job.present);
        let limits = self.members.stall_limits(&job.present);
        longest(&reports, run.agreement.table(), limits)
    }

    /// The state of a job; of its workers, also those that have left.
    pub(super) fn job_status(&self, now: Duration, name: &str, job: &Job) -> JobStatus {
        let workers: Vec<(MemberId, &Member)> =
            job.present.values().filter_map(|id| Some((*id, self.members.get(*id)?))).collect();
        let present = workers.iter().map(|(id, member)| member.status(now, *id));
        let mut all: Vec<MemberStatus> = present.chain(self.past.workers(name).cloned()).collect();
        all.sort_by_key(|worker| worker.rank);
        let servers: Vec<(MemberId, &Member)> = self.members.servers().collect();
        let run = job.run.as_ref();
        JobStatus {
            name: name.to_owned(),
            run: run.map_or_else(String::new, |run| format!("{:016x}", run.id.0)),
            state: job.state().to_owned(),
            seconds: now.saturating_sub(job.since).as_secs_f64(),
            world_size: job.world_size,
            expected_servers: self.members.expected_servers(&job.present),
            missing: missing(job, &self.members),
            epoch: run.map_or(0, |run| run.view.epoch.0),
            machines: match run {
                None => machines(machine_names(&workers), machine_names(&servers)),
                Some(run) => machines(
                    run.view.living().map(|worker| &worker.machine),
                    run.view.servers.iter().map(|server| &server.machine),
                ),
            },
            last_change: run.map_or_else(String::new, |run| run.epochs.last_change().to_owned()),
            tensors: run.map_or(0, |run| run.agreement.table().len() as u32),
            failure: job.failure.as_ref().map_or_else(String::new, |f| f.message.clone()),
            workers: all,
            servers: match run {
                None => servers.iter().map(|(id, _)| id.0).collect(),
                Some(run) => run.view.servers.iter().map(|server| server.member.0).collect(),
            },
            quota: self.options.tenants.quota(name),
            stall: self.stall(now, job).map(|stall| stall.status()),
            over: false,
            settings: job.changeable(),
        }
    }
}

fn machine_names<'a>(members: &'a [(MemberId, &'a Member)]) -> impl Iterator<Item = &'a String> {
    members.iter().map(|(_, member)| &member.join.machine)
}

/// Workers of one machine count once; a server beside a worker is no machine that only helps.
fn machines<'a>(
    workers: impl Iterator<Item = &'a String>,
    servers: impl Iterator<Item = &'a String>,
) -> MachineCount {
    let gpu: BTreeSet<&String> = workers.collect();
    let cpu = servers.collect::<BTreeSet<_>>().difference(&gpu).count();
    MachineCount { gpu: gpu.len() as u32, cpu: cpu as u32 }
}
