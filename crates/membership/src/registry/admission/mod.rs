//! Who may join, and in which words the others are refused.

mod quotas;

use std::collections::BTreeMap;

use sumpter_types::{Rank, Role};

use crate::event::FatalKind;
use crate::limits::{MAX_LANES, MAX_LOOPS, MAX_WORLD, check_name};
use crate::registry::io::{Join, Refusal};
use crate::registry::job::{Job, Stage};
use crate::registry::members::Members;
use crate::registry::past::Past;
use crate::registry::words::list;
use crate::rejoin::KnownRun;
use crate::tenants::{Tenants, base_name};
use crate::view::LaneView;
use quotas::{check_size, room_for};

/// Addresses of one lane: more than any machine has network interfaces.
const MAX_LANE_ADDRESSES: usize = 64;
/// Settings that are compared, and bytes of each.
const MAX_SETTINGS: usize = 64;
const MAX_SETTING_BYTES: usize = 1024;

/// What decides whether an applicant may join.
pub(crate) struct Admission<'a> {
    pub members: &'a Members,
    pub jobs: &'a BTreeMap<String, Job>,
    pub past: &'a Past,
    pub tenants: &'a Tenants,
    /// The only job of the coordinator, once its first worker has joined.
    pub only_job: Option<&'a str>,
    /// The coordinator's only run is over.
    pub finished: bool,
}

impl Admission<'_> {
    /// Whether the applicant may join.
    pub(crate) fn admit(&self, join: &Join) -> Result<(), Refusal> {
        well_formed(join).map_err(|what| refusal(FatalKind::Protocol, what))?;
        if self.finished {
            let message = "this coordinator's run is over".to_owned();
            return Err(Refusal { kind: FatalKind::Start, message, retry: true });
        }
        let Role::Worker { rank, world_size, .. } = join.role else { return Ok(()) };
        let host = &join.host;
        if rank.0 >= world_size {
            return Err(start(format!(
                "rank {rank} on {host} is outside its world of {world_size} workers; ranks count \
                 from 0"
            )));
        }
        if let Some(only) = self.only_job
            && only != base_name(&join.job)
        {
            return Err(start(format!(
                "this coordinator serves the run of job '{only}' alone, not job '{}'; start a \
                 coordinator of its own for many jobs",
                join.job
            )));
        }
        check_size(join, world_size, self.tenants)?;
        if let Some(run) = join.rejoin.as_ref().and_then(|rejoin| rejoin.run.as_ref()) {
            // It got its room when it began, and servers keep its tensors: however full it is now.
            return self.admit_return(join, rank, world_size, run);
        }
        room_for(join, self.tenants, self.jobs, self.members)?;
        match self.jobs.get(&join.job) {
            Some(job) => self.admit_worker(job, join, rank, world_size),
            None => Ok(()),
        }
    }

    /// Whether a worker may come back to its run.
    fn admit_return(
        &self,
        join: &Join,
        rank: Rank,
        world_size: u32,
        known: &KnownRun,
    ) -> Result<(), Refusal> {
        let (name, host) = (&join.job, &join.host);
        if known.view.name != *name || known.view.workers.len() != world_size as usize {
            let message = format!("rank {rank} on {host} comes back to another job's run");
            return Err(refusal(FatalKind::Protocol, message));
        }
        let lost = |why: &str| {
            let message = format!("rank {rank} on {host} cannot come back to job '{name}': {why}");
            refusal(FatalKind::PeerLost, message)
        };
        let Some(job) = self.jobs.get(name) else {
            let number = format!("{:016x}", known.view.job.0);
            return match self.past.jobs().any(|job| job.run == number) {
                true => Err(lost("its run is over")),
                false => Ok(()),
            };
        };
        let run = job.run.as_ref().filter(|run| run.id == known.view.job);
        let Some(run) = run.filter(|_| job.failure.is_none()) else {
            return Err(lost("another run of that name is here, or this one has failed"));
        };
        let Some(returning) = run.epochs.return_state() else {
            return Err(lost("its run goes on without it"));
        };
        if run.view.gone.contains(&rank) {
            return Err(lost("the others have gone on without it"));
        }
        if returning.has(rank) {
            // The end of its former session may not have been noticed yet.
            return Err(Refusal { retry: true, ..lost("it is here already") });
        }
        run.agreement.table().agrees_with(&known.table).map_err(|why| lost(&why))
    }

    fn admit_worker(
        &self,
        job: &Job,
        join: &Join,
        rank: Rank,
        world_size: u32,
    ) -> Result<(), Refusal> {
        let Join { job: name, host, .. } = join;
        let here =
            || list(job.present.iter().map(|(r, m)| format!("{r} ({})", self.members.host(*m))));
        match (job.stage(), &job.failure) {
            (Stage::Failed, Some(failure)) => {
                let message = format!(
                    "job '{name}' has failed ({}) and is still ending; present: {}",
                    failure.message,
                    here()
                );
                let retry = job.run.is_some();
                return Err(Refusal { kind: FatalKind::Start, message, retry });
            }
            (Stage::Running, _) if job.run.as_ref().is_some_and(|run| !run.left.is_empty()) => {
                let message = format!("job '{name}' is still ending; present: {}", here());
                return Err(Refusal { kind: FatalKind::Start, message, retry: true });
            }
            (Stage::Waiting, _) => {}
            (Stage::Returning, _) => {
                let message = format!("the run of job '{name}' is still coming back: {}", here());
                return Err(Refusal { kind: FatalKind::Start, message, retry: true });
            }
            _ => {
                return Err(start(format!(
                    "job '{name}' is already running with ranks {}; rank {rank} on {host} comes \
                     too late. Give another run another job name",
                    here()
                )));
            }
        }
        let first = job.present.iter().next();
        let (first_rank, first_host) =
            first.map_or((Rank(0), "?"), |(rank, member)| (*rank, self.members.host(*member)));
        if world_size != job.world_size {
            return Err(start(format!(
                "rank {rank} on {host} counts {world_size} workers, rank {first_rank} on \
                 {first_host} counts {}; the world size must be equal on every rank",
                job.world_size
            )));
        }
        if let Some(holder) = job.present.get(&rank) {
            return Err(start(format!(
                "rank {rank} of job '{name}' is taken by a process on {}; this one is on {host}. \
                 Start every rank once, and give another run another job name",
                self.members.host(*holder)
            )));
        }
        match difference(&job.settings, &join.settings) {
            None => Ok(()),
            Some((setting, theirs, ours)) => Err(refusal(
                FatalKind::Mismatch,
                format!(
                    "setting {setting} differs: rank {first_rank} on {first_host} has {theirs}, \
                     rank {rank} on {host} has {ours}; give every rank the same value"
                ),
            )),
        }
    }
}

