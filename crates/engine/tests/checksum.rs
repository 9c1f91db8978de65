//! Checksums: whatever single bit is flipped on its way, it is noticed, and the sum is right.

use std::time::Duration;

use sumpter_endpoint::LinkError;
use sumpter_endpoint::{ConnId, OwnedMemory, Violation};
use sumpter_engine::{
    Client, ClientSettings, Event, Lane, LaneLimits, Peer, Place, Request, Supply,
};
use sumpter_transport::{Side, SimLink};
use sumpter_types::{Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, TensorId};
use sumpter_wire::{BEGIN_BYTES, CHECKED_HEADER_BYTES, Tier};

const CHUNK: u32 = 64;
/// A whole chunk and a part of one, in each of two partitions.
const BYTES: usize = 192;
const LANE: ConnId = ConnId(0);

/// Two workers and a lane elsewhere.
struct Pair {
    clients: [Client<OwnedMemory>; 2],
    links: [(SimLink, ConnId); 2],
    lane: Lane,
    /// Whether the clients keep results until all have them.
    keeps: bool,
    /// Bytes that worker 0's first connection has carried, from each side.
    carried: [usize; 2],
    /// Connections made anew.
    again: u32,
    results: [Option<Vec<u8>>; 2],
}

fn peer(rank: usize) -> Peer {
    let (job, epoch, rank) = (JobId(1), Epoch(1), Rank(rank as u32));
    Peer { job, rank, world_size: 2, epoch, keeps: false, checksum: true }
}

fn client(rank: usize, keeps: bool) -> Client<OwnedMemory> {
    let settings = ClientSettings {
        rank: Rank(rank as u32),
        world_size: 2,
        epoch: Epoch(1),
        chunk_bytes: CHUNK,
        credit_bytes: 1 << 20,
        deterministic: false,
        checksum: true,
    };
    let mut client = Client::new(settings, 1);
    if keeps {
        client.retain_results_of(LANE);
    }
    let half = BYTES / 2;
    let place =
        |number: u32| Place::new(LANE, number, (number as usize * half, half), GroupId(0), 2);
    client.register(TensorId(0), Tier::Root, vec![place(0), place(1)]);
    client.connected(LANE);
    let request = Request {
        tensor: TensorId(0),
        tier: Tier::Root,
        collective: Collective::AllReduce,
        dtype: Dtype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        average: true,
        priority: 0,
        supply: Supply::Whole,
        call: None,
        update: None,
        rescale: 1.0,
    };
    client.submit(request, OwnedMemory { separate: None, bytes: floats(rank as f32) });
    client
}

fn floats(offset: f32) -> Vec<u8> {
    (0..BYTES / 4).flat_map(|i| (4.0 * i as f32 + 2.0 * offset).to_le_bytes()).collect()
}

impl Pair {
    fn new(keeps: bool) -> Pair {
        let limits = LaneLimits { max_job_bytes: 1 << 20, max_chunk_bytes: CHUNK, hub: false };
        let mut lane = Lane::new(limits);
        let mut connect = |rank| {
            let peer = Peer { keeps, ..peer(rank) };
            (SimLink::new(1 << 20), lane.open(peer).expect("it fits").0)
        };
        let links = [connect(0), connect(1)];
        let clients = [0, 1].map(|rank| client(rank, keeps));
        Pair { clients, links, lane, keeps, carried: [0; 2], again: 0, results: [None, None] }
    }

    /// Carries all there is, with a bit of worker 0's first connection flipped: of the bytes from
    /// a side the n-th one, and which bit of it.
    fn run(&mut self, flip: Option<(Side, usize, u8)>) {
        loop {
            let mut moved = 0;
            for rank in 0..2 {
                for side in [Side::A, Side::B] {
                    moved += self.transmit(rank, side, flip);
                    match self.deliver(rank, side) {
                        Ok(n) => moved += n,
                        Err(violation) => {
                            assert!(violation.is_corruption(), "{violation}");
                            self.reconnect(rank);
                            moved += 1;
                        }
                    }
                    self.collect(rank);
                }
            }
            if moved == 0 {
                return;
            }
        }
    }

    fn transmit(&mut self, rank: usize, side: Side, flip: Option<(Side, usize, u8)>) -> usize {
        let (link, on_lane) = &mut self.links[rank];
        let before = link.in_flight(side);
        let moved = match side {
            Side::A => link.transmit(side, &mut self.clients[rank], LANE, usize::MAX),
            Side::B => link.transmit(side, &mut self.lane, *on_lane, usize::MAX),
        };
        let moved = moved.expect("it lives");
        if rank == 0 && self.again == 0 {
            let carried = &mut self.carried[usize::from(side == Side::B)];
            if let Some((of, at, bit)) = flip
                && of == side
                && (*carried..*carried + moved).contains(&at)
            {
                assert!(link.damage(side, before + at - *carried, bit));
            }
            *carried += moved;
        }
        moved
    }

