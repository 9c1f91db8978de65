//! Between the protocol's messages and the coordinator's own words.
//!
//! Whatever a peer sent that has no meaning here becomes an error text, never a panic.

use std::time::Duration;

use prost::Message as _;
use prost::bytes::Bytes;
use sumpter_membership::{
    FatalKind, Join, MAX_COUNTERS, MAX_PENDING, MAX_TENSORS, MAX_WORLD, MemberEvent, Message,
    ServerMemory, StallLimits, check_tensor_name, cut,
};
use sumpter_types::{
    Bandwidth, BandwidthSource, Collective, Dtype, Epoch, JobId, Late, MemberId, PendingOp, Rank,
    ReduceOp, RefusedOp, Role, Rule, Staleness, Stats, Suspicion, TensorId, TensorSpec,
};

use crate::member::options::JoinOptions;
use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;

mod lists;
mod rejoin;
mod shared;
mod speeds;
mod status;
mod view;

pub(crate) use lists::MOST_LISTED;
use lists::check_list;
pub(crate) use rejoin::{rejoin_from_proto, rejoin_to_proto};
pub(crate) use shared::{Assembly, MESSAGE_LIMIT, pieces, shared};
use shared::{answers_from_proto, answers_to_proto, decompress};
use speeds::{choices_from_proto, choices_to_proto, speeds_from_proto, speeds_to_proto};
pub(crate) use status::{report_from_proto, report_to_proto, run_members_to_proto};
use view::{
    group_from_proto, group_to_proto, lanes_from_proto, lanes_to_proto, quota_from_proto,
    quota_to_proto, rack_from_proto, rack_to_proto,
};
pub(crate) use view::{view_from_proto, view_to_proto};

/// What is wrong with a peer's message.
pub(crate) type Malformed = String;

// The member's side.

/// The request to join.
pub(crate) fn join_to_proto(options: &JoinOptions, process: u64) -> proto::Join {
    let role = match options.role {
        Role::Worker { rank, world_size, local_rank, local_size } => {
            let rank = rank.0;
            let worker = proto::WorkerRole { rank, world_size, local_rank, local_size };
            proto::join::Role::Worker(worker)
        }
        Role::Server => proto::join::Role::Server(proto::ServerRole {}),
    };
    proto::Join {
        job: options.job.clone(),
        role: Some(role),
        machine: options.machine.clone(),
        host: options.host.clone(),
        lanes: lanes_to_proto(&options.lanes),
        bandwidth_gbps: options.bandwidth.map(|known| known.gbps),
        bandwidth_source: source_to_proto(options.bandwidth),
        rack: options.rack.clone().map(rack_to_proto),
        device_group: options.device_group.clone().map(group_to_proto),
        speeds: Some(speeds_to_proto(&options.speeds)),
        expected_servers: options.expected_servers,
        start_timeout_ms: milliseconds(options.start_timeout),
        peer_timeout_ms: milliseconds(options.peer_timeout),
        server_timeout_ms: milliseconds(options.server_timeout),
        settings: options.settings.clone(),
        coordinator: options.coordinator.clone(),
        process,
        max_bytes: options.memory.max_bytes,
        max_job_bytes: options.memory.max_job_bytes,
        rejoin: None,
        stall_warning_ms: milliseconds(options.stalls.warning),
        stall_shutdown_ms: milliseconds(options.stalls.shutdown),
    }
}

