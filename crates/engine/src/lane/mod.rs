//! The lane: one core's share of a summation server, as a state machine.
//!
//! A lane receives chunks from its children (workers), adds each while it is hot, and sends a
//! chunk's sum to every receiver the moment the last contribution is in. It owns its buffers, so
//! that nothing is shared with other lanes.
//!
//! A lane beside a client can be a *hub* as well: it adds what the workers of its machine
//! contribute, and the client passes each subtotal on to the lane that makes the sum of all.
//!
//! Invariants: each contribution counts once per round, whatever is re-sent (`Partition`); bytes
//! from one child can at worst close that child's connection.

mod conn;
mod job;
mod limits;
mod notes;
mod outbox;
mod partition;
mod subtotal;

use std::collections::{HashMap, VecDeque};

use sumpter_observe::{Kind, Recorder};
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_wire::{
    BEGIN_BYTES, Begin, Epoch, FrameKind, Header, JobId, PartitionSpec, Rank, Round, Tier,
    decode_group,
};

pub use self::limits::JobLimits;
pub use self::subtotal::{Subtotal, Total};

use self::conn::{Conn, Frame, Input, Payload};
use self::job::{Begun, Job, JobIndex, Jobs, Key, PartitionIndex};
use self::partition::{ChunkPlace, Expect, Listener, Progress, Serial};
use crate::endpoint::{ConnId, Endpoint, Incoming, Now, Outgoing, Violation, push_after};
use crate::head::head;
use crate::resident::{ChunkId, Visit};

/// Bytes of free buffers a lane keeps for the next chunk; sums are held elsewhere, so this only
/// bounds what a burst of contributions in rank order leaves behind.
const KEPT_BYTES: usize = 256 << 20;

/// Chunks of a partition: the largest partition in the smallest chunks that settings allow. It
/// bounds what a client that holds the token can make a lane keep beside the sums themselves.
const MAX_CHUNKS: u32 = 1 << 18;

/// Refusals a connection may collect; a client stops at the first that reaches it.
const MAX_REFUSED: usize = 1 << 16;

/// What a lane may use.
#[derive(Clone, Copy, Debug)]
pub struct LaneLimits {
    /// Bytes of accumulators a job without limits of its own may hold in this lane.
    pub max_job_bytes: u64,
    /// The largest chunk a client may ask for.
    pub max_chunk_bytes: u32,
    /// Whether somebody passes subtotals on: see [`Lane::next_subtotal`].
    pub hub: bool,
}

/// Who a connection belongs to, as its handshake proved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The job's run.
    pub job: JobId,
    /// The worker.
    pub rank: Rank,
    /// Workers in the job.
    pub world_size: u32,
    /// The epoch of the worker's plan.
    pub epoch: Epoch,
    /// Whether the job's workers keep the results of this lane, since its process may die without
    /// ending the job; they are told when everyone has them. Equal for all workers of the job.
    pub keeps: bool,
    /// Whether its frames carry checksums, both ways; not if it is in this process.
    pub checksum: bool,
}

/// What a lane has done, since its start.
#[derive(Clone, Debug, Default)]
pub struct LaneStats {
    /// Rounds of partitions completed.
    pub rounds: u64,
    /// Bytes of contributions summed.
    pub summed_bytes: u64,
    /// Chunks received again after a connection was cut, and not counted.
    pub duplicate_chunks: u64,
    /// Frames that were damaged on their way; each cost its connection.
    pub corrupt_frames: u64,
    /// By rank: how often it was the last, and for how long in all the others waited for it.
    pub late: HashMap<Rank, (u64, Now)>,
}

/// A chunk's result, taken out of a lane.
#[derive(Debug)]
pub struct Harvested {
    pub(crate) of: ChunkId,
    /// Bytes of the result; the buffer may be longer.
    pub(crate) len: usize,
    pub(crate) bytes: AlignedBuf,
}

impl ChunkId {
    fn key(self) -> Key {
        let ChunkId { tensor, tier, partition, .. } = self;
        Key { tensor, tier, partition }
    }

