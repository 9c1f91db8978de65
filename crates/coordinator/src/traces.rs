//! Requests for a trace: the coordinator asks every member of a run for what it has recorded, and
//! passes the answers on without looking into them.
//!
//! A member exchanges a burst of heartbeats with the coordinator before it answers, so that its
//! clock can be compared with the coordinator's.

use std::collections::{BTreeSet, HashMap};

use sumpter_membership::{Event, MemberEvent, RunMembers};
use sumpter_observe::Sample;
use sumpter_types::MemberId;
use tracing::warn;

use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::service::{Outbound, Shared, message};

/// Samples of its clock that a member keeps, beside those of the burst: some minutes of heartbeats.
pub(crate) const SAMPLES_KEPT: usize = 64;

/// Heartbeats of a burst: of several round trips the shortest is the most exact.
pub(crate) const BURST: u32 = 8;

/// Bytes of all answers to a request: more than any tool opens.
const ANSWERS_LIMIT: usize = 1 << 30;

/// The requests that are being answered.
#[derive(Default)]
pub(crate) struct Traces {
    last: u64,
    open: HashMap<u64, Request>,
}

/// A request: who asks, and the members whose answers are not complete.
struct Request {
    outbound: Outbound,
    awaited: BTreeSet<MemberId>,
    bytes: usize,
}

impl Request {
    /// Passes on a piece of an answer. A member of which a piece is lost is not listened to any
    /// more, so that the requester counts it as missing.
    fn pass_on(&mut self, member: MemberId, piece: proto::TracePiece) {
        if !self.awaited.contains(&member) {
            return;
        }
        self.bytes = self.bytes.saturating_add(piece.payload.len());
        let last = piece.last;
        let part = proto::TracePart { member: member.0, piece: Some(piece) };
        let fits = self.bytes <= ANSWERS_LIMIT;
        if !fits || self.outbound.try_send(Ok(message(ToMember::TracePart(part)))).is_err() {
            warn!(%member, "the requester of a trace does not read it, or it is too large");
            self.awaited.remove(&member);
        } else if last {
            self.awaited.remove(&member);
        }
    }
}

impl Shared {
    /// The members of a run, or why there is no such run.
    pub(crate) fn run_members(&self, job: &str) -> Result<RunMembers, String> {
        self.state().registry.run_members((!job.is_empty()).then_some(job))
    }

    /// Asks the members of a run; the request's number. Their answers go to `outbound` until
    /// [`end_trace`](Self::end_trace).
    pub(crate) fn begin_trace(&self, run: &RunMembers, outbound: &Outbound) -> u64 {
        let mut state = self.state();
        state.traces.last += 1;
        let request = state.traces.last;
        let awaited = run.members.iter().map(|member| member.member).collect();
        let asked = Request { outbound: outbound.clone(), awaited, bytes: 0 };
        state.traces.open.insert(request, asked);
        for member in &run.members {
            let event = MemberEvent::TraceAsked { request, job: run.run };
            // A session that has just ended does not answer, and is listed as missing.
            let _ = state.tell(member.member, Event::Tell(event));
        }
        request
    }

    /// The requester is gone.
    pub(crate) fn end_trace(&self, request: u64) {
        self.state().traces.open.remove(&request);
    }

    /// Passes a member's answer on.
    pub(crate) fn pass_on_trace(&self, member: MemberId, piece: proto::TracePiece) {
        if let Some(request) = self.state().traces.open.get_mut(&piece.request) {
            request.pass_on(member, piece);
        }
    }
}

pub(crate) fn sample_to_proto(sample: &Sample) -> proto::ClockSample {
    let Sample { sent_ns, received_ns, replied_ns, heard_ns } = *sample;
    proto::ClockSample { sent_ns, received_ns, replied_ns, heard_ns }
}

pub(crate) fn sample_from_proto(sample: &proto::ClockSample) -> Sample {
    let proto::ClockSample { sent_ns, received_ns, replied_ns, heard_ns } = *sample;
    Sample { sent_ns, received_ns, replied_ns, heard_ns }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::mpsc;

    fn piece(payload: Vec<u8>, last: bool) -> proto::TracePiece {
        proto::TracePiece { payload, last, ..proto::TracePiece::default() }
    }

    fn passed(told: &mut mpsc::Receiver<Result<proto::CoordinatorMessage, tonic::Status>>) -> u64 {
        let Ok(Ok(proto::CoordinatorMessage { body: Some(ToMember::TracePart(part)) })) =
            told.try_recv()
        else {
            return 0;
        };
        part.member
    }

    #[test]
    fn only_members_that_were_asked_answer_and_each_until_it_has() {
        let (outbound, mut told) = mpsc::channel(2);
        let awaited = [MemberId(1), MemberId(2), MemberId(3)].into();
        let mut request = Request { outbound, awaited, bytes: 0 };
        request.pass_on(MemberId(4), piece(vec![1], false));
        assert_eq!(passed(&mut told), 0);
        request.pass_on(MemberId(1), piece(vec![1], true));
        request.pass_on(MemberId(1), piece(vec![1], false));
        assert_eq!((passed(&mut told), passed(&mut told)), (1, 0));
        // What does not fit is lost, so the answer has no end.
        for member in [2, 3, 2] {
            request.pass_on(MemberId(member), piece(vec![1], false));
        }
        assert_eq!((passed(&mut told), passed(&mut told)), (2, 3));
        request.pass_on(MemberId(2), piece(Vec::new(), true));
        assert_eq!(passed(&mut told), 0);
        request.bytes = ANSWERS_LIMIT;
        request.pass_on(MemberId(3), piece(vec![1], false));
        assert_eq!((passed(&mut told), request.awaited.len()), (0, 0));
    }
}
