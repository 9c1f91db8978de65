//! A variable that changes asynchronously in a lane: each worker's round changes it at once.

use sumpter_endpoint::OwnedMemory;
use sumpter_engine::{Client, ClientSettings, Place};
use sumpter_sum::AlignedBuf;
use sumpter_types::Staleness;
use sumpter_wire::{Clock, OrderEntry, Snapshot, Tier, VariableSpec, encode_order};

use super::variable::{begin_with, fill, floats, frames, variable};
use super::*;

/// The same variable, for one worker alone.
pub fn shared(rank: u32, staleness: Staleness) -> PartitionSpec {
    let known = variable();
    let variable = known.variable.map(|v| VariableSpec { staleness, divisor: 1, ..v });
    PartitionSpec { group: group_id(&[Rank(rank)]), variable, ..known }
}

pub fn of_worker(mut frame: Vec<u8>) -> Vec<u8> {
    frame[1] = Tier::Worker as u8;
    frame
}

/// A worker's round: it adds these values.
pub fn adds(rank: u32, round: u8, staleness: Staleness, values: [f32; 2]) -> Vec<u8> {
    let members = encode_group(&[Rank(rank)]);
    let id = TensorId(group_id(&[Rank(rank)]).0);
    let group = Header { tensor: id, ..header(FrameKind::Group, members.len()) };
    let frames = [begin_with(&shared(rank, staleness), 1.0), push(0, &floats(values))];
    let frames = frames.map(|frame| of_tensor(5, round, of_worker(frame))).concat();
    [&group.encode()[..], &members, &frames].concat()
}

/// The mirror puts the value into the lane, with these clocks.
pub fn fill_with(values: [f32; 2], clocks: [u32; 2]) -> Vec<u8> {
    let clock = |(rank, rounds)| Clock { rank, rounds, position: 10 + rank.0 };
    let clocks = (0..).map(Rank).zip(clocks).map(clock).collect();
    let payload = Snapshot { offset: 0, len: 8, clocks }.encode();
    let header = Header { tier: Tier::Value, ..header(FrameKind::Snapshot, payload.len()) };
    let clocks = [&header.encode()[..], &payload].concat();
    let all = fill(values);
    // Between the beginning of the part and its only chunk.
    let (begun, chunk) = all.split_at(all.len() - HEADER_BYTES - 8);
    [begun, &clocks, chunk].concat()
}

/// The mirror has a snapshot.
pub fn mirrored(version: u32) -> Vec<u8> {
    let header = header(FrameKind::Mirrored, 0);
    Header { tier: Tier::Worker, round: Round(version), ..header }.encode().to_vec()
}

/// What a snapshot says: clocks and value.
pub fn snapshot(frame: &(FrameKind, Vec<u8>)) -> (Vec<u32>, Vec<u8>) {
    assert_eq!(frame.0, FrameKind::Snapshot);
    let (Snapshot { clocks, .. }, value) = Snapshot::decode(&frame.1).unwrap();
    (clocks.into_iter().map(|clock| clock.rounds).collect(), value.to_vec())
}

pub fn result(values: [f32; 2]) -> (FrameKind, Vec<u8>) {
    (FrameKind::Result, floats(values))
}

/// A round is done: its position and its answer, by bytes of the partition.
pub fn done(order: &[(u32, u32, u32)]) -> (FrameKind, Vec<u8>) {
    let entry = |(end, position, answer): &(u32, u32, u32)| OrderEntry {
        end: *end,
        position: *position,
        answer: *answer,
    };
    (FrameKind::Done, encode_order(&order.iter().map(entry).collect::<Vec<_>>()))
}

pub const FREE: Staleness = Staleness::UNBOUNDED;

