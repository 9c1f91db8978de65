//! What arrives: frames of a child, each checked against what the lane knows before it counts.

use std::ops::Range;

use sumpter_observe::EventKind;
use sumpter_types::{Collective, Rank};
use sumpter_wire::{
    APPLY_BYTES, Begin, CodecId, FrameKind, Header, MAX_BEGIN_BYTES, OrderEntry, PartitionSpec,
    Snapshot, Tier, decode_apply, decode_group, decode_order,
};

use super::Lane;
use super::conn::InboundFrame;
use super::job::{Begun, Job, JobIndex, Key, PartitionIndex};
use super::order::RoundStart;
use super::outcome::{ChunkPlace, Expect, Listener};
use sumpter_endpoint::{ConnId, Now, Violation};

/// Chunks of a partition: the largest partition in the smallest chunks that settings allow. It
/// bounds what a client that holds the token can make a lane keep beside the sums themselves.
const MAX_CHUNKS: u32 = 1 << 18;

/// Refusals a connection may collect; a client stops at the first that reaches it.
const MAX_REFUSED: usize = 1 << 16;

impl Lane {
    /// Takes in what has been received.
    pub(super) fn take_in(&mut self, id: ConnId, now: Now) -> Result<(), Violation> {
        loop {
            let conn = self.conn(id);
            if matches!(conn.inbound, InboundFrame::Header) {
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
        conn.inbound = match header.kind {
            FrameKind::Begin if header.length as usize > MAX_BEGIN_BYTES => {
                InboundFrame::List { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Begin => {
                InboundFrame::Begin { header, bytes: [0; MAX_BEGIN_BYTES], have: 0 }
            }
            FrameKind::Group | FrameKind::Codec => {
                InboundFrame::List { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Snapshot => {
                let most = Snapshot::payload_bytes(job.world_size as usize, 0);
                if header.length as usize > most {
                    return Err(Violation::state("clocks of more workers than there are"));
                }
                InboundFrame::List { header, bytes: vec![0; header.length as usize], have: 0 }
            }
            FrameKind::Mirrored => return self.mirrored(id, &header),
            FrameKind::Push if conn.resident.is_some() => {
                return Err(Violation::state("a chunk from a client that shares memory"));
            }
            FrameKind::Push if conn.refused.contains(&Key::of(&header, conn.rank)) => {
                InboundFrame::Discard { left: header.length as usize }
            }
            FrameKind::Push => {
                let at = job.find(Key::of(&header, conn.rank), conn.last);
                let at = at.ok_or_else(|| Violation::state("a chunk of an unknown partition"))?;
                conn.last = at;
                let partition = job.partition(at);
                let child = partition
                    .members()
                    .binary_search(&conn.rank)
                    .map_err(|_| Violation::state("a chunk from outside the group"))?;
                let (place, expect) = partition.expect(child, header.round, header.chunk)?;
                let len = partition.contribution_len(header.chunk) as u32;
                if header.length != len {
                    return Err(Violation::state(format!(
                        "chunk {} has {} bytes, expected {len}",
                        header.chunk, header.length
                    )));
                }
                match expect {
                    Expect::Duplicate => {
                        self.stats.duplicate_chunks += 1;
                        InboundFrame::Discard { left: len as usize }
                    }
                    Expect::Fresh => {
                        let bytes = self.pool.take(len as usize);
                        InboundFrame::Chunk { bytes, have: 0, partition: at, child, at: place }
                    }
                }
            }
            FrameKind::Apply if conn.refused.contains(&Key::of(&header, conn.rank)) => {
                InboundFrame::Discard { left: header.length as usize }
            }
            FrameKind::Apply => InboundFrame::Apply { header, bytes: [0; APPLY_BYTES], have: 0 },
            FrameKind::Ack if conn.refused.contains(&Key::of(&header, conn.rank)) => {
                InboundFrame::Header
            }
            FrameKind::Ack => return self.acknowledged(id, &header),
            FrameKind::Result
            | FrameKind::Done
            | FrameKind::Error
            | FrameKind::Released
            | FrameKind::Norm => {
                return Err(Violation::state(format!("a {:?} frame from a client", header.kind)));
            }
        };
        Ok(())
    }

    /// A child holds all of a round's result.
    fn acknowledged(&mut self, id: ConnId, header: &Header) -> Result<(), Violation> {
        let conn = self.conn(id);
        let (rank, of_job, near) = (conn.rank, conn.job, conn.last);
        let (job, slot) = (&mut self.jobs[of_job], (header.round.0 & 1) as usize);
        let at = job.find(Key::of(header, rank), near);
        let at = at.ok_or_else(|| Violation::state("an unknown partition's result"))?;
        let acknowledged = job.partition_mut(at).acknowledge(rank, header.round)?;
        match acknowledged.by_mirrors {
            true if job.partition(at).spec.coding.is_some() => {
                self.send_held_back(of_job, at, slot);
            }
            true => self.tell_mirrored(of_job, at, slot),
            false => {}
        }
        if !acknowledged.by_all {
            return Ok(());
        }
        let job = &mut self.jobs[of_job];
        let of_aggregate = header.tier.is_aggregate() && job.keeps;
        if of_aggregate && job.partition(at).receives_totals() {
            job.totals.push_back((at, header.round));
        }
        // Others than this aggregate's members may lack it, and those that have it may fail.
        if !of_aggregate || !job.partition(at).shares_totals() {
            self.released(of_job, at, slot);
        }
        Ok(())
    }

    fn finish_frame(&mut self, id: ConnId, now: Now) -> Result<(), Violation> {
        let conn = self.conn(id);
        let (job, rank) = (conn.job, conn.rank);
        match std::mem::replace(&mut conn.inbound, InboundFrame::Header) {
            InboundFrame::Header | InboundFrame::Discard { .. } => Ok(()),
            InboundFrame::Chunk { bytes, partition, child, at, .. } => {
                let summed = self.jobs[job].partition(partition).spec.chunk_len(at.chunk);
                self.stats.summed_bytes += u64::from(summed);
                self.note_chunk(job, partition, at, rank);
                let (place, state) = self.jobs[job].with_state(partition);
                let progress = place.contribute(child, at, bytes, (&mut self.pool, state), now);
                self.distribute(job, partition, at.slot, &progress);
                Ok(())
            }
            InboundFrame::List { header, bytes, .. } if header.kind == FrameKind::Snapshot => {
                self.take_clocks(id, &header, &bytes)
            }
            InboundFrame::List { header, bytes, .. } if header.kind == FrameKind::Begin => {
                let (begin, order) = bytes.split_at(MAX_BEGIN_BYTES);
                let order = decode_order(header.kind, order)?;
                self.begin(id, header, (Begin::decode(begin)?, order), now)
            }
            InboundFrame::List { header, bytes, .. } if header.kind == FrameKind::Codec => {
                self.jobs[job].define_codec(CodecId(header.tensor.0), &bytes, &self.codecs)
            }
            InboundFrame::List { header, bytes, .. } => {
                let ranks = decode_group(&bytes)?;
                self.jobs[job].define_group(sumpter_types::GroupId(header.tensor.0), &ranks)
            }
            InboundFrame::Apply { header, bytes, .. } => self.decide(id, header, &bytes),
            InboundFrame::Begin { header, bytes, .. } => {
                let begin = Begin::decode(&bytes[..header.length as usize])?;
                self.begin(id, header, (begin, Vec::new()), now)
            }
        }
    }

    /// A child says what a round does that it began without saying so.
    fn decide(
        &mut self,
        id: ConnId,
        header: Header,
        bytes: &[u8; APPLY_BYTES],
    ) -> Result<(), Violation> {
        let conn = self.conn(id);
        let (rank, of_job, near, key) =
            (conn.rank, conn.job, conn.last, Key::of(&header, conn.rank));
        let job = &mut self.jobs[of_job];
        let at = job.find(key, near);
        let at = at.ok_or_else(|| Violation::state("a decision about an unknown partition"))?;
        let partition = job.partition_mut(at);
        let child = partition.members().binary_search(&rank);
        let (Ok(child), Some(variable)) = (child, partition.spec.variable) else {
            return Err(Violation::state("a decision about what is no variable of the rank's"));
        };
        let update = decode_apply(variable.rule, &bytes[..header.length as usize])?;
        let slot = (header.round.0 & 1) as usize;
        match partition.decide(child, header.round, update)? {
            Ok(true) => self.proceed(of_job, at, slot),
            Ok(false) => {}
            Err(how) => self.dispute(of_job, at, slot, &format!("rank {rank}: {how}")),
        }
        Ok(())
    }

    /// Whether this lane can have a partition in a tier.
    fn check_spec(&self, tier: Tier, spec: &PartitionSpec) -> Result<(), Violation> {
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
        // A client that knows the tensors needs no route, and one that does not has nothing else.
        let passes_on = tier.is_aggregate() && self.limits.hub != spec.route.is_some();
        if (tier.is_aggregate() || spec.route.is_some()) && !passes_on {
            return Err(Violation::state("no hub passes this lane's subtotals on"));
        }
        if tier.part().is_some() && spec.collective != Collective::Broadcast {
            return Err(Violation::state("a variable's part that is not one worker's"));
        }
        Ok(())
    }

    fn begin(
        &mut self,
        id: ConnId,
        header: Header,
        (Begin { spec, priority, call, update }, order): (Begin, Vec<OrderEntry>),
        now: Now,
    ) -> Result<(), Violation> {
        self.check_spec(header.tier, &spec)?;
        check_order(header.tier, &spec, &order)?;
        let conn = self.conns[id.0].as_mut().expect("an open connection");
        let (rank, of_job) = (conn.rank, conn.job);
        let job = &mut self.jobs[of_job];
        let key = Key::of(&header, conn.rank);
        let over = Listener { over: conn.serial, priority, call };
        let start = RoundStart { round: header.round, update, order };
        let (at, slot, completes, wants_total) =
            match job.begin((rank, over), key, spec, &start, (&mut self.pool, &self.codecs))? {
                Begun::At { partition, slot, completes, wants_total } => {
                    (partition, slot, completes, wants_total)
                }
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
                Begun::Disputed { partition, slot, reason } => {
                    self.dispute(of_job, partition, slot, &reason);
                    self.conn(id).refused.insert(key);
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
            self.send_finished((id, priority), at, slot, header.chunk..finished);
        } else if complete && !completes && self.is_over(of_job, at, slot) {
            self.send_done(id, at, slot);
        }
        if completes {
            self.complete(of_job, at, slot);
        }
        if wants_total {
            let chunks = (0..spec.chunks()).map(|chunk| (at, ChunkPlace { slot, chunk }));
            self.jobs[of_job].subtotals.extend(chunks);
        }
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let is_resident = conn.resident.is_some();
        if spec.variable.is_some() {
            let child = self.jobs[of_job].partition(at).members().binary_search(&rank);
            self.send_norm(id, (at, slot), child.expect("a member began"));
            self.proceed(of_job, at, slot);
        }
        if is_resident {
            self.admit_resident((of_job, rank), at, slot, now);
        }
        Ok(())
    }

    /// Sends a child that has begun a round what is finished of it.
    fn send_finished(
        &mut self,
        (id, priority): (ConnId, i32),
        at: PartitionIndex,
        slot: usize,
        chunks: Range<u32>,
    ) {
        let conn = self.conns[id.0].as_ref().expect("an open connection");
        let (of_job, rank) = (conn.job, conn.rank);
        if !self.jobs[of_job].partition(at).holds_back(slot, rank) {
            for chunk in chunks {
                self.send_value((id, priority), at, ChunkPlace { slot, chunk });
            }
        }
        let partition = self.jobs[of_job].partition(at);
        let updates = partition.spec.variable.is_some();
        if updates && partition.is_mirrored(slot) && partition.awaits_mirrors(rank) {
            self.send_done(id, at, slot);
        }
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
            self.note(EventKind::ArriveEnd, (of_job, at, slot), Some(rank));
        }
        let (partition, state) = self.jobs[of_job].with_state(at);
        let child = partition.members().binary_search(&rank).expect("a member began");
        let (steps, late) = partition.admit_resident(child, slot, (&mut self.pool, state), now);
        self.count_late(of_job, late);
        for progress in steps {
            self.distribute(of_job, at, slot, &progress);
        }
    }

    /// Of a server that is a hub, its own lane counts which worker was late.
    pub(super) fn count_late(&mut self, of_job: JobIndex, late: Option<(Rank, Now)>) {
        let Job { id, world_size: workers, .. } = self.jobs[of_job];
        if let Some((rank, waited)) = late.filter(|(rank, _)| rank.0 < workers) {
            let late = self.stats.late.entry((id, rank)).or_default();
            late.0 += 1;
            late.1 += waited;
        }
    }
}

/// Whether an order can be one of a partition's round: nothing, or of all of the partition.
fn check_order(tier: Tier, spec: &PartitionSpec, order: &[OrderEntry]) -> Result<(), Violation> {
    let Some(last) = order.last() else { return Ok(()) };
    let is_whole = |entry: &OrderEntry| entry.end.is_multiple_of(spec.dtype.size() as u32);
    match tier == Tier::Worker && last.end == spec.bytes && order.iter().all(is_whole) {
        true => Ok(()),
        false => Err(Violation::state("an order of other bytes than the partition's")),
    }
}
