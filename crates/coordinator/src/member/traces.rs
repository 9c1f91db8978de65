//! The trace of a run, for one who is no member: everything its members have recorded.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sumpter_observe::Sample;
use sumpter_wire::Token;
use tokio::runtime;
use tokio::time::{Instant, timeout_at};

use super::greeting::Greeting;
use super::{REQUEST_LIMIT, no_answer};
use crate::error::JoinError;
use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::tls::Tls;
use crate::traces::sample_from_proto;

/// How long the answers of all members may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(15);

/// What the members of a run have recorded.
#[derive(Debug)]
pub struct Traces {
    /// The job's name.
    pub job: String,
    /// The run's number.
    pub run: u64,
    /// The tensors' names, by number.
    pub tensors: Vec<String>,
    /// The members that have answered.
    pub members: Vec<TraceOf>,
    /// Those that have not, in words.
    pub missing: Vec<String>,
}

/// What one member has recorded.
#[derive(Debug)]
pub struct TraceOf {
    /// Its number with the coordinator.
    pub member: u64,
    /// Its rank, if it is a worker.
    pub rank: Option<u32>,
    /// Where it runs.
    pub host: String,
    /// Encoded recordings.
    pub pieces: Vec<Vec<u8>>,
    /// Messages it exchanged with the coordinator, oldest first.
    pub samples: Vec<Sample>,
}

/// Asks a coordinator for what the members of a run have recorded; without a job, of the only one.
///
/// # Errors
/// [`JoinError`] if it does not answer, does not hold the token, or has no such run.
pub fn traces(
    coordinator: &str,
    token: &Token,
    tls: Option<&Tls>,
    job: Option<&str>,
) -> Result<Traces, JoinError> {
    let job = job.unwrap_or_default().to_owned();
    let purpose = proto::purpose::Body::Trace(proto::TraceRequest { job });
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let greeting = Greeting { coordinator, token, tls, purpose };
    let answer = runtime.block_on(collect(&greeting));
    runtime.shutdown_background();
    answer
}

async fn collect(greeting: &Greeting<'_>) -> Result<Traces, JoinError> {
    let mut greeted = greeting.only(REQUEST_LIMIT).await?;
    let deadline = Instant::now() + ANSWER_LIMIT;
    let mut next = async || {
        let message = timeout_at(deadline, greeted.inbound.message()).await;
        message.ok().and_then(Result::ok).flatten().and_then(|message| message.body)
    };
    let head = match next().await {
        Some(ToMember::TraceHead(head)) => head,
        _ => return Err(no_answer(greeting.coordinator, "it did not say who is in the run")),
    };
    let mut members: BTreeMap<u64, TraceOf> = BTreeMap::new();
    for proto::TraceMember { member, rank, host } in head.members {
        let (pieces, samples) = (Vec::new(), Vec::new());
        members.insert(member, TraceOf { member, rank, host, pieces, samples });
    }
    let mut awaited: BTreeSet<u64> = members.keys().copied().collect();
    while !awaited.is_empty() {
        let Some(ToMember::TracePart(part)) = next().await else { break };
        let (Some(piece), Some(of)) = (part.piece, members.get_mut(&part.member)) else { continue };
        if !piece.payload.is_empty() {
            of.pieces.push(piece.payload);
        }
        if piece.last {
            of.samples = piece.clock.iter().map(sample_from_proto).collect();
            awaited.remove(&part.member);
        }
    }
    let name = |of: &TraceOf| match of.rank {
        Some(rank) => format!("rank {rank} on {}", of.host),
        None => format!("server {} on {}", of.member, of.host),
    };
    let missing = awaited.iter().filter_map(|member| members.remove(member));
    let missing = missing.map(|of| name(&of)).collect();
    let (job, run, tensors) = (head.job, head.run, head.tensors);
    Ok(Traces { job, run, tensors, members: members.into_values().collect(), missing })
}
