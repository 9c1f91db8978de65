//! The lane: one core's share of a summation server, as a state machine.
//!
//! A lane receives chunks from its children (workers), adds each while it is hot, and sends a
//! chunk's sum to every receiver the moment the last contribution is in. It owns its buffers, so
//! that nothing is shared with other lanes.
//!
//! A lane beside a client can be a *hub* as well: it adds what the workers of its machine
//! contribute, and the client passes each subtotal on to the lane that makes the sum of all. A
//! client beside a server's lane does not know the tensors: the members say with each partition
//! where its subtotal goes next (a *route*).
//!
//! A variable's value and slots live here from round to round, as a copy of what workers mirror:
//! the sum of a round's gradients changes them, and the new value is the result.
//!
//! Invariants: each contribution counts once per round, whatever is re-sent (`Partition`); bytes
//! from one child can at worst close that child's connection.

mod accumulate;
mod asynchronous;
mod beside;
mod coded;
mod conn;
mod decision;
mod job;
mod limits;
mod notes;
mod order;
mod outbox;
mod outcome;
mod partition;
mod peer;
mod receiving;
mod sending;
mod slot;
mod state;
mod subtotal;

use std::collections::{HashMap, VecDeque};

use sumpter_codec::Registry;
use sumpter_observe::{EventKind, Recorder};
use sumpter_sum::{AlignedBuf, BufferPool};
use sumpter_types::{JobId, Rank, TensorId};
use sumpter_wire::Tier;

pub use self::limits::{JobLimits, LaneLimits};
pub use self::peer::Peer;
pub use self::subtotal::{Passing, Subtotal, Total};

use self::conn::{Conn, InboundFrame};
use self::job::{Job, JobIndex, Jobs, Key, PartitionIndex};
use self::outbox::Payload;
use self::outcome::{ChunkPlace, Serial};
use crate::chunk::{ChunkId, Visit};
use sumpter_endpoint::{ConnId, Endpoint, Incoming, Now, Outgoing, Violation, push_after};

/// Bytes of free buffers a lane keeps for the next chunk; sums are held elsewhere, so this only
/// bounds what a burst of contributions in rank order leaves behind.
const KEPT_BYTES: usize = 256 << 20;

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
    /// By rank, of the runs that the lane serves and the last ones that it has served: how often it
    /// was the last, and for how long in all the others waited for it.
    pub late: HashMap<(JobId, Rank), (u64, Now)>,
}

/// A chunk's result, taken out of a lane.
#[derive(Debug)]
pub struct Undelivered {
    pub(crate) of: ChunkId,
    /// Bytes of the result; the buffer may be longer.
    pub(crate) len: usize,
    pub(crate) bytes: AlignedBuf,
}

