//! A lane that is its machine's hub, and a client whose contribution comes bit by bit.

use sumpter_endpoint::{Memory, OwnedMemory};
use sumpter_engine::{
    Client, ClientSettings, Event, Hub, JobLimits, OpId, OpMemory, Place, Request, Subtotal,
    Supply, Total,
};
use sumpter_wire::{BEGIN_BYTES, ROUTE_BYTES, Route, Tier};

use super::*;

const JOB: JobId = JobId(1);

fn of_machine(mut frame: Vec<u8>) -> Vec<u8> {
    frame[1] = Tier::Machine as u8;
    frame
}

fn contribute(lane: &mut Lane, conn: ConnId, data: &[u8]) {
    let frames = [of_machine(begin(&spec(data.len() as u32))), of_machine(push(0, data))];
    feed(lane, conn, &frames.concat()).unwrap();
}

fn head(frame: &[u8]) -> Header {
    Header::decode(frame.first_chunk::<HEADER_BYTES>().expect("a frame")).expect("a header")
}

#[test]
fn a_subtotal_is_passed_on_and_the_total_goes_to_this_machines_workers() {
    let (mut lane, [a, b]) = lane_with_two();
    contribute(&mut lane, a, &[1, 2, 3]);
    assert!(lane.next_subtotal(JOB).is_none());
    contribute(&mut lane, b, &[10, 20, 30]);
    let (of, spec, mut bytes) = lane.next_subtotal(JOB).expect("both are in");
    assert_eq!((of.tensor, of.partition, of.round, of.chunk), (TensorId(5), 0, Round(0), 0));
    assert_eq!((spec.bytes, &bytes[..3]), (3, &[11, 22, 33][..]));
    assert!(lane.next_subtotal(JOB).is_none());
    assert!(drain(&mut lane, a).is_empty());
    bytes.fill(99);
    lane.return_total(of, bytes).expect("it was lent");
    for conn in [a, b] {
        let frame = drain(&mut lane, conn);
        let head = head(&frame);
        assert_eq!((head.kind, head.tier), (FrameKind::Result, Tier::Machine));
        assert_eq!(frame[HEADER_BYTES..], [99; 3]);
    }
}

/// A lane whose results are kept, and a total that came back to it, which both workers are sent.
fn with_a_total(keeps: bool) -> (Lane, [ConnId; 2], Total) {
    let mut lane = Lane::new(LIMITS);
    let conns = [0, 1].map(|rank| lane.open(Peer { keeps, ..peer(rank) }).expect("fits").0);
    conns.iter().for_each(|conn| contribute(&mut lane, *conn, &[1; 3]));
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("both are in");
    lane.return_total(of, bytes).expect("it was lent");
    let Subtotal { job, tensor, partition, round, .. } = of;
    conns.iter().for_each(|conn| drop(drain(&mut lane, *conn)));
    (lane, conns, Total { job, tensor, tier: Tier::Machine, partition, round })
}

#[test]
fn the_lane_that_made_a_total_may_be_told_once_it_is_back() {
    let (mut lane, _, total) = with_a_total(false);
    assert_eq!(lane.next_total(JOB), Some(total));
    assert_eq!(lane.next_total(JOB), None);
    // Everyone elsewhere has it; whether this machine's workers have is for these to say.
    lane.release_total(total);
    assert_eq!(lane.take_undelivered(JobId(1)).len(), 1);
}

#[test]
fn where_workers_may_die_a_total_is_held_until_everyone_everywhere_has_it() {
    let (mut lane, [a, b], total) = with_a_total(true);
    feed(&mut lane, a, &of_machine(ack())).unwrap();
    assert_eq!(lane.next_total(JOB), None, "one of the two may lack it");
    feed(&mut lane, b, &of_machine(ack())).unwrap();
    assert_eq!(lane.next_total(JOB), Some(total));
    lane.release_total(total);
    assert!(lane.take_undelivered(JobId(1)).is_empty(), "no hub needs it any more");
    // The word of it goes with the next result.
    let next = |frame: Vec<u8>| of_machine(of_tensor(5, 1, frame));
    for (conn, data) in [(a, [1; 3]), (b, [2; 3])] {
        let frames = [next(begin(&spec(3))), next(push(0, &data))];
        feed(&mut lane, conn, &frames.concat()).unwrap();
    }
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("both are in");
    lane.return_total(of, bytes).expect("it was lent");
    for conn in [a, b] {
        let first = head(&drain(&mut lane, conn));
        assert_eq!((first.kind, first.round), (FrameKind::Released, Round(0)));
    }
}