fn refusal(kind: FatalKind, message: String) -> Refusal {
    Refusal { kind, message, retry: false }
}

fn start(message: String) -> Refusal {
    refusal(FatalKind::Start, message)
}

/// The first setting in which the two differ, with both values in words.
fn difference<'a>(
    theirs: &'a BTreeMap<String, String>,
    ours: &'a BTreeMap<String, String>,
) -> Option<(&'a str, &'a str, &'a str)> {
    let value = |map: &'a BTreeMap<String, String>, key: &str| {
        map.get(key).map_or("no value", String::as_str)
    };
    theirs
        .keys()
        .chain(ours.keys())
        .map(|key| (key.as_str(), value(theirs, key), value(ours, key)))
        .find(|(_, theirs, ours)| theirs != ours)
}

fn well_formed(join: &Join) -> Result<(), String> {
    let names = [("host", &join.host), ("machine", &join.machine), ("job", &join.job)];
    for (what, name) in names {
        // A server serves all jobs and need not name one.
        if what != "job" || join.role != Role::Server || !name.is_empty() {
            check_name(what, name)?;
        }
    }
    let most = if join.role == Role::Server { MAX_LANES } else { MAX_LOOPS };
    if join.lanes.len() > most {
        return Err(format!("{} lanes; at most {most} are possible", join.lanes.len()));
    }
    if join.role == Role::Server && join.lanes.is_empty() {
        return Err("a server needs at least one lane".to_owned());
    }
    let own = |lane: &LaneView| (1..=lane.addresses.len()).contains(&(lane.own as usize));
    if join.lanes.iter().any(|lane| !own(lane) || lane.addresses.len() > MAX_LANE_ADDRESSES) {
        return Err(format!("a lane needs from 1 to {MAX_LANE_ADDRESSES} addresses, one its own"));
    }
    let mut addresses = join.lanes.iter().flat_map(|lane| &lane.addresses);
    if let Some(lane) = addresses.find(|a| a.port() == 0 || a.ip().is_unspecified()) {
        return Err(format!("no member can reach a lane at {lane}; give the interface's address"));
    }
    if let Role::Worker { world_size, .. } = join.role
        && !(1..=MAX_WORLD).contains(&world_size)
    {
        return Err(format!("a world of {world_size} workers; 1 to {MAX_WORLD} are possible"));
    }
    if let Some(rack) = &join.rack {
        check_name("rack", &rack.name)?;
    }
    if let Some(group) = &join.device_group {
        check_name("device group", &group.name)?;
    }
    let trunk = join.rack.as_ref().and_then(|rack| rack.trunk_gbps);
    for gbps in join.bandwidth.map(|known| known.gbps).into_iter().chain(trunk) {
        if !gbps.is_finite() || gbps <= 0.0 {
            return Err(format!("a bandwidth of {gbps:?} Gb/s"));
        }
    }
    let long = |text: &String| text.len() > MAX_SETTING_BYTES;
    if join.settings.len() > MAX_SETTINGS || join.settings.iter().any(|(k, v)| long(k) || long(v)) {
        return Err(format!("more than {MAX_SETTINGS} settings, or one that is too long"));
    }
    Ok(())
}
