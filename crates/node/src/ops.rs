//! What the event loop does for operations: submissions in, outcomes out, and what the
//! coordinator says in between.

use std::time::{Duration, Instant};

use sumpter_config::{Colocated, LocalLink};
use sumpter_endpoint::{ConnId, Violation};
use sumpter_engine::{Event, OpId, Peer};
use sumpter_membership::{ClusterView, MemberEvent};
use sumpter_types::Rank;

use crate::command::{Command, Submission};
use crate::counters::{OfClient, Surroundings};
use crate::error::{NodeError, OpError};
use crate::event_loop::EventLoop;
use crate::session::Session;
use crate::table::Lookup;
use crate::timeline::Record;

/// How often the coordinator hears what is counted, while something happens.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// Operations the coordinator is told about; enough to see what ranks wait for.
const REPORTED_OPS: usize = 16;

impl EventLoop {
    pub(crate) fn obey(&mut self, command: Command) {
        match command {
            Command::Member(event) => self.hear(event),
            Command::Joined(member) => {
                self.member = Some(member);
                self.next_report = Some(Instant::now());
            }
            Command::Submit(submission) => self.submit(submission),
            Command::OutOfData(answer) => self.run_out_of_data(answer),
            Command::Samples(count) => {
                self.counters.samples += count;
                self.report_soon();
            }
            Command::Timeline(records) => self.timeline = records,
            Command::Recordings(job, answer) => drop(answer.send(self.recordings(job))),
            Command::Stats(answer) => drop(answer.send(self.stats())),
            Command::Plan(epoch, answer) => {
                if self.is_open() {
                    self.asked_for_plan.push((epoch, answer));
                    self.tell_plan();
                }
            }
            Command::Step(step, answer) => {
                if self.is_open() {
                    self.asked_for_step.push((step, answer));
                    self.tell_step();
                }
            }
            Command::Fail(reason) => self.fail(&reason),
            Command::Leave(_) => unreachable!("the loop itself leaves"),
        }
    }