/// A duration as it travels.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A message to a member after its welcome; `None` for what the session handles itself.
pub(crate) fn event_from_proto(body: ToMember) -> Result<Option<MemberEvent>, Malformed> {
    Ok(Some(match body {
        ToMember::HeartbeatSeen(_) | ToMember::LeaveSeen(_) | ToMember::Declared(_) => {
            return Ok(None);
        }
        ToMember::Waiting(proto::Waiting { missing, seconds }) => {
            MemberEvent::Waiting { missing, seconds }
        }
        ToMember::Started(view) => MemberEvent::Started(view_from_proto(view)?),
        ToMember::JobStarted(view) => MemberEvent::JobStarted(view_from_proto(view)?),
        ToMember::Tensors(proto::Tensors { first, specs }) => {
            MemberEvent::Tensors { first: TensorId(first), specs: specs_from_proto(specs)? }
        }
        ToMember::OutOfData(out) => MemberEvent::OutOfData { rank: Rank(out.rank) },
        ToMember::AllOutOfData(all) => MemberEvent::AllOutOfData { last: Rank(all.last) },
        ToMember::Began(proto::Began { tensor, round }) => {
            MemberEvent::Began { tensor: TensorId(tensor), round }
        }
        ToMember::TensorError(proto::TensorError { name, message }) => {
            MemberEvent::TensorError { name, message }
        }
        ToMember::WorkerLost(proto::WorkerLost { rank, host, reason }) => {
            MemberEvent::WorkerLost { rank: Rank(rank), host, reason }
        }
        ToMember::WorkerLeft(left) => MemberEvent::WorkerLeft { rank: Rank(left.rank) },
        ToMember::Suspend(proto::Suspend { epoch, reason }) => {
            MemberEvent::Suspend { epoch: Epoch(epoch), reason }
        }
        ToMember::Resume(resume) => {
            let view = resume.view.ok_or("a new epoch without a plan")?;
            let progress = answers_from_proto(resume.progress)?;
            MemberEvent::Resume { view: view_from_proto(view)?, progress }
        }
        ToMember::Stalled(proto::Stalled { message, over }) => {
            MemberEvent::Stalled { message, over }
        }
        ToMember::TraceAsked(proto::TraceAsked { request, job }) => {
            MemberEvent::TraceAsked { request, job: JobId(job) }
        }
        ToMember::Draining(_) => MemberEvent::Draining,
        ToMember::Drained(_) => MemberEvent::Drained,
        ToMember::GivenUp(proto::GivenUp { message }) => MemberEvent::GivenUp { message },
        ToMember::JobEnded(ended) => MemberEvent::JobEnded { job: JobId(ended.job) },
        ToMember::Finished(_) => MemberEvent::Finished,
        ToMember::Fatal(fatal) => {
            MemberEvent::Fatal { kind: kind_from_proto(fatal.kind), message: fatal.message }
        }
        ToMember::Shared(encoded) => return event_of(encoded),
        ToMember::Compressed(compressed) => {
            let encoded = decompress(&compressed)?;
            // What it holds are parts of `encoded`, without a copy.
            drop(compressed);
            return event_of(encoded);
        }
        ToMember::Piece(_) => return Err("a piece of no message".to_owned()),
        ToMember::Challenge(_)
        | ToMember::Welcome(_)
        | ToMember::Refused(_)
        | ToMember::DrainReport(_)
        | ToMember::TuneReport(_)
        | ToMember::TraceHead(_)
        | ToMember::TracePart(_)
        | ToMember::Seating(_)
        | ToMember::SeatsChanged(_)
        | ToMember::SeatsOver(_)
        | ToMember::Status(_) => return Err("a greeting in the middle of a session".to_owned()),
    }))
}

/// The event of an encoded message that many members get.
fn event_of(encoded: Bytes) -> Result<Option<MemberEvent>, Malformed> {
    match proto::CoordinatorMessage::decode(encoded) {
        Ok(proto::CoordinatorMessage {
            body: Some(ToMember::Shared(_) | ToMember::Compressed(_) | ToMember::Piece(_)),
        }) => Err("a message within a message within a message".to_owned()),
        Ok(proto::CoordinatorMessage { body: Some(body) }) => event_from_proto(body),
        Ok(_) => Ok(None),
        Err(error) => Err(format!("a message that is none: {error}")),
    }
}

/// An error's class; one this version does not know is the peer's breach of protocol.
pub(crate) fn kind_from_proto(kind: i32) -> FatalKind {
    match proto::FatalKind::try_from(kind) {
        Ok(proto::FatalKind::Auth) => FatalKind::Auth,
        Ok(proto::FatalKind::Version) => FatalKind::Version,
        Ok(proto::FatalKind::Start) => FatalKind::Start,
        Ok(proto::FatalKind::Mismatch) => FatalKind::Mismatch,
        Ok(proto::FatalKind::PeerLost) => FatalKind::PeerLost,
        Ok(proto::FatalKind::Protocol | proto::FatalKind::Unspecified) | Err(_) => {
            FatalKind::Protocol
        }
    }
}

