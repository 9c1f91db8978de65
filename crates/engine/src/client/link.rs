//! The connections of a client, one for each lane.

use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

use sumpter_endpoint::ConnId;

use super::op::OpId;
use super::receiver::Receiver;
use super::sender::{Frame, Sender};

/// All connections, and which of them the driver has to look at.
#[derive(Debug)]
pub(super) struct Links {
    all: Vec<Link>,
    dirty: VecDeque<ConnId>,
    /// Those that are down although there is something to send.
    wanted: VecDeque<ConnId>,
}

#[derive(Debug)]
pub(super) struct Link {
    pub up: bool,
    /// The lane is in this process and reads the tensors where they are.
    pub resident: bool,
    /// Results are retained until the lane reports that everyone has them.
    pub retains: bool,
    pub receiver: Receiver,
    pub sender: Sender,
    /// The lane reports when everyone has a result.
    pub releases: bool,
    /// Chunks the lane in this process has asked for in vain and can have now.
    pub offers: VecDeque<(OpId, usize, u32)>,
    dirty: bool,
    wanted: bool,
}

impl Links {
    /// As many connections, all of them down; their frames carry checksums or do not.
    pub(super) fn new(lanes: usize, checked: bool) -> Links {
        let all = (0..lanes).map(|_| Link::new(checked)).collect();
        Links { all, dirty: VecDeque::new(), wanted: VecDeque::new() }
    }

    pub(super) fn get(&self, lane: ConnId) -> Option<&Link> {
        self.all.get(lane.0)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.all.iter()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.all.iter_mut()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = ConnId> + use<> {
        (0..self.all.len()).map(ConnId)
    }

    /// There is something new to send on a connection.
    pub(super) fn touch(&mut self, lane: ConnId) {
        let link = &mut self.all[lane.0];
        if link.up && !link.dirty {
            link.dirty = true;
            self.dirty.push_back(lane);
        } else if !link.up && !link.wanted {
            link.wanted = true;
            self.wanted.push_back(lane);
        }
    }

    /// A connection is there.
    pub(super) fn begin(&mut self, lane: ConnId) {
        let link = &mut self.all[lane.0];
        (link.up, link.wanted) = (true, false);
    }

    /// No connection has anything to send.
    pub(super) fn forget_dirty(&mut self) {
        self.dirty.clear();
        self.wanted.clear();
    }

    /// The next connection that is down although there is something to send.
    pub(super) fn next_wanted(&mut self) -> Option<ConnId> {
        let all = &self.all;
        std::iter::from_fn(|| self.wanted.pop_front()).find(|lane| all[lane.0].wanted)
    }

    /// The next connection with something new to send.
    pub(super) fn next_dirty(&mut self) -> Option<ConnId> {
        let lane = self.dirty.pop_front()?;
        self.all[lane.0].dirty = false;
        Some(lane)
    }
}

impl Index<ConnId> for Links {
    type Output = Link;

    fn index(&self, lane: ConnId) -> &Link {
        &self.all[lane.0]
    }
}

impl IndexMut<ConnId> for Links {
    fn index_mut(&mut self, lane: ConnId) -> &mut Link {
        &mut self.all[lane.0]
    }
}

impl Link {
    fn new(checked: bool) -> Link {
        Link {
            up: false,
            resident: false,
            retains: false,
            releases: false,
            receiver: Receiver::new(checked),
            sender: Sender::new(checked),
            offers: VecDeque::new(),
            dirty: false,
            wanted: false,
        }
    }

    /// The lane is in this process: no frame leaves it to be damaged.
    pub(super) fn attach(&mut self) {
        self.resident = true;
        self.receiver = Receiver::new(false);
        self.sender.checked = false;
    }

    /// Forgets the connection, not the partitions. Returns the frames that will not be sent.
    pub(super) fn reset(&mut self) -> VecDeque<Frame> {
        let unsent = self.sender.take_unsent();
        let Link { dirty, retains, releases, .. } = *self;
        *self = Link { dirty, retains, releases, ..Link::new(self.sender.checked) };
        unsent
    }
}
