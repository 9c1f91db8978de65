//! Frames: a fixed header of 32 bytes, then `length` bytes of payload.
//!
//! All integers are little-endian. A decoder never panics and never trusts a length: whoever
//! reads a payload checks the header against what it expects before it makes room for it.

use arrayvec::ArrayVec;
use sumpter_types::Update;
use sumpter_types::{
    CallNumber, Collective, Dtype, Epoch, GroupId, MAX_SLOTS, Rank, ReduceOp, Round, TensorId,
};

use crate::coding::{CODING_BYTES, CodecId, CodingSpec, MAX_CODEC_BYTES};
use crate::snapshot::SNAPSHOT_BYTES;
use crate::variable::{APPLY_BYTES, MAX_NORM_BYTES, UPDATE_BYTES, VariableSpec};

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 32;
/// Bytes of the payload of a [`FrameKind::Begin`] frame that begins no update.
pub const BEGIN_BYTES: usize = 28;
/// Bytes of a [`Route`], which may follow those.
pub const ROUTE_BYTES: usize = 16;
/// The longest payload of a [`FrameKind::Begin`] frame without an order.
pub const MAX_BEGIN_BYTES: usize = BEGIN_BYTES + UPDATE_BYTES;
/// Bytes of a stretch in the [order](crate::OrderEntry) of a round.
pub const ORDER_ENTRY_BYTES: usize = 12;
/// Stretches in the order of one round of one partition.
pub const MAX_ORDER_ENTRIES: usize = 1 << 16;
/// The longest payload of a frame that carries no tensor data.
pub const MAX_CONTROL_BYTES: usize = 64 * 1024;
/// Ranks of a group that is announced; that of all ranks is not.
pub const MAX_GROUP_RANKS: usize = MAX_CONTROL_BYTES / size_of::<u32>();

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameKind {
    /// Client to lane: I take part in this round of this partition, and hold `chunk` chunks of
    /// its result already. The payload is a [`Begin`]; in the worker tier the order may follow, in
    /// which the chunks are to change the variable.
    Begin = 1,
    /// Client to lane: my contribution to one chunk.
    Push = 2,
    /// Lane to client: the finished value of one chunk.
    Result = 3,
    /// Lane to client: the round is complete, and its contributions are not needed again; sent to
    /// those who receive no data, and in an update to all. The payload is empty; in the worker tier
    /// it is the order in which the chunks have changed the variable.
    Done = 4,
    /// Either way: this tensor cannot be summed; the payload is the reason in UTF-8.
    Error = 5,
    /// Client to lane: the members of group `tensor`; the payload is their ranks, ascending.
    Group = 6,
    /// Client to lane: I hold the whole result of this round of this partition.
    Ack = 7,
    /// Lane to client: all receivers hold the whole result, which need not be retained.
    Released = 8,
    /// Lane to client: a chunk of a variable that changes asynchronously, for its mirror; `round`
    /// numbers what the lane sends of the chunk. Client to lane, from the mirror: what is about to
    /// be put into the lane has these clocks. The payload is a [`Snapshot`](crate::Snapshot), with
    /// the bytes of the chunk or without.
    Snapshot = 9,
    /// Client to lane: the mirror has this snapshot of this chunk.
    Mirrored = 10,
    /// Lane to client: the squares of the gradient of this partition have this sum; to members that
    /// began the round without saying what it does.
    Norm = 11,
    /// Client to lane: what the round does that I began without saying so.
    Apply = 12,
    /// Client to lane: what codec `tensor` is; the payload is its canonical text, in UTF-8.
    Codec = 13,
}

impl FrameKind {
    fn from_code(code: u8) -> Option<FrameKind> {
        use FrameKind::{
            Ack, Apply, Begin, Codec, Done, Error, Group, Mirrored, Norm, Push, Released, Result,
            Snapshot,
        };
        let all = [
            Begin, Push, Result, Done, Error, Group, Ack, Released, Snapshot, Mirrored, Norm,
            Apply, Codec,
        ];
        all.into_iter().find(|k| *k as u8 == code)
    }
}

