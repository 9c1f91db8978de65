//! A job's state in one lane: who is connected, its groups and its partitions.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use foldhash::{HashMap, HashMapExt};
use sumpter_codec::{BLOCK, Codec, CodecError, Registry, Spec};
use sumpter_sum::BufferPool;
use sumpter_types::{Epoch, GroupId, JobId, Rank, Round, TensorId};
use sumpter_wire::{
    CodecId, CodingSpec, Header, PartitionSpec, Route, Tier, VariableSpec, codec_id, group_id,
};

use super::limits::{JobLimits, partition_bytes};
use super::order::RoundStart;
use super::outcome::{Beginning, ChunkPlace, Listener, Progress};
use super::partition::Partition;
use super::peer::Peer;
use super::state::State;
use crate::coding::Coding;
use sumpter_endpoint::{ConnId, Violation};

/// Groups a job may define; a job of 64 workers with every pair and row of a mesh needs fewer.
const MAX_GROUPS: usize = 4096;

/// Codecs with their arguments that a job may use.
const MAX_CODECS: usize = 1 << 14;

/// Where a partition's state is.
pub(super) type PartitionIndex = usize;

/// Where a job's state is, as long as the job lives; connections and subtotals, which hold it, do
/// not live longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobIndex(usize);

/// The jobs of a lane, found without hashing for every frame.
#[derive(Debug, Default)]
pub(super) struct Jobs(Vec<Option<Job>>);

impl Jobs {
    pub(super) fn find(&self, id: JobId) -> Option<JobIndex> {
        self.0.iter().position(|job| job.as_ref().is_some_and(|job| job.id == id)).map(JobIndex)
    }

    pub(super) fn insert(&mut self, job: Job) -> JobIndex {
        let free = self.0.iter().position(Option::is_none).unwrap_or(self.0.len());
        if free == self.0.len() {
            self.0.push(None);
        }
        self.0[free] = Some(job);
        JobIndex(free)
    }

    pub(super) fn remove(&mut self, at: JobIndex) {
        self.0[at.0] = None;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Job> {
        self.0.iter().flatten()
    }
}

impl Index<JobIndex> for Jobs {
    type Output = Job;

    fn index(&self, at: JobIndex) -> &Job {
        self.0[at.0].as_ref().expect("a connection's job lives")
    }
}

impl IndexMut<JobIndex> for Jobs {
    fn index_mut(&mut self, at: JobIndex) -> &mut Job {
        self.0[at.0].as_mut().expect("a connection's job lives")
    }
}

/// What a partition is called in its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub tensor: TensorId,
    pub tier: Tier,
    pub partition: u32,
    /// Whose it is, in the tier where each worker has its own.
    pub worker: Option<Rank>,
}

impl Key {
    /// What a frame of this worker is about.
    pub(super) fn of(header: &Header, rank: Rank) -> Key {
        let Header { tensor, tier, partition, .. } = *header;
        Key { tensor, tier, partition, worker: (tier == Tier::Worker).then_some(rank) }
    }

    /// A partition of subtotals.
    pub(super) fn of_aggregate(tensor: TensorId, tier: Tier, partition: u32) -> Key {
        Key { tensor, tier, partition, worker: None }
    }
}

#[derive(Debug)]
pub(super) struct Job {
    pub id: JobId,
    pub epoch: Epoch,
    pub world_size: u32,
    /// Whether the workers keep this lane's results.
    pub keeps: bool,
    /// Whether its frames carry checksums.
    pub checksum: bool,
    /// By rank, who is connected: workers, then servers that are hubs.
    pub children: Vec<Option<ConnId>>,
    /// The child in this process.
    pub resident: Option<ConnId>,
    /// Subtotals to be passed on.
    pub subtotals: VecDeque<(PartitionIndex, ChunkPlace)>,
    /// Totals that this machine has, which are not acknowledged elsewhere yet.
    pub totals: VecDeque<(PartitionIndex, Round)>,
    /// Rounds about which this machine's workers have decided, which is not passed on yet.
    pub decisions: VecDeque<(PartitionIndex, Round)>,
    groups: HashMap<GroupId, Arc<[Rank]>>,
    /// Codecs that were announced, or why this lane cannot have one.
    codecs: HashMap<CodecId, (Box<str>, Result<Spec, String>)>,
    index: HashMap<Key, PartitionIndex>,
    keys: Vec<Key>,
    /// Tensors whose subtotals cannot be passed on, and why.
    refused: HashMap<TensorId, Box<str>>,
    /// Partitions about which the members disagree, and how.
    disputed: HashMap<Key, Box<str>>,
    partitions: Vec<Partition>,
    /// What is kept of variables between rounds.
    states: Vec<State>,
    /// Where the state of a variable's partition is.
    state_index: HashMap<(TensorId, u32), usize>,
    bytes: u64,
    /// Bytes of contributions that wait for those of earlier ranks.
    held: u64,
    limits: JobLimits,
}

