//! Requests for a trace: the coordinator asks every member of a run for what it has recorded, and
//! passes the answers on without looking into them.
//!
//! A member exchanges a burst of heartbeats with the coordinator before it answers, so that its
//! clock can be compared with the coordinator's.

use std::collections::HashMap;

use sumpter_membership::{Event, MemberEvent, RunMembers};
use sumpter_observe::Sample;
use sumpter_types::MemberId;
use tokio::sync::mpsc::error::TrySendError;
use tracing::warn;

use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::service::{Outbound, Shared, message};

/// Samples of its clock that a member keeps, beside those of the burst: some minutes of heartbeats.
pub(crate) const SAMPLES_KEPT: usize = 64;

/// Heartbeats of a burst: of several round trips the shortest is the most exact.
pub(crate) const BURST: u32 = 8;

/// The requests that are being answered.
#[derive(Default)]
pub(crate) struct Traces {
    last: u64,
    open: HashMap<u64, Outbound>,
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
        state.traces.open.insert(request, outbound.clone());
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
    pub(crate) fn pass_on_trace(&self, MemberId(member): MemberId, piece: proto::TracePiece) {
        let mut state = self.state();
        let request = piece.request;
        let Some(outbound) = state.traces.open.get(&request) else { return };
        let part = ToMember::TracePart(proto::TracePart { member, piece: Some(piece) });
        match outbound.try_send(Ok(message(part))) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => warn!("the requester of a trace does not read it"),
            Err(TrySendError::Closed(_)) => drop(state.traces.open.remove(&request)),
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
