//! The worker of an event loop: its part in the run, and what the coordinator and the process's
//! other threads have it do.
//!
//! It opens and closes no sockets: what is to be done with them is an [`Action`] for the loop.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use prost::bytes::Bytes;
use sumpter_config::{Colocated, Config, readable};
use sumpter_coordinator::Member;
use sumpter_endpoint::{ConnId, Violation};
use sumpter_engine::{Event, OpId, Peer, Request};
use sumpter_membership::{ClusterView, FatalKind, MemberEvent};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Epoch, Rank, TensorId, TensorSpec, Update};

use crate::cluster::lanes::make_room;
use crate::codecs::CodecState;
use crate::command::{Command, DeclarationId, Given, MirroredParts, Submission, Subscription};
use crate::completion::Promise;
use crate::counters::Report;
use crate::error::{NodeError, OpError};
use crate::event_loop::lane_side::LaneSide;
use crate::run::progress;
use crate::run::subscriptions::Subscriptions;
use crate::run::table::{Lookup, Tensor};
use crate::run::{Running, WorkerRun, in_force};
use crate::worker::decision::Deferred;
use crate::worker::loops::LoopPlace;
use crate::worker::staged::StagedShare;
use crate::worker::start::StartSignal;
use crate::worker::timeline::Record;

/// The most lanes that are all connected to at the start: what so many handshakes take is hardly
/// noticed.
const DIALED_AHEAD: usize = 256;

/// What the loop is to do with sockets.
#[derive(Debug)]
pub(crate) enum Action {
    /// Connect to a lane.
    Dial(ConnId),
    /// Close the connections to all lanes.
    CloseDials,
    /// Close these sockets.
    Close(Vec<usize>),
}

#[derive(Debug)]
pub(crate) struct WorkerSide {
    config: Config,
    /// This loop among the worker's.
    place: LoopPlace,
    start: Option<StartSignal>,
    member: Option<Arc<Member>>,
    /// What this worker had when it was suspended, until it is known to whom to say it.
    unsent: Option<(Epoch, Vec<u8>)>,
    run: Option<WorkerRun>,
    /// The plan of all loops, of which the run's has what is this loop's.
    plan: ClusterView,
    subscriptions: Subscriptions,
    timeline: Option<Sender<Record>>,
    actions: VecDeque<Action>,
}

impl WorkerSide {
    /// Of a loop of a worker. Without one there never is a run: the lane is a server's.
    pub(crate) fn new(config: &Config, worker: Option<(LoopPlace, StartSignal)>) -> WorkerSide {
        let (place, start) = worker.unzip();
        WorkerSide {
            config: config.clone(),
            place: place.unwrap_or_else(|| LoopPlace::all(1).swap_remove(0)),
            start,
            member: None,
            unsent: None,
            run: None,
            plan: ClusterView::default(),
            subscriptions: Subscriptions::default(),
            timeline: None,
            actions: VecDeque::new(),
        }
    }

    pub(crate) fn run(&self) -> Option<&WorkerRun> {
        self.run.as_ref()
    }

    pub(crate) fn run_mut(&mut self) -> Option<&mut WorkerRun> {
        self.run.as_mut()
    }

    pub(crate) fn member(&self) -> Option<&Arc<Member>> {
        self.member.as_ref()
    }

    /// The session with the coordinator is there.
    pub(crate) fn joined(&mut self, member: Arc<Member>) {
        // The plan may have changed before this loop knew its session.
        if let Some((epoch, progress)) = self.unsent.take() {
            member.progress(epoch, progress);
        }
        self.member = Some(member);
    }

    /// This loop among the worker's.
    pub(crate) fn place(&self) -> &LoopPlace {
        &self.place
    }

