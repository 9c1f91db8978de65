//! What a lane refuses, and that a refusal does not harm other clients.

mod asynchronous;
mod coded;
mod hub;
mod limits;
mod order;
mod variable;

use std::time::Duration;

use sumpter_endpoint::{ConnId, Endpoint, Violation};
use sumpter_engine::{Lane, LaneLimits, Peer};
use sumpter_types::{
    CallNumber, Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, Round, TensorId,
};
use sumpter_wire::{Begin, FrameKind, HEADER_BYTES, Header, PartitionSpec, encode_group, group_id};

const LIMITS: LaneLimits =
    LaneLimits { max_job_bytes: 1_000_000, max_chunk_bytes: 4096, hub: true };
/// What the smallest buffer of the pool takes.
const PAGE: u64 = 4096;

fn lane_with_two() -> (Lane, [ConnId; 2]) {
    let mut lane = Lane::new(LIMITS);
    let conns = [0, 1].map(|rank| lane.open(peer(rank)).expect("fits").0);
    (lane, conns)
}

fn peer(rank: u32) -> Peer {
    Peer {
        job: JobId(1),
        rank: Rank(rank),
        world_size: 2,
        epoch: Epoch(1),
        keeps: false,
        checksum: false,
    }
}

fn spec(bytes: u32) -> PartitionSpec {
    PartitionSpec {
        bytes,
        chunk_bytes: 64,
        group: GroupId(0),
        root: Rank(0),
        collective: Collective::AllReduce,
        dtype: Dtype::U8,
        op: ReduceOp::Sum,
        deterministic: false,
        variable: None,
        route: None,
        coding: None,
    }
}

fn header(kind: FrameKind, length: usize) -> Header {
    Header { length: length as u32, ..Header::new(kind, Epoch(1), TensorId(5)) }
}

fn begin(spec: &PartitionSpec) -> Vec<u8> {
    begin_in(spec, None)
}

fn begin_in(spec: &PartitionSpec, call: Option<u64>) -> Vec<u8> {
    let call = call.map(CallNumber::new);
    let payload = Begin { spec: *spec, priority: 0, call, update: None }.encode();
    [&header(FrameKind::Begin, payload.len()).encode()[..], &payload].concat()
}

fn push(chunk: u32, data: &[u8]) -> Vec<u8> {
    let header = Header { chunk, ..header(FrameKind::Push, data.len()) };
    [&header.encode()[..], data].concat()
}

/// The frames' tensor, partition and round replaced by a tensor's first partition and round.
fn of_tensor(tensor: u8, round: u8, mut frame: Vec<u8>) -> Vec<u8> {
    (frame[8], frame[16]) = (tensor, round);
    frame
}

fn ack() -> Vec<u8> {
    header(FrameKind::Ack, 0).encode().to_vec()
}

fn feed(lane: &mut impl Endpoint, conn: ConnId, mut bytes: &[u8]) -> Result<(), Violation> {
    while !bytes.is_empty() {
        let mut moved = 0;
        for space in &mut lane.space(conn) {
            let n = space.len().min(bytes.len());
            space[..n].copy_from_slice(&bytes[..n]);
            bytes = &bytes[n..];
            moved += n;
        }
        lane.filled(conn, moved, Duration::ZERO)?;
    }
    Ok(())
}

fn drain(lane: &mut Lane, conn: ConnId) -> Vec<u8> {
    let out: Vec<u8> = lane.pending(conn).iter().flat_map(|s| s.to_vec()).collect();
    lane.sent(conn, out.len());
    out
}

fn refusal(result: Result<(), Violation>) -> String {
    result.expect_err("a violation").to_string()
}

#[test]
fn the_sum_goes_to_both_as_soon_as_the_last_contribution_is_in() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
    assert!(drain(&mut lane, a).is_empty());
    assert_eq!(lane.waiting_partitions(), 1);
    feed(&mut lane, b, &[begin(&spec(3)), push(0, &[10, 20, 30])].concat()).unwrap();
    assert_eq!(lane.waiting_partitions(), 0);
    for conn in [a, b] {
        let frame = drain(&mut lane, conn);
        let head = Header::decode(frame.first_chunk::<HEADER_BYTES>().unwrap()).unwrap();
        assert_eq!((head.kind, head.round, head.length), (FrameKind::Result, Round(0), 3));
        assert_eq!(frame[HEADER_BYTES..], [11, 22, 33]);
    }
}

