//! What a server's lane passes on for racks: for each job a client and a hub, made when the first
//! subtotal is there. They know of the job what its view says, and of its tensors nothing but the
//! routes of subtotals.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Weak;
use std::time::{Duration, Instant};

use sumpter_coordinator::Member;
use sumpter_endpoint::{ConnId, Violation};
use sumpter_engine::{Client, ClientSettings, Hub, Lane, Passing, Peer, exchange};
use sumpter_membership::{ClusterView, LaneView};
use sumpter_transport::in_process;
use sumpter_types::{JobId, MemberId, Rank};
use sumpter_wire::{Hello, Token};

use crate::cluster::lanes::{LaneAddress, Owner, all_lanes, described};
use crate::cluster::paths::{NetworkPath, Sources, connection_number, paths};
use crate::cluster::route::WorkerClient;
use crate::run::dials::Dials;
use crate::run::lane_user::LaneUser;

/// The rank of a lane that is not in the view: no route leads through it.
const NO_HUB: Rank = Rank(u32::MAX);

/// The jobs whose aggregates a lane may pass on.
#[derive(Debug, Default)]
pub(crate) struct ServerHubs {
    views: HashMap<JobId, ClusterView>,
    runs: HashMap<JobId, HubRun>,
    /// The session with the coordinator, which the server keeps.
    member: Weak<Member>,
    /// Bytes that were passed on for racks in runs that are over.
    past_bytes: u64,
}

/// A server that a job must do without, and why.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub server: MemberId,
    pub reason: String,
}

/// A lane's part in a job of which it passes aggregates on.
#[derive(Debug)]
pub(crate) struct HubRun {
    view: ClusterView,
    rank: Rank,
    lanes: Vec<LaneAddress>,
    client: WorkerClient,
    pub hub: Hub,
    dials: Dials,
    /// The lane in this process: its connection in the client and in the lane.
    own: Option<(ConnId, ConnId)>,
    /// Whether it was said that a lane cannot be connected to.
    warned: bool,
}

impl ServerHubs {
    /// A run whose workers may connect.
    pub(crate) fn expect(&mut self, view: &ClusterView) {
        self.views.insert(view.job, view.clone());
    }

    /// The server's session with the coordinator is there.
    pub(crate) fn joined(&mut self, member: Weak<Member>) {
        self.member = member;
    }

    /// A lane of a run could not be connected to: asks that the run goes on without a server.
    pub(crate) fn suspect(&self, job: JobId, Suspect { server, reason }: Suspect) {
        if let (Some(member), Some(view)) = (self.member.upgrade(), self.views.get(&job)) {
            member.suspect(server, (job.run(), view.epoch), reason);
        }
    }

    /// A run is over.
    pub(crate) fn end(&mut self, job: JobId) {
        self.views.remove(&job);
        if let Some(run) = self.runs.remove(&job) {
            self.past_bytes += run.hub.rack_bytes();
        }
    }

    /// Bytes that were passed on for racks.
    pub(crate) fn rack_bytes(&self) -> u64 {
        self.past_bytes + self.runs.values().map(|run| run.hub.rack_bytes()).sum::<u64>()
    }

    pub(crate) fn get_mut(&mut self, job: JobId) -> Option<&mut HubRun> {
        self.runs.get_mut(&job)
    }

    /// Makes ready to pass on what the lane has; the jobs of which something is passed on.
    pub(crate) fn begin(&mut self, lane: &mut Lane, own: &LaneView) -> Vec<JobId> {
        if self.views.is_empty() {
            return Vec::new();
        }
        for passing in lane.passing() {
            let view = self.views.get(&passing.job);
            if let (false, Some(view)) = (self.runs.contains_key(&passing.job), view)
                && let Some(run) = HubRun::new(view, passing, (lane, own))
            {
                self.runs.insert(passing.job, run);
            }
        }
        self.runs.keys().copied().collect()
    }

    /// The lanes that are due to be dialed.
    pub(crate) fn due(&self, now: Instant) -> Vec<(JobId, ConnId)> {
        let due = |(job, run): (&JobId, &HubRun)| {
            let job = *job;
            run.dials.due(now).into_iter().map(move |lane| (job, lane)).collect::<Vec<_>>()
        };
        self.runs.iter().flat_map(due).collect()
    }

    /// The earliest time a lane is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.runs.values().filter_map(|run| run.dials.next_deadline()).min()
    }
}

