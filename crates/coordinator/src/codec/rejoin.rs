//! Between the protocol's messages and what a returning member reports.

use prost::Message;
use sumpter_membership::{Idle, KnownRun, MAX_LOOPS, Rejoin};
use sumpter_types::{Epoch, JobId, MemberId, Rank, Role};

use super::{
    Malformed, decompress, spec_from_proto, spec_to_proto, view_from_proto, view_to_proto,
};
use crate::proto;

/// Epochs and members' numbers beyond these are no coordinator's: there must be room for more.
const MAX_EPOCH: u32 = 1 << 31;
const MAX_MEMBER: u64 = 1 << 48;
/// Runs that one server serves: a lane's connections would be too many long before.
const MAX_SERVED: usize = 16_384;

/// As it travels.
pub(crate) fn rejoin_to_proto(rejoin: Rejoin) -> proto::Rejoin {
    let run = rejoin.run.map(run_to_proto);
    // The plan and the table of thousands of workers exceed what a greeting may have.
    let compressed = |run: proto::KnownRun| lz4_flex::compress_prepend_size(&run.encode_to_vec());
    let run = run.map(compressed).unwrap_or_default();
    let served = rejoin.served.into_iter();
    let served = served.map(|(job, epoch)| proto::ServedRun { job: job.0, epoch: epoch.0 });
    proto::Rejoin { member: rejoin.member.0, run, served: served.collect() }
}

fn run_to_proto(run: KnownRun) -> proto::KnownRun {
    proto::KnownRun {
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
    }
}

/// What a returning member says.
pub(crate) fn rejoin_from_proto(rejoin: proto::Rejoin, role: &Role) -> Result<Rejoin, Malformed> {
    let (is_worker, runs) = (matches!(role, Role::Worker { .. }), rejoin.served.len());
    if is_worker && runs > 0 {
        return Err("a worker that serves runs".to_owned());
    }
    if !is_worker && !rejoin.run.is_empty() {
        return Err("a server that works in a run".to_owned());
    }
    if runs > MAX_SERVED {
        return Err(format!("{runs} runs of one server; at most {MAX_SERVED} are possible"));
    }
    let served = rejoin.served.into_iter().map(|run| Ok((JobId(run.job), epoch(run.epoch)?)));
    let found = Rejoin {
        member: MemberId(rejoin.member),
        run: (!rejoin.run.is_empty()).then(|| run_from_bytes(&rejoin.run)).transpose()?,
        served: served.collect::<Result<_, Malformed>>()?,
    };
    match found.highest_member() {
        MemberId(member) if member > MAX_MEMBER => Err(format!("the member's number {member}")),
        _ => Ok(found),
    }
}

fn run_from_bytes(compressed: &[u8]) -> Result<KnownRun, Malformed> {
    let run = proto::KnownRun::decode(decompress(compressed)?);
    run_from_proto(run.map_err(|error| format!("a run that cannot be read: {error}"))?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::MESSAGE_LIMIT;
    use crate::testing::spec;
    use sumpter_membership::{ClusterView, LaneView, WorkerView};
    use sumpter_wire::Token;

    const WORKER: Role =
        Role::Worker { rank: Rank(0), world_size: 2, local_rank: 0, local_size: 1 };

    fn worker(rank: u32, lanes: usize) -> WorkerView {
        let lane = LaneView::from(([10, 0, (rank >> 8) as u8, rank as u8], 7000));
        WorkerView {
            rank: Rank(rank),
            host: format!("host-{rank}"),
            machine: format!("machine-{rank}"),
            lanes: vec![lane; lanes],
            bandwidth_gbps: Some(25.0),
            rack: None,
            device_group: None,
        }
    }

    fn run_of(workers: Vec<WorkerView>) -> KnownRun {
        let key = Some(Token::new("the key of this run").unwrap());
        let view = ClusterView { epoch: Epoch(1), workers, key, ..ClusterView::default() };
        KnownRun { view, ..KnownRun::default() }
    }

    fn back(run: KnownRun) -> Rejoin {
        Rejoin { run: Some(run), ..Rejoin::default() }
    }

    #[test]
    fn a_run_of_thousands_of_workers_fits_into_a_greeting() {
        let mut run = run_of((0..4096).map(|rank| worker(rank, 1)).collect());
        // Eight groups of data parallelism, with tensors of their own.
        for (group, number) in (0..8).flat_map(|group| (0..600).map(move |number| (group, number)))
        {
            let ranks = (0..512).map(|place| Rank(place * 8 + group)).collect();
            let name = format!("{group}.layers.{number}.weight");
            run.table.push(sumpter_types::TensorSpec { ranks, ..spec(&name, &[4096, 4096]) });
        }
        let raw = run_to_proto(run.clone()).encoded_len();
        let sent = rejoin_to_proto(back(run.clone()));
        assert!(raw > MESSAGE_LIMIT && sent.encoded_len() < MESSAGE_LIMIT / 2, "{raw}");
        // Not shown if they differ: it is long.
        assert!(rejoin_from_proto(sent, &WORKER) == Ok(back(run)));
    }

    #[test]
    fn runs_that_no_coordinator_has_had_are_refused() {
        let refused = |run: Vec<u8>| {
            let rejoin = proto::Rejoin { run, ..proto::Rejoin::default() };
            rejoin_from_proto(rejoin, &WORKER).unwrap_err()
        };
        assert!(refused(vec![0xff; 9]).contains("compressed message"));
        let garbage = lz4_flex::compress_prepend_size(&[0xff; 9]);
        assert!(refused(garbage).contains("cannot be read"));
        // A lane for each event loop, of which there are fewer.
        let sent = rejoin_to_proto(back(run_of(vec![worker(0, MAX_LOOPS + 1)])));
        let refused = rejoin_from_proto(sent, &WORKER).unwrap_err();
        assert_eq!(refused, "a plan in which a worker has 65 lanes");
    }
}