#[test]
fn a_round_changes_the_value_at_once_and_is_done_when_the_mirror_has_it() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, b, &adds(1, 0, FREE, [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [], "the value is not here yet");
    feed(&mut lane, a, &fill_with([10.0, 20.0], [0, 0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([11.0, 22.0])]);
    // What has changed goes to the mirror, behind what is more urgent.
    let to_mirror = frames(&mut lane, a);
    assert_eq!(snapshot(to_mirror.last().unwrap()), (vec![0, 1], floats([11.0, 22.0])));
    // Until it is there, further changes wait for one snapshot together.
    feed(&mut lane, a, &adds(0, 0, FREE, [100.0, 0.0])).unwrap();
    assert_eq!(frames(&mut lane, a), [result([111.0, 22.0])]);
    lane.close(b);
    let (b, _) = lane.open(peer(1)).unwrap();
    feed(&mut lane, a, &mirrored(1)).unwrap();
    let [next] = &frames(&mut lane, a)[..] else { panic!("one frame") };
    // What the mirror got in its own round is not sent again.
    assert_eq!(snapshot(next), (vec![1, 1], vec![]));
    // The worker has lost its connection: it gets the answer on the new one.
    let mut again = adds(1, 0, FREE, [1.0, 2.0]);
    let begins = again.len() - 2 * HEADER_BYTES - 8 - sumpter_wire::MAX_BEGIN_BYTES;
    again[begins + 20] = 1;
    feed(&mut lane, b, &again).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(8, 0, 1)])]);
    feed(&mut lane, a, &mirrored(2)).unwrap();
    assert_eq!(frames(&mut lane, a), [done(&[(8, 1, 2)])]);
}

#[test]
fn a_round_begins_when_the_clocks_come_behind_the_value() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, b, &adds(1, 0, FREE, [1.0, 2.0])).unwrap();
    let all = fill_with([10.0, 20.0], [0, 0]);
    let chunk = HEADER_BYTES + 8;
    let (begun, clocks) = all[..all.len() - chunk].split_at(fill([0.0; 2]).len() - chunk);
    feed(&mut lane, a, &[begun, &all[all.len() - chunk..]].concat()).unwrap();
    assert_eq!(frames(&mut lane, b), [], "it may be in the value");
    feed(&mut lane, a, clocks).unwrap();
    assert_eq!(frames(&mut lane, b), [result([11.0, 22.0])]);
}

#[test]
fn a_round_that_a_mirror_had_counts_no_more() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill_with([10.0, 20.0], [3, 5])).unwrap();
    frames(&mut lane, a);
    // It was the fifth of rank 1; what the mirror has, needs no snapshot.
    feed(&mut lane, b, &adds(1, 4, FREE, [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(8, 11, 8)]), result([10.0, 20.0])]);
    assert_eq!(frames(&mut lane, a), []);
    feed(&mut lane, b, &adds(1, 5, FREE, [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([11.0, 22.0])]);
}

#[test]
fn a_worker_waits_for_one_that_is_too_far_behind() {
    let (mut lane, [a, b]) = lane_with_two();
    let one = Staleness(1);
    feed(&mut lane, a, &fill_with([0.0, 0.0], [0, 0])).unwrap();
    frames(&mut lane, a);
    feed(&mut lane, b, &adds(1, 0, one, [1.0, 0.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([1.0, 0.0])]);
    snapshot(frames(&mut lane, a).last().unwrap());
    feed(&mut lane, a, &mirrored(1)).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(8, 0, 1)])]);
    // Its second round waits for the first of the other, and has it.
    feed(&mut lane, b, &adds(1, 1, one, [1.0, 0.0])).unwrap();
    assert_eq!(frames(&mut lane, b), []);
    feed(&mut lane, a, &adds(0, 0, one, [0.0, 7.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([2.0, 7.0])]);
}

#[test]
fn a_mirror_whose_connection_is_made_anew_gets_what_it_lacks() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill_with([0.0, 0.0], [0, 0])).unwrap();
    frames(&mut lane, a);
    feed(&mut lane, b, &adds(1, 0, FREE, [1.0, 0.0])).unwrap();
    frames(&mut lane, b);
    lane.close(a);
    let (a, _) = lane.open(peer(0)).unwrap();
    let [first] = &frames(&mut lane, a)[..] else { panic!("one frame") };
    assert_eq!(snapshot(first), (vec![0, 1], floats([1.0, 0.0])));
    // It was received, but the connection was gone before the mirror could say so.
    let (a, _) = lane.open(peer(0)).unwrap();
    snapshot(&frames(&mut lane, a)[0]);
    feed(&mut lane, a, &mirrored(1)).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(8, 0, 1)])]);
}