    /// Records operations that end from now on, or no longer.
    pub(crate) fn record(&mut self, records: Option<Sender<Record>>) {
        self.timeline = records;
    }

    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Takes what the coordinator announces.
    pub(crate) fn on_event(
        &mut self,
        event: MemberEvent,
        lane_side: &mut LaneSide,
        report: &mut Report,
    ) {
        match event {
            // What concerns the worker is said once.
            MemberEvent::Waiting { .. } | MemberEvent::Stalled { .. } if !self.place.is_first() => {
            }
            MemberEvent::Waiting { missing, seconds } => {
                let missing = missing.join(", ");
                tracing::warn!("waiting for {missing} since {seconds:.0} s");
            }
            MemberEvent::Started(view) => self.begin_run(view, lane_side),
            MemberEvent::Stalled { message, over: true } => {
                tracing::info!(target: "notice", "{message}");
            }
            MemberEvent::Stalled { message, over: false } => tracing::warn!("{message}"),
            MemberEvent::Suspend { epoch, reason } => {
                self.suspend(epoch, &reason, lane_side, report);
            }
            MemberEvent::Resume { view, progress } => self.resume(view, &progress, lane_side),
            MemberEvent::Tensors { first, specs } => {
                for (id, spec) in (first.0..).map(TensorId).zip(specs) {
                    let part = self.place.own_part(&spec);
                    let Some(run) = self.run.as_mut() else { return };
                    for (id, submission) in run.enter(id, spec, part) {
                        self.submit(id, submission, report);
                    }
                }
            }
            MemberEvent::TensorError { name, message } => self.fail_tensor(&name, &message),
            MemberEvent::OutOfData { rank } => self.other_out_of_data(rank),
            MemberEvent::AllOutOfData { last } => {
                if let Some(run) = self.run.as_mut() {
                    run.out_of_data.end(last);
                }
            }
            MemberEvent::Began { tensor, round } => self.contribute_zeros(tensor, round, report),
            MemberEvent::WorkerLost { rank, host, reason } => {
                self.fail(&OpError::PeerLost(format!("rank {rank} on {host} died: {reason}")));
            }
            MemberEvent::WorkerLeft { rank } => {
                if let Some(run) = self.run.as_mut() {
                    run.left.push((rank, Instant::now()));
                    run.fail_out_of_data();
                }
            }
            MemberEvent::CoordinatorLost { message } => {
                self.refuse_start(NodeError::PeerLost(message.clone()));
                self.fail(&OpError::PeerLost(message));
            }
            MemberEvent::Fatal { kind, message } => self.expel(kind, message),
            MemberEvent::JobStarted(_)
            | MemberEvent::JobEnded { .. }
            | MemberEvent::TraceAsked { .. }
            | MemberEvent::Draining
            | MemberEvent::Drained
            | MemberEvent::GivenUp { .. }
            | MemberEvent::Finished => {}
        }
    }

    /// The coordinator has ended this process's part in the job.
    fn expel(&mut self, kind: FatalKind, message: String) {
        self.refuse_start(NodeError::fatal(kind, message.clone()));
        let error = match NodeError::fatal(kind, message) {
            NodeError::Auth(text) => OpError::Auth(text),
            NodeError::Mismatch(text) => OpError::Mismatch(text),
            other => OpError::PeerLost(other.to_string()),
        };
        self.fail(&error);
    }