    fn place(self) -> ChunkPlace {
        ChunkPlace { slot: (self.round.0 & 1) as usize, chunk: self.chunk }
    }
}

/// The state machine of one lane.
#[derive(Debug)]
pub struct Lane {
    limits: LaneLimits,
    known: HashMap<JobId, JobLimits>,
    jobs: Jobs,
    conns: Vec<Option<Conn>>,
    opened: Serial,
    dirty: VecDeque<ConnId>,
    /// Subtotals to be passed on.
    subtotals: VecDeque<(JobIndex, PartitionIndex, ChunkPlace)>,
    /// Totals that this machine has, of which nobody elsewhere knows yet.
    totals: VecDeque<(JobIndex, PartitionIndex, Round)>,
    pool: BufferPool,
    stats: LaneStats,
    recorder: Recorder,
}

impl Lane {
    /// A lane without jobs.
    #[must_use]
    pub fn new(limits: LaneLimits) -> Lane {
        Lane {
            limits,
            known: HashMap::new(),
            jobs: Jobs::default(),
            conns: Vec::new(),
            opened: 0,
            dirty: VecDeque::new(),
            subtotals: VecDeque::new(),
            totals: VecDeque::new(),
            pool: BufferPool::new(KEPT_BYTES),
            stats: LaneStats::default(),
            recorder: Recorder::default(),
        }
    }

    /// Takes in a connection whose handshake is done. A connection the same worker had before is
    /// forgotten; its id is returned so that the driver closes it.
    ///
    /// # Errors
    /// A text for the client when it does not fit the job.
    pub fn open(&mut self, peer: Peer) -> Result<(ConnId, Option<ConnId>), String> {
        self.open_as(peer, false)
    }

    /// Takes in the client in this process, whose memory the lane reads and writes where it is:
    /// see [`exchange`](crate::exchange).
    ///
    /// # Errors
    /// A text when it does not fit the job.
    pub fn open_resident(&mut self, peer: Peer) -> Result<ConnId, String> {
        self.open_as(peer, true).map(|(conn, _)| conn)
    }

    fn open_as(&mut self, peer: Peer, resident: bool) -> Result<(ConnId, Option<ConnId>), String> {
        if peer.rank.0 >= peer.world_size {
            return Err(format!("rank {} of {} workers", peer.rank, peer.world_size));
        }
        let JobLimits { max_bytes, max_connections } = self.limits_of(peer.job);
        let at = self
            .jobs
            .find(peer.job)
            .unwrap_or_else(|| self.jobs.insert(Job::new(&peer, max_bytes)));
        let job = &mut self.jobs[at];
        if (job.epoch, job.world_size) != (peer.epoch, peer.world_size) {
            return Err(format!(
                "this lane knows the job with epoch {} and {} workers, not epoch {} and {}",
                job.epoch, job.world_size, peer.epoch, peer.world_size
            ));
        }
        if job.keeps != peer.keeps {
            return Err("workers that keep results and such that do not".to_owned());
        }
        let others = job.connections_beside(peer.rank);
        if others >= max_connections as usize {
            return Err(format!(
                "the job has {others} of at most {max_connections} connections to this lane \
                 (max_connections)"
            ));
        }
        let id = match self.conns.iter().position(Option::is_none) {
            Some(free) => ConnId(free),
            None => {
                self.conns.push(None);
                ConnId(self.conns.len() - 1)
            }
        };
        let old = job.children[peer.rank.0 as usize].replace(id);
        if resident {
            job.resident = Some(id);
        }
        self.opened += 1;
        let whose = (at, peer.rank, self.opened);
        self.conns[id.0] = Some(Conn::new(whose, resident, peer.checksum));
        if let Some(old) = old {
            self.close(old);
        }
        Ok((id, old))
    }