// The coordinator's side.

/// An applicant's request.
pub(crate) fn join_from_proto(join: proto::Join) -> Result<Join, Malformed> {
    let role = match join.role.ok_or("a request to join without a role")? {
        proto::join::Role::Worker(worker) => Role::Worker {
            rank: Rank(worker.rank),
            world_size: worker.world_size,
            local_rank: worker.local_rank,
            local_size: worker.local_size,
        },
        proto::join::Role::Server(_) => Role::Server,
    };
    let rejoin = join.rejoin.map(|rejoin| rejoin_from_proto(rejoin, &role)).transpose()?;
    Ok(Join {
        job: join.job,
        role,
        machine: join.machine,
        host: join.host,
        lanes: lanes_from_proto(join.lanes)?,
        bandwidth: bandwidth_from_proto(join.bandwidth_gbps, join.bandwidth_source),
        rack: join.rack.map(rack_from_proto),
        device_group: join.device_group.map(group_from_proto),
        speeds: speeds_from_proto(join.speeds),
        expected_servers: join.expected_servers,
        start_timeout: Duration::from_millis(join.start_timeout_ms),
        peer_timeout: Duration::from_millis(join.peer_timeout_ms),
        server_timeout: Duration::from_millis(join.server_timeout_ms),
        settings: join.settings,
        coordinator: join.coordinator,
        process: join.process,
        memory: ServerMemory { max_bytes: join.max_bytes, max_job_bytes: join.max_job_bytes },
        rejoin: rejoin.map(Box::new),
        stalls: StallLimits {
            warning: Duration::from_millis(join.stall_warning_ms),
            shutdown: Duration::from_millis(join.stall_shutdown_ms),
        },
    })
}

/// What a member says after its welcome.
pub(crate) fn message_from_proto(message: proto::MemberMessage) -> Result<Message, Malformed> {
    match message.body.ok_or("an empty message, or one of a newer version")? {
        FromMember::Hello(_) => Err("a second greeting".to_owned()),
        FromMember::Heartbeat(beat) => Ok(Message::Heartbeat(beat.stats.map(stats_from_proto))),
        FromMember::Declare(proto::Declare { specs }) => {
            check_list(specs.len())?;
            Ok(Message::Declare(specs_from_proto(specs)?))
        }
        FromMember::Refuse(proto::TensorError { name, message }) => {
            check_tensor_name(&name)?;
            Ok(Message::Refuse { name, message: cut(message) })
        }
        FromMember::OutOfData(_) => Ok(Message::OutOfData),
        FromMember::Began(proto::Began { tensor, round }) => {
            Ok(Message::Began { tensor: TensorId(tensor), round })
        }
        FromMember::JobReady(proto::JobReady { job, epoch }) => {
            Ok(Message::JobReady(JobId(job), Epoch(epoch)))
        }
        FromMember::Progress(proto::Progress { epoch, payload }) => {
            Ok(Message::Progress(Epoch(epoch), payload))
        }
        FromMember::Suspect(proto::Suspect { member, reason, epoch, run }) => {
            let (server, reason) = (MemberId(member), cut(reason));
            Ok(Message::Suspect { server, reason, plan: (JobId(run), Epoch(epoch)) })
        }
        FromMember::Drain(_) => Ok(Message::Drain),
        FromMember::Leave(_) => Ok(Message::Leave),
        FromMember::TracePiece(_) => Err("a trace that was not asked for".to_owned()),
        FromMember::AskSeat(_) | FromMember::LeaveSeat(_) => Err("a word of a seat".to_owned()),
    }
}