    /// Whether there is a run that goes on.
    fn is_open(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.over.is_none())
    }

    /// Sends a plan or a training step, once there is one as late as this.
    pub(crate) fn subscribe(&mut self, subscription: Subscription, report: &Report) {
        if !self.is_open() {
            return;
        }
        match subscription {
            Subscription::Plan(epoch, answer) => {
                self.subscriptions.add_plan(epoch, answer);
                self.notify_plan();
            }
            Subscription::Step(step, answer) => {
                self.subscriptions.add_step(step, answer);
                self.subscriptions.notify_step(report.counters.step);
            }
        }
    }

    fn notify_plan(&mut self) {
        if self.run.as_ref().is_some_and(|run| !run.suspended) {
            self.subscriptions.notify_plan(&self.plan);
        }
    }

    /// All members are there: connects to lanes, and lets the caller go on.
    fn begin_run(&mut self, view: ClusterView, lane_side: &mut LaneSide) {
        let own = view.of_loop(self.place.number);
        lane_side.expect_job(&own, view.loops());
        let room = make_room(&view);
        let resident = room.and_then(|()| self.open_resident(&own, lane_side));
        let built = resident.map_err(NodeError::Start).and_then(|resident| {
            WorkerRun::new(&self.config, own, resident)
                .map_err(|error| NodeError::Start(format!("no plan for this job: {error}")))
        });
        let run = match built {
            Ok(run) => run,
            Err(error) => return self.refuse_start(error),
        };
        self.run = Some(run);
        self.plan = view.clone();
        self.dial_ahead();
        if let Some(start) = self.start.take() {
            start.begin(view);
        }
    }

    /// Opens this worker's connection in the lane of its own process, if it is to be reached so.
    fn open_resident(
        &self,
        view: &ClusterView,
        lane_side: &mut LaneSide,
    ) -> Result<Option<ConnId>, String> {
        let ClusterView { job, epoch, workers, .. } = view;
        let (rank, world_size) = (Rank(self.config.rank), workers.len() as u32);
        // As the others say of this lane.
        let keeps = self.config.workers_may_fail();
        let peer = Peer { job: *job, rank, world_size, epoch: *epoch, keeps, checksum: false };
        match self.config.colocated {
            Colocated::InProcess => lane_side.lane.open_resident(peer).map(Some),
            Colocated::Linked => Ok(None),
        }
    }

    /// Opens the connections of an epoch, so that the first rounds need not wait for them. Where
    /// there are many lanes, each is dialed when there is something for it.
    fn dial_ahead(&mut self) {
        let Some(run) = self.run.as_ref() else { return };
        if run.dials.lanes().count() > DIALED_AHEAD {
            return;
        }
        let own = run.own.map(|(on_client, _)| on_client);
        let wanted = |lane: &ConnId| Some(*lane) != own && !run.has_left(*lane);
        self.actions.extend(run.dials.lanes().filter(wanted).map(Action::Dial));
    }

    fn refuse_start(&mut self, error: NodeError) {
        if let Some(start) = self.start.take() {
            start.refuse(error);
        }
    }

    /// A lane could not be connected to; with `permanent`, it never can.
    pub(crate) fn dial_failed(&mut self, lane: ConnId, reason: &str, permanent: bool) {
        let limit = Duration::from_secs_f64(self.config.start_timeout_s);
        let Some(run) = self.run.as_mut() else { return };
        let now = Instant::now();
        run.lost(lane, now);
        let failing = run.dials.failing_since(lane).map(|t| now.saturating_duration_since(t));
        let late = failing.is_some_and(|f| f > self.config.server_timeout());
        // Another interface may still lead to it.
        let late = late && !run.dials.has_another_path(lane);
        let suspect = run.server_of(lane).filter(|_| permanent || late);
        if let Some(server) = suspect {
            let plan = (run.view.job.run(), run.view.epoch);
            // The job goes on without it. Just after the start there is nothing to tell it to yet;
            // the lane is dialed again, and fails again.
            if let Some(member) = &self.member {
                member.suspect(server, plan, reason.to_owned());
            }
            return;
        }
        let lane = run.describe(lane);
        tracing::debug!(%lane, %reason, "no connection yet");
        if permanent || failing.is_some_and(|f| f > limit) {
            self.fail(&OpError::PeerLost(format!("cannot connect to {lane}: {reason}")));
        }
    }

    /// Does what is due: dials lanes again, gives up on workers that have left.
    pub(crate) fn tend(&mut self, now: Instant) {
        let Some(run) = self.run.as_ref() else { return };
        self.actions.extend(run.dials.due(now).into_iter().map(Action::Dial));
        if let Some(reason) = run.missing_leaver(now) {
            self.fail(&OpError::PeerLost(reason));
        }
    }

    /// Takes the next declaration of a tensor.
    pub(crate) fn declare(&mut self, id: DeclarationId, spec: TensorSpec, average: bool) {
        if let Some(run) = self.run.as_mut() {
            run.table.declare(id, spec, average);
        }
    }

    /// Begins an operation, or lets it wait until the coordinator has numbered its tensor.
    pub(crate) fn submit(
        &mut self,
        id: DeclarationId,
        submission: Submission,
        report: &mut Report,
    ) {
        let Some(run) = self.run.as_mut() else {
            let error = OpError::Closed("the job has not started".to_owned());
            return submission.completion.finish(Err(error));
        };
        if let Some(over) = &run.over {
            let name = run.table.declared_name(id);
            let error = over.about(&format!("tensor '{name}' cannot be summed"));
            return submission.completion.finish(Err(error));
        }
        match run.table.find(id, submission) {
            Lookup::Ready(submission, request) => return self.begin(request, submission, report),
            // The loop that speaks for the tensor asks for all of them.
            Lookup::Declare(spec) if !self.place.own_part(&spec).speaks => {}
            Lookup::Declare(spec) => match &self.member {
                Some(member) => member.declare(spec),
                None => tracing::error!("a tensor was submitted before the session was there"),
            },
            Lookup::Waiting => {}
            Lookup::Failed(submission, error) => {
                run.refused.add(run.table.declared_name(id), &submission.tag);
                submission.completion.finish(Err(error));
            }
        }
        report.counters.busy(true, Instant::now());
        report.soon();
    }

    /// What is mirrored here of a variable.
    pub(crate) fn mirrored(&mut self, id: DeclarationId) -> Vec<MirroredParts> {
        let Some(run) = self.run.as_mut() else { return Vec::new() };
        let id = run.table.numbered(id);
        id.map(|id| run.mirrored(id)).unwrap_or_default()
    }

    /// What the codec of a compressed tensor has kept here.
    pub(crate) fn codec_memory(&self, id: DeclarationId) -> Result<CodecState, OpError> {
        let Some(run) = &self.run else { return Ok(CodecState::default()) };
        let id = run.table.numbered(id);
        id.map_or(Ok(CodecState::default()), |id| run.codec_memory(id))
    }

    /// More of a contribution is there.
    pub(crate) fn supply(&mut self, staged: &StagedShare, bytes: Range<usize>) {
        if let (Some(run), Some(op)) = (self.run.as_mut(), staged.supply(bytes.clone())) {
            run.last_progress = Instant::now();
            run.client.supply(op, bytes);
        }
    }

    /// What a round does is decided.
    pub(crate) fn decide(&mut self, deferred: &Deferred, update: Update) {
        if let (Some(run), Some(op)) = (self.run.as_mut(), deferred.decide(update)) {
            run.last_progress = Instant::now();
            run.client.decide(op, update);
        }
    }

    /// This worker cannot contribute to the rounds of a name.
    pub(crate) fn refuse(&self, name: String, message: String) {
        if let Some(member) = &self.member {
            member.refuse(name, message);
        }
    }

    /// Begins a round of a numbered tensor.
    fn begin(&mut self, request: Request, submission: Submission, report: &mut Report) {
        let Some(run) = self.run.as_mut() else { return };
        let now = Instant::now();
        if let Some(Given::Memory(memory)) = &submission.given {
            let outcome = run.set_codec_memory(request.tensor, memory);
            return submission.completion.finish(outcome);
        }
        report.counters.busy(true, now);
        if let Some(reason) = run.orphaned(request.tensor) {
            return submission.completion.finish(Err(OpError::PeerLost(reason)));
        }
        if let Some(Given::State(parts)) = &submission.given {
            run.set_state(request.tensor, parts, submission.completion);
            return drop(run.settle_fills());
        }
        if request.collective == Collective::Update && !run.variables.contains(&request.tensor) {
            let name = run.name(request.tensor).unwrap_or_default().to_owned();
            let message = format!("variable '{name}': rank {} has given it no value", run.rank);
            submission.completion.finish(Err(OpError::Mismatch(message.clone())));
            return self.refuse(name, message);
        }
        let round = run.run(submission, request, now);
        self.announce(request.tensor, round);
        report.soon();
    }

    /// Ends what has finished; true if anything has.
    pub(crate) fn settle(&mut self, lane_side: &mut LaneSide, report: &mut Report) -> bool {
        let mut any = false;
        while let Some(run) = self.run.as_mut()
            && let Some(event) = run.client.next_event()
        {
            any = true;
            let Some(event) = run.recovery.on_event(event, &mut run.client) else {
                let failed = run.settle_fills();
                failed.into_iter().for_each(|(name, reason)| self.refuse(name, reason));
                continue;
            };
            match run.hub.on_event(event, &mut run.client, &mut lane_side.lane) {
                Ok(Some(Event::Finished(id, outcome))) => self.finish(id, outcome, report),
                Ok(Some(Event::Released(_, memory))) => drop(memory),
                Ok(Some(Event::Available { op, bytes })) => run.slices_final(op, bytes),
                Ok(Some(Event::Norm { op, squares })) => run.norm_known(op, squares),
                Ok(Some(Event::Ordered { op, order })) => run.ordered(op, order),
                // Only the hub supplies in chunks.
                Ok(
                    Some(
                        Event::Arrived { .. }
                        | Event::PartitionDone { .. }
                        | Event::Mirrored { .. }
                        | Event::PartitionNorm { .. }
                        | Event::DeliveredToAll { .. },
                    )
                    | None,
                ) => {}
                Err(violation) => self.disagree(&violation),
            }
        }
        if let (true, Some(run)) = (any, &self.run) {
            report.counters.busy(!run.is_idle(), Instant::now());
            self.subscriptions.notify_step(report.counters.step);
        }
        any
    }

    fn finish(&mut self, id: OpId, outcome: Result<(), String>, report: &mut Report) {
        let Some(run) = self.run.as_mut() else { return };
        let Some(running) = run.running.remove(&id) else { return };
        if outcome.is_ok() {
            let tensor = run.table.known_mut(running.tensor);
            tensor.finished += 1;
            if report.counters.finished(tensor.finished, tensor.bytes, tensor.speaks) {
                self.place.tell_first(Command::Reached(tensor.finished));
            }
        }
        if let Some(message) = run.skipped(running.tensor, Instant::now()) {
            tracing::warn!("{message}");
        }
        let Some(Tensor { spec, .. }) = run.table.tensor(running.tensor) else { return };
        let orphaned = run.orphaned(running.tensor).is_some();
        let mut unusable = None;
        if let Err(reason) = &outcome
            && run.over.is_none()
            && !orphaned
        {
            run.refused.add(&spec.name, &running.tag);
            // Lanes may be at different rounds of it now: it ends on all ranks.
            let is_known = run.table.request(running.tensor).is_none();
            let message = format!("tensor '{}': {reason}", spec.name);
            unusable = (!is_known).then(|| (spec.name.clone(), message));
        }
        let outcome = outcome.map_err(|reason| {
            let about = format!("tensor '{}' was not complete", spec.name);
            let failed = if orphaned { OpError::PeerLost } else { OpError::Mismatch };
            run.over.clone().unwrap_or_else(|| failed(reason)).about(&about)
        });
        let Running { tensor, round, completion, since, begun, .. } = running;
        if let (Some(end), Some(timeline)) = (completion.end(outcome), &self.timeline)
            && let Some(Tensor { spec, whole_bytes, .. }) = run.table.tensor(tensor)
        {
            let record = Record {
                tensor,
                name: spec.name.clone(),
                collective: spec.collective,
                dtype: spec.dtype,
                bytes: *whole_bytes,
                round,
                submitted: since,
                begun,
                done: Instant::now(),
                failed: end.is_failure(),
            };
            if timeline.send(record).is_err() {
                // Its writer has ended, perhaps on a full disk; stop_timeline() says why.
                self.timeline = None;
            }
        }
        if let Some((name, message)) = unusable {
            self.fail_tensor(&name, &message);
            self.refuse(name, message);
        }
    }

    /// The run cannot go on: fails all that is under way and all that will come.
    /// The other event loops cannot, either.
    pub(crate) fn fail(&mut self, reason: &OpError) {
        if self.end(reason) {
            self.place.tell_others(|| Command::Fail(reason.clone()));
        }
    }

    /// As [`fail`](Self::fail), of this loop alone; whether the run went on before.
    pub(crate) fn end(&mut self, reason: &OpError) -> bool {
        let Some(run) = self.run.as_mut().filter(|run| run.over.is_none()) else { return false };
        self.subscriptions.clear();
        run.fail(reason);
        true
    }

    /// Another loop has reached this training step.
    pub(crate) fn reached(&mut self, step: u64, report: &mut Report) {
        report.counters.step = report.counters.step.max(step);
        self.subscriptions.notify_step(report.counters.step);
        report.soon();
    }

    /// The client and the lane in this process contradict each other.
    pub(crate) fn disagree(&mut self, violation: &Violation) {
        let reason = format!("the colocated lane and its worker disagree: {violation}");
        self.fail(&OpError::Closed(reason));
    }

    fn fail_tensor(&mut self, name: &str, message: &str) {
        if let Some(run) = self.run.as_mut() {
            run.fail_tensor(name, message);
        }
    }
}