#[test]
fn a_broadcast_is_expected_until_its_last_receiver_has_asked_for_it() {
    let (mut lane, [a, b]) = lane_with_two();
    let broadcast = PartitionSpec { collective: Collective::Broadcast, ..spec(3) };
    assert!(!lane.is_expected(|_, _| true));
    feed(&mut lane, a, &begin(&broadcast)).unwrap();
    assert!(!lane.is_expected(|_, _| true), "there is no result yet");
    feed(&mut lane, a, &push(0, &[1, 2, 3])).unwrap();
    assert!(lane.is_expected(|_, _| true) && lane.is_drained());
    assert!(lane.is_expected(|tensor, rank| (tensor, rank) == (TensorId(5), Rank(1))));
    assert!(!lane.is_expected(|_, rank| rank == Rank(0)), "it has begun the round");
    assert!(!lane.is_expected(|tensor, _| tensor != TensorId(5)), "that has failed");
    feed(&mut lane, b, &begin(&broadcast)).unwrap();
    assert!(!lane.is_expected(|_, _| true) && !lane.is_drained());
    assert_eq!(drain(&mut lane, b)[HEADER_BYTES..], [1, 2, 3]);
}

#[test]
fn among_results_that_wait_each_receiver_gets_first_what_it_finds_urgent() {
    let (mut lane, [a, b]) = lane_with_two();
    let urgent = |tensor: u8, priority: i32| {
        let payload = Begin { spec: spec(1), priority, call: None, update: None }.encode();
        let head = header(FrameKind::Begin, payload.len()).encode();
        let frames = [[&head[..], &payload].concat(), push(0, &[tensor])];
        frames.map(|frame| of_tensor(tensor, 0, frame)).concat()
    };
    for (tensor, of_a, of_b) in [(1, 0, 5), (2, 7, 5), (3, 7, 9)] {
        feed(&mut lane, a, &urgent(tensor, of_a)).unwrap();
        feed(&mut lane, b, &urgent(tensor, of_b)).unwrap();
    }
    for (conn, order) in [(a, [2, 3, 1]), (b, [3, 1, 2])] {
        let bytes = drain(&mut lane, conn);
        let sums: Vec<u8> = bytes.chunks(HEADER_BYTES + 1).map(|f| f[HEADER_BYTES]).collect();
        assert_eq!(sums, order.map(|tensor| 2 * tensor));
    }
}

#[test]
fn another_spec_is_answered_with_an_error_that_tells_both() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &begin(&spec(3))).unwrap();
    feed(&mut lane, b, &begin(&spec(4))).unwrap();
    let answer = drain(&mut lane, b);
    let head = Header::decode(answer.first_chunk::<HEADER_BYTES>().unwrap()).unwrap();
    assert_eq!((head.kind, head.tensor), (FrameKind::Error, TensorId(5)));
    let text = String::from_utf8_lossy(&answer[HEADER_BYTES..]).into_owned();
    assert!(text.contains("bytes: 4") && text.contains("bytes: 3"), "{text}");
}

/// The text of the `Error` frame that is all a connection gets.
fn error(lane: &mut Lane, conn: ConnId) -> String {
    let answer = drain(lane, conn);
    let head = Header::decode(answer.first_chunk::<HEADER_BYTES>().unwrap()).unwrap();
    assert_eq!((head.kind, head.tensor), (FrameKind::Error, TensorId(5)));
    assert_eq!(answer.len(), HEADER_BYTES + head.length as usize);
    String::from_utf8_lossy(&answer[HEADER_BYTES..]).into_owned()
}