impl Job {
    pub(super) fn new(peer: &Peer, limits: JobLimits) -> Job {
        let Peer { job: id, epoch, world_size, keeps, checksum, .. } = *peer;
        let world: Arc<[Rank]> = (0..world_size).map(Rank).collect();
        Job {
            id,
            epoch,
            world_size,
            keeps,
            checksum,
            children: vec![None; world_size as usize + limits.servers as usize],
            resident: None,
            subtotals: VecDeque::new(),
            totals: VecDeque::new(),
            decisions: VecDeque::new(),
            groups: [(GroupId(0), world)].into_iter().collect(),
            codecs: HashMap::new(),
            index: HashMap::new(),
            keys: Vec::new(),
            refused: HashMap::new(),
            disputed: HashMap::new(),
            partitions: Vec::new(),
            states: Vec::new(),
            state_index: HashMap::new(),
            bytes: 0,
            held: 0,
            limits,
        }
    }

    /// Gives every buffer back: the job has ended.
    pub(super) fn give_back(&mut self, pool: &mut BufferPool) {
        self.partitions.iter_mut().for_each(|partition| partition.give_back(pool));
        self.states.iter_mut().for_each(|state| state.give_back(pool));
    }

    /// What its sums occupy when all are under way.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What its sums may occupy from now on.
    pub(super) fn limit(&mut self, limits: JobLimits) {
        self.limits = JobLimits { servers: self.limits.servers, ..limits };
    }

    /// How many workers other than `rank` are connected.
    pub(super) fn connections_beside(&self, rank: Rank) -> usize {
        let children = self.children[..self.world_size as usize].iter().zip(0..);
        children.filter(|(child, of)| child.is_some() && *of != rank.0).count()
    }

    pub(super) fn partition(&self, at: PartitionIndex) -> &Partition {
        &self.partitions[at]
    }

    pub(super) fn partition_mut(&mut self, at: PartitionIndex) -> &mut Partition {
        &mut self.partitions[at]
    }

    /// A partition with its variable's state.
    pub(super) fn with_state(
        &mut self,
        at: PartitionIndex,
    ) -> (&mut Partition, Option<&mut State>) {
        let partition = &mut self.partitions[at];
        let state = partition.state.and_then(|state| self.states.get_mut(state));
        (partition, state)
    }

    /// How many variables' partitions have a state here.
    pub(super) fn states(&self) -> usize {
        self.states.len()
    }

    pub(super) fn state(&self, state: usize) -> &State {
        &self.states[state]
    }

    pub(super) fn state_mut(&mut self, state: usize) -> &mut State {
        &mut self.states[state]
    }

    /// Where the state of a variable's partition is.
    pub(super) fn state_of(&self, tensor: TensorId, home: u32) -> Option<usize> {
        self.state_index.get(&(tensor, home)).copied()
    }

    /// The partitions whose rounds change a state.
    pub(super) fn users(&self, state: usize) -> Vec<PartitionIndex> {
        self.states[state].users.clone()
    }

    /// What a finished chunk is for a child.
    pub(super) fn value(
        &self,
        at: PartitionIndex,
        place: ChunkPlace,
        gradient: bool,
    ) -> Option<&[u8]> {
        let partition = &self.partitions[at];
        let state = partition.state.and_then(|state| self.states.get(state));
        partition.value(place, gradient, state)
    }

    /// A mirror has put a chunk of a variable's part here. Returns the partitions that may have
    /// waited for it.
    pub(super) fn fill(
        &mut self,
        at: PartitionIndex,
        place: ChunkPlace,
        pool: &mut BufferPool,
    ) -> Vec<PartitionIndex> {
        let partition = &self.partitions[at];
        let (Some(part), Some(state)) = (partition.tier().part(), partition.state) else {
            return Vec::new();
        };
        let Some(bytes) = partition.value(place, false, None) else { return Vec::new() };
        let start = place.chunk as usize * partition.spec.chunk_bytes as usize;
        let state = &mut self.states[state];
        state.fill(part, partition.spec.bytes as usize, (start, bytes), pool);
        state.users.clone()
    }

