//! A worker's part in a run: its client, the connections to all lanes, and what is under way.

pub(crate) mod choices;
pub(crate) mod coding;
pub(crate) mod dials;
pub(crate) mod epochs;
pub(crate) mod lane_user;
pub(crate) mod memory;
pub(crate) mod out_of_data;
pub(crate) mod progress;
pub(crate) mod refused;
pub(crate) mod server_hubs;
pub(crate) mod subscriptions;
pub(crate) mod table;
pub(crate) mod variables;
pub(crate) mod waits;
pub(crate) mod worker_side;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sumpter_config::{Config, ConfigError, Texts};
use sumpter_endpoint::ConnId;
use sumpter_engine::{
    Client, ClientSettings, Hub, Layout, MirroredSpan, OpId, OpMemory, OrderSpan, Recovery,
    Request, Supply,
};
use sumpter_membership::ClusterView;
use sumpter_observe::Peer;
use sumpter_plan::{PlanError, default_credit, even_partition, largest_partition};
use sumpter_types::{ExactSum, MemberId, Rank, TensorId, TensorSpec};
use sumpter_wire::{Hello, Tier, Token};

use crate::cluster::lanes::{LaneAddress, Owner, described};
use crate::cluster::paths::{NetworkPath, Sources, connection_number, paths};
use crate::cluster::route::WorkerClient;
use crate::cluster::shards::DeviceGroups;
use crate::cluster::{Cluster, Policy};
use crate::command::{DeclarationId, Submission};
use crate::completion::Promise;
use crate::counters::Cause;
use crate::error::OpError;
use crate::recording::recorder;
use crate::run::choices::Choices;
use crate::run::coding::TensorCoding;
use crate::run::dials::Dials;
use crate::run::memory::SkippedBlocks;
use crate::run::out_of_data::OutOfData;
use crate::run::refused::RefusedOps;
use crate::run::table::{Table, is_member, members};
use crate::worker::decision::Deferred;
use crate::worker::loops::ServedPart;
use crate::worker::staged::StagedShare;

/// How long bytes that a worker has sent may take to arrive at least.
const LEAST_PATIENCE: Duration = Duration::from_secs(2);

/// How long nothing must move before what was sent is taken to have arrived: as long as a process
/// may be silent on machines that are as busy as these settings expect.
pub(crate) fn patience(config: &Config) -> Duration {
    config.peer_timeout().max(LEAST_PATIENCE)
}

#[derive(Debug)]
pub(crate) struct WorkerRun {
    pub view: ClusterView,
    rank: Rank,
    pub cluster: Cluster,
    groups: DeviceGroups,
    pub client: WorkerClient,
    /// Passes on what the lane in this process sums for the machine.
    pub hub: Hub,
    /// What it holds for others when the epoch changes.
    recovery: Recovery,
    /// Between two epochs.
    suspended: bool,
    /// Whether it was told why the next epoch begins.
    announced: bool,
    pub table: Table,
    /// What `auto` has chosen.
    choices: Choices,
    pub dials: Dials,
    /// The lane in this process, if it is reached directly: its connection in the client and in
    /// the lane.
    pub own: Option<(ConnId, ConnId)>,
    running: HashMap<OpId, Running>,
    /// The last operations that failed because ranks disagree.
    pub refused: RefusedOps,
    out_of_data: OutOfData,
    /// The variables that have a value, and who mirrors what in this epoch.
    variables: BTreeSet<TensorId>,
    mirrors: HashMap<TensorId, Vec<MirroredSpan>>,
    /// Variables whose state died with the workers that had it, and why they have no rounds.
    lost: HashMap<TensorId, String>,
    /// Variables whose value is on its way to the lanes.
    filling: Vec<(TensorId, Promise)>,
    /// Blocks that were not finite and that no message has counted yet.
    skips: SkippedBlocks,
    /// Workers that have finished and when, in the order in which they did.
    left: Vec<(Rank, Instant)>,
    /// When bytes last moved, or an operation began.
    pub last_progress: Instant,
    /// An operation that needs a worker which has left fails once nothing has moved for so long.
    patience: Duration,
    /// Why nothing can be submitted any more.
    pub over: Option<OpError>,
}