/// A message to a member.
pub(crate) fn event_to_proto(event: MemberEvent) -> ToMember {
    match event {
        MemberEvent::Waiting { missing, seconds } => {
            ToMember::Waiting(proto::Waiting { missing, seconds })
        }
        MemberEvent::Started(view) => ToMember::Started(view_to_proto(view)),
        MemberEvent::JobStarted(view) => ToMember::JobStarted(view_to_proto(view)),
        MemberEvent::Tensors { first, specs } => {
            let specs = specs.into_iter().map(spec_to_proto).collect();
            ToMember::Tensors(proto::Tensors { first: first.0, specs })
        }
        MemberEvent::OutOfData { rank } => ToMember::OutOfData(proto::OutOfData { rank: rank.0 }),
        MemberEvent::AllOutOfData { last } => {
            ToMember::AllOutOfData(proto::AllOutOfData { last: last.0 })
        }
        MemberEvent::Began { tensor, round } => {
            ToMember::Began(proto::Began { tensor: tensor.0, round })
        }
        MemberEvent::TensorError { name, message } => {
            ToMember::TensorError(proto::TensorError { name, message })
        }
        MemberEvent::WorkerLost { rank, host, reason } => {
            ToMember::WorkerLost(proto::WorkerLost { rank: rank.0, host, reason })
        }
        MemberEvent::WorkerLeft { rank } => {
            ToMember::WorkerLeft(proto::WorkerLeft { rank: rank.0 })
        }
        MemberEvent::Suspend { epoch, reason } => {
            ToMember::Suspend(proto::Suspend { epoch: epoch.0, reason })
        }
        MemberEvent::Resume { view, progress } => {
            let progress = answers_to_proto(progress);
            ToMember::Resume(proto::Resume { view: Some(view_to_proto(view)), progress })
        }
        MemberEvent::Stalled { message, over } => {
            ToMember::Stalled(proto::Stalled { message, over })
        }
        MemberEvent::TraceAsked { request, job } => {
            ToMember::TraceAsked(proto::TraceAsked { request, job: job.0 })
        }
        MemberEvent::Draining => ToMember::Draining(proto::Draining {}),
        MemberEvent::Drained => ToMember::Drained(proto::Drained {}),
        MemberEvent::GivenUp { message } => ToMember::GivenUp(proto::GivenUp { message }),
        MemberEvent::JobEnded { job } => ToMember::JobEnded(proto::JobEnded { job: job.0 }),
        MemberEvent::Finished => ToMember::Finished(proto::Finished {}),
        MemberEvent::CoordinatorLost { message } => {
            ToMember::Fatal(proto::Fatal { kind: kind_to_proto(FatalKind::PeerLost), message })
        }
        MemberEvent::Fatal { kind, message } => {
            ToMember::Fatal(proto::Fatal { kind: kind_to_proto(kind), message })
        }
    }
}

/// The bytes that an event takes on the way to a member.
#[must_use]
pub fn message_bytes(event: MemberEvent) -> usize {
    proto::CoordinatorMessage { body: Some(event_to_proto(event)) }.encoded_len()
}

/// An error's class.
pub(crate) fn kind_to_proto(kind: FatalKind) -> i32 {
    let kind = match kind {
        FatalKind::Auth => proto::FatalKind::Auth,
        FatalKind::Version => proto::FatalKind::Version,
        FatalKind::Start => proto::FatalKind::Start,
        FatalKind::Mismatch => proto::FatalKind::Mismatch,
        FatalKind::PeerLost => proto::FatalKind::PeerLost,
        FatalKind::Protocol => proto::FatalKind::Protocol,
    };
    kind.into()
}

// Both sides.

/// A tensor's identity.
pub(crate) fn spec_to_proto(spec: TensorSpec) -> proto::TensorSpec {
    let collective = match spec.collective {
        Collective::AllReduce => proto::Collective::AllReduce,
        Collective::Broadcast => proto::Collective::Broadcast,
        Collective::Reduce => proto::Collective::Reduce,
        Collective::Barrier => proto::Collective::Barrier,
        Collective::ReduceScatter => proto::Collective::ReduceScatter,
        Collective::Update => proto::Collective::Update,
    };
    proto::TensorSpec {
        name: spec.name,
        dtype: u32::from(spec.dtype.code()),
        shape: spec.shape,
        collective: collective.into(),
        op: u32::from(spec.op.code()),
        root: spec.root.0,
        ranks: spec.ranks.into_iter().map(|rank| rank.0).collect(),
        rule: spec.rule.map_or(0, |rule| u32::from(rule.code())),
        staleness: spec.staleness.0,
        sharded: spec.sharded,
        compression: spec.compression,
    }
}