#[test]
fn the_sums_of_both_tiers_of_a_partition_are_apart() {
    let (mut lane, [a, b]) = lane_with_two();
    for conn in [a, b] {
        contribute(&mut lane, conn, &[1; 3]);
        feed(&mut lane, conn, &[begin(&spec(3)), push(0, &[5; 3])].concat()).unwrap();
    }
    let frame = drain(&mut lane, a);
    assert_eq!((head(&frame).tier, &frame[HEADER_BYTES..]), (Tier::Root, &[10; 3][..]));
    assert_eq!(lane.next_subtotal(JOB).expect("both are in").2[..3], [2; 3]);
}

#[test]
fn a_total_that_was_not_lent_or_comes_twice_is_a_violation() {
    let (mut lane, [a, b]) = lane_with_two();
    contribute(&mut lane, a, &[1; 3]);
    contribute(&mut lane, b, &[1; 3]);
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("both are in");
    let (short, another) = (lane.spare(2), lane.spare(3));
    assert!(refusal(lane.return_total(of, short)).contains("not waited for"));
    lane.return_total(of, bytes).expect("it was lent");
    assert!(refusal(lane.return_total(of, another)).contains("not waited for"));
    let nowhere = sumpter_engine::Subtotal { partition: 9, ..of };
    let another = lane.spare(3);
    assert!(refusal(lane.return_total(nowhere, another)).contains("a total of nothing"));
}

#[test]
fn why_subtotals_cannot_be_passed_on_is_told_to_those_who_wait_and_to_those_who_come() {
    let (mut lane, [a, b]) = lane_with_two();
    contribute(&mut lane, a, &[1; 3]);
    lane.refuse_subtotals(JobId(1), TensorId(5), "the root is full");
    contribute(&mut lane, b, &[1; 3]);
    for conn in [a, b] {
        let frame = drain(&mut lane, conn);
        let head = head(&frame);
        assert_eq!((head.kind, head.tensor), (FrameKind::Error, TensorId(5)));
        assert_eq!(frame[HEADER_BYTES..], *b"the root is full");
    }
}

/// What a rooted collective does with a partition.
fn rooted(collective: Collective, root: u32) -> PartitionSpec {
    PartitionSpec { collective, root: Rank(root), ..spec(3) }
}

#[test]
fn a_machine_without_the_root_of_a_broadcast_wants_the_bytes_once_all_have_begun() {
    let (mut lane, [a, b]) = lane_with_two();
    let broadcast = rooted(Collective::Broadcast, 7);
    feed(&mut lane, a, &of_machine(begin(&broadcast))).unwrap();
    assert!(lane.next_subtotal(JOB).is_none());
    let refused = refusal(feed(&mut lane, a, &of_machine(push(0, &[1; 3]))));
    assert!(refused.contains("contributes nothing"), "{refused}");
    feed(&mut lane, b, &of_machine(begin(&broadcast))).unwrap();
    let (of, known, mut bytes) = lane.next_subtotal(JOB).expect("both wait for it");
    assert_eq!((known, bytes.len()), (broadcast, 3));
    // A worker that comes again wants no more than before.
    let (b, _) = lane.open(peer(1)).unwrap();
    feed(&mut lane, b, &of_machine(begin(&broadcast))).unwrap();
    assert!(lane.next_subtotal(JOB).is_none());
    bytes.copy_from_slice(&[4, 5, 6]);
    lane.return_total(of, bytes).expect("it was lent");
    assert_eq!(drain(&mut lane, b)[HEADER_BYTES..], [4, 5, 6]);
    assert!(lane.next_total(JOB).is_some(), "the client has received it");
}

#[test]
fn the_machine_of_a_broadcasts_root_is_done_when_its_bytes_are_not_needed_any_more() {
    let (mut lane, [a, b]) = lane_with_two();
    let broadcast = rooted(Collective::Broadcast, 0);
    let frames = [begin(&broadcast), push(0, &[1, 2, 3])].map(of_machine).concat();
    feed(&mut lane, a, &frames).unwrap();
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("the root has contributed");
    feed(&mut lane, b, &of_machine(begin(&broadcast))).unwrap();
    assert_eq!((drain(&mut lane, a), drain(&mut lane, b)), (vec![], vec![]));
    lane.return_total(of, bytes).expect("it was lent");
    assert_eq!(head(&drain(&mut lane, a)).kind, FrameKind::Done);
    assert_eq!(drain(&mut lane, b)[HEADER_BYTES..], [1, 2, 3]);
    assert!(lane.next_total(JOB).is_none(), "nothing was received");
}

