//! A lane that does not sum: the same frames in and out, the same bookkeeping of who sent what,
//! but contributions go to one scratch buffer a connection and results are a fixed buffer.
//!
//! What a lane is slower than this is what summation costs.

use std::collections::{HashMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};

use sumpter_endpoint::{ConnId, Endpoint, Incoming, MAX_SLICES, Now, Outgoing, Violation};
use sumpter_sum::AlignedBuf;
use sumpter_types::TensorId;
use sumpter_wire::{BEGIN_BYTES, Begin, FrameKind, HEADER_BYTES, Header, PartitionSpec};

use super::staging::Staging;

#[derive(Debug)]
pub(super) struct Relay {
    conns: Vec<Conn>,
    index: HashMap<(TensorId, u32), usize>,
    partitions: Vec<Partition>,
    /// What every result holds: zeros.
    result: AlignedBuf,
    dirty: VecDeque<ConnId>,
}

#[derive(Debug)]
struct Partition {
    spec: PartitionSpec,
    /// Contributions to each chunk of the round under way. A worker begins the next round only
    /// when it has all results of this one, so one count suffices.
    arrived: Vec<usize>,
}

#[derive(Debug)]
struct Conn {
    staging: Staging,
    inbound: InboundFrame,
    scratch: AlignedBuf,
    output: VecDeque<([u8; HEADER_BYTES], usize)>,
    sent: usize,
    dirty: bool,
}

#[derive(Debug)]
enum InboundFrame {
    Header,
    Begin { header: Header, bytes: [u8; BEGIN_BYTES], have: usize },
    Chunk { header: Header, partition: usize, have: usize },
}

impl Relay {
    pub(super) fn new(workers: usize, chunk_bytes: usize) -> Relay {
        let conn = |_| Conn {
            staging: Staging::new(),
            inbound: InboundFrame::Header,
            scratch: AlignedBuf::new(chunk_bytes),
            output: VecDeque::new(),
            sent: 0,
            dirty: false,
        };
        Relay {
            conns: (0..workers).map(conn).collect(),
            index: HashMap::new(),
            partitions: Vec::new(),
            result: AlignedBuf::new(chunk_bytes),
            dirty: VecDeque::new(),
        }
    }

    fn start(&self, header: Header) -> Result<InboundFrame, Violation> {
        match header.kind {
            FrameKind::Ack => Ok(InboundFrame::Header),
            FrameKind::Begin if header.length as usize != BEGIN_BYTES => {
                Err(wrong("a beginning of another length"))
            }
            FrameKind::Begin => {
                Ok(InboundFrame::Begin { header, bytes: [0; BEGIN_BYTES], have: 0 })
            }
            FrameKind::Push => {
                let key = (header.tensor, header.partition);
                let partition = self.index.get(&key).copied();
                let partition = partition.ok_or_else(|| wrong("a chunk before its beginning"))?;
                if header.length != self.partitions[partition].spec.chunk_len(header.chunk) {
                    return Err(wrong("a chunk of another length"));
                }
                Ok(InboundFrame::Chunk { header, partition, have: 0 })
            }
            kind => Err(wrong(&format!("a {kind:?} frame"))),
        }
    }

    fn finish(&mut self, conn: ConnId) -> Result<(), Violation> {
        match std::mem::replace(&mut self.conns[conn.0].inbound, InboundFrame::Header) {
            InboundFrame::Header => {}
            InboundFrame::Begin { header, bytes, .. } => {
                let Begin { spec, .. } = Begin::decode(&bytes)?;
                let next = self.partitions.len();
                if *self.index.entry((header.tensor, header.partition)).or_insert(next) == next {
                    let arrived = vec![0; spec.chunks() as usize];
                    self.partitions.push(Partition { spec, arrived });
                }
            }
            InboundFrame::Chunk { header, partition, .. } => {
                let arrived = &mut self.partitions[partition].arrived[header.chunk as usize];
                *arrived += 1;
                if *arrived == self.conns.len() {
                    *arrived = 0;
                    self.distribute(header);
                }
            }
        }
        Ok(())
    }

    fn distribute(&mut self, header: Header) {
        let encoded = Header { kind: FrameKind::Result, ..header }.encode();
        for (index, conn) in self.conns.iter_mut().enumerate() {
            conn.output.push_back((encoded, header.length as usize));
            if !std::mem::replace(&mut conn.dirty, true) {
                self.dirty.push_back(ConnId(index));
            }
        }
    }
}

impl Conn {
    /// Moves staged bytes into the payload; true when it is complete.
    fn advance(&mut self) -> bool {
        match &mut self.inbound {
            InboundFrame::Header => false,
            InboundFrame::Begin { bytes, have, .. } => {
                *have += self.staging.take(&mut bytes[*have..]);
                *have == BEGIN_BYTES
            }
            InboundFrame::Chunk { header, have, .. } => {
                let length = header.length as usize;
                *have += self.staging.take(&mut self.scratch[*have..length]);
                *have == length
            }
        }
    }
}

impl Endpoint for Relay {
    fn pending(&mut self, conn: ConnId) -> Outgoing<'_> {
        let conn = &self.conns[conn.0];
        let mut out = Outgoing::new();
        let mut skip = conn.sent;
        for (header, len) in conn.output.iter().take(MAX_SLICES / 2) {
            for bytes in [&header[..], &self.result[..*len]] {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                if skipped < bytes.len() {
                    out.push(IoSlice::new(&bytes[skipped..]));
                }
            }
        }
        out
    }

    fn sent(&mut self, conn: ConnId, n: usize) {
        let conn = &mut self.conns[conn.0];
        conn.sent += n;
        while let Some((_, len)) = conn.output.front()
            && conn.sent >= HEADER_BYTES + len
        {
            conn.sent -= HEADER_BYTES + len;
            conn.output.pop_front();
        }
    }

    fn space(&mut self, conn: ConnId) -> Incoming<'_> {
        let Conn { staging, inbound, scratch, .. } = &mut self.conns[conn.0];
        let mut out = Incoming::new();
        match inbound {
            InboundFrame::Header => {}
            InboundFrame::Begin { bytes, have, .. } => {
                out.push(IoSliceMut::new(&mut bytes[*have..]))
            }
            InboundFrame::Chunk { header, have, .. } => {
                out.push(IoSliceMut::new(&mut scratch[*have..header.length as usize]));
            }
        }
        out.push(IoSliceMut::new(staging.tail()));
        out
    }

    fn filled(&mut self, id: ConnId, n: usize, _now: Now) -> Result<(), Violation> {
        let conn = &mut self.conns[id.0];
        let (have, length) = match &mut conn.inbound {
            InboundFrame::Header => (&mut 0, 0),
            InboundFrame::Begin { have, .. } => (have, BEGIN_BYTES),
            InboundFrame::Chunk { header, have, .. } => (have, header.length as usize),
        };
        let direct = n.min(length - *have);
        *have += direct;
        conn.staging.grow(n - direct);
        loop {
            let conn = &mut self.conns[id.0];
            if matches!(conn.inbound, InboundFrame::Header) {
                match conn.staging.header()? {
                    Some(header) => self.conns[id.0].inbound = self.start(header)?,
                    None => return Ok(()),
                }
            } else if conn.advance() {
                self.finish(id)?;
            } else {
                return Ok(());
            }
        }
    }

    fn next_dirty(&mut self) -> Option<ConnId> {
        let conn = self.dirty.pop_front()?;
        self.conns[conn.0].dirty = false;
        Some(conn)
    }
}

fn wrong(what: &str) -> Violation {
    Violation::State(what.to_owned())
}