    /// The members disagree about a partition: who begins it from now on gets the reason. Whether
    /// they did not before.
    pub(super) fn dispute(&mut self, key: Key, reason: &str) -> bool {
        self.disputed.insert(key, reason.into()).is_none()
    }

    /// What waits for its turn in a partition that has failed is given back and no longer counted.
    pub(super) fn give_back_held(&mut self, at: PartitionIndex, pool: &mut BufferPool) {
        self.partition_mut(at).give_back_held(pool);
        self.held = self.partitions.iter().map(|partition| partition.held_bytes() as u64).sum();
    }

    /// Counts what waits for its turn in the order of ranks. A text if that is too much: a rank is
    /// late, and those behind it send all they have. To stop reading would not do, since ranks may
    /// send tensors in different orders.
    pub(super) fn hold(
        &mut self,
        progress: &Progress,
        (at, slot): (PartitionIndex, usize),
    ) -> Result<(), String> {
        self.held = (self.held + progress.held as u64).saturating_sub(progress.released as u64);
        if progress.held <= progress.released || self.held <= self.limits.max_bytes {
            return Ok(());
        }
        let partition = self.partition(at);
        let chunk = partition.finished(slot);
        let late = partition.awaited(ChunkPlace { slot, chunk });
        let late = late.map_or_else(|| "a rank".to_owned(), |rank| format!("rank {rank}"));
        let instead = match partition.spec.variable {
            None => "or do without `deterministic`",
            Some(_) => "or leave the optimizer to the workers",
        };
        Err(format!(
            "{late} is late, and what others have sent of sums in the order of ranks takes {} \
             bytes of a lane's memory, more than the {} of the job's sums (max_job_bytes, or the \
             job's quota): raise that, add servers, {instead}",
            self.held, self.limits.max_bytes
        ))
    }

    /// How many partitions there are.
    pub(super) fn partitions(&self) -> usize {
        self.partitions.len()
    }

    /// Whether a result is here for which a receiver has not asked yet, one that `may` ask for the
    /// tensor.
    pub(super) fn is_expected(&self, may: &impl Fn(TensorId, Rank) -> bool) -> bool {
        let mut partitions = self.keys.iter().zip(&self.partitions);
        partitions.any(|(key, partition)| partition.is_expected(|rank| may(key.tensor, rank)))
    }

    /// How many partitions wait for a rank.
    pub(super) fn waiting(&self) -> usize {
        self.partitions.iter().filter(|partition| partition.is_waiting()).count()
    }

    pub(super) fn key(&self, at: PartitionIndex) -> Key {
        self.keys[at]
    }

    /// Looks at `near` first: frames of one partition follow each other.
    pub(super) fn find(&self, key: Key, near: PartitionIndex) -> Option<PartitionIndex> {
        match self.keys.get(near) {
            Some(known) if *known == key => Some(near),
            _ => self.index.get(&key).copied(),
        }
    }

    /// Subtotals of a tensor cannot be passed on: a client that begins one from now on gets the
    /// reason. Returns the partitions that some have begun.
    pub(super) fn refuse(&mut self, tensor: TensorId, reason: &str) -> Vec<PartitionIndex> {
        self.refused.insert(tensor, reason.into());
        let concerned = |key: &Key| key.tensor == tensor && key.tier.is_aggregate();
        (0..self.keys.len()).filter(|at| concerned(&self.keys[*at])).collect()
    }

    pub(super) fn define_group(&mut self, id: GroupId, ranks: &[Rank]) -> Result<(), Violation> {
        let known = |rank: &Rank| (rank.0 as usize) < self.children.len();
        if !ranks.last().is_some_and(known) || group_id(ranks) != id {
            return Err(Violation::state(format!("group {id} is not what its id says")));
        }
        if let Some(known) = self.groups.get(&id) {
            return match **known == *ranks {
                true => Ok(()),
                false => Err(Violation::state(format!("group {id} has other members"))),
            };
        }
        if self.groups.len() >= MAX_GROUPS {
            return Err(Violation::state(format!("more than {MAX_GROUPS} groups")));
        }
        self.groups.insert(id, ranks.into());
        Ok(())
    }