/// Between two epochs.
impl WorkerSide {
    /// The plan is about to change: stops, and reports what this worker has.
    fn suspend(
        &mut self,
        epoch: Epoch,
        reason: &str,
        lane_side: &mut LaneSide,
        report: &mut Report,
    ) {
        let Some(run) = self.run.as_mut() else { return };
        // A change of settings is reported when it is made.
        if !reason.is_empty() && self.place.is_first() {
            tracing::info!(target: "notice", %epoch, "{reason}; the plan changes");
            run.announced = true;
        }
        let progress = run.suspend(&mut lane_side.lane);
        report.counters.pauses += 1;
        let job = run.view.job;
        self.actions.push_back(Action::CloseDials);
        self.actions.push_back(Action::Close(lane_side.end_job(job)));
        let of_all = self.place.collect(epoch, progress::encode(&progress));
        match (of_all.map(progress::join), &self.member) {
            (Some(progress), Some(member)) => member.progress(epoch, progress),
            (progress, _) => self.unsent = progress.map(|progress| (epoch, progress)),
        }
    }

    /// The new plan, and what all workers have.
    fn resume(&mut self, view: ClusterView, progress: &[(Rank, Bytes)], lane_side: &mut LaneSide) {
        if self.run.is_none() {
            return;
        }
        let own = view.of_loop(self.place.number);
        lane_side.expect_job(&own, view.loops());
        let room = make_room(&view);
        let resident = room.and_then(|()| self.open_resident(&own, lane_side));
        let (epoch, servers) = (view.epoch, view.servers.len());
        let workers = view.living().count();
        let Some(run) = self.run.as_mut() else { return };
        let changes = run.view.changes.clone();
        let of_loop = (self.place.number, self.place.count);
        let resumed = resident.and_then(|resident| {
            let all = progress::decode_all(progress, of_loop)?;
            run.resume(&self.config, own, &all, resident)
        });
        if let Err(reason) = resumed {
            return self.fail(&OpError::PeerLost(format!("the new plan cannot be used: {reason}")));
        }
        if std::mem::take(&mut run.announced) {
            let with = format!("{workers} workers and {servers} summation servers");
            tracing::info!(target: "notice", %epoch, "going on with {with}");
        }
        if run.view.changes != changes && run.rank == Rank(0) && self.place.is_first() {
            let texts = in_force(&self.config, &run.view).unwrap_or_default();
            let texts = texts.iter().map(|(name, text)| format!("{name}={}", readable(text)));
            let settings = texts.collect::<Vec<_>>().join(" ");
            tracing::info!(target: "notice", %epoch, "from now on {settings}");
        }
        self.plan = view;
        self.dial_ahead();
        self.notify_plan();
    }
}