#[test]
fn a_machine_without_the_root_of_a_reduce_is_done_and_keeps_nothing() {
    let (mut lane, [a, b]) = lane_with_two();
    let reduce = rooted(Collective::Reduce, 7);
    for conn in [a, b] {
        feed(&mut lane, conn, &[begin(&reduce), push(0, &[1; 3])].map(of_machine).concat())
            .unwrap();
    }
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("both are in");
    assert_eq!(bytes[..3], [2; 3]);
    assert_eq!((drain(&mut lane, a), drain(&mut lane, b)), (vec![], vec![]));
    lane.return_total(of, bytes).expect("it was lent");
    for conn in [a, b] {
        assert_eq!(head(&drain(&mut lane, conn)).kind, FrameKind::Done);
    }
    assert!(lane.next_total(JOB).is_none(), "nothing was received");
    assert!(lane.take_undelivered(JobId(1)).is_empty(), "a subtotal is no result");
}

/// The root of a reduce has received a total where workers may die.
#[test]
fn those_beside_the_root_of_a_reduce_are_done_once_it_has_the_total() {
    let mut lane = Lane::new(LIMITS);
    let peer = |rank| Peer { keeps: true, ..peer(rank) };
    let [a, b] = [0, 1].map(|rank| lane.open(peer(rank)).expect("fits").0);
    let reduce = rooted(Collective::Reduce, 0);
    for conn in [a, b] {
        feed(&mut lane, conn, &[begin(&reduce), push(0, &[1; 3])].map(of_machine).concat())
            .unwrap();
    }
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("both are in");
    lane.return_total(of, bytes).expect("it was lent");
    assert_eq!(head(&drain(&mut lane, a)).kind, FrameKind::Result);
    assert!(drain(&mut lane, b).is_empty());
    feed(&mut lane, a, &of_machine(ack())).unwrap();
    assert_eq!(head(&drain(&mut lane, b)).kind, FrameKind::Done);
    assert!(lane.next_total(JOB).is_some(), "those elsewhere wait for it");
}

#[test]
fn subtotals_are_made_only_where_a_hub_passes_them_on() {
    let mut server = Lane::new(LaneLimits { hub: false, ..LIMITS });
    let (conn, _) = server.open(peer(0)).expect("fits");
    let refused = refusal(feed(&mut server, conn, &of_machine(begin(&spec(3)))));
    assert!(refused.contains("no hub passes"), "{refused}");
}

fn chunk_client() -> (Client<OwnedMemory>, OpId) {
    chunk_client_of(|memory| memory)
}

fn chunk_client_of<M: Memory>(hold: impl Fn(OwnedMemory) -> M) -> (Client<M>, OpId) {
    let settings = ClientSettings {
        rank: Rank(0),
        world_size: 1,
        epoch: Epoch(1),
        chunk_bytes: 64,
        // Less than a chunk: what is supplied in chunks must not wait for credit.
        credit_bytes: 0,
        deterministic: false,
        checksum: false,
    };
    let mut client = Client::new(settings, 1);
    let place = Place::new(ConnId(0), 3, (0, 150), GroupId(0), 2);
    client.register(TensorId(5), Tier::Root, vec![place]);
    client.connected(ConnId(0));
    let request = Request {
        tensor: TensorId(5),
        tier: Tier::Root,
        collective: Collective::AllReduce,
        dtype: Dtype::U8,
        op: ReduceOp::Sum,
        root: Rank(0),
        average: false,
        priority: 0,
        supply: Supply::Chunks,
        call: None,
        update: None,
        rescale: 1.0,
    };
    let op = client.submit(request, hold(OwnedMemory { separate: None, bytes: vec![7; 150] }));
    (client, op)
}

fn sent(client: &mut Client<OwnedMemory>) -> Vec<(FrameKind, u32, u32)> {
    sent_to(client, ConnId(0))
}

fn sent_to<M: Memory>(client: &mut Client<M>, lane: ConnId) -> Vec<(FrameKind, u32, u32)> {
    let bytes: Vec<u8> = client.pending(lane).iter().flat_map(|s| s.to_vec()).collect();
    client.sent(lane, bytes.len());
    let (mut rest, mut frames) = (&bytes[..], Vec::new());
    while !rest.is_empty() {
        let head = head(rest);
        frames.push((head.kind, head.partition, head.chunk));
        rest = &rest[HEADER_BYTES + head.length as usize..];
    }
    frames
}