impl HubRun {
    /// The hub for a job, once there is a subtotal.
    fn new(
        view: &ClusterView,
        passing: Passing,
        (lane, own): (&mut Lane, &LaneView),
    ) -> Option<HubRun> {
        let spec = passing.first?;
        let (lanes, _) = all_lanes(view);
        let is_own = |of: &LaneAddress| of.view.address() == own.address();
        let on_client = lanes.iter().position(is_own).map(ConnId);
        let rank = on_client.map_or(NO_HUB, |at| lanes[at.0].hub);
        let world_size = view.workers.len() as u32;
        let settings = ClientSettings {
            rank,
            world_size,
            epoch: view.epoch,
            chunk_bytes: spec.chunk_bytes,
            credit_bytes: 1,
            deterministic: spec.deterministic,
            checksum: passing.checksum,
        };
        let mut client = Client::new(settings, lanes.len());
        let job = view.job;
        // As the workers say of this lane, whose process may end before the job does.
        let peer = Peer { job, rank, world_size, epoch: view.epoch, keeps: true, checksum: false };
        let opened = on_client.map(|at| lane.open_resident(peer).map(|on_lane| (at, on_lane)));
        let own = opened.transpose().inspect_err(|reason| {
            tracing::error!(%job, %reason, "a server cannot be the hub of a rack");
        });
        let own = own.ok().flatten();
        if let Some((on_client, _)) = own {
            client.attached(on_client);
        }
        let hub = Hub::new(job, spec.chunk_bytes);
        let dials = Dials::new(lanes.len());
        Some(HubRun { view: view.clone(), rank, lanes, client, hub, dials, own, warned: false })
    }

    /// Passes on what the lane has summed, and gives it what has come back; bytes that were moved
    /// within the process, and whether anything happened.
    ///
    /// # Errors
    /// [`Violation`] when client and lane disagree: a bug, since both are ours.
    pub(crate) fn advance(
        &mut self,
        lane: &mut Lane,
        (now, budget): (Duration, usize),
    ) -> Result<(usize, bool), Violation> {
        let mut moved = 0;
        if let Some((on_client, on_lane)) = self.own {
            moved += in_process((&mut self.client, on_client), (lane, on_lane), now, budget)?;
            moved += exchange((&mut self.client, on_client), (lane, on_lane), budget)?;
        }
        let mut any = self.hub.pass_on(&mut self.client, lane) || moved > 0;
        while let Some(event) = self.client.next_event() {
            any = true;
            self.hub.on_event(event, &mut self.client, lane)?;
        }
        Ok((moved, any))
    }

    /// A lane could not be connected to. Once that has lasted for `limit`, and the lane is needed:
    /// without which server the job can go on, the lane's own or, where a worker's lane cannot be
    /// reached, this one. A worker that has left the job needs nothing more of this one.
    pub(crate) fn dial_failed(
        &mut self,
        lane: ConnId,
        reason: &str,
        limit: Duration,
    ) -> Option<Suspect> {
        let now = Instant::now();
        self.lost(lane, now);
        let failing = self.dials.failing_since(lane);
        let is_late = failing.is_some_and(|since| now.saturating_duration_since(since) > limit);
        // Another interface may still lead to it.
        if !is_late || self.dials.has_another_path(lane) || !self.client.needs(lane) {
            return None;
        }
        let described = self.describe(lane);
        if !std::mem::replace(&mut self.warned, true) {
            let (job, lane) = (&self.view.name, &described);
            tracing::warn!(%lane, %reason, "no connection, as the hub of a rack for job '{job}'");
        }
        let own = self.own.map(|(on_client, _)| self.lanes[on_client.0].owner);
        match (self.lanes[lane.0].owner, own) {
            (Owner::Server(id), _) => Some((id, reason.to_owned())),
            (Owner::Worker(_), Some(Owner::Server(id))) => {
                Some((id, format!("{described}: {reason}")))
            }
            (Owner::Worker(_), _) => None,
        }
        .map(|(id, reason)| Suspect { server: MemberId(id), reason })
    }
}

impl LaneUser for HubRun {
    fn client(&mut self) -> &mut WorkerClient {
        &mut self.client
    }

    fn dials(&mut self) -> &mut Dials {
        &mut self.dials
    }

    fn paths(&self, lane: ConnId, sources: &Sources) -> Vec<NetworkPath> {
        let own = self.own.map_or(0, |(own, _)| own.0);
        paths(&self.lanes[lane.0].view, sources, connection_number(own, lane.0))
    }

