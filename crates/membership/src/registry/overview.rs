//! The state of a registry, as it is shown to an operator and as requests are checked against it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_config::{Texts, change};
use sumpter_types::{
    CodecChoice, JobStatus, MachineCount, MemberId, MemberStatus, Role, StatusReport, run_text,
};
use sumpter_wire::PROTOCOL_VERSION;

use super::io::{Join, Options, RunMember, RunMembers, TuneReport, TuneRequest};
use super::job::{Job, Stage};
use super::members::{Member, Members};
use super::past::Past;
use super::tally::Tally;
use super::words::list;
use crate::tenants::{base_name, generation};

pub(crate) struct Overview<'a> {
    pub options: &'a Options,
    pub members: &'a Members,
    pub jobs: &'a BTreeMap<String, Job>,
    pub past: &'a Past,
    pub tally: &'a Tally,
}

impl Overview<'_> {
    /// The state of one job, or of all.
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

    /// The state of a job; of its workers, also those that have left.
    pub fn job_status(&self, now: Duration, name: &str, job: &Job) -> JobStatus {
        let workers: Vec<(MemberId, &Member)> =
            job.present.values().filter_map(|id| Some((*id, self.members.get(*id)?))).collect();
        let present = workers.iter().map(|(id, member)| member.status(now, *id));
        let mut all: Vec<MemberStatus> = present.chain(self.past.workers(name).cloned()).collect();
        all.sort_by_key(|worker| worker.rank);
        let servers: Vec<(MemberId, &Member)> = self.members.servers().collect();
        let run = job.run.as_ref();
        let compression = chosen(&all);
        let late = run.map_or_else(Vec::new, |run| {
            let here = workers.iter().chain(&servers).flat_map(|(_, member)| &member.stats.late);
            run.waits.total(run.id, job.world_size, here)
        });
        JobStatus {
            name: name.to_owned(),
            run: run.map_or_else(String::new, |run| run_text(run.id)),
            state: job.state().to_owned(),
            seconds: now.saturating_sub(job.since).as_secs_f64(),
            world_size: job.world_size,
            expected_servers: self.members.expected_servers(&job.present),
            missing: job.missing(self.members),
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
            stall: job.stall(now, self.members).map(|stall| stall.status()),
            over: false,
            settings: job.changeable(),
            compression,
            late,
        }
    }

    /// The job a request is about, and its changes since the start once the request is granted.
    ///
    /// # Errors
    /// Why it cannot be granted, in words.
    pub fn changed(&self, request: &TuneRequest) -> Result<(String, Texts), String> {
        let (name, job) = self.meant(&request.job)?;
        let Some(run) = job.run.as_ref().filter(|_| job.stage() == Stage::Running) else {
            let state = job.state();
            return Err(format!("job '{name}' is {state}: settings change while it runs"));
        };
        let epoch = run.view.epoch.0;
        if request.epoch != 0 && request.epoch != epoch {
            return Err(format!("the plan of epoch {} is over; it is {epoch} now", request.epoch));
        }
        let unchanged = Texts::new();
        let before = if request.reset { &unchanged } else { &run.view.changes };
        let changes = change(&job.settings, before, &request.settings);
        Ok((name.clone(), changes.map_err(|error| error.to_string())?))
    }

    /// Whether there is a job of this name, of whatever generation.
    pub fn has_job(&self, name: &str) -> bool {
        self.meant(name).is_ok()
    }

    /// The job of a name, of whatever generation; the only one if none is given.
    fn meant(&self, name: &str) -> Result<(&String, &Job), String> {
        let fits = |(known, _): &(&String, &Job)| {
            name.is_empty() || *known == name || base_name(known) == name
        };
        let mut found = self.jobs.iter().filter(fits);
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            // Of several generations the latest one has the work.
            (Some(first), Some(second)) if !name.is_empty() => {
                let all = [first, second].into_iter().chain(found);
                Ok(all.fold(first, |latest, one| {
                    if generation(one.0) > generation(latest.0) { one } else { latest }
                }))
            }
            (Some(_), Some(_)) => {
                let names = list(self.jobs.keys());
                Err(format!("there are several jobs ({names}): say which one is meant"))
            }
            (None, _) if name.is_empty() => Err("there is no job".to_owned()),
            (None, _) => {
                let names = match self.jobs.is_empty() {
                    true => "none".to_owned(),
                    false => list(self.jobs.keys()),
                };
                Err(format!("there is no job '{name}'; jobs there are: {names}"))
            }
        }
    }

    /// What a job has just been asked to change to.
    pub fn tune_report(&self, name: &str) -> TuneReport {
        let job = self.jobs.get(name);
        let run = job.and_then(|job| job.run.as_ref());
        TuneReport {
            job: name.to_owned(),
            epoch: run.map_or(0, |run| run.view.epoch.0),
            settings: job.map(Job::changeable).unwrap_or_default(),
        }
    }
}

/// What `auto` has chosen, as a worker has reported it: one that is here, if any has.
fn chosen(workers: &[MemberStatus]) -> Vec<CodecChoice> {
    let reported = |gone| {
        move |worker: &&MemberStatus| worker.gone == gone && !worker.stats.choices.is_empty()
    };
    let worker =
        workers.iter().find(reported(false)).or_else(|| workers.iter().find(reported(true)));
    worker.map(|worker| worker.stats.choices.clone()).unwrap_or_default()
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
