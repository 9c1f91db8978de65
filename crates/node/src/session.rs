//! A worker's part in a run: its client, the connections to all lanes, and what is under way.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sumpter_config::{Config, ConfigError, Texts};
use sumpter_endpoint::ConnId;
use sumpter_engine::{Client, ClientSettings, Held, Hub, Layout, OpId, Request, Rescue};
use sumpter_membership::ClusterView;
use sumpter_observe::Peer;
use sumpter_plan::{PlanError, default_credit, largest_partition};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, MemberId, Rank, TensorId, TensorSpec};
use sumpter_wire::{Hello, Tier, Token};

use crate::cluster::{Cluster, LaneAddress, Owner, Policy};
use crate::command::Submission;
use crate::completion::Promise;
use crate::counters::Cause;
use crate::error::OpError;
use crate::idlers::Idlers;
use crate::table::{Table, members};
use crate::trace::recorder;

/// The first pause before a lane is called again; doubled up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// How long bytes that a worker has sent may take to arrive at least.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// How long nothing must move before what was sent is taken to have arrived: as long as a process
/// may be silent on machines that are as busy as these settings expect.
pub(crate) fn patience(config: &Config) -> Duration {
    config.peer_timeout().max(LEAST_PATIENCE)
}

/// The client of a worker: its own tensors, and what it passes on for its machine.
pub(crate) type WorkerClient = Client<Held<TensorMemory>>;

#[derive(Debug)]
pub(crate) struct Session {
    pub view: ClusterView,
    pub rank: Rank,
    pub cluster: Cluster,
    pub client: WorkerClient,
    /// Passes on what the lane in this process sums for the machine.
    pub hub: Hub,
    /// What it holds for others when the epoch changes.
    pub rescue: Rescue,
    /// Between two epochs.
    pub suspended: bool,
    /// Whether it was told why the next epoch begins.
    pub announced: bool,
    pub table: Table,
    pub links: Vec<Dial>,
    /// The lane in this process, if it is reached directly: its connection in the client and in
    /// the lane.
    pub own: Option<(ConnId, ConnId)>,
    pub running: HashMap<OpId, Running>,
    /// Rounds begun, by tensor.
    pub begun: HashMap<TensorId, u64>,
    /// Rounds finished, by tensor.
    pub rounds: HashMap<TensorId, u64>,
    pub idlers: Idlers,
    /// Workers that have finished and when, in the order in which they did.
    pub left: Vec<(Rank, Instant)>,
    /// When bytes last moved, or an operation began.
    pub last_progress: Instant,
    /// An operation that needs a worker which has left fails once nothing has moved for so long.
    patience: Duration,
    /// Why nothing can be submitted any more.
    pub over: Option<OpError>,
}

/// How far ahead of what they have sent this plan's workers begin with partitions.
fn credit(config: &Config, view: &ClusterView) -> u64 {
    config.credit_bytes.unwrap_or_else(|| default_credit(view.slowest_gbps()))
}

/// The settings that may change while a job runs, as they are in this plan.
///
/// # Errors
/// [`ConfigError`] if what the plan changes is no setting.
pub fn in_force(config: &Config, view: &ClusterView) -> Result<Texts, ConfigError> {
    let config = config.changed(&view.changes)?;
    let mut texts = config.tunable();
    texts.insert("credit_bytes".to_owned(), credit(&config, view).to_string());
    Ok(texts)
}

pub(crate) fn policy(config: &Config, view: &ClusterView) -> Policy {
    Policy {
        partition_bytes: largest_partition(config.partition_bytes, credit(config, view)),
        architecture: config.architecture,
        dealing: config.placement,
        deterministic: config.deterministic,
        mortal: config.is_mortal(),
    }
}

pub(crate) fn client_settings(config: &Config, view: &ClusterView) -> ClientSettings {
    ClientSettings {
        rank: Rank(config.rank),
        world_size: view.workers.len() as u32,
        epoch: view.epoch,
        chunk_bytes: config.chunk_bytes as u32,
        credit_bytes: credit(config, view) as usize,
        deterministic: config.deterministic,
        checksum: config.checksum,
    }
}

/// What a lane is called in a trace.
fn peer(lane: &LaneAddress) -> Peer {
    let index = u16::try_from(lane.index).unwrap_or(u16::MAX);
    match lane.owner {
        Owner::Worker(Rank(rank)) => Peer::WorkerLane { rank, lane: index },
        Owner::Server(id) => Peer::ServerLane { member: id as u32, lane: index },
    }
}

/// An operation the client has, as the outside knows it.
#[derive(Debug)]
pub(crate) struct Running {
    pub tensor: TensorId,
    pub name: String,
    pub tag: String,
    pub collective: Collective,
    pub bytes: u64,
    pub round: u64,
    members: Vec<Rank>,
    pub completion: Promise,
    /// When it was submitted.
    pub since: Instant,
    /// When the client got it.
    pub begun: Instant,
}