/// How far ahead of what it has sent an event loop of this plan's workers begins with partitions:
/// each has its part of what is set, or of the link.
fn credit(config: &Config, view: &ClusterView) -> u64 {
    let loops = config.io_threads.max(1);
    match config.credit_bytes {
        Some(bytes) => bytes.div_ceil(u64::from(loops)),
        None => default_credit(view.slowest_gbps().map(|gbps| gbps / f64::from(loops))),
    }
}

/// The settings that may change while a job runs, as they are in this plan.
///
/// # Errors
/// [`ConfigError`] if what the plan changes is no setting.
pub fn in_force(config: &Config, view: &ClusterView) -> Result<Texts, ConfigError> {
    let config = config.changed(&view.changes)?;
    let mut texts = config.tunable();
    let of_all = || credit(&config, view) * u64::from(config.io_threads.max(1));
    let credit = config.credit_bytes.unwrap_or_else(of_all);
    texts.insert("credit_bytes".to_owned(), credit.to_string());
    Ok(texts)
}

pub(crate) fn policy(config: &Config, view: &ClusterView) -> Policy {
    let partition_bytes = largest_partition(config.partition_bytes, credit(config, view));
    Policy {
        partition_bytes,
        chunk_bytes: config.chunk_bytes,
        even_bytes: even_partition(partition_bytes, view.slowest_gbps()),
        architecture: config.architecture,
        dealing: config.placement,
        deterministic: config.deterministic,
        workers_may_fail: config.workers_may_fail(),
        elastic: config.is_elastic(),
        loops: config.io_threads.max(1),
        least_coded_bytes: config.compression_min_bytes,
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
    pub tag: String,
    pub round: u64,
    pub completion: Promise,
    /// If the contribution comes while it runs.
    pub staged: Option<StagedShare>,
    /// If it is decided later what its update does: who waits for the norm.
    pub deferred: Option<Arc<Deferred>>,
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

impl WorkerRun {
    /// The run begins; `resident` is this worker's connection in the lane of its own process.
    pub(crate) fn new(
        config: &Config,
        view: ClusterView,
        resident: Option<ConnId>,
    ) -> Result<WorkerRun, PlanError> {
        let rank = Rank(config.rank);
        // Said once for the job.
        let says = rank == Rank(0) && view.job.event_loop() == 0;
        if let Some(assumed) = view.assumed_links().filter(|_| says) {
            tracing::warn!("{assumed}");
        }
        let cluster = Cluster::new(&view, policy(config, &view))?;
        if let Some(racks) = cluster.racks().filter(|_| says) {
            tracing::info!(target: "notice", "{racks}");
        }
        let (settings, groups) = (client_settings(config, &view), DeviceGroups::of(&view));
        let mut client = Client::new(settings, 0);
        client.record(recorder(config));
        let hub = Hub::new(view.job, settings.chunk_bytes);
        let mut run = WorkerRun {
            view,
            rank,
            cluster,
            groups,
            client,
            hub,
            recovery: Recovery::default(),
            suspended: false,
            announced: false,
            table: Table::default(),
            choices: Choices::default(),
            dials: Dials::default(),
            own: None,
            running: HashMap::new(),
            refused: RefusedOps::default(),
            out_of_data: OutOfData::default(),
            variables: BTreeSet::new(),
            mirrors: HashMap::new(),
            lost: HashMap::new(),
            filling: Vec::new(),
            skips: SkippedBlocks::default(),
            left: Vec::new(),
            last_progress: Instant::now(),
            patience: patience(config),
            over: None,
        };
        run.connect(settings, resident);
        Ok(run)
    }

    /// Makes ready for connections to the lanes of the plan.
    pub(crate) fn connect(&mut self, settings: ClientSettings, resident: Option<ConnId>) {
        let lanes = self.cluster.lanes.len();
        self.client.resume(settings, lanes);
        self.hub.resume(settings.chunk_bytes);
        self.dials = Dials::new(lanes);
        let own = self.cluster.lane_of(self.rank);
        let vanishes = |lane: &ConnId| self.cluster.may_vanish(*lane) && Some(*lane) != own;
        for lane in (0..lanes).map(ConnId).filter(vanishes) {
            self.client.retain_results_of(lane);
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

    /// Whether a worker that lives takes part in a tensor's rounds.
    pub(crate) fn takes_part(&self, tensor: TensorId, rank: Rank) -> bool {
        let member = self.table.spec(tensor).is_some_and(|spec| is_member(spec, rank));
        member && !self.view.gone.contains(&rank)
    }

    /// Whether this worker's rounds of a tensor need another one.
    fn needs(&self, tensor: TensorId, other: Rank) -> bool {
        let Some(spec) = self.table.spec(tensor) else { return false };
        let takes_part = |rank: &Rank| self.takes_part(tensor, *rank);
        if !spec.sharded {
            return takes_part(&other);
        }
        let both = [self.rank, other];
        let stretches = self.groups.stretches(spec, &self.members(spec));
        stretches.iter().any(|of| both.iter().all(|rank| of.members.contains(rank)))
    }

    /// The others of this worker's device group that reduce a tensor with it before its rounds.
    pub(crate) fn beside(&self, spec: &TensorSpec) -> Vec<Rank> {
        let members = self.members(spec);
        let group = self.groups.of_rank(self.rank).iter().map(|(rank, _)| *rank);
        group.filter(|rank| *rank != self.rank && members.contains(rank)).collect()
    }

    /// Why a tensor has no rounds any more: only one worker could give or take their result, or
    /// all had its state who have died.
    pub(crate) fn orphaned(&self, tensor: TensorId) -> Option<String> {
        if let Some(reason) = self.lost.get(&tensor) {
            return Some(reason.clone());
        }
        let spec = self.table.spec(tensor)?;
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
            placed: false,
        }
    }

    /// The ways to a lane over the network, in the order in which they are tried.
    pub(crate) fn paths(&self, lane: ConnId, sources: &Sources) -> Vec<NetworkPath> {
        let own = self.cluster.lane_of(self.rank).map_or(self.rank.0 as usize, |own| own.0);
        let view = &self.cluster.lanes[lane.0].view;
        paths(view, sources, connection_number(own, lane.0))
    }

    /// What the members of this run prove to each other.
    pub(crate) fn key(&self) -> Token {
        self.view.key.clone().expect("a view from the coordinator has the run's key")
    }

    /// A lane in words: whose it is, and where.
    pub(crate) fn describe(&self, lane: ConnId) -> String {
        described(&self.cluster.lanes[lane.0])
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
            true => self.dials.end(lane),
            false => self.dials.postpone(lane, now),
        }
    }

    /// Whether a lane is reached over the network, not within this machine.
    pub(crate) fn is_away(&self, lane: ConnId) -> bool {
        let own = &self.view.workers[self.rank.0 as usize].machine;
        self.cluster.lanes[lane.0].machine != *own
    }

    /// A new entry of the coordinator's table, and the part that this loop serves. Returns the
    /// submissions that waited for it.
    pub(crate) fn enter(
        &mut self,
        id: TensorId,
        declared: TensorSpec,
        part: ServedPart,
    ) -> Vec<(DeclarationId, Submission)> {
        let own = self.groups.own(&part.spec, &self.members(&part.spec), self.rank);
        let (name, bytes) = (declared.name.clone(), own.len() as u64);
        let chunk_bytes = self.cluster.policy.chunk_bytes;
        let served = part.start..part.start + part.spec.elements().unwrap_or(0);
        let made = TensorCoding::new(&declared, served, chunk_bytes, self.rank);
        let (coding, unfit) = match made {
            Ok(coding) => (coding, None),
            Err(reason) => (TensorCoding::default(), Some(reason)),
        };
        let waiting = self.table.enter(id, declared, part, Tier::Root, bytes, coding);
        if let Some(reason) = unfit {
            // What waits fails when it is submitted again.
            self.client.register(id, Tier::Root, Layout::default());
            self.fail_tensor(&name, &reason);
        } else if self.suspended {
            // It gets its places with all others.
            self.client.register(id, Tier::Root, Layout::default());
        } else {
            self.lay_out(id, &[]);
        }
        waiting
    }

    /// A name turned out unusable: its rounds under way and later ones fail.
    pub(crate) fn fail_tensor(&mut self, name: &str, message: &str) {
        let (id, waiting) = self.table.fail(name, message);
        for (_, submission) in waiting {
            self.refused.add(name, &submission.tag);
            submission.completion.finish(Err(OpError::Mismatch(message.to_owned())));
        }
        if let Some(id) = id {
            self.client.fail_tensor(id, message);
        }
    }

    /// The earliest time something is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let retry = self.dials.next_deadline();
        let leaver = self.needed_leaver().map(|leaver| leaver.missing_from);
        [retry, leaver].into_iter().flatten().min()
    }

    /// Hands an operation to the client; its round.
    pub(crate) fn run(&mut self, submission: Submission, request: Request, now: Instant) -> u64 {
        let Submission { tag, memory, completion, staged, deferred, order, since, .. } = submission;
        let supply = if staged.is_some() { Supply::Ranges } else { Supply::Whole };
        let Submission { update, rescale, .. } = submission;
        let request = Request { supply, update, rescale, ..request };
        let id = self.client.submit(request, OpMemory::Tensor(memory));
        if !order.is_empty() {
            self.client.follow(id, order);
        }
        for bytes in staged.iter().flat_map(|staged| staged.begin(id)) {
            self.client.supply(id, bytes);
        }
        if let Some(update) = deferred.as_ref().and_then(|deferred| deferred.begin(id)) {
            self.client.decide(id, update);
        }
        self.last_progress = now;
        let tensor = self.table.known_mut(request.tensor);
        let round = tensor.begun;
        tensor.begun += 1;
        let tensor = request.tensor;
        let begun = now;
        let running = Running { tensor, tag, round, completion, staged, deferred, since, begun };
        self.running.insert(id, running);
        round
    }

    /// The norm of a deferred round's gradient is known.
    pub(crate) fn norm_known(&self, id: OpId, squares: ExactSum) {
        if let Some(deferred) = self.running.get(&id).and_then(|r| r.deferred.as_ref()) {
            deferred.report(squares);
        }
    }

    /// More of a staged round's result is final.
    pub(crate) fn slices_final(&self, id: OpId, bytes: Range<usize>) {
        let running = self.running.get(&id);
        if let Some(staged) = running.and_then(|running| running.staged.as_ref()) {
            staged.shrink(bytes);
        }
    }

    /// In which order a round has changed a variable.
    pub(crate) fn ordered(&mut self, id: OpId, order: Vec<OrderSpan>) {
        if let Some(running) = self.running.get(&id) {
            running.completion.ordered(order);
        }
    }

    /// The run cannot go on: fails all that is under way and all that will come.
    pub(crate) fn fail(&mut self, reason: &OpError) {
        self.over = Some(reason.clone());
        self.out_of_data.fail(reason);
        for (id, done) in std::mem::take(&mut self.filling) {
            let name = self.name(id).unwrap_or_default();
            done.finish(Err(reason.about(&format!("variable '{name}' was not set"))));
        }
        for (name, submission) in self.table.take_waiting() {
            let error = reason.about(&format!("tensor '{name}' was not complete"));
            submission.completion.finish(Err(error));
        }
        self.hub.close();
        self.client.fail_all(|_| reason.to_string());
    }

    /// A worker that has left will never run out of data.
    pub(crate) fn fail_out_of_data(&mut self) {
        if let Some((rank, _)) = self.left.first() {
            let reason = format!("rank {rank} has left the job without running out of data");
            self.out_of_data.fail(&OpError::PeerLost(reason));
        }
    }

    /// Whether nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_empty() && self.table.waiting_len() == 0
    }

    /// How many operations are under way.
    pub(crate) fn under_way(&self) -> usize {
        self.running.len() + self.table.waiting_len()
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

    /// Whether another worker may still begin a round that this one has: not one of a name that has
    /// failed, which fails on all, and no worker that has left.
    pub(crate) fn may_begin(&self, tensor: TensorId, rank: Rank) -> bool {
        self.table.request(tensor).is_some() && self.left.iter().all(|(left, _)| *left != rank)
    }

    /// The first to leave of those that operations under way need: others that leave after it
    /// give it no more time.
    fn needed_leaver(&self) -> Option<Leaver<'_>> {
        if self.left.is_empty() || self.over.is_some() {
            return None;
        }
        let leaver = |(rank, left): (Rank, Instant), name, begun: Instant| {
            let missing_from = self.last_progress.max(left).max(begun) + self.patience;
            Leaver { rank, name, missing_from }
        };
        self.left.iter().find_map(|left| {
            let needing = |running: &&Running| self.needs(running.tensor, left.0);
            if let Some(Running { tensor, since, .. }) = self.running.values().find(needing) {
                return Some(leaver(*left, self.name(*tensor)?, *since));
            }
            // What waits for its number has begun nowhere yet.
            let (spec, asked) = self.table.waiting().find(|(spec, _)| is_member(spec, left.0))?;
            Some(leaver(*left, &spec.name, asked.since))
        })
    }
}