    /// Whether there is a run that goes on.
    fn is_open(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.over.is_none())
    }

    /// Tells the training step to those who wait for this one.
    fn tell_step(&mut self) {
        let (now, step) = (Instant::now(), self.counters.step);
        self.asked_for_step.retain(|(awaited, answer)| {
            let told = *awaited <= step;
            if told {
                // Whoever asked may have given up.
                let _ = answer.send((step, now));
            }
            !told
        });
    }

    fn hear(&mut self, event: MemberEvent) {
        match event {
            MemberEvent::Waiting { missing, seconds } => {
                let missing = missing.join(", ");
                tracing::warn!("waiting for {missing} since {seconds:.0} s");
            }
            MemberEvent::Started(view) => self.begin_session(view),
            MemberEvent::JobStarted(view) => {
                self.end_job(view.job);
                self.know_job(&view);
            }
            MemberEvent::Stalled { message, over: true } => {
                tracing::info!(target: "notice", "{message}");
            }
            MemberEvent::Stalled { message, over: false } => tracing::warn!("{message}"),
            MemberEvent::Suspend { epoch, reason } => self.suspend(epoch, &reason),
            MemberEvent::Resume { view, progress } => self.resume(view, progress),
            MemberEvent::JobEnded { job } => self.end_job(job),
            MemberEvent::Tensor { id, spec } => {
                let Some(session) = self.session.as_mut() else { return };
                let waiting = session.enter(id, spec);
                waiting.into_iter().for_each(|submission| self.submit(submission));
            }
            MemberEvent::TensorError { name, message } => self.tensor_error(&name, &message),
            MemberEvent::OutOfData { rank } => self.out_of_data(rank),
            MemberEvent::AllOutOfData { last } => self.all_out_of_data(last),
            MemberEvent::Began { tensor, round } => self.take_part(tensor, round),
            MemberEvent::WorkerLost { rank, host, reason } => {
                self.fail(&OpError::PeerLost(format!("rank {rank} on {host} died: {reason}")));
            }
            MemberEvent::WorkerLeft { rank } => {
                if let Some(session) = self.session.as_mut() {
                    session.left.push((rank, Instant::now()));
                    session.fail_idling();
                }
            }
            MemberEvent::CoordinatorLost { message } => {
                self.refuse_start(NodeError::PeerLost(message.clone()));
                self.fail(&OpError::PeerLost(message));
            }
            MemberEvent::Fatal { kind, message } => {
                self.refuse_start(NodeError::fatal(kind, message.clone()));
                let error = match NodeError::fatal(kind, message) {
                    NodeError::Auth(text) => OpError::Auth(text),
                    NodeError::Mismatch(text) => OpError::Mismatch(text),
                    other => OpError::PeerLost(other.to_string()),
                };
                self.fail(&error);
            }
            MemberEvent::TraceAsked { request, job } => self.answer_trace(request, job),
            MemberEvent::Drained | MemberEvent::GivenUp { .. } | MemberEvent::Finished => {}
        }
    }

    /// All members are there: connect to every lane, and let the caller go on.
    fn begin_session(&mut self, view: ClusterView) {
        self.know_job(&view);
        let resident = self.open_resident(&view);
        let built = resident.map_err(NodeError::Start).and_then(|resident| {
            Session::new(&self.config, view.clone(), resident)
                .map_err(|error| NodeError::Start(format!("no plan for this job: {error}")))
        });
        let session = match built {
            Ok(session) => session,
            Err(error) => return self.refuse_start(error),
        };
        self.session = Some(session);
        self.call_all();
        if let Some(start) = self.start.take() {
            start.begin(view);
        }
    }

    /// Opens this worker's connection in the lane of its own process, if it is to be reached so.
    pub(crate) fn open_resident(&mut self, view: &ClusterView) -> Result<Option<ConnId>, String> {
        let ClusterView { job, epoch, workers, .. } = view;
        let (rank, world_size) = (Rank(self.config.rank), workers.len() as u32);
        // As the others say of this lane.
        let keeps = self.config.is_mortal();
        let peer = Peer { job: *job, rank, world_size, epoch: *epoch, keeps, checksum: false };
        match self.config.colocated {
            Colocated::InProcess => self.lane.open_resident(peer).map(Some),
            Colocated::Linked => Ok(None),
        }
    }

    /// Opens the connections of an epoch.
    pub(crate) fn call_all(&mut self) {
        let Some(session) = self.session.as_ref() else { return };
        let own = session.own.map(|(on_client, _)| on_client);
        let wanted = |lane: &ConnId| Some(*lane) != own && !session.has_left(*lane);
        let lanes: Vec<_> = (0..session.links.len()).map(ConnId).filter(wanted).collect();
        lanes.into_iter().for_each(|lane| self.call(lane));
    }

    fn refuse_start(&mut self, error: NodeError) {
        if let Some(start) = self.start.take() {
            start.refuse(error);
        }
    }

    /// Opens a connection to a lane.
    fn call(&mut self, lane: ConnId) {
        let Some(session) = self.session.as_mut() else { return };
        session.links[lane.0].retry_at = None;
        let address = session.cluster.lanes[lane.0].address;
        let hello = (session.hello(lane), session.key());
        let beside = self.config.local_link == LocalLink::Shm && !session.is_away(lane);
        // The interface that was asked for is used for sending, too.
        let source = self.config.interface.is_some().then(|| self.sockets.local_ip()).flatten();
        match self.sockets.dial(lane, address, beside, source, hello) {
            Ok(index) => session.links[lane.0].socket = Some(index),
            Err(error) => self.dial_failed(lane, &error.to_string(), false),
        }
    }

    pub(crate) fn dial_failed(&mut self, lane: ConnId, reason: &str, permanent: bool) {
        let limit = Duration::from_secs_f64(self.config.start_timeout_s);
        let Some(session) = self.session.as_mut() else { return };
        let now = Instant::now();
        session.lost(lane, now);
        let failing = session.links[lane.0].failing_since.map(|t| now.saturating_duration_since(t));
        let suspect = session
            .server_of(lane)
            .filter(|_| permanent || failing.is_some_and(|f| f > self.config.server_timeout()));
        if let (Some(server), Some(member)) = (suspect, &self.member) {
            // The job goes on without it.
            return member.suspect(server, reason.to_owned());
        }
        let lane = session.describe(lane);
        tracing::debug!(%lane, %reason, "no connection yet");
        if permanent || failing.is_some_and(|f| f > limit) {
            self.fail(&OpError::PeerLost(format!("cannot connect to {lane}: {reason}")));
        }
    }

    pub(crate) fn submit(&mut self, submission: Submission) {
        let Some(session) = self.session.as_mut() else {
            let error = OpError::Closed("the job has not started".to_owned());
            return submission.completion.finish(Err(error));
        };
        if let Some(over) = &session.over {
            let name = &submission.spec.name;
            let error = over.about(&format!("tensor '{name}' cannot be summed"));
            return submission.completion.finish(Err(error));
        }
        let now = Instant::now();
        self.counters.busy(true, now);
        match session.table.find(submission) {
            Lookup::Ready(submission, request) => {
                if let Some(reason) = session.bereft(&submission.spec) {
                    return submission.completion.finish(Err(OpError::PeerLost(reason)));
                }
                let (tensor, round) = session.run(submission, request, now);
                self.announce(tensor, round);
            }
            Lookup::Declare(spec) => match &self.member {
                Some(member) => member.declare(spec),
                None => tracing::error!("a tensor was submitted before the session was there"),
            },
            Lookup::Waiting => {}
            Lookup::Failed(submission, error) => submission.completion.finish(Err(error)),
        }
        self.report_soon();
    }

    /// Announces what has finished; true if anything has.
    pub(crate) fn settle(&mut self) -> bool {
        let mut any = false;
        while let Some(session) = self.session.as_mut()
            && let Some(event) = session.client.next_event()
        {
            any = true;
            let Some(event) = session.rescue.hear(event, &session.client) else { continue };
            match session.hub.hear(event, &mut session.client, &mut self.lane) {
                Ok(Some(Event::Finished(id, outcome))) => self.finished(id, outcome),
                Ok(Some(Event::Released(_, memory))) => drop(memory),
                // Only the hub streams.
                Ok(Some(Event::Arrived { .. } | Event::Everywhere { .. }) | None) => {}
                Err(violation) => self.disagree(&violation),
            }
        }
        if let (true, Some(session)) = (any, &self.session) {
            self.counters.busy(!session.is_idle(), Instant::now());
            self.tell_step();
        }
        any
    }

    fn finished(&mut self, id: OpId, outcome: Result<(), String>) {
        let Some(session) = self.session.as_mut() else { return };
        let Some(running) = session.running.remove(&id) else { return };
        if outcome.is_ok() {
            let rounds = session.rounds.entry(running.tensor).or_default();
            *rounds += 1;
            self.counters.step = self.counters.step.max(*rounds);
            self.counters.operations += 1;
            self.counters.tensor_bytes += running.bytes;
        }
        let unwritten = self.timeline.as_ref().is_some_and(|timeline| {
            let record = Record {
                tensor: running.tensor,
                name: running.name.clone(),
                collective: running.collective,
                bytes: running.bytes,
                round: running.round,
                submitted: running.since,
                begun: running.begun,
                done: Instant::now(),
                failed: outcome.is_err(),
            };
            timeline.send(record).is_err()
        });
        if unwritten {
            // Its writer has ended, perhaps on a full disk; stop_timeline() says why.
            self.timeline = None;
        }
        let over = session.over.clone();
        let spec = session.table.spec(running.tensor);
        let bereft = spec.is_some_and(|spec| session.bereft(spec).is_some());
        running.completion.finish(outcome.map_err(|reason| {
            let about = format!("tensor '{}' was not complete", running.name);
            let failed = if bereft { OpError::PeerLost(reason) } else { OpError::Mismatch(reason) };
            over.unwrap_or(failed).about(&about)
        }));
    }

    /// Nothing can be summed any more: fails all that is under way and all that will come.
    pub(crate) fn fail(&mut self, reason: &OpError) {
        let Some(session) = self.session.as_mut() else { return };
        if session.over.is_some() {
            return;
        }
        session.over = Some(reason.clone());
        self.asked_for_plan.clear();
        self.asked_for_step.clear();
        session.idlers.fail(reason);
        for submission in session.table.take_waiting() {
            let name = &submission.spec.name;
            let error = reason.about(&format!("tensor '{name}' was not complete"));
            submission.completion.finish(Err(error));
        }
        session.hub.close();
        session.client.fail_all(|_| reason.to_string());
    }

    /// The client and the lane in this process contradict each other.
    pub(crate) fn disagree(&mut self, violation: &Violation) {
        let reason = format!("the colocated lane and its worker disagree: {violation}");
        self.fail(&OpError::Closed(reason));
    }

    fn tensor_error(&mut self, name: &str, message: &str) {
        let Some(session) = self.session.as_mut() else { return };
        let (id, waiting) = session.table.fail(name, message);
        for submission in waiting {
            submission.completion.finish(Err(OpError::Mismatch(message.to_owned())));
        }
        if let Some(id) = id {
            session.client.fail_tensor(id, message);
        }
    }

    /// Does what is due: calls lanes again, gives up on handshakes, reports.
    pub(crate) fn tend(&mut self, now: Instant) {
        for index in self.sockets.overdue(now) {
            let Some(socket) = self.sockets.remove(index) else { continue };
            if let crate::socket::Phase::Dialing { lane, .. } = socket.phase {
                self.dial_failed(lane, "no answer to the handshake", false);
            }
        }
        for lane in self.session.as_mut().map(|s| s.due(now)).unwrap_or_default() {
            self.call(lane);
        }
        if let Some(reason) = self.session.as_ref().and_then(|s| s.missing_leaver(now)) {
            self.fail(&OpError::PeerLost(reason));
        }
        if self.next_report.is_some_and(|t| t <= now) {
            self.next_report = None;
            if let Some(member) = &self.member {
                member.report(self.stats());
            }
            if self.session.as_ref().is_some_and(|s| !s.is_idle()) {
                self.report_soon();
            }
        }
    }

    fn report_soon(&mut self) {
        self.next_report.get_or_insert_with(|| Instant::now() + REPORT_EVERY);
    }

    pub(crate) fn stats(&self) -> sumpter_types::Stats {
        let session = self.session.as_ref();
        let mut stats = self.counters.report(&Surroundings {
            lane: self.lane.stats(),
            lane_bytes: self.lane.allocated_bytes(),
            lane_waiting: self.lane.waiting_partitions(),
            corrupt_results: session.map_or(0, |s| s.client.corrupt_frames()),
            tensors: session.map_or(0, |s| s.table.len()),
            client: session.map(|s| OfClient {
                backlog: s.client.backlog(),
                admitted_bytes: s.client.admitted_bytes(),
                operations: s.under_way(),
            }),
            elapsed: self.now(),
        });
        stats.counters.extend(self.run_memory());
        if session.is_none() && self.start.is_none() {
            let limit = self.config.max_job_bytes / u64::from(self.lanes.max(1));
            stats.counters.insert("max_job_bytes".to_owned(), limit as f64);
        }
        if let Some(session) = &self.session {
            stats.pending = session.pending(Instant::now(), REPORTED_OPS);
            stats.begun = session.begun_by_tensor();
        }
        stats
    }
}