impl ChunkId {
    /// What a worker calls the partition by.
    fn key(self, rank: Rank) -> Key {
        let ChunkId { tensor, tier, partition, .. } = self;
        Key { tensor, tier, partition, worker: (tier == Tier::Worker).then_some(rank) }
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
    /// Connections with something new to send that can wait for the end of the turn.
    late: VecDeque<ConnId>,
    /// Chunks of variables that have changed asynchronously, through which partitions.
    changes: VecDeque<(JobIndex, PartitionIndex, u32)>,
    pool: BufferPool,
    /// What codecs there are.
    codecs: Registry,
    stats: LaneStats,
    /// Jobs that have ended and are still in the statistics, the oldest first.
    ended: VecDeque<JobId>,
    recorder: Recorder,
}

/// Of so many ended jobs the statistics are kept, for reports on how they were.
const ENDED_JOBS: usize = 4;

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
            late: VecDeque::new(),
            changes: VecDeque::new(),
            pool: BufferPool::new(KEPT_BYTES),
            codecs: Registry::new(),
            stats: LaneStats::default(),
            ended: VecDeque::new(),
            recorder: Recorder::default(),
        }
    }

    /// The same with these codecs in place of those of `sumpter-codec`; the clients must know them
    /// as well.
    #[must_use]
    pub fn with_codecs(self, codecs: Registry) -> Lane {
        Lane { codecs, ..self }
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
        let limits = self.limits_of(peer.job);
        if u64::from(peer.rank.0) >= u64::from(peer.world_size) + u64::from(limits.servers) {
            return Err(format!("rank {} of {} workers", peer.rank, peer.world_size));
        }
        let max_connections = limits.max_connections;
        let at =
            self.jobs.find(peer.job).unwrap_or_else(|| self.jobs.insert(Job::new(&peer, limits)));
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
        if others >= max_connections as usize && peer.rank.0 < peer.world_size {
            return Err(format!(
                "the job has {others} of at most {max_connections} connections to this lane \
                 (max_connections)"
            ));
        }
        // A member of the job may claim any rank, but not take the place of the client here.
        let known = job.children[peer.rank.0 as usize].and_then(|id| self.conns[id.0].as_ref());
        if known.is_some_and(|known| known.resident.is_some() != resident) {
            let place = if resident { "in another process" } else { "in this lane's process" };
            return Err(format!("rank {} is {place} already", peer.rank));
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
        self.send_snapshots_again(id);
        Ok((id, old))
    }

    /// Forgets a connection. What it contributed in whole chunks stays; what was under way is
    /// sent again by the worker when it comes back.
    pub fn close(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(id.0).and_then(Option::take) else { return };
        if let InboundFrame::Chunk { bytes, .. } = conn.inbound {
            self.pool.give(bytes);
        }
        conn.outbox.into_owned().for_each(|bytes| self.pool.give(bytes));
        let child = &mut self.jobs[conn.job].children[conn.rank.0 as usize];
        if *child == Some(id) {
            *child = None;
        }
    }

    /// Takes out the results of a job that some worker may still lack; the job is to end, or to
    /// go on in another epoch.
    pub fn take_undelivered(&mut self, job: JobId) -> Vec<Undelivered> {
        let Some(at) = self.jobs.find(job) else { return Vec::new() };
        let job = &mut self.jobs[at];
        let mut out = Vec::new();
        for at in 0..job.partitions() {
            let Key { tensor, tier, partition, .. } = job.key(at);
            let spec = job.partition(at).spec;
            for (round, chunk, bytes) in job.partition_mut(at).take_undelivered() {
                let len = spec.chunk_len(chunk) as usize;
                let of = ChunkId { tensor, tier, partition, round, chunk };
                out.push(Undelivered { of, len, bytes });
            }
        }
        out
    }

    /// Frees a job's state and returns its connections, which the driver closes.
    pub fn end_job(&mut self, job: JobId) -> Vec<ConnId> {
        self.known.remove(&job);
        let Some(at) = self.jobs.find(job) else { return Vec::new() };
        let of_job = |c: &Option<Conn>| c.as_ref().is_some_and(|c| c.job == at);
        let ids: Vec<_> =
            (0..self.conns.len()).filter(|i| of_job(&self.conns[*i])).map(ConnId).collect();
        ids.iter().for_each(|id| self.close(*id));
        self.jobs[at].give_back(&mut self.pool);
        self.jobs.remove(at);
        self.ended.push_back(job);
        if self.ended.len() > ENDED_JOBS {
            let oldest = self.ended.pop_front();
            self.stats.late.retain(|(of, _), _| Some(*of) != oldest);
        }
        // Other jobs' chunks may have other lengths, and an idle server keeps nothing.
        self.pool.clear();
        ids
    }

    /// Whether every result has been handed to the driver.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.conns.iter().flatten().all(|c| c.outbox.is_empty() && c.snapshots.is_empty())
    }

    /// Whether a result is here for which a receiver has not asked yet, one that `may` ask for a
    /// round of the tensor.
    #[must_use]
    pub fn is_expected(&self, may: impl Fn(TensorId, Rank) -> bool) -> bool {
        self.jobs.iter().any(|job| job.is_expected(&may))
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
        conn.last = at;
        let Key { tensor, tier, partition, .. } = job.key(at);
        let round = job.partition(at).round(place.slot).expect("a live round");
        Some((ChunkId { tensor, tier, partition, round, chunk: place.chunk }, visit))
    }

    /// The finished value of a chunk.
    pub(crate) fn value(&self, id: ConnId, of: ChunkId) -> Option<&[u8]> {
        let conn = self.conns[id.0].as_ref()?;
        let job = &self.jobs[conn.job];
        let at = job.find(of.key(conn.rank), conn.last)?;
        job.value(at, of.place(), job.partition(at).is_mirror(conn.rank))
    }

    /// Adds the contribution of the client in this process to a chunk.
    pub(crate) fn contribute_resident(&mut self, id: ConnId, of: ChunkId, bytes: &[u8]) {
        let Some(conn) = self.conns[id.0].as_ref() else { return };
        let (of_job, rank, near) = (conn.job, conn.rank, conn.last);
        let job = &mut self.jobs[of_job];
        let Some(at) = job.find(of.key(rank), near) else { return };
        if job.partition(at).adding_begins(of.place()) {
            self.note(EventKind::SumBegin, (of_job, at, of.place().slot), None);
        }
        let (partition, state) = self.jobs[of_job].with_state(at);
        let progress = partition.contribute_resident(of.place(), bytes, &mut self.pool, state);
        self.stats.summed_bytes += bytes.len() as u64;
        self.distribute(of_job, at, of.place().slot, &progress);
    }

    /// The same with a contribution that lies in a buffer of its own: a code, where contributions
    /// are encoded.
    pub(crate) fn contribute_resident_code(&mut self, id: ConnId, of: ChunkId, code: AlignedBuf) {
        let Some(conn) = self.conns[id.0].as_ref() else { return self.pool.give(code) };
        let (of_job, rank, near, place) = (conn.job, conn.rank, conn.last, of.place());
        let found = self.jobs[of_job].find(of.key(rank), near);
        let Some(at) = found else { return self.pool.give(code) };
        if self.jobs[of_job].partition(at).spec.coding.is_none() {
            self.contribute_resident(id, of, &code);
            return self.pool.give(code);
        }
        if self.jobs[of_job].partition(at).adding_begins(place) {
            self.note(EventKind::SumBegin, (of_job, at, place.slot), None);
        }
        let partition = self.jobs[of_job].partition_mut(at);
        self.stats.summed_bytes += u64::from(partition.spec.chunk_len(of.chunk));
        let progress = partition.contribute_resident_code(place, code, &mut self.pool);
        self.distribute(of_job, at, place.slot, &progress);
    }

    /// Whether only the contribution of the client in this process to a chunk is missing, which is
    /// to receive the sum as it is.
    pub(crate) fn lacks_only_resident(&self, id: ConnId, of: ChunkId) -> bool {
        let Some(conn) = self.conns[id.0].as_ref() else { return false };
        let (job, place) = (&self.jobs[conn.job], of.place());
        let receives = |at| {
            let child = job.partition(at).lacks_only_resident(place)?;
            self.listener(conn.job, at, place.slot, child, true)
        };
        let to = job.find(of.key(conn.rank), conn.last).and_then(receives);
        to.is_some_and(|(to, _)| to == id)
    }

    /// Adds the contribution of the client in this process, [the last](Self::lacks_only_resident)
    /// to a chunk, and writes the sum over it: the client has it then. False if it was not the
    /// last.
    pub(crate) fn complete_in_place(&mut self, id: ConnId, of: ChunkId, bytes: &mut [u8]) -> bool {
        let Some(conn) = self.conns[id.0].as_ref() else { return false };
        let (of_job, rank, near, place) = (conn.job, conn.rank, conn.last, of.place());
        let Some(at) = self.jobs[of_job].find(of.key(rank), near) else { return false };
        if self.jobs[of_job].partition(at).adding_begins(place) {
            self.note(EventKind::SumBegin, (of_job, at, place.slot), None);
        }
        let partition = self.jobs[of_job].partition_mut(at);
        let progress = partition.complete_in_place(place, bytes, &mut self.pool);
        self.stats.summed_bytes += bytes.len() as u64;
        self.distribute(of_job, at, place.slot, &progress);
        let visits = self.conns[id.0].as_mut().and_then(|conn| conn.resident.as_mut());
        visits.and_then(|visits| visits.deliver.pop_back_if(|last| *last == (at, place))).is_some()
    }

    /// There is something new to send on a connection.
    fn touch(&mut self, id: ConnId) {
        let conn = self.conns[id.0].as_mut().expect("a child's connection is open");
        if !conn.dirty {
            conn.dirty = true;
            self.dirty.push_back(id);
        }
    }

    /// There is something new to send on a connection, once the driver has taken in all that has
    /// arrived: it is small, and more of the kind may come.
    fn touch_late(&mut self, id: ConnId) {
        let conn = self.conns[id.0].as_mut().expect("a child's connection is open");
        if !std::mem::replace(&mut conn.late, true) {
            self.late.push_back(id);
        }
    }

    fn conn(&mut self, id: ConnId) -> &mut Conn {
        self.conns[id.0].as_mut().expect("the driver uses open connections only")
    }

    /// A job's own limits, in place of the lane's for any job; they hold until the job ends.
    pub fn know(&mut self, job: JobId, limits: JobLimits) {
        self.known.insert(job, limits);
        if let Some(at) = self.jobs.find(job) {
            self.jobs[at].limit(limits);
        }
    }

    /// Bytes of accumulators that a job's tensors occupy when all are under way.
    #[must_use]
    pub fn job_bytes(&self, job: JobId) -> u64 {
        self.jobs.find(job).map_or(0, |at| self.jobs[at].bytes())
    }

    /// The limits of a job: its own, or those of any job.
    fn limits_of(&self, job: JobId) -> JobLimits {
        let (max_bytes, max_connections) = (self.limits.max_job_bytes, u32::MAX);
        let any = JobLimits { max_bytes, max_connections, servers: 0, lanes: 0 };
        self.known.get(&job).copied().unwrap_or(any)
    }
}