/// A worker that has left although an operation needs it.
struct Leaver<'a> {
    rank: Rank,
    /// What needs it.
    name: &'a str,
    /// Until then it may only be late.
    missing_from: Instant,
}

/// The state of a connection to a lane elsewhere.
#[derive(Debug, Default)]
pub(crate) struct Dial {
    pub socket: Option<usize>,
    /// When to call again.
    pub retry_at: Option<Instant>,
    pub failing_since: Option<Instant>,
    pause: Option<Duration>,
}

impl Dial {
    /// The connection could not be made or broke: call again after a pause.
    pub(crate) fn postpone(&mut self, now: Instant) {
        self.socket = None;
        self.failing_since.get_or_insert(now);
        let pause = self.pause.map_or(FIRST_PAUSE, |p| (p * 2).min(LAST_PAUSE));
        self.pause = Some(pause);
        self.retry_at = Some(now + pause);
    }

    pub(crate) fn succeeded(&mut self) {
        *self = Dial { socket: self.socket, ..Dial::default() };
    }
}

impl Session {
    /// The run begins; `resident` is this worker's connection in the lane of its own process.
    pub(crate) fn new(
        config: &Config,
        view: ClusterView,
        resident: Option<ConnId>,
    ) -> Result<Session, PlanError> {
        let rank = Rank(config.rank);
        let cluster = Cluster::new(&view, policy(config, &view))?;
        let settings = client_settings(config, &view);
        let mut client = Client::new(settings, 0);
        client.record(recorder(config));
        let hub = Hub::new(view.job, settings.chunk_bytes);
        let mut session = Session {
            view,
            rank,
            cluster,
            client,
            hub,
            rescue: Rescue::default(),
            suspended: false,
            announced: false,
            table: Table::default(),
            links: Vec::new(),
            own: None,
            running: HashMap::new(),
            begun: HashMap::new(),
            rounds: HashMap::new(),
            idlers: Idlers::default(),
            left: Vec::new(),
            last_progress: Instant::now(),
            patience: patience(config),
            over: None,
        };
        session.connect(settings, resident);
        Ok(session)
    }

    /// Makes ready for connections to the lanes of the plan.
    pub(crate) fn connect(&mut self, settings: ClientSettings, resident: Option<ConnId>) {
        let lanes = self.cluster.lanes.len();
        self.client.resume(settings, lanes);
        self.hub.resume(settings.chunk_bytes);
        self.links = (0..lanes).map(|_| Dial::default()).collect();
        let own = self.cluster.lane_of(self.rank);
        let vanishes = |lane: &ConnId| self.cluster.may_vanish(*lane) && Some(*lane) != own;
        for lane in (0..lanes).map(ConnId).filter(vanishes) {
            self.client.keep_results_of(lane);
        }
        self.client.name_lanes(self.cluster.lanes.iter().map(peer).collect());
        self.own = own.zip(resident);
        if let Some((on_client, _)) = self.own {
            self.client.attached(on_client);
        }
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.view.workers.len() as u32
    }

    /// The members of a tensor's rounds that live.
    pub(crate) fn members(&self, spec: &TensorSpec) -> Vec<Rank> {
        let mut members = members(spec, self.world_size());
        members.retain(|rank| !self.view.gone.contains(rank));
        members
    }

    /// Why a tensor has no rounds any more: only one worker could give or take their result, and
    /// it is dead.
    pub(crate) fn bereft(&self, spec: &TensorSpec) -> Option<String> {
        let gone = spec.collective.has_root() && self.view.gone.contains(&spec.root);
        let host = &self.view.workers.get(spec.root.0 as usize)?.host;
        gone.then(|| format!("its root, rank {} on {host}, has died", spec.root))
    }

    pub(crate) fn hello(&self, lane: ConnId) -> Hello {
        Hello {
            job: self.view.job,
            rank: self.rank,
            world_size: self.world_size(),
            epoch: self.view.epoch,
            lane: self.cluster.lanes[lane.0].index,
            keeps: self.cluster.may_vanish(lane),
            checksum: self.client.is_checked(),
        }
    }

    /// What the members of this run prove to each other.
    pub(crate) fn key(&self) -> Token {
        self.view.key.clone().expect("a view from the coordinator has the run's key")
    }

    /// A lane in words: whose it is, and where.
    pub(crate) fn describe(&self, lane: ConnId) -> String {
        let lane = &self.cluster.lanes[lane.0];
        let owner = match lane.owner {
            Owner::Worker(rank) => format!("rank {rank}"),
            Owner::Server(id) => format!("server {id}"),
        };
        format!("lane {} of {owner} on {} at {}", lane.index, lane.host, lane.address)
    }

    /// What a tensor is called.
    pub(crate) fn name(&self, tensor: TensorId) -> Option<&str> {
        self.table.spec(tensor).map(|spec| spec.name.as_str())
    }

