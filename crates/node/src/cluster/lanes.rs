//! The lanes of a job: whose they are, where they listen, and which partition is whose.

use std::ops::Range;

use sumpter_config::make_room_for_files;
use sumpter_endpoint::ConnId;
use sumpter_engine::VariablePlace;
use sumpter_membership::{ClusterView, LaneView, ServerView, WorkerView};
use sumpter_types::Rank;

/// Who runs a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    Worker(Rank),
    Server(u64),
}

/// A lane of the job: its owner, and how it is reached.
#[derive(Clone, Debug)]
pub(crate) struct LaneAddress {
    pub owner: Owner,
    /// What its process is called where it passes aggregates on: the ranks of servers follow those
    /// of the workers.
    pub hub: Rank,
    pub host: String,
    /// Equal for processes that share a link.
    pub machine: String,
    /// The lane's number with its owner.
    pub index: u32,
    pub view: LaneView,
}

/// All lanes of what an event loop serves of a job, in the order of their numbers, and those of
/// each process: of the workers that live, then of the servers.
pub(crate) fn all_lanes(view: &ClusterView) -> (Vec<LaneAddress>, Vec<Range<usize>>) {
    let (mut all, mut ranges) = (Vec::new(), Vec::new());
    let mut add = |owner, hub, (host, machine): (&str, &str), first, views: &[LaneView]| {
        let start = all.len();
        all.extend(views.iter().zip(first..).map(|(view, index)| LaneAddress {
            owner,
            hub,
            host: host.to_owned(),
            machine: machine.to_owned(),
            index,
            view: view.clone(),
        }));
        ranges.push(start..all.len());
    };
    for WorkerView { rank, host, machine, lanes, .. } in view.living() {
        // The lane of that loop.
        add(Owner::Worker(*rank), *rank, (host, machine), view.job.event_loop(), lanes);
    }
    for (at, ServerView { member, host, machine, lanes, .. }) in (0..).zip(&view.servers) {
        let hub = Rank(view.workers.len() as u32 + at);
        add(Owner::Server(member.0), hub, (host, machine), 0, lanes);
    }
    (all, ranges)
}

/// Makes room for a worker's connections: of each of its event loops to every lane elsewhere, and
/// from every other worker.
///
/// # Errors
/// In words, if the system does not allow so many open files.
pub(crate) fn make_room(view: &ClusterView) -> Result<(), String> {
    let (workers, servers) = (view.living().count(), view.servers.len());
    let of_workers: usize = view.living().map(|worker| worker.lanes.len()).sum();
    let of_servers: usize = view.servers.iter().map(|server| server.lanes.len()).sum();
    let loops = view.loops() as usize;
    let connections = of_workers + (of_servers + workers) * loops;
    let mut what =
        format!("a worker's connections in a job of {workers} workers and {servers} servers");
    if loops > 1 {
        what += &format!(", with {loops} event loops each (io_threads),");
    }
    make_room_for_files(connections as u64, &what)
}

/// The connections of a job's workers to a server with so many lanes: each worker connects to each.
pub(crate) fn connections_on_server(view: &ClusterView, lanes: usize) -> usize {
    view.living().count() * lanes * view.loops() as usize
}

/// Makes room on a server with so many lanes for `more` connections of a job's workers.
///
/// # Errors
/// As above.
pub(crate) fn make_room_on_server(
    view: &ClusterView,
    lanes: usize,
    more: usize,
) -> Result<(), String> {
    let (workers, loops) = (view.living().count(), view.loops() as usize);
    let mut what = format!("the connections of {workers} workers to a server's {lanes} lanes");
    if loops > 1 {
        what += &format!(", from {loops} event loops each (io_threads),");
    }
    make_room_for_files(more as u64, &what)
}

/// A lane in words: whose it is, and where.
pub(crate) fn described(lane: &LaneAddress) -> String {
    let owner = match lane.owner {
        Owner::Worker(rank) => format!("rank {rank}"),
        Owner::Server(id) => format!("server {id}"),
    };
    let addresses = &lane.view;
    format!("lane {} of {owner} on {} at {addresses}", lane.index, lane.host)
}

/// The lane of a hub that adds a partition: the root if it is one of its own, else any of them.
pub(crate) fn lane_of_hub(
    lanes: &[LaneAddress],
    hub: Rank,
    (root, number): (ConnId, u32),
) -> Option<ConnId> {
    if lanes[root.0].hub == hub {
        return Some(root);
    }
    let start = lanes.iter().position(|lane| lane.hub == hub)?;
    let count = lanes[start..].iter().take_while(|lane| lane.hub == hub).count();
    Some(ConnId(start + number as usize % count))
}

/// A partition of a tensor and the lane that reduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlacedPartition {
    pub root: ConnId,
    pub offset: usize,
    pub bytes: usize,
    /// The number of its reduction tree in the plan.
    pub tree: usize,
    /// What it is of a variable.
    pub variable: Option<VariablePlace>,
    /// Who keeps what the codes of its sums leave out.
    pub carrier: Option<Rank>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_with_more_connections_than_open_files_is_named_with_the_remedy() {
        let lanes = vec![LaneView::from(([10, 0, 0, 1], 1)); 1 << 22];
        let server = ServerView {
            member: sumpter_types::MemberId(1),
            host: "helper".to_owned(),
            machine: "helper".to_owned(),
            lanes,
            bandwidth_gbps: None,
            rack: None,
        };
        let view = ClusterView { servers: vec![server], ..ClusterView::default() };
        assert_eq!(make_room(&ClusterView::default()), Ok(()));
        // Where nothing limits them, there is nothing to name.
        if let Err(error) = make_room(&view) {
            let job = "a worker's connections in a job of 0 workers and 1 servers take 4194304";
            assert!(error.contains(job) && error.contains("`ulimit -n "), "{error}");
        }
    }
}