fn result(chunk: u32, len: usize) -> Vec<u8> {
    let kind = FrameKind::Result;
    let header = Header { partition: 3, chunk, ..header(kind, len) };
    [&header.encode()[..], &vec![chunk as u8; len]].concat()
}

#[test]
fn chunks_of_a_contribution_are_sent_as_far_as_they_were_supplied_and_no_further() {
    let (mut client, op) = chunk_client();
    assert_eq!(sent(&mut client), [(FrameKind::Begin, 3, 0)]);
    client.supply_chunks(op, 3, 1);
    assert_eq!(client.next_dirty(), Some(ConnId(0)));
    assert_eq!(sent(&mut client), [(FrameKind::Push, 3, 0)]);
    assert_eq!(sent(&mut client), []);
    client.supply_chunks(op, 3, 3);
    assert_eq!(sent(&mut client), [(FrameKind::Push, 3, 1), (FrameKind::Push, 3, 2)]);
}

#[test]
fn each_chunk_of_a_result_is_reported_when_it_is_there() {
    let (mut client, op) = chunk_client();
    client.supply_chunks(op, 3, 3);
    sent(&mut client);
    for (chunk, len) in [(0, 64), (1, 64), (2, 22)] {
        feed(&mut client, ConnId(0), &result(chunk, len)).unwrap();
        assert_eq!(client.next_event(), Some(Event::Arrived { op, number: 3, chunk }));
    }
    assert_eq!(client.next_event(), Some(Event::Finished(op, Ok(()))));
    let Some(Event::Released(_, memory)) = client.next_event() else { panic!("no memory") };
    let expected = [vec![0; 64], vec![1; 64], vec![2; 22]].concat();
    assert_eq!(memory.bytes, expected);
}

#[test]
fn after_a_cut_only_what_has_no_result_yet_is_sent_again() {
    let (mut client, op) = chunk_client();
    client.supply_chunks(op, 3, 2);
    sent(&mut client);
    feed(&mut client, ConnId(0), &result(0, 64)).unwrap();
    client.disconnected(ConnId(0));
    assert!(!client.is_queued(op, 3, 1));
    client.connected(ConnId(0));
    // Before the new connection's first write, the lane's next result is here.
    feed(&mut client, ConnId(0), &result(1, 64)).unwrap();
    assert_eq!(sent(&mut client), [(FrameKind::Begin, 3, 2)]);
    client.supply_chunks(op, 3, 3);
    assert_eq!(sent(&mut client), [(FrameKind::Push, 3, 2)]);
}

#[test]
fn a_total_of_what_was_not_passed_on_is_a_violation() {
    let (mut client, op) = chunk_client();
    client.supply_chunks(op, 3, 1);
    sent(&mut client);
    feed(&mut client, ConnId(0), &result(0, 64)).unwrap();
    let text = refusal(feed(&mut client, ConnId(0), &result(1, 64)));
    assert!(text.contains("a total of chunk 1, of which there is no subtotal"), "{text}");
}

#[test]
fn a_contribution_that_waits_to_be_sent_is_known_though_its_result_is_here() {
    let (mut client, op) = chunk_client();
    client.supply_chunks(op, 3, 1);
    assert!(!client.pending(ConnId(0)).is_empty());
    feed(&mut client, ConnId(0), &result(0, 64)).unwrap();
    assert!(client.is_queued(op, 3, 0));
    sent(&mut client);
    assert!(!client.is_queued(op, 3, 0));
}

#[test]
fn a_subtotal_of_another_hub_fails_its_tensor_and_nothing_else() {
    let (mut client, _) = chunk_client_of(OpMemory::Tensor);
    let mut hub = Hub::new(JobId(1), 64);
    let (mut lane, [a, b]) = lane_with_two();
    contribute(&mut lane, a, &[1; 3]);
    contribute(&mut lane, b, &[1; 3]);
    assert!(hub.pass_on(&mut client, &mut lane));
    for conn in [a, b] {
        let frame = drain(&mut lane, conn);
        assert_eq!(head(&frame).kind, FrameKind::Error);
        assert!(String::from_utf8_lossy(&frame).contains("passes no subtotal"));
    }
    assert!(!hub.pass_on(&mut client, &mut lane));
}

/// A lane in a server that may pass subtotals on to two lanes of the job; two workers and, as the
/// third rank, the server itself.
fn server_lane() -> (Lane, [ConnId; 2]) {
    server_lane_of(false)
}