fn specs_from_proto(specs: Vec<proto::TensorSpec>) -> Result<Vec<TensorSpec>, Malformed> {
    specs.into_iter().map(spec_from_proto).collect()
}

pub(crate) fn spec_from_proto(spec: proto::TensorSpec) -> Result<TensorSpec, Malformed> {
    let collective = match proto::Collective::try_from(spec.collective) {
        Ok(proto::Collective::AllReduce) => Collective::AllReduce,
        Ok(proto::Collective::Broadcast) => Collective::Broadcast,
        Ok(proto::Collective::Reduce) => Collective::Reduce,
        Ok(proto::Collective::Barrier) => Collective::Barrier,
        Ok(proto::Collective::ReduceScatter) => Collective::ReduceScatter,
        Ok(proto::Collective::Update) => Collective::Update,
        Ok(proto::Collective::Unspecified) | Err(_) => {
            return Err(format!("a tensor of the unknown collective {}", spec.collective));
        }
    };
    let code = |code: u32| u8::try_from(code).ok();
    let dtype = code(spec.dtype).and_then(Dtype::from_code);
    let op = code(spec.op).and_then(ReduceOp::from_code);
    let rule = code(spec.rule).and_then(Rule::from_code);
    if rule.is_none() && spec.rule != 0 {
        return Err(format!("a tensor with the unknown update rule {}", spec.rule));
    }
    Ok(TensorSpec {
        name: spec.name,
        dtype: dtype.ok_or_else(|| format!("a tensor of the unknown dtype {}", spec.dtype))?,
        shape: spec.shape,
        collective,
        op: op.ok_or_else(|| format!("a tensor with the unknown operator {}", spec.op))?,
        root: Rank(spec.root),
        ranks: spec.ranks.into_iter().map(Rank).collect(),
        rule,
        staleness: Staleness(spec.staleness),
        sharded: spec.sharded,
        compression: spec.compression,
    })
}

pub(crate) fn source_to_proto(bandwidth: Option<Bandwidth>) -> i32 {
    let source = match bandwidth.map(|known| known.source) {
        Some(BandwidthSource::Interface) => proto::BandwidthSource::Interface,
        Some(BandwidthSource::Configured) | None => proto::BandwidthSource::Configured,
    };
    source.into()
}

pub(crate) fn bandwidth_from_proto(gbps: Option<f64>, source: i32) -> Option<Bandwidth> {
    let source = match proto::BandwidthSource::try_from(source) {
        Ok(proto::BandwidthSource::Interface) => BandwidthSource::Interface,
        Ok(proto::BandwidthSource::Configured) | Err(_) => BandwidthSource::Configured,
    };
    gbps.map(|gbps| Bandwidth { gbps, source })
}

/// A member's numbers.
pub(crate) fn stats_to_proto(stats: &Stats) -> proto::MemberStats {
    let pending = stats.pending.iter().map(|op| proto::PendingOperation {
        name: op.name.clone(),
        tag: op.tag.clone(),
        since_ms: op.since_ms,
        round: op.round,
        waits_for: op.waits_for.clone(),
        suspicion: suspicion_to_proto(op.suspicion),
        left_bytes: op.left_bytes,
    });
    let refused = stats
        .refused
        .iter()
        .map(|op| proto::RefusedOperation { name: op.name.clone(), tag: op.tag.clone() });
    proto::MemberStats {
        counters: stats.counters.clone(),
        late: late_to_proto(&stats.late),
        pending: pending.collect(),
        begun: stats.begun.clone(),
        refused: refused.collect(),
        choices: choices_to_proto(&stats.choices),
    }
}

fn late_to_proto(late: &[Late]) -> Vec<proto::LateRank> {
    let one = |late: &Late| proto::LateRank {
        run: late.run.0,
        rank: late.rank.0,
        count: late.count,
        seconds: late.seconds,
    };
    late.iter().map(one).collect()
}

