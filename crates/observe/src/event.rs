//! Events: what a state machine notes, a few dozen bytes each.

/// What happened to a partition, or to an operation as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Of a client: an operation was submitted; its partitions queue.
    Submitted = 1,
    /// An operation has ended.
    Finished = 2,
    /// A partition's turn has come, and the lane in this process may take the contribution.
    Offered = 3,
    /// A partition's turn has come: its first chunk goes to the connection.
    SendBegin = 4,
    /// Its last chunk is with the operating system.
    SendEnd = 5,
    /// The first chunk of the result begins to arrive.
    ReceiveBegin = 6,
    /// The last chunk of the result has arrived.
    ReceiveEnd = 7,
    /// The first chunk of the result was taken from the lane in this process.
    CopyBegin = 8,
    /// The last one was.
    CopyEnd = 9,
    /// Of a lane: the first chunk of a contribution begins to arrive.
    ArriveBegin = 10,
    /// The whole contribution is here, or may be read where it lies.
    ArriveEnd = 11,
    /// A chunk has a second contribution: adding begins.
    SumBegin = 12,
    /// The last chunk is finished.
    SumEnd = 13,
    /// The first chunk of the result may go to a worker.
    ReturnBegin = 14,
    /// Its last chunk is with the operating system.
    ReturnEnd = 15,
    /// Of a client: the contribution to a partition has come into host memory, and it queues.
    Supplied = 16,
}

impl EventKind {
    /// Every kind.
    pub const ALL: [EventKind; 16] = [
        EventKind::Submitted,
        EventKind::Finished,
        EventKind::Offered,
        EventKind::SendBegin,
        EventKind::SendEnd,
        EventKind::ReceiveBegin,
        EventKind::ReceiveEnd,
        EventKind::CopyBegin,
        EventKind::CopyEnd,
        EventKind::ArriveBegin,
        EventKind::ArriveEnd,
        EventKind::SumBegin,
        EventKind::SumEnd,
        EventKind::ReturnBegin,
        EventKind::ReturnEnd,
        EventKind::Supplied,
    ];

    pub(crate) fn of(code: u32) -> Option<EventKind> {
        EventKind::ALL.into_iter().find(|kind| *kind as u32 == code)
    }
}

/// The other end of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Peer {
    /// There is none.
    #[default]
    Unknown,
    /// A worker, seen from a lane.
    Rank(u32),
    /// A lane of a worker's process.
    WorkerLane {
        /// The worker.
        rank: u32,
        /// The lane's number with it.
        lane: u16,
    },
    /// A lane of a server.
    ServerLane {
        /// The server's number with the coordinator; of larger numbers the low 32 bits.
        member: u32,
        /// The lane's number with it.
        lane: u16,
    },
}

impl Peer {
    /// As it travels.
    pub(crate) fn code(self) -> u64 {
        match self {
            Peer::Unknown => 0,
            Peer::Rank(rank) => (1 << 48) | u64::from(rank),
            Peer::WorkerLane { rank, lane } => {
                (2 << 48) | (u64::from(lane) << 32) | u64::from(rank)
            }
            Peer::ServerLane { member, lane } => {
                (3 << 48) | (u64::from(lane) << 32) | u64::from(member)
            }
        }
    }

    pub(crate) fn of(code: u64) -> Option<Peer> {
        let (low, lane) = (code as u32, (code >> 32) as u16);
        match code >> 48 {
            0 if code == 0 => Some(Peer::Unknown),
            1 if lane == 0 => Some(Peer::Rank(low)),
            2 => Some(Peer::WorkerLane { rank: low, lane }),
            3 => Some(Peer::ServerLane { member: low, lane }),
            _ => None,
        }
    }
}

/// What an event is about: a round of a partition, or of a tensor as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Part {
    /// The tensor's number in the job.
    pub tensor: u32,
    /// Which of its sums.
    pub tier: u8,
    /// The round.
    pub round: u32,
    /// The partition's number; [`Part::WHOLE`] for all of the tensor.
    pub partition: u32,
}

impl Part {
    /// Not one partition, but the tensor.
    pub const WHOLE: u32 = u32::MAX;
}

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, by this machine's monotonic clock.
    pub at_ns: u64,
    /// What.
    pub kind: EventKind,
    /// To what.
    pub part: Part,
    /// The other end of the link, where there is one.
    pub peer: Peer,
    /// Bytes of the partition.
    pub bytes: u32,
    /// Of a lane: the run, since a lane serves many; 0 in a client, which has one.
    pub run: u64,
}