#[test]
fn a_round_of_different_calls_is_an_error_for_all_whether_they_receive_or_not() {
    let collectives = [Collective::AllReduce, Collective::Reduce, Collective::Broadcast];
    for collective in collectives {
        let (mut lane, [a, b]) = lane_with_two();
        let spec = PartitionSpec { collective, root: Rank(1), ..spec(3) };
        feed(&mut lane, a, &begin_in(&spec, Some(0))).unwrap();
        feed(&mut lane, b, &begin_in(&spec, Some(8))).unwrap();
        for conn in [a, b] {
            let text = error(&mut lane, conn);
            assert!(text.contains("rank 1: this is its call #8, but call #0 of others"), "{text}");
        }
        // A contribution that was on its way does no harm.
        let contributor = if collective == Collective::Broadcast { b } else { a };
        feed(&mut lane, contributor, &push(0, &[1, 2, 3])).unwrap();
        assert_eq!((drain(&mut lane, a), drain(&mut lane, b)), (vec![], vec![]));
    }
}

#[test]
fn rounds_of_equal_calls_and_of_calls_that_are_not_counted_match() {
    for (of_a, of_b) in [(Some(8), Some(8)), (Some(8), None), (None, Some(8))] {
        let (mut lane, conns) = lane_with_two();
        for (conn, call) in conns.into_iter().zip([of_a, of_b]) {
            feed(&mut lane, conn, &[begin_in(&spec(1), call), push(0, &[1])].concat()).unwrap();
        }
        // The next round is of any later call.
        for conn in conns {
            assert_eq!(drain(&mut lane, conn)[HEADER_BYTES..], [2]);
            let next = [begin_in(&spec(1), Some(24)), push(0, &[2])];
            feed(&mut lane, conn, &next.map(|frame| of_tensor(5, 1, frame)).concat()).unwrap();
        }
        assert!(conns.into_iter().all(|conn| drain(&mut lane, conn)[HEADER_BYTES..] == [4]));
    }
}

#[test]
fn a_receiver_of_a_broadcast_that_was_early_for_another_call_gets_the_error_too() {
    let mut lane = Lane::new(LIMITS);
    let of = |rank| Peer { world_size: 4, ..peer(rank) };
    let [root, early, other, late] = [0, 1, 2, 3].map(|r| lane.open(of(r)).expect("fits").0);
    let spec = PartitionSpec { collective: Collective::Broadcast, ..spec(1) };
    feed(&mut lane, root, &[begin_in(&spec, Some(0)), push(0, &[1])].concat()).unwrap();
    // Two have the result and begin the next round before the last one has asked for this one.
    for (conn, call) in [(early, 8), (other, 16)] {
        feed(&mut lane, conn, &begin_in(&spec, Some(0))).unwrap();
        drain(&mut lane, conn);
        let next = of_tensor(5, 1, begin_in(&spec, Some(call)));
        feed(&mut lane, conn, &[ack(), next].concat()).unwrap();
    }
    feed(&mut lane, late, &begin_in(&spec, Some(0))).unwrap();
    for conn in [early, other] {
        let text = error(&mut lane, conn);
        assert!(text.contains("rank 2: this is its call #16, but call #8 of others"), "{text}");
    }
    drain(&mut lane, root);
    feed(&mut lane, root, &of_tensor(5, 1, begin_in(&spec, Some(8)))).unwrap();
    assert!(error(&mut lane, root).contains("call #16"));
}

#[test]
fn a_job_beyond_its_memory_is_answered_with_an_error_that_names_the_setting() {
    let (mut lane, [a, _]) = lane_with_two();
    // The client cannot know yet, so its contribution follows: it must not cost the answer.
    feed(&mut lane, a, &[begin(&spec(12_000)), push(0, &[1; 64]), push(1, &[1; 64])].concat())
        .unwrap();
    let text = String::from_utf8_lossy(&drain(&mut lane, a)).into_owned();
    assert!(text.contains("max_job_bytes") && text.contains("1000000"), "{text}");
}

