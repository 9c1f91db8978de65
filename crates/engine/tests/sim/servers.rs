//! Helpers that are hubs of racks: a client and a hub beside the lane, which know of the job only
//! what subtotals say.

use sumpter_engine::JobLimits;

use super::*;

pub(super) struct ServerHub {
    pub client: Client<OpMemory<OwnedMemory>>,
    hub: Hub,
    /// The client's connection in the lane beside it.
    own: ConnId,
}

impl World {
    pub(super) fn client(&mut self, who: usize) -> &mut Client<OpMemory<OwnedMemory>> {
        match self.server_hubs.get_mut(&who) {
            Some(server) => &mut server.client,
            None => &mut self.workers[who].client,
        }
    }

    /// A lane is told who may connect in this epoch.
    pub(super) fn know(&mut self, lane: usize) {
        let (n, lanes) = (self.workers.len(), self.lanes.len());
        let limits = JobLimits {
            max_bytes: 1 << 30,
            max_connections: u32::MAX,
            servers: (lanes - n) as u32,
            lanes: if lane < n { 0 } else { lanes as u32 },
        };
        self.lanes[lane].know(JOB, limits);
    }

    /// Any helper that sums passes on what it has, and moves bytes between its client and its lane.
    pub(super) fn pump_server(&mut self) -> bool {
        let able: Vec<usize> =
            self.helpers.iter().copied().filter(|lane| !self.gone.contains(lane)).collect();
        if able.is_empty() {
            return false;
        }
        let at = able[self.rng.usize(0..able.len())];
        if !self.server_hubs.contains_key(&at) && !self.serve(at) {
            return false;
        }
        let server = self.server_hubs.get_mut(&at).expect("it is there now");
        let ServerHub { client, hub, own } = server;
        let passed = hub.pass_on(client, &mut self.lanes[at]);
        let (a, b) = ((&mut *client, ConnId(at)), (&mut self.lanes[at], *own));
        let frames = in_process(a, b, self.now, self.rng.usize(1..4096)).expect("no violation");
        let lane = (&mut self.lanes[at], *own);
        let chunks = exchange((client, ConnId(at)), lane, self.rng.usize(1..4096));
        let chunks = chunks.expect("no violation");
        self.collect(at);
        frames + chunks > 0 || passed
    }

    /// A helper's lane has a first subtotal: whether it has one.
    fn serve(&mut self, at: usize) -> bool {
        let passing = self.lanes[at].passing();
        let Some(spec) = passing.first().and_then(|passing| passing.first) else { return false };
        assert_eq!(passing[0].checksum, self.checksum);
        let settings = ClientSettings {
            rank: spec.route.expect("it does not know the tensors").rank,
            world_size: self.workers.len() as u32,
            epoch: self.epoch,
            chunk_bytes: spec.chunk_bytes,
            credit_bytes: 1,
            deterministic: spec.deterministic,
            checksum: self.checksum,
        };
        let mut client = Client::new(settings, self.lanes.len());
        let peer = self.peer(at, at);
        let lane = &mut self.lanes[at];
        let own = lane.open_resident(peer).expect("a matching peer");
        client.attached(ConnId(at));
        let hub = Hub::new(JOB, spec.chunk_bytes);
        self.server_hubs.insert(at, ServerHub { client, hub, own });
        self.report.servers += 1;
        true
    }

    /// A helper ends its part in the job.
    pub(super) fn forget_server(&mut self, at: usize) {
        if self.server_hubs.remove(&at).is_none() {
            return;
        }
        self.forget_calls(at);
        for lane in 0..self.lanes.len() {
            let key = (at, lane);
            self.remains.remove(&key);
            if let Some(wire) = self.wires.get_mut(&key).and_then(Option::take)
                && self.rng.bool()
            {
                self.close_lane_side(lane, &wire);
            }
        }
    }

    /// What a helper has received goes to its lane.
    pub(super) fn collect_server(&mut self, at: usize) {
        let ServerHub { client, hub, .. } = self.server_hubs.get_mut(&at).expect("a hub");
        while let Some(event) = client.next_event() {
            self.report.served += u64::from(matches!(event, Event::Arrived { .. }));
            self.report.served_one_way += u64::from(matches!(event, Event::PartitionDone { .. }));
            let left = hub.on_event(event, client, &mut self.lanes[at]).expect("no violation");
            assert!(left.is_none(), "a helper has no tensors: {left:?}");
        }
        self.note_wanted(at);
    }
}