/// Whose contributions a sum holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Tier {
    /// Everyone's: the value is the result.
    #[default]
    Root = 0,
    /// Those of one machine's workers: the subtotal is passed on to the root, and what comes back
    /// is the result.
    Machine = 1,
    /// No sum: a change of epoch interrupted the round, and one worker passes on a result that
    /// others lack.
    Relay = 2,
    /// Of no collective: a mirror puts the value of a variable into the lane.
    Value = 3,
    /// The same of the rule's first slot.
    Slot0 = 4,
    /// The same of the second slot.
    Slot1 = 5,
    /// The same of the third slot.
    Slot2 = 6,
    /// One worker's alone: it changes a variable when it arrives.
    Worker = 7,
    /// Those of one rack's machines: as those of a machine, one level further out.
    Rack = 8,
}

impl Tier {
    /// The tiers below the root whose sums are passed on, the innermost first.
    pub const AGGREGATES: [Tier; 2] = [Tier::Machine, Tier::Rack];

    /// The tiers of a variable's parts: its value, then its slots.
    pub const PARTS: [Tier; 1 + MAX_SLOTS] = [Tier::Value, Tier::Slot0, Tier::Slot1, Tier::Slot2];

    /// The part of a variable that the tier is about, as an index of [`PARTS`](Self::PARTS).
    #[must_use]
    pub fn part(self) -> Option<usize> {
        Tier::PARTS.iter().position(|tier| *tier == self)
    }

    /// Whether its sums are subtotals, which a hub passes on to a tier further out.
    #[must_use]
    pub fn is_aggregate(self) -> bool {
        Tier::AGGREGATES.contains(&self)
    }

    fn from_code(code: u8) -> Option<Tier> {
        let sums = [Tier::Root, Tier::Relay, Tier::Worker];
        let all = sums.into_iter().chain(Tier::AGGREGATES).chain(Tier::PARTS);
        all.into_iter().find(|tier| *tier as u8 == code)
    }
}

/// The header every frame starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame says.
    pub kind: FrameKind,
    /// Which of the partition's sums it is about; in a `Group` frame `Root`.
    pub tier: Tier,
    /// The epoch of the plan that the sender follows.
    pub epoch: Epoch,
    /// The tensor; in a `Group` or `Codec` frame the group's or the codec's id.
    pub tensor: TensorId,
    /// The partition's index in its tensor.
    pub partition: u32,
    /// The round of the tensor.
    pub round: Round,
    /// The chunk's index in its partition; in a `Begin` frame the chunks of the result held.
    pub chunk: u32,
    /// Bytes of payload that follow.
    pub length: u32,
}

/// Why bytes are not a frame.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The kind is none of this version's.
    #[error("unknown frame kind {0}")]
    UnknownKind(u8),
    /// The tier is none of this version's.
    #[error("unknown tier {0}")]
    UnknownTier(u8),
    /// A reserved field is not zero: the sender speaks another version.
    #[error("a reserved header field is {0:#x}, expected 0")]
    Reserved(u64),
    /// A field of a `Begin` payload has no meaning.
    #[error("partition spec: {field} is {value}")]
    Spec {
        /// The field's name.
        field: &'static str,
        /// The value found.
        value: u64,
    },
    /// A payload has another length than its kind demands.
    #[error("a {kind:?} frame carries {length} bytes of payload, expected {expected}")]
    Length {
        /// The frame's kind.
        kind: FrameKind,
        /// The length found.
        length: u64,
        /// What was expected, in words.
        expected: &'static str,
    },
    /// A `Group` payload is not a list of distinct ascending ranks.
    #[error("group ranks are not ascending")]
    GroupOrder,
    /// A header is not what was sent.
    #[error("the checksum of a header is wrong: it was corrupted on its way")]
    CorruptHeader,
    /// A payload is not what was sent.
    #[error(
        "the checksum of a {:?} frame is wrong: it was corrupted on its way (tensor {}, \
         partition {}, round {}, chunk {})",
        .0.kind, .0.tensor, .0.partition, .0.round, .0.chunk
    )]
    Corrupt(Header),
}