    /// Forgets a connection. What it contributed in whole chunks stays; what was under way is
    /// sent again by the worker when it comes back.
    pub fn close(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id.0).and_then(Option::take) else { return };
        if let Input::Chunk { bytes, .. } = conn.input {
            self.pool.give(bytes);
        }
        let child = &mut self.jobs[conn.job].children[conn.rank.0 as usize];
        if *child == Some(id) {
            *child = None;
        }
    }

    /// Takes out the results of a job that some worker may still lack; the job is to end, or to
    /// go on in another epoch.
    pub fn harvest(&mut self, job: JobId) -> Vec<Harvested> {
        let Some(at) = self.jobs.find(job) else { return Vec::new() };
        let job = &mut self.jobs[at];
        let mut out = Vec::new();
        for at in 0..job.partitions() {
            let Key { tensor, tier, partition } = job.key(at);
            let spec = job.partition(at).spec;
            for (round, chunk, bytes) in job.partition_mut(at).harvest() {
                let len = spec.chunk_len(chunk) as usize;
                let of = ChunkId { tensor, tier, partition, round, chunk };
                out.push(Harvested { of, len, bytes });
            }
        }
        out
    }

    /// Frees a job's state and returns its connections, which the driver closes.
    pub fn end_job(&mut self, job: JobId) -> Vec<ConnId> {
        self.known.remove(&job);
        let Some(at) = self.jobs.find(job) else { return Vec::new() };
        self.subtotals.retain(|(of, ..)| *of != at);
        self.totals.retain(|(of, ..)| *of != at);
        let of_job = |c: &Option<Conn>| c.as_ref().is_some_and(|c| c.job == at);
        let ids: Vec<_> =
            (0..self.conns.len()).filter(|i| of_job(&self.conns[*i])).map(ConnId).collect();
        ids.iter().for_each(|id| self.close(*id));
        self.jobs[at].give_back(&mut self.pool);
        self.jobs.remove(at);
        // Other jobs' chunks may have other lengths, and an idle server keeps nothing.
        self.pool.clear();
        ids
    }

    /// Whether every result has been handed to the driver.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.conns.iter().flatten().all(|c| c.outbox.is_empty())
    }

    /// Whether a result is here that somebody has not asked for yet, but will.
    #[must_use]
    pub fn is_expected(&self) -> bool {
        self.jobs.iter().any(Job::is_expected)
    }

    /// What has been done so far.
    #[must_use]
    pub fn stats(&self) -> &LaneStats {
        &self.stats
    }

    /// Partitions of which some worker has begun a round and not all chunks are summed: they wait
    /// for a rank. It looks at every partition.
    #[must_use]
    pub fn waiting_partitions(&self) -> usize {
        self.jobs.iter().map(Job::waiting).sum()
    }

    /// Bytes of buffers the lane owns.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        self.pool.allocated_bytes() as u64
    }

    /// Bytes of contributions on open connections that were copied once more after they were
    /// received, because they came right behind a header.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.conns.iter().flatten().map(|conn| conn.inbox.copied_bytes()).sum()
    }

    /// The next thing to look at together with the client in this process: sums first, while
    /// they are hot.
    pub(crate) fn next_visit(&mut self, id: ConnId) -> Option<(ChunkId, Visit)> {
        let conn = self.conns[id.0].as_mut()?;
        let job = &self.jobs[conn.job];
        let visits = conn.resident.as_mut()?;
        let (visit, (at, place)) = match visits.deliver.pop_front() {
            Some(of) => (Visit::Deliver, of),
            None => (Visit::Ask, visits.ask.pop_front()?),
        };
        let Key { tensor, tier, partition } = job.key(at);
        let round = job.partition(at).round(place.slot).expect("a live round");
        Some((ChunkId { tensor, tier, partition, round, chunk: place.chunk }, visit))
    }

    /// The finished sum of a chunk.
    pub(crate) fn value(&self, id: ConnId, of: ChunkId) -> Option<&[u8]> {
        let job = &self.jobs[self.conns[id.0].as_ref()?.job];
        let partition = job.partition(job.find(of.key(), 0)?);
        partition.value(of.place())
    }

    /// Adds the contribution of the client in this process to a chunk.
    pub(crate) fn contribute_resident(&mut self, id: ConnId, of: ChunkId, bytes: &[u8]) {
        let Some(conn) = self.conns[id.0].as_ref() else { return };
        let of_job = conn.job;
        let job = &mut self.jobs[of_job];
        let Some(at) = job.find(of.key(), 0) else { return };
        if job.partition(at).adding_begins(of.place()) {
            self.note(Kind::SumBegin, (of_job, at, of.place().slot), None);
        }
        let job = &mut self.jobs[of_job];
        let progress = job.partition_mut(at).contribute_resident(of.place(), bytes, &mut self.pool);
        self.stats.summed_bytes += bytes.len() as u64;
        self.distribute(of_job, at, of.place().slot, &progress);
    }

    fn conn(&mut self, id: ConnId) -> &mut Conn {
        self.conns[id.0].as_mut().expect("the driver uses open connections only")
    }

    /// Takes in what has been received.
    fn take_in(&mut self, id: ConnId, now: Now) -> Result<(), Violation> {
        loop {
            let conn = self.conn(id);
            if matches!(conn.input, Input::Header) {
                match conn.inbox.header()? {
                    Some(header) => {
                        self.start_frame(id, header)?;
                        self.note_arrival(id);
                    }
                    None => return Ok(()),
                }
            } else if conn.advance() {
                conn.check()?;
                self.finish_frame(id, now)?;
            } else {
                return Ok(());
            }
        }
    }

    fn start_frame(&mut self, id: ConnId, header: Header) -> Result<(), Violation> {
        let conn = self.conns[id.0].as_mut().expect("an open connection");
        let job = &self.jobs[conn.job];
        if header.epoch != job.epoch {
            return Err(Violation::state(format!(
                "a frame of epoch {}; the epoch is {}",
                header.epoch, job.epoch
            )));
        }
        conn.input = match header.kind {
            FrameKind::Begin => {
                if header.length as usize != BEGIN_BYTES {
                    return Err(Violation::state("a beginning of the wrong length"));
                }
                Input::Begin { header, bytes: [0; BEGIN_BYTES], have: 0 }
            }
            FrameKind::Group => {
                Input::Group { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Push if conn.resident.is_some() => {
                return Err(Violation::state("a chunk from a client that shares memory"));
            }
            FrameKind::Push if conn.refused.contains(&Key::of(&header)) => {
                Input::Discard { left: header.length as usize }
            }
            FrameKind::Push => {
                let at = job.find(Key::of(&header), conn.last);
                let at = at.ok_or_else(|| Violation::state("a chunk of an unknown partition"))?;
                conn.last = at;
                let partition = job.partition(at);
                let child = partition
                    .members()
                    .binary_search(&conn.rank)
                    .map_err(|_| Violation::state("a chunk from outside the group"))?;
                let (place, expect) = partition.expect(child, header.round, header.chunk)?;
                let len = partition.spec.chunk_len(header.chunk);
                if header.length != len {
                    return Err(Violation::state(format!(
                        "chunk {} has {} bytes, expected {len}",
                        header.chunk, header.length
                    )));
                }
                match expect {
                    Expect::Duplicate => {
                        self.stats.duplicate_chunks += 1;
                        Input::Discard { left: len as usize }
                    }
                    Expect::Fresh => {
                        let bytes = self.pool.take(len as usize);
                        Input::Chunk { bytes, have: 0, partition: at, child, at: place }
                    }
                }
            }
            FrameKind::Ack if conn.refused.contains(&Key::of(&header)) => Input::Header,
            FrameKind::Ack => {
                let (rank, of_job) = (conn.rank, conn.job);
                let job = &mut self.jobs[of_job];
                let at = job.find(Key::of(&header), conn.last);
                let at = at.ok_or_else(|| Violation::state("an unknown partition's result"))?;
                let partition = job.partition_mut(at);
                let last = partition.acknowledge(rank, header.round)?;
                match header.tier {
                    // Other machines may lack it, and whoever has it may die.
                    Tier::Machine if last && job.keeps => {
                        self.totals.push_back((of_job, at, header.round));
                    }
                    _ if last => self.released(of_job, at, (header.round.0 & 1) as usize),
                    _ => {}
                }
                return Ok(());
            }
            FrameKind::Result | FrameKind::Done | FrameKind::Error | FrameKind::Released => {
                return Err(Violation::state(format!("a {:?} frame from a client", header.kind)));
            }
        };
        Ok(())
    }

    fn finish_frame(&mut self, id: ConnId, now: Now) -> Result<(), Violation> {
        let conn = self.conn(id);
        let (job, rank) = (conn.job, conn.rank);
        match std::mem::replace(&mut conn.input, Input::Header) {
            Input::Header | Input::Discard { .. } => Ok(()),
            Input::Chunk { bytes, partition, child, at, .. } => {
                self.stats.summed_bytes += bytes.len() as u64;
                self.note_chunk(job, partition, at, rank);
                let place = self.jobs[job].partition_mut(partition);
                let progress = place.contribute(child, at, bytes, &mut self.pool, now);
                self.distribute(job, partition, at.slot, &progress);
                Ok(())
            }
            Input::Group { header, bytes, .. } => {
                let ranks = decode_group(&bytes)?;
                self.jobs[job].define_group(sumpter_wire::GroupId(header.tensor.0), &ranks)
            }
            Input::Begin { header, bytes, .. } => {
                self.begin(id, header, Begin::decode(&bytes)?, now)
            }
        }
    }

    fn begin(
        &mut self,
        id: ConnId,
        header: Header,
        Begin { spec, priority }: Begin,
        now: Now,
    ) -> Result<(), Violation> {
        if spec.chunk_bytes > self.limits.max_chunk_bytes {
            let limit = self.limits.max_chunk_bytes;
            return Err(Violation::state(format!(
                "chunks of {} bytes; this lane takes at most {limit}",
                spec.chunk_bytes
            )));
        }
        if spec.chunks() > MAX_CHUNKS {
            let chunks = spec.chunks();
            return Err(Violation::state(format!(
                "a partition of {chunks} chunks; this lane takes at most {MAX_CHUNKS}"
            )));
        }
        if header.tier == Tier::Machine && !self.limits.hub {
            return Err(Violation::state("nobody passes this lane's subtotals on"));
        }
        let conn = self.conns[id.0].as_mut().expect("an open connection");
        let (rank, of_job) = (conn.rank, conn.job);
        let job = &mut self.jobs[of_job];
        let (key, over) = (Key::of(&header), Listener { over: conn.serial, priority });
        let (at, slot, completes) =
            match job.begin((rank, over), key, spec, header.round, &mut self.pool)? {
                Begun::At { partition, slot, completes } => (partition, slot, completes),
                Begun::Early => return Ok(()),
                Begun::Refused(reason) => {
                    let refused = &mut self.conn(id).refused;
                    if refused.len() >= MAX_REFUSED {
                        return Err(Violation::state("too many refused partitions"));
                    }
                    refused.insert(key);
                    self.refuse(id, header, &reason);
                    return Ok(());
                }
            };
        let partition = job.partition(at);
        let (finished, complete) = (partition.finished(slot), partition.is_complete(slot));
        if header.chunk > finished {
            return Err(Violation::state(format!(
                "rank {rank} claims {} finished chunks of {finished}",
                header.chunk
            )));
        }
        if spec.collective.receives(rank, spec.root) {
            if header.chunk < finished && partition.is_released(slot) {
                return Err(Violation::state(format!("rank {rank} had the result before")));
            }
            for chunk in header.chunk..finished {
                self.send_value((id, priority), at, ChunkPlace { slot, chunk });
            }
        } else if complete && !completes && self.is_over(of_job, at, slot) {
            self.send_done(id, at, slot);
        }
        if completes {
            self.complete(of_job, at, slot);
        }
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        if conn.resident.is_some() {
            self.admit_resident((of_job, rank), at, slot, now);
        }
        Ok(())
    }

    /// The child in this process is in: its contribution can be had from now on.
    fn admit_resident(
        &mut self,
        (of_job, rank): (JobIndex, Rank),
        at: PartitionIndex,
        slot: usize,
        now: Now,
    ) {
        let PartitionSpec { collective, root, .. } = self.jobs[of_job].partition(at).spec;
        if collective.contributes(rank, root) {
            self.note(Kind::ArriveEnd, (of_job, at, slot), Some(rank));
        }
        let partition = self.jobs[of_job].partition_mut(at);
        let child = partition.members().binary_search(&rank).expect("a member began");
        let (steps, late) = partition.admit_resident(child, slot, &mut self.pool, now);
        self.count_late(late);
        for progress in steps {
            self.distribute(of_job, at, slot, &progress);
        }
    }

    fn count_late(&mut self, late: Option<(Rank, Now)>) {
        if let Some((rank, waited)) = late {
            let late = self.stats.late.entry(rank).or_default();
            late.0 += 1;
            late.1 += waited;
        }
    }

    /// Sends what a contribution finished to those who wait for it.
    fn distribute(&mut self, job: JobIndex, at: PartitionIndex, slot: usize, progress: &Progress) {
        self.count_late(progress.late);
        if let Some(chunk) = progress.asked {
            let resident = self.jobs[job].resident.and_then(|id| self.conns[id.0].as_mut());
            if let Some(visits) = resident.and_then(|conn| conn.resident.as_mut()) {
                visits.ask.push_back((at, ChunkPlace { slot, chunk }));
            }
        }
        if let Some(chunk) = progress.subtotal {
            self.subtotals.push_back((job, at, ChunkPlace { slot, chunk }));
        }
        if let Some(chunk) = progress.finished {
            for child in 0..self.jobs[job].partition(at).members().len() {
                if let Some(to) = self.listener(job, at, slot, child, true) {
                    self.send_value(to, at, ChunkPlace { slot, chunk });
                }
            }
        }
        if progress.complete {
            self.complete(job, at, slot);
        }
    }

    /// A round is complete.
    fn complete(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        self.stats.rounds += 1;
        self.note(Kind::SumEnd, (job, at, slot), None);
        if self.is_over(job, at, slot) {
            self.tell_done(job, at, slot);
        }
        self.jobs[job].partition_mut(at).admit_early(slot, &mut self.pool);
    }

    /// Whether those who receive no data may forget a round that is complete: what they contributed
    /// is not needed again. If this lane may vanish, that is so once all others have the result.
    fn is_over(&self, job: JobIndex, at: PartitionIndex, slot: usize) -> bool {
        let job = &self.jobs[job];
        !job.keeps || job.partition(at).is_released(slot)
    }

    fn tell_done(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        for child in 0..self.jobs[job].partition(at).members().len() {
            if let Some((id, _)) = self.listener(job, at, slot, child, false) {
                self.send_done(id, at, slot);
            }
        }
    }

    /// Everyone who receives a round's result has it.
    fn released(&mut self, job: JobIndex, at: PartitionIndex, slot: usize) {
        self.jobs[job].partition_mut(at).free(slot, &mut self.pool);
        if !self.jobs[job].keeps {
            return;
        }
        self.release_beside(job, at, slot);
        if self.jobs[job].partition(at).is_complete(slot) {
            self.tell_done(job, at, slot);
        }
        for child in 0..self.jobs[job].partition(at).members().len() {
            let Some((id, _)) = self.listener(job, at, slot, child, true) else { continue };
            let header = self.header(id, FrameKind::Released, at, slot);
            let conn = self.conn(id);
            if conn.resident.is_none() {
                let head = conn.head(&header, &[]);
                conn.outbox.push_idle(Frame { head, payload: Payload::None });
            }
        }
    }

    /// The connection over which a child began the round, if it is still open and the child
    /// `receives` data or not, as asked; and how urgent it is.
    fn listener(
        &self,
        job: JobIndex,
        at: PartitionIndex,
        slot: usize,
        child: usize,
        receives: bool,
    ) -> Option<(ConnId, i32)> {
        let job = &self.jobs[job];
        let partition = job.partition(at);
        let rank = partition.members()[child];
        let id = job.children[rank.0 as usize]?;
        let serial = self.conns[id.0].as_ref()?.serial;
        let wanted = partition.spec.collective.receives(rank, partition.spec.root) == receives;
        let Listener { over, priority } = partition.listener(slot, child)?;
        (wanted && over == serial).then_some((id, priority))
    }

    fn send_value(&mut self, (id, priority): (ConnId, i32), at: PartitionIndex, place: ChunkPlace) {
        if let Some(visits) = &mut self.conn(id).resident {
            return visits.deliver.push_back((at, place));
        }
        if place.chunk == 0 {
            let conn = self.conn(id);
            let (job, rank) = (conn.job, conn.rank);
            self.note(Kind::ReturnBegin, (job, at, place.slot), Some(rank));
        }
        let header = self.header(id, FrameKind::Result, at, place.slot);
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let partition = self.jobs[conn.job].partition_mut(at);
        let length = partition.spec.chunk_len(place.chunk);
        let header = Header { chunk: place.chunk, length, ..header };
        let payload = Payload::Value { partition: at, at: place, len: length as usize };
        let checksum = conn.inbox.is_checked().then(|| partition.checksum(place));
        self.push(id, priority, Frame { head: head(&header, checksum), payload });
    }

    fn send_done(&mut self, id: ConnId, at: PartitionIndex, slot: usize) {
        let header = self.header(id, FrameKind::Done, at, slot);
        let head = self.conn(id).head(&header, &[]);
        self.push(id, i32::MAX, Frame { head, payload: Payload::None });
    }

    fn header(&self, id: ConnId, kind: FrameKind, at: PartitionIndex, slot: usize) -> Header {
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let job = &self.jobs[conn.job];
        let Key { tensor, tier, partition } = job.key(at);
        let round = job.partition(at).round(slot).expect("a live round");
        Header { tier, partition, round, ..Header::new(kind, job.epoch, tensor) }
    }

    fn refuse(&mut self, id: ConnId, header: Header, reason: &str) {
        let text = reason.as_bytes();
        let text = &text[..text.len().min(sumpter_wire::MAX_CONTROL_BYTES)];
        let header =
            Header { kind: FrameKind::Error, chunk: 0, length: text.len() as u32, ..header };
        let head = self.conn(id).head(&header, text);
        self.push(id, i32::MAX, Frame { head, payload: Payload::Text(text.into()) });
    }

    fn push(&mut self, id: ConnId, priority: i32, frame: Frame) {
        let conn = self.conns[id.0].as_mut().expect("a child's connection is open");
        conn.outbox.push(priority, frame);
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push_back(id);
        }
    }
}