/// The same, of workers that keep results or do not.
fn server_lane_of(keeps: bool) -> (Lane, [ConnId; 2]) {
    let mut lane = Lane::new(LaneLimits { hub: false, ..LIMITS });
    let (max_bytes, max_connections) = (1_000_000, 9);
    lane.know(JOB, JobLimits { max_bytes, max_connections, servers: 1, lanes: 2 });
    let conns = [0, 1].map(|rank| lane.open(Peer { keeps, ..peer(rank) }).expect("fits").0);
    (lane, conns)
}

fn of_rack(mut frame: Vec<u8>) -> Vec<u8> {
    frame[1] = Tier::Rack as u8;
    frame
}

/// The frames by which a worker announces the outer group and begins.
fn routed(ranks: &[u32], route: Route) -> Vec<u8> {
    let ranks: Vec<Rank> = ranks.iter().copied().map(Rank).collect();
    let payload = encode_group(&ranks);
    let group = group_id(&ranks);
    let announced = Header::new(FrameKind::Group, Epoch(1), TensorId(group.0));
    let announced = Header { length: payload.len() as u32, ..announced };
    let route = Some(Route { group, ..route });
    [&announced.encode()[..], &payload, &of_rack(begin(&PartitionSpec { route, ..spec(3) }))]
        .concat()
}

const ROUTE: Route = Route { lane: 1, group: GroupId(0), rank: Rank(2), keeps: false };

#[test]
fn a_server_learns_from_its_members_where_their_subtotal_goes() {
    let (mut lane, [a, b]) = server_lane();
    for conn in [a, b] {
        feed(&mut lane, conn, &routed(&[1, 2], ROUTE)).unwrap();
        feed(&mut lane, conn, &of_rack(push(0, &[1, 2, 3]))).unwrap();
    }
    let [passing] = lane.passing()[..] else { panic!("one job") };
    let known = passing.first.expect("a subtotal").route.expect("a route");
    assert_eq!((known.lane, known.rank, passing.job), (1, Rank(2), JOB));
    assert_eq!(lane.group(JOB, known.group).as_deref(), Some(&[Rank(1), Rank(2)][..]));
    let (of, _, bytes) = lane.next_subtotal(JOB).expect("both are in");
    assert_eq!((of.tier, &bytes[..3]), (Tier::Rack, &[2, 4, 6][..]));
    assert_eq!(lane.priority_of(&of), Some(0));
    assert!(lane.passing().is_empty());
}

#[test]
fn a_route_out_of_the_job_closes_only_the_connection_that_says_it() {
    let wrong: [(&[u32], Route); 4] = [
        // A lane that the job does not have, no server, and no member of the group.
        (&[1, 2], Route { lane: 2, ..ROUTE }),
        (&[1, 2], Route { rank: Rank(1), ..ROUTE }),
        (&[0, 1], ROUTE),
        // More servers than there are.
        (&[1, 3], Route { rank: Rank(3), ..ROUTE }),
    ];
    for (ranks, route) in wrong {
        let (mut lane, [a, b]) = server_lane();
        assert!(feed(&mut lane, a, &routed(ranks, route)).is_err(), "{ranks:?} {route:?}");
        lane.close(a);
        feed(&mut lane, b, &routed(&[1, 2], ROUTE)).unwrap();
    }
    // A group that was not announced.
    let (mut lane, [a, _]) = server_lane();
    let unknown = PartitionSpec { route: Some(Route { group: GroupId(7), ..ROUTE }), ..spec(3) };
    assert!(feed(&mut lane, a, &of_rack(begin(&unknown))).is_err());
    // In the root tier, where nothing is passed on, and to a hub that knows the tensor.
    let frames = routed(&[1, 2], ROUTE);
    let (mut lane, [a, _]) = server_lane();
    let head = frames.len() - HEADER_BYTES - BEGIN_BYTES - ROUTE_BYTES;
    let mut of_root = frames.clone();
    of_root[head + 1] = Tier::Root as u8;
    assert!(feed(&mut lane, a, &of_root).is_err());
    let mut beside_worker = Lane::new(LIMITS);
    beside_worker
        .know(JOB, JobLimits { max_bytes: 100_000, max_connections: 9, servers: 1, lanes: 0 });
    let (conn, _) = beside_worker.open(peer(0)).unwrap();
    assert!(feed(&mut beside_worker, conn, &frames).is_err());
}