impl Header {
    /// A header without payload; the other fields are set by struct update.
    #[must_use]
    pub fn new(kind: FrameKind, epoch: Epoch, tensor: TensorId) -> Header {
        let tier = Tier::Root;
        Header { kind, tier, epoch, tensor, partition: 0, round: Round(0), chunk: 0, length: 0 }
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        out[0] = self.kind as u8;
        out[1] = self.tier as u8;
        let fields =
            [self.epoch.0, self.tensor.0, self.partition, self.round.0, self.chunk, self.length];
        for (place, field) in out[4..28].chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        out
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError::UnknownKind`], [`FrameError::UnknownTier`] and [`FrameError::Reserved`].
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
        let kind = FrameKind::from_code(bytes[0]).ok_or(FrameError::UnknownKind(bytes[0]))?;
        let tier = Tier::from_code(bytes[1]).ok_or(FrameError::UnknownTier(bytes[1]))?;
        let reserved = u64::from(word(bytes, 0) >> 16) << 32 | u64::from(word(bytes, 28));
        if reserved != 0 {
            return Err(FrameError::Reserved(reserved));
        }
        let header = Header {
            kind,
            tier,
            epoch: Epoch(word(bytes, 4)),
            tensor: TensorId(word(bytes, 8)),
            partition: word(bytes, 12),
            round: Round(word(bytes, 16)),
            chunk: word(bytes, 20),
            length: word(bytes, 24),
        };
        header.check_length()?;
        Ok(header)
    }

    fn check_length(&self) -> Result<(), FrameError> {
        let length = self.length as usize;
        let orders = |length: usize| {
            let entries = length / ORDER_ENTRY_BYTES;
            length.is_multiple_of(ORDER_ENTRY_BYTES) && entries <= MAX_ORDER_ENTRIES
        };
        let (ok, expected) = match self.kind {
            FrameKind::Begin => (
                [0, ROUTE_BYTES, CODING_BYTES].map(|more| BEGIN_BYTES + more).contains(&length)
                    || length.checked_sub(MAX_BEGIN_BYTES).is_some_and(orders),
                "the partition spec's, or that and a route's or a codec's, or that, the update's \
                 and an order's",
            ),
            FrameKind::Push | FrameKind::Result => (length > 0, "at least 1"),
            FrameKind::Done if self.tier == Tier::Worker => (orders(length), "an order's"),
            FrameKind::Done | FrameKind::Ack | FrameKind::Released | FrameKind::Mirrored => {
                (length == 0, "none")
            }
            FrameKind::Snapshot => (length >= SNAPSHOT_BYTES, "at least a snapshot's head"),
            FrameKind::Error => (length <= MAX_CONTROL_BYTES, "at most 65536"),
            FrameKind::Norm => (
                (4..=MAX_NORM_BYTES).contains(&length) && length % 8 == 4,
                "4, and 8 for each word",
            ),
            FrameKind::Apply => {
                (length == 0 || length == APPLY_BYTES, "none, or a round's coefficients")
            }
            FrameKind::Codec => ((1..=MAX_CODEC_BYTES).contains(&length), "1 to 1024"),
            FrameKind::Group => (
                length <= MAX_CONTROL_BYTES && length.is_multiple_of(4) && length > 0,
                "a list of at most 16384 ranks",
            ),
        };
        if ok {
            return Ok(());
        }
        Err(FrameError::Length { kind: self.kind, length: u64::from(self.length), expected })
    }
}

pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// What a lane must know to sum a partition; it travels in every [`Begin`], and must be the same
/// from every member of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PartitionSpec {
    /// Bytes of the partition, a multiple of the element size, at least 1.
    pub bytes: u32,
    /// Bytes of each chunk but the last, a multiple of the element size.
    pub chunk_bytes: u32,
    /// The workers that take part.
    pub group: GroupId,
    /// The root of a broadcast or reduce; 0 otherwise.
    pub root: Rank,
    /// What the round does.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// How contributions combine.
    pub op: ReduceOp,
    /// Whether contributions are added in rank order, for the same bytes in every run.
    pub deterministic: bool,
    /// What is updated by the sum, in an update.
    pub variable: Option<VariableSpec>,
    /// Where the subtotal goes next, for a hub that does not know the tensor; not in an update.
    pub route: Option<Route>,
    /// How contributions are encoded, and the sum unless the codec says otherwise; only in an
    /// all-reduce of floats that adds, without a route.
    pub coding: Option<CodingSpec>,
}

/// Where a hub in a server sends the subtotals of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Route {
    /// The lane that makes the next sum: its number among all lanes of the job.
    pub lane: u32,
    /// Whose subtotals are added there.
    pub group: GroupId,
    /// What the hub is called in that group; ranks of servers follow those of the workers.
    pub rank: Rank,
    /// Whether that lane says when all have a result, since its process may die without ending the
    /// job.
    pub keeps: bool,
}

impl Route {
    fn encode(&self) -> [u8; ROUTE_BYTES] {
        let mut out = [0; ROUTE_BYTES];
        let words = [self.lane, self.group.0, self.rank.0, u32::from(self.keeps)];
        for (place, word) in out.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out
    }

    fn decode(bytes: &[u8; ROUTE_BYTES]) -> Result<Route, FrameError> {
        let (lane, group) = (word(bytes, 0), GroupId(word(bytes, 4)));
        let keeps = match word(bytes, 12) {
            0 => false,
            1 => true,
            value => return Err(FrameError::Spec { field: "keeps", value: value.into() }),
        };
        Ok(Route { lane, group, rank: Rank(word(bytes, 8)), keeps })
    }
}

/// In place of the rank of a carrier.
const NO_CARRIER: u32 = u32::MAX;

impl CodingSpec {
    fn encode(&self) -> [u8; CODING_BYTES] {
        let mut out = [0; CODING_BYTES];
        out[..4].copy_from_slice(&self.codec.0.to_le_bytes());
        out[4..12].copy_from_slice(&self.elements.to_le_bytes());
        out[12..20].copy_from_slice(&self.block.to_le_bytes());
        let carrier = self.carrier.map_or(NO_CARRIER, |rank| rank.0);
        out[20..].copy_from_slice(&carrier.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; CODING_BYTES]) -> Result<CodingSpec, FrameError> {
        let long = |at| u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32;
        let carrier = Some(Rank(word(bytes, 20))).filter(|rank| rank.0 != NO_CARRIER);
        let (codec, elements, block) = (CodecId(word(bytes, 0)), long(4), long(12));
        let spec = CodingSpec { codec, elements, block, carrier };
        match spec.elements {
            0 => Err(FrameError::Spec { field: "elements", value: 0 }),
            _ => Ok(spec),
        }
    }
}

impl PartitionSpec {
    /// Chunks in the partition.
    #[must_use]
    pub fn chunks(&self) -> u32 {
        self.bytes.div_ceil(self.chunk_bytes)
    }

    /// Bytes of chunk `index`; 0 beyond the last.
    #[must_use]
    pub fn chunk_len(&self, index: u32) -> u32 {
        let start = u64::from(index) * u64::from(self.chunk_bytes);
        let left = u64::from(self.bytes).saturating_sub(start);
        left.min(u64::from(self.chunk_bytes)) as u32
    }

    /// Whether what it says can be encoded.
    fn check_coding(&self) -> Result<(), FrameError> {
        let fault = |field, value: u8| Err(FrameError::Spec { field, value: value.into() });
        match self {
            spec if !spec.dtype.is_float() => fault("dtype", spec.dtype.code()),
            spec if spec.op != ReduceOp::Sum => fault("op", spec.op.code()),
            spec if spec.collective != Collective::AllReduce => {
                fault("collective", spec.collective as u8)
            }
            _ => Ok(()),
        }
    }

    /// Reads a spec and checks that it makes sense.
    fn decode(bytes: &[u8; BEGIN_BYTES]) -> Result<PartitionSpec, FrameError> {
        let fault = |field, value: u64| FrameError::Spec { field, value };
        let code = |at: usize| u64::from(bytes[at]);
        let spec = PartitionSpec {
            bytes: word(bytes, 0),
            chunk_bytes: word(bytes, 4),
            group: GroupId(word(bytes, 8)),
            root: Rank(word(bytes, 12)),
            collective: Collective::from_code(bytes[16])
                .ok_or_else(|| fault("collective", code(16)))?,
            dtype: Dtype::from_code(bytes[17]).ok_or_else(|| fault("dtype", code(17)))?,
            op: ReduceOp::from_code(bytes[18]).ok_or_else(|| fault("op", code(18)))?,
            deterministic: match bytes[19] {
                0 => false,
                1 => true,
                _ => return Err(fault("deterministic", code(19))),
            },
            variable: None,
            route: None,
            coding: None,
        };
        let element = spec.dtype.size() as u32;
        if spec.bytes == 0 || !spec.bytes.is_multiple_of(element) {
            return Err(fault("bytes", u64::from(spec.bytes)));
        }
        if spec.chunk_bytes == 0 || !spec.chunk_bytes.is_multiple_of(element) {
            return Err(fault("chunk_bytes", u64::from(spec.chunk_bytes)));
        }
        Ok(spec)
    }
}

/// The payload of a `Begin` frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Begin {
    /// The partition.
    pub spec: PartitionSpec,
    /// How urgently this member wants the result of this round: the higher goes first.
    pub priority: i32,
    /// Which call the round belongs to, if this member counts them; all members say the same.
    pub call: Option<CallNumber>,
    /// What the round does, in an update; all members say the same, or that they will say it later.
    pub update: Option<Update>,
}

/// The bytes of a [`Begin`].
pub type BeginBytes = ArrayVec<u8, MAX_BEGIN_BYTES>;

impl Begin {
    /// The payload's bytes.
    #[must_use]
    pub fn encode(&self) -> BeginBytes {
        let mut out = [0; BEGIN_BYTES];
        let spec = &self.spec;
        let words = [spec.bytes, spec.chunk_bytes, spec.group.0, spec.root.0];
        for (place, word) in out[..16].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        out[16] = spec.collective as u8;
        out[17] = spec.dtype.code();
        out[18] = spec.op.code();
        out[19] = u8::from(spec.deterministic);
        out[20..24].copy_from_slice(&self.priority.to_le_bytes());
        out[24..].copy_from_slice(&CallNumber::to_field(self.call).to_le_bytes());
        let mut bytes: BeginBytes = out.into_iter().collect();
        if let (Some(route), None) = (&spec.route, &spec.variable) {
            bytes.extend(route.encode());
        }
        if let (Some(coding), None, None) = (&spec.coding, &spec.variable, &spec.route) {
            bytes.extend(coding.encode());
        }
        if let (Some(variable), Some(update)) = (&spec.variable, &self.update) {
            bytes.extend(variable.encode(update));
        }
        bytes
    }

    /// Reads a payload and checks that its spec makes sense.
    ///
    /// # Errors
    /// [`FrameError::Spec`] with the field at fault, and [`FrameError::Length`].
    pub fn decode(bytes: &[u8]) -> Result<Begin, FrameError> {
        let wrong_length = |expected| FrameError::Length {
            kind: FrameKind::Begin,
            length: bytes.len() as u64,
            expected,
        };
        let (begin, rest) = bytes
            .split_first_chunk::<BEGIN_BYTES>()
            .ok_or_else(|| wrong_length("at least the partition spec's"))?;
        let priority = word(begin, 20).cast_signed();
        let call = CallNumber::from_field(word(begin, 24));
        let mut spec = PartitionSpec::decode(begin)?;
        if spec.collective != Collective::Update {
            if let Ok(coding) = rest.try_into() {
                spec.coding = Some(CodingSpec::decode(coding)?);
                spec.check_coding()?;
            } else if !rest.is_empty() {
                let route =
                    rest.try_into().map_err(|_| wrong_length("a route's, a codec's or none"))?;
                spec.route = Some(Route::decode(route)?);
            }
            return Ok(Begin { spec, priority, call, update: None });
        }
        let update = rest.try_into().map_err(|_| wrong_length("an update's"))?;
        let (variable, update) = VariableSpec::decode(update)?;
        let whole = u64::from(variable.offset) % spec.dtype.size() as u64 == 0;
        if !spec.dtype.is_float() {
            return Err(FrameError::Spec { field: "dtype", value: spec.dtype.code().into() });
        }
        if !whole {
            return Err(FrameError::Spec { field: "offset", value: variable.offset.into() });
        }
        spec.variable = Some(variable);
        Ok(Begin { spec, priority, call, update: Some(update) })
    }
}

/// The payload of a `Group` frame: ranks in ascending order.
#[must_use]
pub fn encode_group(ranks: &[Rank]) -> Vec<u8> {
    ranks.iter().flat_map(|r| r.0.to_le_bytes()).collect()
}

/// Reads the payload of a `Group` frame.
///
/// # Errors
/// [`FrameError::GroupOrder`] unless the ranks ascend, and [`FrameError::Length`].
pub fn decode_group(payload: &[u8]) -> Result<Vec<Rank>, FrameError> {
    if payload.is_empty() || !payload.len().is_multiple_of(4) {
        let length = payload.len() as u64;
        let expected = "a list of at most 16384 ranks";
        return Err(FrameError::Length { kind: FrameKind::Group, length, expected });
    }
    let ranks: Vec<Rank> = payload.chunks_exact(4).map(|c| Rank(word(c, 0))).collect();
    if ranks.windows(2).all(|w| w[0] < w[1]) { Ok(ranks) } else { Err(FrameError::GroupOrder) }
}

/// The id of a group: an FNV-1a hash of its ranks, so that all members agree without asking. A
/// lane refuses two groups of one id with different members.
#[must_use]
pub fn group_id(ranks: &[Rank]) -> GroupId {
    let bytes = ranks.iter().flat_map(|r| r.0.to_le_bytes());
    GroupId(bytes.fold(0x811c_9dc5, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193)))
}