/// Ranks that are out of data.
impl WorkerSide {
    /// This worker has no more data.
    pub(crate) fn out_of_data(&mut self, answer: Sender<Result<Rank, OpError>>) {
        let (Some(run), Some(member)) = (self.run.as_mut(), &self.member) else {
            let error = OpError::Closed("the job has not started".to_owned());
            return drop(answer.send(Err(error)));
        };
        run.out_of_data.begin(answer);
        if let Some(over) = run.over.clone() {
            return run.out_of_data.fail(&over);
        }
        run.fail_out_of_data();
        if self.place.is_first() {
            member.out_of_data();
        }
    }

    /// Another worker, or this one, is out of data: announces what is under way.
    fn other_out_of_data(&mut self, rank: Rank) {
        let Some(run) = self.run.as_mut() else { return };
        if rank != run.rank {
            run.out_of_data.add(rank);
        }
        // Before it is there, nothing has been submitted.
        let Some(member) = &self.member else { return };
        let running = run.running.values().filter(|running| run.table.speaks(running.tensor));
        let mut under_way: Vec<_> =
            running.map(|running| (running.tensor, running.round)).collect();
        under_way.sort_unstable();
        under_way.into_iter().for_each(|(tensor, round)| member.began(tensor, round));
    }

    /// Announces a round that has begun here to the ranks that are out of data.
    fn announce(&self, tensor: TensorId, round: u64) {
        let (Some(run), Some(member)) = (&self.run, &self.member) else { return };
        if !run.out_of_data.is_any_other() || !run.table.speaks(tensor) {
            return;
        }
        let Some(spec) = run.table.spec(tensor) else { return };
        if run.out_of_data.announces(run.rank, &run.members(spec)) {
            member.began(tensor, round);
        }
    }