    /// The server a lane belongs to, if it is not a worker's.
    pub(crate) fn server_of(&self, lane: ConnId) -> Option<MemberId> {
        match self.cluster.lanes[lane.0].owner {
            Owner::Worker(_) => None,
            Owner::Server(id) => Some(MemberId(id)),
        }
    }

    /// Whether there is no need to call a lane again: its worker has finished.
    pub(crate) fn has_left(&self, lane: ConnId) -> bool {
        match self.cluster.lanes[lane.0].owner {
            Owner::Worker(rank) => self.left.iter().any(|(left, _)| *left == rank),
            Owner::Server(_) => false,
        }
    }

    /// The connection to a lane is gone.
    pub(crate) fn lost(&mut self, lane: ConnId, now: Instant) {
        self.client.disconnected(lane);
        match self.has_left(lane) || self.over.is_some() || self.suspended {
            true => self.links[lane.0] = Dial::default(),
            false => self.links[lane.0].postpone(now),
        }
    }

    /// Whether a lane is reached over the network, not within this machine.
    pub(crate) fn is_away(&self, lane: ConnId) -> bool {
        let own = &self.view.workers[self.rank.0 as usize].machine;
        self.cluster.lanes[lane.0].machine != *own
    }

    /// A new entry of the coordinator's table. Returns the submissions that waited for it.
    pub(crate) fn enter(&mut self, id: TensorId, spec: TensorSpec) -> Vec<Submission> {
        let waiting = self.table.enter(id, spec, Tier::Root);
        if self.suspended {
            // It gets its places with all others.
            self.client.register(id, Tier::Root, Layout::default());
        } else {
            self.lay_out(id, &[]);
        }
        waiting
    }

    /// Lanes that are due to be called.
    pub(crate) fn due(&mut self, now: Instant) -> Vec<ConnId> {
        let due = |d: &Dial| d.retry_at.is_some_and(|t| t <= now);
        (0..self.links.len()).filter(|i| due(&self.links[*i])).map(ConnId).collect()
    }

    /// The earliest time something is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let retry = self.links.iter().filter_map(|d| d.retry_at).min();
        let leaver = self.needed_leaver().map(|leaver| leaver.missing_from);
        [retry, leaver].into_iter().flatten().min()
    }

    /// Hands an operation to the client; its tensor and round.
    pub(crate) fn run(
        &mut self,
        submission: Submission,
        request: Request,
        now: Instant,
    ) -> (TensorId, u64) {
        let spec = submission.spec;
        let members = self.members(&spec);
        let bytes = spec.elements().unwrap_or(0) * spec.dtype.size() as u64;
        let id = self.client.submit(request, Held::Tensor(submission.memory));
        self.last_progress = now;
        let begun = self.begun.entry(request.tensor).or_default();
        let round = *begun;
        *begun += 1;
        self.running.insert(
            id,
            Running {
                tensor: request.tensor,
                name: spec.name,
                tag: submission.tag,
                collective: spec.collective,
                bytes,
                round,
                members,
                completion: submission.completion,
                since: submission.since,
                begun: now,
            },
        );
        (request.tensor, round)
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.table.waiting().next().is_none()
    }

    /// How many operations are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.running.len() + self.table.waiting().count()
    }

    /// What the operations under way wait for, if there are any.
    pub(crate) fn cause(&self) -> Option<Cause> {
        match () {
            () if self.is_idle() => None,
            () if self.suspended => Some(Cause::Plan),
            () if self.running.is_empty() => Some(Cause::Coordinator),
            () if self.client.admitted_bytes() > 0 => Some(Cause::Send),
            () => Some(Cause::Results),
        }
    }

    /// A worker that has left and is needed by an operation, in words, once nothing has moved for
    /// so long that what it still sent must have arrived.
    pub(crate) fn missing_leaver(&self, now: Instant) -> Option<String> {
        let Leaver { rank, name, missing_from } = self.needed_leaver()?;
        (missing_from <= now)
            .then(|| format!("rank {rank} has left the job, but '{name}' waits for it"))
    }

    /// The first to leave of those that operations under way need: others that leave after it
    /// give it no more time.
    fn needed_leaver(&self) -> Option<Leaver<'_>> {
        if self.left.is_empty() || self.over.is_some() {
            return None;
        }
        let leaver = |(rank, since): (Rank, Instant), name| {
            let missing_from = self.last_progress.max(since) + self.patience;
            Leaver { rank, name, missing_from }
        };
        let running = self.left.iter().find_map(|left| {
            let needing = self.running.values().find(|r| r.members.contains(&left.0))?;
            Some(leaver(*left, needing.name.as_str()))
        });
        running.or_else(|| {
            let waiting = self.table.waiting().next()?;
            Some(leaver(*self.left.first()?, waiting.spec.name.as_str()))
        })
    }
}