impl Endpoint for Lane {
    fn pending(&mut self, id: ConnId) -> Outgoing<'_> {
        let mut out = Outgoing::new();
        loop {
            let Some(conn) = self.conns[id.0].as_mut() else { return out };
            conn.outbox.refill();
            if !conn.outbox.is_idle() || !self.next_snapshot(id) {
                break;
            }
        }
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let job = &self.jobs[conn.job];
        let (frames, mut skip) = conn.outbox.chosen();
        for frame in frames {
            push_after(&mut out, &frame.head, &mut skip);
            match &frame.payload {
                Payload::Notices(bytes) => push_after(&mut out, bytes, &mut skip),
                Payload::Owned { bytes, len } => push_after(&mut out, &bytes[..*len], &mut skip),
                Payload::Value { partition, at, gradient, len } => {
                    // Only a child that began the next round without reading this one can make
                    // the value vanish; it then waits for bytes that never come.
                    match job.value(*partition, *at, *gradient) {
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
            if let Payload::Owned { bytes, .. } = frame.payload {
                self.pool.give(bytes);
            }
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

    fn end_turn(&mut self) {
        while let Some(id) = self.late.pop_front() {
            // A connection that was closed meanwhile may have left its number to another.
            let late = self.conns[id.0].as_mut().map(|conn| std::mem::take(&mut conn.late));
            if late == Some(true) {
                self.touch(id);
            }
        }
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