#[test]
fn frames_out_of_place_close_the_connection_and_nothing_else() {
    let other_epoch = {
        let mut bytes = begin(&spec(3));
        bytes[4] = 9;
        bytes
    };
    let unknown = encode_group(&[Rank(0), Rank(7)]);
    let id = group_id(&[Rank(0), Rank(7)]);
    let group = Header { tensor: TensorId(id.0), ..header(FrameKind::Group, unknown.len()) };
    let crumbs = PartitionSpec { chunk_bytes: 1, ..spec(u32::MAX) };
    let cases: [(&str, Vec<u8>, &str); 8] = [
        ("noise", vec![0xff; 32], "unknown frame kind"),
        ("another epoch", other_epoch, "epoch 9"),
        ("a chunk without a beginning", push(0, &[1]), "unknown partition"),
        ("too many chunks", begin(&crumbs), "at most 262144"),
        ("a gap", [begin(&spec(100)), push(1, &[0; 36])].concat(), "expected chunk 0"),
        ("a short chunk", [begin(&spec(100)), push(0, &[0; 63])].concat(), "expected 64"),
        ("a lane's frame", header(FrameKind::Done, 0).encode().to_vec(), "from a client"),
        ("a group of unknown ranks", [&group.encode()[..], &unknown].concat(), "not what its id"),
    ];
    for (what, bytes, expected) in cases {
        let (mut lane, [a, b]) = lane_with_two();
        let text = refusal(feed(&mut lane, a, &bytes));
        assert!(text.contains(expected), "{what}: {text}");
        lane.close(a);
        // The other worker goes on, and the first is welcome again.
        feed(&mut lane, b, &[begin(&spec(100)), push(0, &[1; 64])].concat()).unwrap();
        let (again, _) = lane.open(peer(0)).expect("welcome");
        feed(&mut lane, again, &[begin(&spec(100)), push(0, &[2; 64])].concat()).unwrap();
        assert_eq!(drain(&mut lane, b)[HEADER_BYTES..], [3; 64], "{what}");
    }
}

#[test]
fn a_round_out_of_turn_and_results_never_sent_are_violations() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &begin(&spec(3))).unwrap();
    let mut later = begin(&spec(3));
    later[16] = 1;
    assert!(refusal(feed(&mut lane, a, &later)).contains("out of turn"));
    let mut claims = begin(&spec(3));
    claims[20] = 1;
    assert!(refusal(feed(&mut lane, b, &claims)).contains("claims 1 finished chunks of 0"));
}

/// What is summed is held until all have acknowledged it, and no longer: tensors upon tensors need
/// the memory of the few that are under way.
#[test]
fn acknowledged_sums_make_room_for_the_next() {
    let (mut lane, conns) = lane_with_two();
    for tensor in 1..=30 {
        for conn in conns {
            feed(&mut lane, conn, &of_tensor(tensor, 0, begin(&spec(100)))).unwrap();
            for (chunk, data) in [(0, &[1; 64][..]), (1, &[1; 36])] {
                feed(&mut lane, conn, &of_tensor(tensor, 0, push(chunk, data))).unwrap();
            }
        }
        for conn in conns {
            assert_eq!(drain(&mut lane, conn).len(), 2 * HEADER_BYTES + 100);
            feed(&mut lane, conn, &of_tensor(tensor, 0, ack())).unwrap();
        }
    }
    let chunks_at_once = 4;
    assert!(lane.allocated_bytes() <= chunks_at_once * 4096, "{}", lane.allocated_bytes());
}