    /// What comes from `side` reaches the other end.
    fn deliver(&mut self, rank: usize, side: Side) -> Result<usize, Violation> {
        let (link, on_lane) = &mut self.links[rank];
        let delivered = match side {
            Side::A => link.deliver(Side::B, &mut self.lane, *on_lane, usize::MAX, Duration::ZERO),
            Side::B => {
                link.deliver(Side::A, &mut self.clients[rank], LANE, usize::MAX, Duration::ZERO)
            }
        };
        delivered.map_err(|error| match error {
            LinkError::Violation(violation) => violation,
            error => panic!("it lives: {error}"),
        })
    }

    fn reconnect(&mut self, rank: usize) {
        self.again += 1;
        self.clients[rank].disconnected(LANE);
        self.lane.close(self.links[rank].1);
        let (conn, _) =
            self.lane.open(Peer { keeps: self.keeps, ..peer(rank) }).expect("it is welcome");
        self.links[rank] = (SimLink::new(1 << 20), conn);
        self.clients[rank].connected(LANE);
    }

    fn collect(&mut self, rank: usize) {
        while let Some(event) = self.clients[rank].next_event() {
            match event {
                Event::Finished(_, outcome) => assert_eq!(outcome, Ok(())),
                Event::Released(_, memory) => self.results[rank] = Some(memory.bytes),
                Event::Available { .. }
                | Event::Ordered { .. }
                | Event::Arrived { .. }
                | Event::PartitionDone { .. }
                | Event::Mirrored { .. }
                | Event::Norm { .. }
                | Event::PartitionNorm { .. }
                | Event::DeliveredToAll { .. } => {
                    panic!("every contribution is whole")
                }
            }
        }
    }

    /// All is done, and the average is right.
    fn check(&self) {
        for result in &self.results {
            assert_eq!(result.as_ref(), Some(&floats(0.5)));
        }
    }

    fn corrupt_frames(&self) -> u64 {
        self.lane.stats().corrupt_frames + self.clients[0].corrupt_frames()
    }
}

#[test]
fn any_bit_that_is_flipped_is_noticed_and_the_frame_sent_again() {
    for keeps in [false, true] {
        let mut undisturbed = Pair::new(keeps);
        undisturbed.run(None);
        undisturbed.check();
        assert_eq!((undisturbed.again, undisturbed.corrupt_frames()), (0, 0));
        for (side, bytes) in [Side::A, Side::B].into_iter().zip(undisturbed.carried) {
            assert!(bytes > BYTES, "headers and chunks went over the connection");
            for (at, bit) in (0..bytes).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
                let mut pair = Pair::new(keeps);
                pair.run(Some((side, at, bit)));
                let noticed = (pair.again, pair.corrupt_frames());
                assert_eq!(noticed, (1, 1), "byte {at}, bit {bit} from {side:?}");
                pair.check();
            }
        }
    }
}

#[test]
fn what_was_counted_before_a_cut_may_be_overwritten_while_it_is_sent_again() {
    let mut pair = Pair::new(false);
    // All contributions are counted, then worker 0 is cut off before it receives a result.
    for rank in [0, 1] {
        while pair.transmit(rank, Side::A, None) + pair.deliver(rank, Side::A).unwrap() > 0 {}
    }
    pair.reconnect(0);
    // Its frames are made anew, but only the first beginning leaves before the result is here.
    let (link, on_lane) = &mut pair.links[0];
    let begin = CHECKED_HEADER_BYTES + BEGIN_BYTES;
    assert_eq!(link.transmit(Side::A, &mut pair.clients[0], LANE, begin).unwrap(), begin);
    link.deliver(Side::B, &mut pair.lane, *on_lane, begin, Duration::ZERO).unwrap();
    link.transmit(Side::B, &mut pair.lane, *on_lane, usize::MAX).unwrap();
    while pair.deliver(0, Side::B).unwrap() > 0 {}
    pair.run(None);
    pair.check();
    assert!(pair.lane.stats().duplicate_chunks > 0);
    assert_eq!((pair.again, pair.corrupt_frames()), (1, 0));
}

#[test]
fn frames_of_a_tensor_that_has_failed_leave_as_they_were() {
    let mut pair = Pair::new(false);
    let ((link, on_lane), client) = (&mut pair.links[0], &mut pair.clients[0]);
    // The first frame has begun to leave, and others wait.
    assert_eq!(link.transmit(Side::A, client, LANE, 10).unwrap(), 10);
    client.fail_tensor(TensorId(0), "a rank disagrees");
    let Some(Event::Finished(id, Err(_))) = client.next_event() else { panic!("it has failed") };
    // The caller has its error, and goes on.
    client.memory_mut(id).expect("frames refer to it").bytes.fill(0xff);
    while link.transmit(Side::A, client, LANE, usize::MAX).unwrap() > 0 {}
    let lane = &mut pair.lane;
    while link.deliver(Side::B, lane, *on_lane, usize::MAX, Duration::ZERO).unwrap() > 0 {}
    assert_eq!(lane.stats().corrupt_frames, 0);
    assert!(matches!(client.next_event(), Some(Event::Released(..))));
}