    /// Takes part with zeros in a round that others have begun, if this worker is out of data.
    fn contribute_zeros(&mut self, id: TensorId, round: u64, report: &mut Report) {
        let Some(run) = self.run.as_ref() else { return };
        let Some(Tensor { spec, bytes, begun, .. }) = run.table.tensor(id) else { return };
        // Rounds are announced in order: a later one cannot come before this.
        if *begun != round || !run.out_of_data.is_own() || !run.table.serves(id) {
            return;
        }
        if run.over.is_some() || !run.takes_part(id, run.rank) {
            return;
        }
        if spec.collective == Collective::Broadcast && spec.root == run.rank {
            let (name, own) = (spec.name.clone(), run.rank);
            let message =
                format!("tensor '{name}': rank {own} is its root, but is out of data (join)");
            return self.refuse(name, message);
        }
        if spec.collective == Collective::Update {
            let (name, own) = (spec.name.clone(), run.rank);
            let message = format!("variable '{name}': rank {own} is out of data (join)");
            return self.refuse(name, message);
        }
        if spec.sharded && !run.beside(spec).is_empty() {
            let (name, own, others) = (spec.name.clone(), run.rank, run.beside(spec));
            let others: Vec<u32> = others.into_iter().map(|rank| rank.0).collect();
            let message = format!(
                "tensor '{name}': rank {own} is out of data (join), but ranks {others:?} of its \
                 device group reduce it with this rank"
            );
            return self.refuse(name, message);
        }
        let Some(request) = run.table.request(id) else { return };
        let submission = Submission {
            tag: String::new(),
            priority: 0,
            memory: TensorMemory::zeros(*bytes as usize),
            completion: Promise::unwatched(),
            staged: None,
            deferred: None,
            update: None,
            rescale: 1.0,
            order: Vec::new(),
            given: None,
            since: Instant::now(),
        };
        self.begin(request, submission, report);
    }
}