    /// A codec of this job has this id; one that is none of `registry` is refused when it is used.
    pub(super) fn define_codec(
        &mut self,
        id: CodecId,
        text: &[u8],
        registry: &Registry,
    ) -> Result<(), Violation> {
        let text = std::str::from_utf8(text).ok().filter(|text| codec_id(text) == id);
        let text = text.ok_or_else(|| Violation::state(format!("codec {id} is another")))?;
        if let Some((known, _)) = self.codecs.get(&id) {
            return match **known == *text {
                true => Ok(()),
                false => Err(Violation::state(format!("codec {id} is {text} and {known}"))),
            };
        }
        if self.codecs.len() >= MAX_CODECS {
            return Err(Violation::state(format!("more than {MAX_CODECS} codecs")));
        }
        let spec = registry.parse(text).map_err(|error| match error {
            CodecError::Unknown { .. } => format!(
                "a lane has no such codec: {error}; one of your own is for servers and workers \
                 in Python that all have it (setting codecs)"
            ),
            error => error.to_string(),
        });
        self.codecs.insert(id, (text.into(), spec));
        Ok(())
    }

    /// `rank` begins a round; makes the partition at its first sight.
    pub(super) fn begin(
        &mut self,
        (rank, over): (Rank, Listener),
        key: Key,
        spec: PartitionSpec,
        start: &RoundStart,
        (pool, registry): (&mut BufferPool, &Registry),
    ) -> Result<Begun, Violation> {
        if let Some(reason) = self.disputed.get(&key) {
            return Ok(Begun::Refused(reason.to_string()));
        }
        if let (true, Some(reason)) = (key.tier.is_aggregate(), self.refused.get(&key.tensor)) {
            return Ok(Begun::Refused(reason.to_string()));
        }
        let at = match self.index.get(&key) {
            Some(at) => *at,
            None if let Some(known) = self.otherwise(&key, &spec) => {
                return Ok(Begun::Refused(format!(
                    "rank {rank} declared {spec:?}, others {known:?}"
                )));
            }
            None => match self.create(key, spec, registry)? {
                Ok(at) => at,
                Err(reason) => return Ok(Begun::Refused(reason)),
            },
        };
        let partition = &mut self.partitions[at];
        if partition.spec != spec {
            return Ok(Begun::Refused(format!(
                "rank {rank} declared {spec:?}, others {:?}",
                partition.spec
            )));
        }
        let Ok(child) = partition.members().binary_search(&rank) else {
            return Err(Violation::state(format!("rank {rank} is not in group {}", spec.group)));
        };
        Ok(match partition.begin(child, over, start, pool)? {
            Beginning::In { slot, completes, wants_total } => {
                Begun::At { partition: at, slot, completes, wants_total }
            }
            Beginning::Early => Begun::Early,
            Beginning::Differs(how) => {
                let slot = (start.round.0 & 1) as usize;
                Begun::Disputed { partition: at, slot, reason: format!("rank {rank}: {how}") }
            }
        })
    }

    /// What others know of a variable that changes asynchronously, if it is something else.
    fn otherwise(&self, key: &Key, spec: &PartitionSpec) -> Option<PartitionSpec> {
        let home = home(key, spec).filter(|_| key.tier == Tier::Worker)?;
        let state = self.state_of(key.tensor, home)?;
        let known = self.partitions[*self.states[state].users.first()?].spec;
        (PartitionSpec { group: spec.group, ..known } != *spec).then_some(known)
    }

    /// Makes a partition; or a text for the client, why not.
    fn create(
        &mut self,
        key: Key,
        spec: PartitionSpec,
        registry: &Registry,
    ) -> Result<Result<PartitionIndex, String>, Violation> {
        let Some(members) = self.groups.get(&spec.group) else {
            return Err(Violation::state(format!("group {} was not announced", spec.group)));
        };
        // The root may run elsewhere than the members of an aggregate.
        let rooted = spec.collective.has_root() && !key.tier.is_aggregate();
        if rooted && members.binary_search(&spec.root).is_err() {
            return Err(Violation::state(format!("root {} is not in the group", spec.root)));
        }
        if let Some(route) = &spec.route {
            self.check_route(key.tier, route)?;
        }
        let is_own = key.tier == Tier::Worker;
        if spec.variable.is_some_and(|v| v.staleness.is_synchronous() == is_own) || {
            is_own && (spec.variable.is_none() || members.len() != 1)
        } {
            return Err(Violation::state("a worker's own round of what all change together"));
        }
        let elsewhere = |v: VariableSpec| (v.home, v.offset) != (key.partition, 0);
        if is_own && spec.variable.is_some_and(elsewhere) {
            return Err(Violation::state("a worker's own round of a part of another partition"));
        }
        let codec = match spec.coding.map(|coding| self.codec(key.tier, &spec, &coding, registry)) {
            Some(codec) => match codec? {
                Ok(codec) => Some(codec),
                Err(reason) => return Ok(Err(reason)),
            },
            None => None,
        };
        let bytes = partition_bytes(&spec, key.tier, codec.as_ref());
        if self.bytes + bytes > self.limits.max_bytes {
            return Ok(Err(self.full(bytes)));
        }
        self.bytes += bytes;
        self.index.insert(key, self.partitions.len());
        self.keys.push(key);
        let mut partition = Partition::new(spec, members.clone(), (key.tensor, key.tier), codec);
        let at = self.partitions.len();
        if let Some(home) = home(&key, &spec) {
            let free = self.states.len();
            let state = *self.state_index.entry((key.tensor, home)).or_insert(free);
            if state == free {
                self.states.push(State::default());
            }
            if matches!(key.tier, Tier::Root | Tier::Worker) {
                self.states[state].users.push(at);
            }
            partition.state = Some(state);
        }
        self.partitions.push(partition);
        Ok(Ok(at))
    }