/// Nothing that a worker says ends the lane: what counts rounds goes on from 0.
#[test]
fn the_last_number_of_a_round_is_one_like_any_other() {
    for staleness in [FREE, Staleness(1)] {
        let (mut lane, [a, b]) = lane_with_two();
        feed(&mut lane, a, &fill_with([0.0, 0.0], [u32::MAX, u32::MAX])).unwrap();
        frames(&mut lane, a);
        let mut last = adds(1, 0, staleness, [1.0, 2.0]);
        let begins = last.len() - 2 * HEADER_BYTES - 8 - sumpter_wire::MAX_BEGIN_BYTES;
        for frame in [begins, last.len() - HEADER_BYTES - 8] {
            last[frame + 16..frame + 20].fill(u8::MAX);
        }
        feed(&mut lane, b, &last).unwrap();
        assert_eq!(frames(&mut lane, b), [result([1.0, 2.0])]);
        assert_eq!(snapshot(&frames(&mut lane, a)[0]).0, [u32::MAX, 0]);
        feed(&mut lane, a, &mirrored(1)).unwrap();
        assert_eq!(frames(&mut lane, b)[0].0, FrameKind::Done);
        feed(&mut lane, b, &adds(1, 0, staleness, [1.0, 2.0])).unwrap();
        let waits = staleness != FREE;
        assert_eq!(frames(&mut lane, b).is_empty(), waits, "the other has not done as many");
    }
}

#[test]
fn a_snapshot_of_what_has_changed_since_the_mirror_got_it_has_the_value() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill_with([0.0, 0.0], [0, 0])).unwrap();
    frames(&mut lane, a);
    feed(&mut lane, a, &adds(0, 0, FREE, [1.0, 2.0])).unwrap();
    feed(&mut lane, b, &adds(1, 0, FREE, [10.0, 0.0])).unwrap();
    let [got, next] = &frames(&mut lane, a)[..] else { panic!("two frames") };
    assert_eq!(*got, result([1.0, 2.0]));
    assert_eq!(snapshot(next), (vec![1, 1], floats([11.0, 2.0])));
    // On another connection the mirror may not have what it got on the one before.
    feed(&mut lane, a, &mirrored(2)).unwrap();
    frames(&mut lane, a);
    feed(&mut lane, a, &adds(0, 1, FREE, [1.0, 0.0])).unwrap();
    lane.close(a);
    let (a, _) = lane.open(peer(0)).unwrap();
    let [next] = &frames(&mut lane, a)[..] else { panic!("one frame") };
    assert_eq!(snapshot(next), (vec![2, 1], floats([12.0, 2.0])));
}

#[test]
fn what_workers_do_not_agree_about_is_refused() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &adds(0, 0, FREE, [0.0, 0.0])).unwrap();
    feed(&mut lane, b, &adds(1, 0, Staleness(4), [0.0, 0.0])).unwrap();
    let [(kind, text)] = &frames(&mut lane, b)[..] else { panic!("one frame") };
    assert_eq!(*kind, FrameKind::Error);
    assert!(String::from_utf8_lossy(text).contains("Staleness(4)"));
    // What goes to a mirror is named after the partition, which is that of the state.
    for (home, offset) in [(1, 0), (0, 8)] {
        let (mut lane, [_, b]) = lane_with_two();
        feed(&mut lane, b, &adds(1, 0, FREE, [0.0, 0.0])).unwrap();
        let known = shared(1, FREE);
        let variable = known.variable.map(|v| VariableSpec { home, offset, ..v });
        let wrong = begin_with(&PartitionSpec { variable, ..known }, 1.0);
        let refused = refusal(feed(&mut lane, b, &of_tensor(6, 0, of_worker(wrong))));
        assert!(refused.contains("part of another partition"), "{refused}");
    }
    // Nor can a worker change alone what all change together, or together what is its own.
    let alone = of_tensor(6, 0, adds(1, 0, Staleness::SYNCHRONOUS, [0.0, 0.0]));
    let together = begin_with(&shared(1, FREE), 1.0);
    for wrong in [alone, together] {
        let (mut lane, [_, b]) = lane_with_two();
        feed(&mut lane, b, &adds(1, 0, FREE, [0.0, 0.0])).unwrap();
        let refused = refusal(feed(&mut lane, b, &wrong));
        assert!(refused.contains("own round") || refused.contains("group"), "{refused}");
    }
}

