//! Whether there is room for another job: by number, by its size, and in the servers' memory.

use std::collections::{BTreeMap, BTreeSet};

use super::start;
use crate::registry::io::{Join, Refusal, ServerMemory};
use crate::registry::job::Job;
use crate::registry::members::Members;
use crate::tenants::{Tenants, base_name};

/// Generations of an elastic job that may be here at once: the one at work, and those before it in
/// which a worker hangs.
const MAX_GENERATIONS: usize = 3;

/// Whether a job may have so many workers.
pub(crate) fn check_size(join: &Join, world_size: u32, tenants: &Tenants) -> Result<(), Refusal> {
    let name = &join.job;
    match tenants.of(name).and_then(|tenant| tenant.max_workers) {
        Some(limit) if world_size > limit => Err(start(format!(
            "job '{name}' has {world_size} workers, its quota is {limit} (max_workers)"
        ))),
        _ => Ok(()),
    }
}

/// Whether there is room for a job that is new. The generations of an elastic job are one job,
/// which has room once the first is here.
/// Other jobs are counted but never named: their names are private.
pub(crate) fn room_for(
    join: &Join,
    tenants: &Tenants,
    jobs: &BTreeMap<String, Job>,
    members: &Members,
) -> Result<(), Refusal> {
    let name = &join.job;
    if jobs.contains_key(name) {
        return Ok(());
    }
    let generations = jobs.keys().filter(|job| base_name(job) == base_name(name)).count();
    match generations {
        0 => room_for_new(name, tenants, jobs, members).map_err(start),
        1..MAX_GENERATIONS => Ok(()),
        _ => {
            let message = format!(
                "{generations} generations of job '{}' are here already, in some of which a \
                 worker hangs; '{name}' can start when one of them has ended",
                base_name(name)
            );
            Err(Refusal { retry: true, ..start(message) })
        }
    }
}

/// Whether there is room for a job of which nothing is here.
fn room_for_new(
    name: &str,
    tenants: &Tenants,
    jobs: &BTreeMap<String, Job>,
    members: &Members,
) -> Result<(), String> {
    let known: BTreeSet<&str> = jobs.keys().map(|job| base_name(job)).collect();
    if let Some(limit) = tenants.max_jobs.filter(|limit| known.len() >= *limit as usize) {
        return Err(format!(
            "the coordinator is full: it has {} of at most {limit} jobs (max_jobs); start job \
             '{name}' again when one of them has ended",
            known.len()
        ));
    }
    for (_, server) in members.servers() {
        let ServerMemory { max_bytes: Some(all), max_job_bytes } = server.join.memory else {
            continue;
        };
        let promised = |job: &str| {
            let quota = tenants.quota(job).max_bytes.unwrap_or(u64::MAX);
            quota.min(max_job_bytes).min(all)
        };
        let taken = known.iter().map(|job| promised(job)).fold(0, u64::saturating_add);
        let wanted = promised(name);
        if taken.saturating_add(wanted) > all {
            return Err(format!(
                "the server on {} is full: of its {} (max_bytes) other jobs may take {}, job \
                 '{name}' up to {}; start it again when one of them has ended, or give it a \
                 smaller quota",
                server.join.host,
                size(all),
                size(taken),
                size(wanted)
            ));
        }
    }
    Ok(())
}

/// Bytes as a person writes them.
fn size(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, bits)| bytes >= 1 << bits) {
        Some((unit, bits)) => format!("{:.1} {unit}", bytes as f64 / f64::from(1u32 << bits)),
        None => format!("{bytes} bytes"),
    }
}
