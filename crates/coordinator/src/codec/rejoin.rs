//! Between the protocol's messages and what a returning member reports.

use sumpter_membership::{Idle, KnownRun, MAX_LOOPS, Rejoin};
use sumpter_types::{Epoch, JobId, MemberId, Rank, Role};

use super::{Malformed, spec_from_proto, spec_to_proto, view_from_proto, view_to_proto};
use crate::proto;

/// Epochs and members' numbers beyond these are no coordinator's: there must be room for more.
const MAX_EPOCH: u32 = 1 << 31;
const MAX_MEMBER: u64 = 1 << 48;
/// Runs that one server serves: a lane's connections would be too many long before.
const MAX_SERVED: usize = 16_384;

/// As it travels.
pub(crate) fn rejoin_to_proto(rejoin: Rejoin) -> proto::Rejoin {
    let run = rejoin.run.map(|run| proto::KnownRun {
        view: Some(view_to_proto(run.view)),
        suspended: run.suspended.map_or(0, |epoch| epoch.0),
        table: run.table.into_iter().map(spec_to_proto).collect(),
        refused: run
            .refused
            .into_iter()
            .map(|(name, message)| proto::TensorError { name, message })
            .collect(),
        left: run.left.into_iter().map(|rank| rank.0).collect(),
        out_of_data: run.idle.ranks.into_iter().map(|rank| rank.0).collect(),
        times_all_out: run.idle.times,
        last_out: run.idle.last.0,
    });
    let served = rejoin.served.into_iter();
    let served = served.map(|(job, epoch)| proto::ServedRun { job: job.0, epoch: epoch.0 });
    proto::Rejoin { member: rejoin.member.0, run, served: served.collect() }
}

/// What a returning member says.
pub(crate) fn rejoin_from_proto(rejoin: proto::Rejoin, role: &Role) -> Result<Rejoin, Malformed> {
    let (is_worker, runs) = (matches!(role, Role::Worker { .. }), rejoin.served.len());
    if is_worker && runs > 0 {
        return Err("a worker that serves runs".to_owned());
    }
    if !is_worker && rejoin.run.is_some() {
        return Err("a server that works in a run".to_owned());
    }
    if runs > MAX_SERVED {
        return Err(format!("{runs} runs of one server; at most {MAX_SERVED} are possible"));
    }
    let served = rejoin.served.into_iter().map(|run| Ok((JobId(run.job), epoch(run.epoch)?)));
    let found = Rejoin {
        member: MemberId(rejoin.member),
        run: rejoin.run.map(run_from_proto).transpose()?,
        served: served.collect::<Result<_, Malformed>>()?,
    };
    match found.highest_member() {
        MemberId(member) if member > MAX_MEMBER => Err(format!("the member's number {member}")),
        _ => Ok(found),
    }
}

fn run_from_proto(run: proto::KnownRun) -> Result<KnownRun, Malformed> {
    let view = view_from_proto(run.view.ok_or("a run without a plan")?)?;
    epoch(view.epoch.0)?;
    let in_order =
        view.workers.iter().map(|worker| worker.rank).eq((0..).map(Rank).take(view.workers.len()));
    if view.workers.is_empty() || !in_order {
        return Err("a plan whose ranks are not in order".to_owned());
    }
    if view.coordinator_rank.is_some() {
        return Err("a run whose coordinator ended with one of its workers".to_owned());
    }
    if let Some(worker) = view.workers.iter().find(|worker| worker.lanes.len() > MAX_LOOPS) {
        return Err(format!("a plan in which a worker has {} lanes", worker.lanes.len()));
    }
    let inside = |rank: u32| match (rank as usize) < view.workers.len() {
        true => Ok(Rank(rank)),
        false => Err(format!("rank {rank} of a run of {} workers", view.workers.len())),
    };
    if let Some(rank) = view.gone.last() {
        inside(rank.0)?;
    }
    let table = run.table.into_iter().map(spec_from_proto).collect::<Result<_, _>>()?;
    let refused = run.refused.into_iter().map(|error| (error.name, error.message)).collect();
    let left = run.left.into_iter().map(inside).collect::<Result<_, _>>()?;
    let ranks = run.out_of_data.into_iter().map(inside).collect::<Result<_, _>>()?;
    let idle = Idle { times: run.times_all_out, last: inside(run.last_out)?, ranks };
    let suspended = (run.suspended > 0).then(|| epoch(run.suspended)).transpose()?;
    Ok(KnownRun { suspended, table, refused, left, idle, view })
}

fn epoch(number: u32) -> Result<Epoch, Malformed> {
    match number {
        1..=MAX_EPOCH => Ok(Epoch(number)),
        _ => Err(format!("the epoch {number}")),
    }
}