impl Endpoint for Lane {
    fn pending(&mut self, id: ConnId) -> Outgoing<'_> {
        let mut out = Outgoing::new();
        let Some(conn) = self.conns[id.0].as_mut() else { return out };
        conn.outbox.refill();
        let job = &self.jobs[conn.job];
        let (frames, mut skip) = conn.outbox.chosen();
        for frame in frames {
            push_after(&mut out, &frame.head, &mut skip);
            match &frame.payload {
                Payload::None => {}
                Payload::Text(text) => push_after(&mut out, text, &mut skip),
                Payload::Value { partition, at, len } => {
                    // Only a child that began the next round without reading this one can make
                    // the value vanish; it then waits for bytes that never come.
                    match job.partition(*partition).value(*at) {
                        Some(value) => push_after(&mut out, &value[..*len], &mut skip),
                        None => break,
                    }
                }
            }
        }
        out
    }

    fn sent(&mut self, id: ConnId, n: usize) {
        self.conn(id).outbox.sent(n);
        while let Some(frame) = self.conn(id).outbox.pop_sent() {
            self.note_sent(id, &frame.payload);
        }
    }

    fn space(&mut self, id: ConnId) -> Incoming<'_> {
        self.conn(id).space()
    }

    fn filled(&mut self, id: ConnId, n: usize, now: Now) -> Result<(), Violation> {
        self.conn(id).count(n);
        self.take_in(id, now).inspect_err(|violation| {
            self.stats.corrupt_frames += u64::from(violation.is_corruption());
        })
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        while let Some(id) = self.dirty.pop_front() {
            if let Some(conn) = self.conns[id.0].as_mut() {
                conn.dirty = false;
                return Some(id);
            }
        }
        None
    }
}