#[test]
fn members_that_say_different_routes_are_told_so() {
    let (mut lane, [a, b]) = server_lane();
    feed(&mut lane, a, &routed(&[1, 2], ROUTE)).unwrap();
    feed(&mut lane, b, &routed(&[1, 2], Route { lane: 0, ..ROUTE })).unwrap();
    let frame = drain(&mut lane, b);
    assert_eq!(head(&frame).kind, FrameKind::Error);
}

/// A server that passes on what two workers, which keep results, have contributed: its hub and
/// client, the lane beside them, the workers, and the lane to which it all goes.
struct Server {
    hub: Hub,
    client: Client<OpMemory<OwnedMemory>>,
    lane: Lane,
    members: [ConnId; 2],
    outer: ConnId,
}

impl Server {
    /// One that has sent its rack's subtotal, to a lane that keeps results for others or does not.
    fn new(keeps: bool) -> Server {
        let (mut lane, members) = server_lane_of(true);
        for conn in members {
            feed(&mut lane, conn, &routed(&[1, 2], Route { keeps, ..ROUTE })).unwrap();
            feed(&mut lane, conn, &of_rack(push(0, &[1, 2, 3]))).unwrap();
        }
        let settings = ClientSettings {
            rank: Rank(2),
            world_size: 2,
            epoch: Epoch(1),
            chunk_bytes: spec(3).chunk_bytes,
            credit_bytes: 1,
            deterministic: false,
            checksum: false,
        };
        let (client, outer) = (Client::new(settings, 2), ConnId(1));
        let hub = Hub::new(JOB, settings.chunk_bytes);
        let mut server = Server { hub, client, lane, members, outer };
        assert_eq!(server.client.next_wanted(), None);
        assert!(server.hub.pass_on(&mut server.client, &mut server.lane));
        let wanted = [server.client.next_wanted(), server.client.next_wanted()];
        assert_eq!(wanted, [Some(outer), None]);
        server.client.connected(outer);
        let kinds = [FrameKind::Group, FrameKind::Begin, FrameKind::Push];
        assert!(server.sent().iter().map(|frame| frame.0).eq(kinds));
        server
    }

    fn sent(&mut self) -> Vec<(FrameKind, u32, u32)> {
        sent_to(&mut self.client, self.outer)
    }

    /// Takes a frame of the lane to which subtotals go; each worker acknowledges a result.
    fn take(&mut self, frame: &[u8]) {
        let Server { hub, client, lane, members, outer } = self;
        feed(client, *outer, frame).unwrap();
        while let Some(event) = client.next_event() {
            assert!(hub.on_event(event, client, lane).unwrap().is_none());
        }
        for conn in *members {
            let bytes = drain(lane, conn);
            if !bytes.is_empty() && head(&bytes).kind == FrameKind::Result {
                let ack = header(FrameKind::Ack, 0).encode();
                feed(lane, conn, &of_rack(ack.to_vec())).unwrap();
            }
        }
        hub.pass_on(client, lane);
    }

    /// The results that workers may lack who are not beside this lane.
    fn undelivered(&mut self) -> usize {
        self.lane.take_undelivered(JOB).len()
    }

    fn reconnect(&mut self) {
        self.client.disconnected(self.outer);
        self.client.connected(self.outer);
    }
}

fn total() -> Vec<u8> {
    [&header(FrameKind::Result, 3).encode()[..], &[9; 3]].concat()
}

#[test]
fn a_server_acknowledges_again_after_a_cut_until_the_lane_releases_the_result() {
    let mut server = Server::new(true);
    server.take(&total());
    let acknowledged = [(FrameKind::Ack, 0, 0)];
    assert_eq!(server.sent(), acknowledged);
    for _ in 0..2 {
        server.reconnect();
        assert_eq!(server.sent(), acknowledged);
    }
    server.take(&header(FrameKind::Released, 0).encode());
    server.reconnect();
    assert_eq!(server.sent(), []);
}

#[test]
fn a_rack_keeps_results_of_a_lane_that_may_die_until_all_racks_have_them() {
    let released = header(FrameKind::Released, 0).encode();
    for (keeps, is_released, undelivered) in [(true, false, 1), (true, true, 0), (false, false, 0)]
    {
        let mut server = Server::new(keeps);
        server.take(&total());
        if is_released {
            server.take(&released);
        }
        // What a worker's lane has made is there as long as the job is.
        assert_eq!(server.undelivered(), undelivered, "{keeps} {is_released}");
    }
}
