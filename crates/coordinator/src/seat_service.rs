//! Carries words between the sessions of elastic jobs' processes and the state machine that forms
//! their generations.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sumpter_elastic::{Input, Request, Response, Seats};
use sumpter_membership::{FatalKind, Serves, Tenants};
use sumpter_types::MemberId;
use tonic::Streaming;
use tracing::{info, warn};

use crate::codec::kind_to_proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;
use crate::proto::{self, CoordinatorMessage, MemberMessage};
use crate::service::Outbound;

/// The seats of all elastic jobs, and the sessions of those who sit or wait.
pub(crate) struct SeatService {
    started: Instant,
    state: Mutex<State>,
}

struct State {
    seats: Seats,
    sessions: HashMap<MemberId, Outbound>,
    last: u64,
    stopping: bool,
}

impl SeatService {
    /// Without processes.
    pub fn new(serves: Serves, tenants: Arc<Tenants>) -> Self {
        let remember = match serves {
            // The next job of the same name is another one.
            Serves::ManyJobs => Duration::ZERO,
            Serves::OneJob | Serves::OneRun => Duration::MAX,
        };
        let (seats, sessions) = (Seats::new(remember, tenants), HashMap::new());
        let state = State { seats, sessions, last: 0, stopping: false };
        Self { started: Instant::now(), state: Mutex::new(state) }
    }

    /// Gives the state machine an input and the sessions what follows from it.
    pub fn apply(&self, input: Input) {
        self.state().apply(self.started.elapsed(), input);
    }

    /// Ends all sessions.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopping = true;
        state.sessions.clear();
    }

    /// One process' session, from its request to its end.
    pub async fn serve(
        &self,
        outbound: Outbound,
        inbound: &mut Streaming<MemberMessage>,
        request: proto::SeatRequest,
    ) {
        let request = request_from_proto(request);
        info!(host = %request.host, job = %request.job, "a process of an elastic job came");
        let Some(id) = self.enter(outbound, request) else { return };
        loop {
            let input = match inbound.message().await {
                Ok(Some(MemberMessage { body })) => match body {
                    Some(FromMember::Heartbeat(_)) => Input::Heartbeat(id),
                    Some(FromMember::AskSeat(_)) => Input::Ask(id),
                    Some(FromMember::LeaveSeat(leave)) => Input::Leave(id, leave.done),
                    // Of no meaning here: a peer that is none of ours.
                    _ => Input::Closed(id),
                },
                Ok(None) | Err(_) => Input::Closed(id),
            };
            let over = matches!(input, Input::Closed(_) | Input::Leave(..));
            self.apply(input);
            if over {
                self.state().sessions.remove(&id);
                return;
            }
        }
    }

    fn enter(&self, outbound: Outbound, request: Request) -> Option<MemberId> {
        let mut state = self.state();
        if state.stopping {
            return None;
        }
        state.last += 1;
        let id = MemberId(state.last);
        state.sessions.insert(id, outbound);
        state.apply(self.started.elapsed(), Input::Come(id, Box::new(request)));
        Some(id)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state machine is sound after every step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn apply(&mut self, now: Duration, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            for (id, response) in self.seats.step(now, input) {
                let Some(outbound) = self.sessions.get(&id) else { continue };
                let body = response_to_proto(response);
                if outbound.try_send(Ok(CoordinatorMessage { body: Some(body) })).is_err() {
                    warn!("a process with a seat does not read its messages");
                    self.sessions.remove(&id);
                    inputs.push(Input::Closed(id));
                }
            }
        }
    }
}

fn request_from_proto(request: proto::SeatRequest) -> Request {
    Request {
        job: request.job,
        min_workers: request.min_workers,
        max_workers: request.max_workers,
        expected: request.expected,
        host: request.host,
        machine: request.machine,
        start_timeout: Duration::from_millis(request.start_timeout_ms),
        peer_timeout: Duration::from_millis(request.peer_timeout_ms),
        generation: request.generation,
        rank: request.rank,
    }
}

fn response_to_proto(response: Response) -> ToMember {
    match response {
        Response::Seated(seating) => ToMember::Seating(proto::Seating {
            generation: seating.generation,
            rank: seating.rank,
            world_size: seating.world_size,
            local_rank: seating.local_rank,
            local_size: seating.local_size,
        }),
        Response::Changed { lost, newcomers } => {
            ToMember::SeatsChanged(proto::SeatsChanged { lost, newcomers })
        }
        Response::Waiting { missing, seconds } => {
            ToMember::Waiting(proto::Waiting { missing, seconds })
        }
        Response::Over => ToMember::SeatsOver(proto::SeatsOver {}),
        Response::Refused(message) => ToMember::Refused(proto::Refused {
            kind: kind_to_proto(FatalKind::Start),
            message,
            retry: false,
        }),
        Response::HeartbeatSeen => ToMember::HeartbeatSeen(proto::HeartbeatSeen::default()),
    }
}
