//! How this member's clock compares with the coordinator's: the times of the heartbeats.

use std::collections::VecDeque;

use sumpter_membership::MemberEvent;
use sumpter_observe::Sample;

use crate::proto;
use crate::traces::{BURST, SAMPLES_KEPT, sample_to_proto};

/// The times of the latest heartbeats, and the requests for a trace that wait for more of them.
#[derive(Debug, Default)]
pub(super) struct ClockLog {
    regular: VecDeque<Sample>,
    burst: Vec<Sample>,
    /// Heartbeats of the burst that are still to be answered.
    left: u32,
    asked: Vec<MemberEvent>,
}

/// What follows from an answer to a heartbeat.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    Nothing,
    /// Say the next heartbeat at once.
    Beat,
    /// The burst is over: these requests can be answered.
    Answer(Vec<MemberEvent>),
}

impl ClockLog {
    /// A trace is requested; whether a burst begins with a heartbeat now.
    pub fn ask(&mut self, event: MemberEvent) -> bool {
        self.asked.push(event);
        let begins = self.left == 0;
        if begins {
            self.burst.clear();
            self.left = BURST;
        }
        begins
    }

    /// A heartbeat has been answered.
    pub fn on_heartbeat_seen(&mut self, seen: &proto::HeartbeatSeen, heard_ns: u64) -> Next {
        let proto::HeartbeatSeen { sent_ns, received_ns, replied_ns } = *seen;
        let sample = Sample { sent_ns, received_ns, replied_ns, heard_ns };
        if self.left == 0 {
            if self.regular.len() == SAMPLES_KEPT {
                self.regular.pop_front();
            }
            self.regular.push_back(sample);
            return Next::Nothing;
        }
        self.burst.push(sample);
        self.left -= 1;
        if self.left > 0 { Next::Beat } else { Next::Answer(std::mem::take(&mut self.asked)) }
    }

    /// Another coordinator has another clock.
    pub fn forget(&mut self) {
        *self = ClockLog::default();
    }

    /// All samples, oldest first.
    pub fn samples(&self) -> Vec<proto::ClockSample> {
        let mut samples: Vec<_> = self.regular.iter().chain(&self.burst).collect();
        samples.sort_by_key(|sample| sample.sent_ns);
        samples.into_iter().map(sample_to_proto).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumpter_types::JobId;

    fn seen(at: u64) -> proto::HeartbeatSeen {
        proto::HeartbeatSeen { sent_ns: at, received_ns: at + 1, replied_ns: at + 2 }
    }

    #[test]
    fn a_request_waits_for_a_burst_and_old_beats_are_forgotten() {
        let mut log = ClockLog::default();
        for at in 0..100 {
            assert_eq!(log.on_heartbeat_seen(&seen(at), at + 3), Next::Nothing);
        }
        let event = |request| MemberEvent::TraceAsked { request, job: JobId(7) };
        assert!(log.ask(event(1)));
        assert!(!log.ask(event(2)), "the burst is under way");
        for at in 1..BURST {
            assert_eq!(log.on_heartbeat_seen(&seen(u64::from(at) + 200), 300), Next::Beat);
        }
        assert_eq!(log.on_heartbeat_seen(&seen(299), 300), Next::Answer(vec![event(1), event(2)]));
        let samples = log.samples();
        assert_eq!(samples.len(), SAMPLES_KEPT + BURST as usize);
        assert!(samples.is_sorted_by_key(|sample| sample.sent_ns));
        assert_eq!(samples[0].sent_ns, 36);
        assert!(log.ask(event(3)), "each burst begins anew");
        log.forget();
        assert!(log.samples().is_empty());
    }
}