fn late_from_proto(late: Vec<proto::LateRank>) -> Vec<Late> {
    let one = |late: proto::LateRank| Late {
        run: JobId(late.run),
        rank: Rank(late.rank),
        count: late.count,
        seconds: late.seconds,
    };
    late.into_iter().take(MAX_WORLD as usize).map(one).collect()
}

fn stats_from_proto(stats: proto::MemberStats) -> Stats {
    let pending = stats.pending.into_iter().take(MAX_PENDING).map(|op| PendingOp {
        name: cut(op.name),
        tag: cut(op.tag),
        since_ms: op.since_ms,
        round: op.round,
        waits_for: cut(op.waits_for),
        suspicion: suspicion_from_proto(op.suspicion),
        left_bytes: op.left_bytes,
    });
    let refused = stats.refused.into_iter().take(MAX_PENDING);
    let refused = refused.map(|op| RefusedOp { name: cut(op.name), tag: cut(op.tag) });
    Stats {
        counters: stats.counters.into_iter().take(MAX_COUNTERS).collect(),
        late: late_from_proto(stats.late),
        pending: pending.collect(),
        begun: stats.begun.into_iter().take(MAX_TENSORS).collect(),
        refused: refused.collect(),
        choices: choices_from_proto(stats.choices),
    }
}

fn suspicion_to_proto(suspicion: Suspicion) -> i32 {
    let suspicion = match suspicion {
        Suspicion::Near => proto::Suspicion::Unspecified,
        Suspicion::Away => proto::Suspicion::Away,
        Suspicion::NotConnected => proto::Suspicion::NotConnected,
        Suspicion::Own => proto::Suspicion::Own,
    };
    suspicion.into()
}

fn suspicion_from_proto(suspicion: i32) -> Suspicion {
    match proto::Suspicion::try_from(suspicion) {
        Ok(proto::Suspicion::Away) => Suspicion::Away,
        Ok(proto::Suspicion::NotConnected) => Suspicion::NotConnected,
        Ok(proto::Suspicion::Own) => Suspicion::Own,
        Ok(proto::Suspicion::Unspecified) | Err(_) => Suspicion::Near,
    }
}