    /// The codec of a partition; or a text for the client, why there is none.
    fn codec(
        &self,
        tier: Tier,
        spec: &PartitionSpec,
        CodingSpec { codec, elements, block, carrier }: &CodingSpec,
        registry: &Registry,
    ) -> Result<Result<Codec, String>, Violation> {
        let Some((_, known)) = self.codecs.get(codec) else {
            return Err(Violation::state(format!("codec {codec} was not announced")));
        };
        let first = block.checked_mul(BLOCK as u64);
        let end = first
            .and_then(|first| first.checked_add((spec.bytes as usize / spec.dtype.size()) as u64));
        let is_within = end.is_some_and(|end| end <= *elements);
        let granularity = Coding::granularity(spec.dtype) as u32;
        if tier != Tier::Root || !is_within || !spec.chunk_bytes.is_multiple_of(granularity) {
            return Err(Violation::state(format!("no codec encodes {spec:?} in tier {tier:?}")));
        }
        let carrier_is_member = carrier.is_none_or(|carrier| {
            let members = self.groups.get(&spec.group);
            members.is_some_and(|members| members.binary_search(&carrier).is_ok())
        });
        let keeps_sums = known.as_ref().is_ok_and(|known| known.sum_feedback);
        if !carrier_is_member || (carrier.is_some() && known.is_ok() && !keeps_sums) {
            return Err(Violation::state(format!("no member carries what {spec:?} leaves out")));
        }
        let made = known
            .as_ref()
            .map_err(String::clone)
            .and_then(|known| registry.codec(known, *elements).map_err(|error| error.to_string()));
        Ok(made.map(Codec::without_memory))
    }

    fn full(&self, bytes: u64) -> String {
        format!(
            "a lane has no room for {bytes} more bytes: the job uses {} of {} \
             (max_job_bytes, or the job's quota)",
            self.bytes, self.limits.max_bytes
        )
    }

    /// Whether a subtotal can go where members say: to a lane of the job, where a group adds that
    /// has this server as a member.
    fn check_route(&self, tier: Tier, route: &Route) -> Result<(), Violation> {
        let Some(members) = self.group(route.group) else {
            return Err(Violation::state(format!("group {} was not announced", route.group)));
        };
        let is_member = members.binary_search(&route.rank).is_ok();
        let is_server = route.rank.0 >= self.world_size;
        match tier.is_aggregate() && is_member && is_server && route.lane < self.limits.lanes {
            true => Ok(()),
            false => Err(Violation::state(format!("a subtotal of tier {tier:?} to {route:?}"))),
        }
    }

    /// The members of a group that was defined.
    pub(super) fn group(&self, id: GroupId) -> Option<&Arc<[Rank]>> {
        self.groups.get(&id)
    }
}

/// The partition whose state a partition is about, if it is about one.
fn home(key: &Key, spec: &PartitionSpec) -> Option<u32> {
    match key.tier {
        Tier::Root | Tier::Worker => spec.variable.map(|variable| variable.home),
        tier => tier.part().map(|_| key.partition),
    }
}

/// What a `Begin` frame led to.
#[derive(Debug)]
pub(super) enum Begun {
    /// The child is in; `completes` if everyone now is, and all chunks are finished;
    /// `wants_total` if everyone now is, and none of them contributes.
    At { partition: PartitionIndex, slot: usize, completes: bool, wants_total: bool },
    /// The child is in as soon as the round before is complete.
    Early,
    /// The partition cannot be reduced; the client gets the reason.
    Refused(String),
    /// Others have begun the round differently: all get the reason.
    Disputed { partition: PartitionIndex, slot: usize, reason: String },
}