#[test]
fn one_acknowledgement_does_not_take_the_sum_from_the_other() {
    let (mut lane, [a, b]) = lane_with_two();
    for conn in [a, b] {
        feed(&mut lane, conn, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
    }
    drain(&mut lane, a);
    feed(&mut lane, a, &ack()).unwrap();
    // The other's connection breaks before it has read the sum.
    let (again, _) = lane.open(peer(1)).expect("welcome");
    feed(&mut lane, again, &begin(&spec(3))).unwrap();
    assert_eq!(drain(&mut lane, again)[HEADER_BYTES..], [2, 4, 6]);
    feed(&mut lane, again, &ack()).unwrap();
    // Rounds go on in the memory of the one before.
    for conn in [a, again] {
        let frames = [of_tensor(5, 1, begin(&spec(3))), of_tensor(5, 1, push(0, &[5, 5, 5]))];
        feed(&mut lane, conn, &frames.concat()).unwrap();
    }
    assert_eq!(drain(&mut lane, a)[HEADER_BYTES..], [10, 10, 10]);
}

#[test]
fn acknowledgements_of_what_was_not_received_are_violations() {
    let acknowledged = || {
        let (mut lane, conns) = lane_with_two();
        for conn in conns {
            feed(&mut lane, conn, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
        }
        conns.iter().for_each(|conn| feed(&mut lane, *conn, &ack()).unwrap());
        (lane, conns[0])
    };
    let (mut lane, a) = acknowledged();
    feed(&mut lane, a, &ack()).expect("what was said on a connection that was cut is said again");
    let (mut lane, _) = acknowledged();
    let (again, _) = lane.open(peer(0)).unwrap();
    assert!(refusal(feed(&mut lane, again, &begin(&spec(3)))).contains("had the result before"));
    let (mut lane, a) = acknowledged();
    let early = of_tensor(5, 1, ack());
    assert!(refusal(feed(&mut lane, a, &early)).contains("cannot have received"), "another round");
    let (mut lane, [a, _]) = lane_with_two();
    assert!(refusal(feed(&mut lane, a, &ack())).contains("unknown partition"));
    feed(&mut lane, a, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
    assert!(refusal(feed(&mut lane, a, &ack())).contains("cannot have received"), "unfinished");
}

#[test]
fn a_peer_that_does_not_fit_the_job_is_refused_and_an_ended_job_frees_its_memory() {
    let (mut lane, [a, b]) = lane_with_two();
    let other = Peer { world_size: 3, ..peer(2) };
    assert!(lane.open(other).expect_err("another size").contains("2 workers"));
    assert!(lane.open(peer(2)).expect_err("no such rank").contains("rank 2 of 2"));
    feed(&mut lane, a, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
    assert_eq!(lane.end_job(JobId(1)), [a, b]);
    assert!(lane.open(other).is_ok(), "nothing of the job is left");
}

#[test]
fn who_was_late_is_counted_for_each_job_and_kept_of_the_last_ones() {
    let mut lane = Lane::new(LIMITS);
    for job in (1..=6).map(JobId) {
        let conns = [0, 1].map(|rank| lane.open(Peer { job, ..peer(rank) }).expect("fits").0);
        for conn in conns {
            feed(&mut lane, conn, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
        }
        assert_eq!(lane.stats().late[&(job, Rank(1))].0, 1);
        lane.end_job(job);
        assert!(lane.stats().late.contains_key(&(job, Rank(1))), "its last report has it");
    }
    let mut kept: Vec<u64> = lane.stats().late.keys().map(|(job, _)| job.0).collect();
    kept.sort_unstable();
    assert_eq!(kept, [3, 4, 5, 6]);
}

#[test]
fn a_round_is_begun_once_over_each_connection() {
    let (mut lane, [a, _]) = lane_with_two();
    feed(&mut lane, a, &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
    let text = refusal(feed(&mut lane, a, &begin(&spec(3))));
    assert!(text.contains("rank 0 began round 0 twice"), "{text}");
    // A connection that was made anew knows nothing of it.
    let (again, old) = lane.open(peer(0)).unwrap();
    assert_eq!(old, Some(a));
    feed(&mut lane, again, &begin(&spec(3))).unwrap();
}

#[test]
fn no_peer_takes_the_place_of_the_client_in_the_lanes_process() {
    let mut lane = Lane::new(LIMITS);
    let own = lane.open_resident(peer(0)).unwrap();
    let text = lane.open(peer(0)).expect_err("the rank is here");
    assert!(text.contains("rank 0 is in this lane's process"), "{text}");
    assert!(!lane.space(own).is_empty(), "its connection is open");
    lane.open(peer(1)).unwrap();
    let text = lane.open_resident(peer(1)).expect_err("the rank is elsewhere");
    assert!(text.contains("rank 1 is in another process"), "{text}");
}