#[test]
fn clocks_and_acknowledgements_that_make_no_sense_end_the_connection() {
    let snapshot = |stretch: (u32, u32), clocks| {
        let (offset, len) = stretch;
        let payload = Snapshot { offset, len, clocks }.encode();
        let header = Header { tier: Tier::Value, ..header(FrameKind::Snapshot, payload.len()) };
        [&header.encode()[..], &payload].concat()
    };
    let one = vec![Clock { rounds: 1, ..Clock::new(Rank(0)) }];
    for (what, wrong) in [
        ("more workers", snapshot((0, 8), (0..3).map(|rank| Clock::new(Rank(rank))).collect())),
        ("that there are not", snapshot((0, 8), vec![Clock::new(Rank(9))])),
        ("that there are not", snapshot((4, 8), one.clone())),
        ("that there are not", snapshot((0, 3), one.clone())),
        ("not put here", of_tensor(7, 0, snapshot((0, 8), one))),
        ("does not mirror", mirrored(1)),
        ("unknown variable", of_tensor(7, 0, mirrored(1))),
    ] {
        let (mut lane, [a, b]) = lane_with_two();
        feed(&mut lane, a, &fill_with([0.0, 0.0], [0, 0])).unwrap();
        feed(&mut lane, b, &adds(1, 0, FREE, [0.0, 0.0])).unwrap();
        // Rank 1 mirrors nothing, and has put nothing here.
        let refused = refusal(feed(&mut lane, b, &wrong));
        assert!(refused.contains(what), "{what}: {refused}");
    }
}

#[test]
fn a_slot_that_the_rule_does_not_have_is_no_part_of_a_snapshot() {
    let (mut lane, [a, b]) = lane_with_two();
    let part = PartitionSpec {
        collective: Collective::Broadcast,
        dtype: Dtype::F32,
        group: group_id(&[Rank(0)]),
        ..spec(4)
    };
    feed(&mut lane, a, &fill_with([1.0, 2.0], [0, 0])).unwrap();
    // And shorter than the value, which no client of ours sends.
    for mut frame in [begin(&part), push(0, &[0; 4])] {
        frame[1] = Tier::Slot2 as u8;
        feed(&mut lane, a, &frame).unwrap();
    }
    frames(&mut lane, a);
    feed(&mut lane, b, &adds(1, 0, FREE, [1.0, 0.0])).unwrap();
    let [sent] = &frames(&mut lane, a)[..] else { panic!("one frame") };
    assert_eq!(snapshot(sent), (vec![0, 1], floats([2.0, 2.0])));
}

#[test]
fn memory_is_counted_and_given_back() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill_with([0.0, 0.0], [0, 0])).unwrap();
    feed(&mut lane, b, &adds(1, 0, FREE, [1.0, 0.0])).unwrap();
    // The value, and a worker's contribution and answer.
    assert_eq!(lane.job_bytes(JobId(1)), PAGE + 2 * PAGE);
    frames(&mut lane, a);
    lane.end_job(JobId(1));
    assert_eq!((lane.job_bytes(JobId(1)), lane.allocated_bytes()), (0, 0));
}

#[test]
fn a_snapshot_of_a_variable_that_has_failed_in_its_mirror_is_dropped() {
    let (lane, tensor) = (ConnId(0), TensorId(5));
    let settings = ClientSettings {
        rank: Rank(0),
        world_size: 2,
        epoch: Epoch(1),
        chunk_bytes: 64,
        credit_bytes: 1 << 20,
        deterministic: false,
        checksum: false,
    };
    let mut client = Client::<OwnedMemory>::new(settings, 1);
    client.register(tensor, Tier::Worker, vec![Place::new(lane, 0, (0, 8), GroupId(0), 1)]);
    client.connected(lane);
    let payload = Snapshot { offset: 0, len: 8, clocks: Vec::new() }.encode();
    let payload = [&payload[..], &floats([1.0, 2.0])].concat();
    let header = header(FrameKind::Snapshot, payload.len());
    let header = Header { tier: Tier::Worker, round: Round(1), tensor, ..header };
    let frame = [&header.encode()[..], &payload].concat();
    let answers = |client: &mut Client<_>| {
        let out = client.pending(lane).iter().map(|part| part.len()).sum();
        client.sent(lane, out);
        out / HEADER_BYTES
    };

    let mut value = AlignedBuf::new(8);
    value.copy_from_slice(&floats([0.0, 0.0]));
    client.mirror_from(tensor, (0..2, 0), Dtype::F32, vec![value]);
    client.mirror_rounds_of(tensor, Dtype::F32, &[Rank(0), Rank(1)]);
    feed(&mut client, lane, &frame).unwrap();
    assert_eq!(client.mirrored(tensor, &(0..2)).unwrap(), [&floats([1.0, 2.0])[..]]);
    assert_eq!(answers(&mut client), 1);

    client.fail_tensor(tensor, "another rank differs");
    feed(&mut client, lane, &frame).unwrap();
    assert_eq!(answers(&mut client), 0);
    assert_eq!(client.mirrored(tensor, &(0..2)), None);
    // Of what it never had it is an error.
    let unknown = of_tensor(6, 1, frame);
    assert!(refusal(feed(&mut client, lane, &unknown)).contains("not mirrored here"));
}