/// Decodes bytes as everything a peer may send, for fuzzers and tests: they are a message or
/// refused.
#[cfg(any(fuzzing, test))]
pub fn decode_any(bytes: &[u8]) {
    if let Ok(message) = proto::MemberMessage::decode(bytes) {
        let _ = message_from_proto(message);
    }
    if let Ok(join) = proto::Join::decode(bytes) {
        let _ = join_from_proto(join);
    }
    let message = proto::CoordinatorMessage::decode(bytes);
    if let Some(body) = message.ok().and_then(|message| message.body) {
        let _ = event_from_proto(body);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::spec;
    use proptest::collection::vec;
    use proptest::prelude::*;
    use sumpter_membership::{ClusterView, LaneView, MAX_CHOICES, ServerView, WorkerView};
    use sumpter_types::{CodecChoice, DeviceGroup, Quota, Rack};
    use sumpter_wire::Token;

    fn view() -> ClusterView {
        let (first, second) = ("10.0.0.1:7000".parse().unwrap(), "[::1]:7001".parse().unwrap());
        let both = LaneView { addresses: vec![first, second], own: 1, bandwidth: 25_000 };
        let lanes = vec![both, LaneView::from(first)];
        let (host, machine) = ("host".to_owned(), "machine".to_owned());
        let worker = WorkerView {
            rank: Rank(3),
            host: host.clone(),
            machine: machine.clone(),
            lanes: lanes.clone(),
            bandwidth_gbps: Some(12.5),
            rack: Some(Rack { name: "r1".to_owned(), trunk_gbps: Some(100.0) }),
            device_group: Some(DeviceGroup { name: "m/0".to_owned(), holds: true }),
        };
        let (member, bandwidth_gbps, rack) = (MemberId(9), None, None);
        let server = ServerView { member, host, machine, lanes, bandwidth_gbps, rack };
        ClusterView {
            job: JobId(u64::MAX),
            name: "job".to_owned(),
            epoch: Epoch(1),
            workers: vec![worker],
            servers: vec![server],
            coordinator_rank: Some(Rank(3)),
            gone: [Rank(1)].into(),
            key: Some(Token::new("the key of this run").unwrap()),
            quota: Quota { weight: 3, max_bytes: Some(1 << 40), max_connections: Some(8) },
            changes: [("chunk_bytes".to_owned(), "65536".to_owned())].into(),
            speeds: Box::new(speeds::testing::run_speeds()),
        }
    }

    fn every_event() -> Vec<MemberEvent> {
        let (host, reason) = ("host".to_owned(), "reason".to_owned());
        let (name, message) = ("name".to_owned(), "message".to_owned());
        let rank = Rank(2);
        let tensors = Collective::ALL.map(|collective| {
            let rule = (collective == Collective::Update).then_some(Rule::Lion);
            let staleness = Staleness(u32::from(rule.is_some()));
            let ranks = vec![Rank(1)];
            let sharded = collective == Collective::AllReduce;
            let compression = if sharded { "topk:k=0.01" } else { "" }.to_owned();
            let spec = spec("t", &[2, 0]);
            TensorSpec { collective, ranks, rule, staleness, sharded, compression, ..spec }
        });
        let tensors = MemberEvent::Tensors { first: TensorId(7), specs: tensors.to_vec() };
        let kinds = [
            FatalKind::Auth,
            FatalKind::Version,
            FatalKind::Start,
            FatalKind::Mismatch,
            FatalKind::PeerLost,
            FatalKind::Protocol,
        ];
        let fatal = kinds.map(|kind| MemberEvent::Fatal { kind, message: message.clone() });
        let mut events = vec![
            MemberEvent::Waiting { missing: vec!["rank 1".to_owned()], seconds: 3.5 },
            MemberEvent::Started(view()),
            MemberEvent::JobStarted(view()),
            MemberEvent::OutOfData { rank: Rank(2) },
            MemberEvent::AllOutOfData { last: Rank(1) },
            MemberEvent::Began { tensor: TensorId(7), round: 1 << 40 },
            MemberEvent::TensorError { name, message: message.clone() },
            MemberEvent::WorkerLost { rank, host, reason: reason.clone() },
            MemberEvent::WorkerLeft { rank },
            MemberEvent::Suspend { epoch: Epoch(7), reason },
            MemberEvent::Resume {
                view: view(),
                progress: (0..)
                    .map(Rank)
                    .zip([[1, 0, 9], [2; 3], [1, 0, 9]].map(|bytes| bytes.to_vec().into()))
                    .collect(),
            },
            MemberEvent::Stalled { message: message.clone(), over: true },
            MemberEvent::TraceAsked { request: 3, job: JobId(7) },
            MemberEvent::Draining,
            MemberEvent::Drained,
            MemberEvent::GivenUp { message: message.clone() },
            MemberEvent::JobEnded { job: JobId(1) },
            MemberEvent::Finished,
        ];
        events.push(tensors);
        events.extend(fatal);
        events
    }

    #[test]
    fn every_event_arrives_as_it_was_sent() {
        for event in every_event() {
            let message = proto::CoordinatorMessage { body: Some(event_to_proto(event.clone())) };
            let bytes = message.encode_to_vec();
            let body = proto::CoordinatorMessage::decode(&bytes[..]).unwrap().body.unwrap();
            assert_eq!(event_from_proto(body), Ok(Some(event)));
        }
    }

    #[test]
    fn a_message_for_many_arrives_as_it_was_sent_and_holds_no_other() {
        for event in every_event() {
            let shared = shared(event_to_proto(event.clone()));
            assert_eq!(event_from_proto(shared), Ok(Some(event)));
        }
        let inner = shared(event_to_proto(MemberEvent::Finished));
        let inner = proto::CoordinatorMessage { body: Some(inner) }.encode_to_vec();
        let refused = event_from_proto(ToMember::Shared(inner.into()));
        assert!(refused.is_err_and(|what| what.contains("within a message")));
        assert!(event_from_proto(ToMember::Shared(vec![0xff; 9].into())).is_err());
        assert!(event_from_proto(ToMember::Compressed(vec![0xff; 9].into())).is_err());
    }

    #[test]
    fn stats_and_every_dtype_and_operator_arrive_as_they_were_sent() {
        let stats = Stats {
            counters: [("samples".to_owned(), 1.5)].into(),
            late: vec![Late { run: JobId(3), rank: Rank(1), count: 2, seconds: 0.5 }],
            pending: vec![PendingOp {
                name: "t".into(),
                tag: "g#1|s".into(),
                since_ms: 9,
                round: 3,
                waits_for: "lane 0".into(),
                suspicion: Suspicion::NotConnected,
                left_bytes: 12_345,
            }],
            begun: vec![4, 0, 1],
            refused: vec![RefusedOp { name: "u".into(), tag: "g#0|s".into() }],
            choices: vec![speeds::testing::choice()],
        };
        assert_eq!(stats_from_proto(stats_to_proto(&stats)), stats);
        for dtype in Dtype::ALL {
            for op in ReduceOp::ALL {
                let spec = TensorSpec { dtype, op, ..spec("t", &[1]) };
                assert_eq!(spec_from_proto(spec_to_proto(spec.clone())), Ok(spec));
            }
        }
    }

    #[test]
    fn what_a_member_says_is_bounded() {
        let of = |body| message_from_proto(proto::MemberMessage { body: Some(body) });
        let specs = vec![spec_to_proto(spec("t", &[1])); 1 << 13];
        let list = of(FromMember::Declare(proto::Declare { specs }));
        assert!(list.is_err_and(|what| what.contains("8192 tensors at once")));
        let long = "x".repeat(1 << 20);
        let refuse = |name: &str| {
            FromMember::Refuse(proto::TensorError { name: name.into(), message: long.clone() })
        };
        assert!(of(refuse(&long)).is_err_and(|what| what.contains("1048576 bytes")));
        let Ok(Message::Refuse { message, .. }) = of(refuse("t")) else { panic!("a refusal") };
        assert_eq!(message.len(), sumpter_membership::MAX_TEXT_BYTES);
        let op = PendingOp { name: long.clone(), tag: long.clone(), ..PendingOp::default() };
        let late = Late { run: JobId(3), rank: Rank(1), count: 1, seconds: 0.0 };
        let counters = (0..20_000).map(|number| (format!("counter-{number}"), 1.0)).collect();
        let (pending, late) = (vec![op; 300], vec![late; 70_000]);
        let refused = vec![RefusedOp { name: long.clone(), tag: long.clone() }; 300];
        let choices = vec![CodecChoice { reason: long, ..CodecChoice::default() }; 300];
        let begun = vec![1; 1 << 19];
        let stats = Stats { counters, late, pending, begun, refused, choices };
        let kept = stats_from_proto(stats_to_proto(&stats));
        let counts = [kept.counters.len(), kept.late.len(), kept.pending.len(), kept.begun.len()];
        assert_eq!(counts, [MAX_COUNTERS, MAX_WORLD as usize, MAX_PENDING, MAX_TENSORS]);
        assert!(kept.pending.iter().all(|op| op.name.len() + op.tag.len() <= 8192));
        assert_eq!((kept.refused.len(), kept.choices.len()), (MAX_PENDING, MAX_CHOICES));
        assert!(kept.choices.iter().all(|choice| choice.reason.len() <= 4096));
        assert!(kept.refused.iter().all(|op| op.name.len() + op.tag.len() <= 8192));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in vec(any::<u8>(), 0..200)) {
            decode_any(&bytes);
        }

        /// A valid message with one byte changed, which gets deeper than random bytes do.
        #[test]
        fn a_damaged_message_is_a_message_or_refused(
            which in 0..every_event().len(),
            at: prop::sample::Index,
            value: u8,
        ) {
            let body = Some(event_to_proto(every_event().swap_remove(which)));
            let mut bytes = proto::CoordinatorMessage { body }.encode_to_vec();
            let at = at.index(bytes.len());
            bytes[at] = value;
            decode_any(&bytes);
        }
    }
}