    fn hello(&self, lane: ConnId) -> Hello {
        Hello {
            job: self.view.job,
            rank: self.rank,
            world_size: self.view.workers.len() as u32,
            epoch: self.view.epoch,
            lane: self.lanes[lane.0].index,
            keeps: self.client.is_told_by(lane),
            checksum: self.client.is_checked(),
            placed: false,
        }
    }

    fn key(&self) -> Token {
        self.view.key.clone().expect("a view from the coordinator has the run's key")
    }

    fn address(&self, lane: ConnId) -> SocketAddr {
        self.lanes[lane.0].view.address()
    }

    fn describe(&self, lane: ConnId) -> String {
        described(&self.lanes[lane.0])
    }

    fn is_away(&self, lane: ConnId) -> bool {
        let own = self.own.map(|(own, _)| &self.lanes[own.0].machine);
        own != Some(&self.lanes[lane.0].machine)
    }

    fn lost(&mut self, lane: ConnId, now: Instant) {
        self.client.disconnected(lane);
        self.dials.postpone(lane, now);
    }

    fn progressed(&mut self) {}
}

#[cfg(test)]
mod tests {
    use sumpter_engine::{Layout, OpMemory, Place, Request, Supply};
    use sumpter_membership::{ServerView, WorkerView};
    use sumpter_types::{Collective, Dtype, Epoch, ReduceOp, TensorId};
    use sumpter_wire::Tier;

    use super::*;

    /// The hub on server 7 of a job with a worker and another server, 8.
    fn hub_run() -> HubRun {
        let lanes = |port| vec![LaneView::from(([127, 0, 0, 1], port))];
        let server = |(member, port)| ServerView {
            member: MemberId(member),
            host: format!("cpu{member}"),
            machine: format!("cpu{member}"),
            lanes: lanes(port),
            bandwidth_gbps: None,
            rack: None,
        };
        let worker = WorkerView {
            rank: Rank(0),
            host: "gpu0".into(),
            machine: "gpu0".into(),
            lanes: lanes(1),
            bandwidth_gbps: None,
            rack: None,
            device_group: None,
        };
        let servers = [(7, 2), (8, 3)].map(server).into();
        let view = ClusterView { workers: vec![worker], servers, ..ClusterView::default() };
        let settings = ClientSettings {
            rank: Rank(1),
            world_size: 1,
            epoch: Epoch(1),
            chunk_bytes: 64,
            credit_bytes: 1,
            deterministic: false,
            checksum: false,
        };
        let (lanes, _) = all_lanes(&view);
        let client = Client::new(settings, lanes.len());
        let (hub, dials) = (Hub::new(view.job, 64), Dials::new(lanes.len()));
        let own = Some((ConnId(1), ConnId(0)));
        HubRun { view, rank: Rank(1), lanes, client, hub, dials, own, warned: false }
    }

    /// An operation whose only partition goes to a lane.
    fn send_to(client: &mut WorkerClient, lane: ConnId) {
        let group = client.define_group(&[Rank(1)]);
        let place = Place::new(lane, 0, (0, 64), group, 1);
        client.register(TensorId(0), Tier::Root, Layout::new(vec![place]));
        let request = Request {
            tensor: TensorId(0),
            tier: Tier::Root,
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority: 0,
            supply: Supply::Whole,
            call: None,
            update: None,
            rescale: 1.0,
        };
        client.submit(request, OpMemory::Results(vec![0; 64]));
    }

    #[test]
    fn a_job_goes_on_without_the_server_that_cannot_be_reached_or_cannot_reach_a_worker() {
        let limit = Duration::from_secs(5);
        for (lane, server, words) in [(2, 8, "no route"), (0, 7, "rank 0 on gpu0")] {
            let mut run = hub_run();
            let lane = ConnId(lane);
            assert_eq!(run.dial_failed(lane, "no route", limit), None, "it has just begun");
            run.dials.end(lane);
            run.lost(lane, Instant::now() - 2 * limit);
            let text = "a worker that has left the job is not called for anything";
            assert_eq!(run.dial_failed(lane, "no route", limit), None, "{text}");
            send_to(&mut run.client, lane);
            let suspect = run.dial_failed(lane, "no route", limit).expect("late");
            assert_eq!(suspect.server, MemberId(server));
            assert!(suspect.reason.contains(words) && suspect.reason.ends_with("no route"));
        }
    }
}
