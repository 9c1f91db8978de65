//! Rounds that change a variable in the order of another run.

use sumpter_wire::{MAX_BEGIN_BYTES, ORDER_ENTRY_BYTES, Snapshot};

use super::asynchronous::{FREE, adds, done, fill_with, mirrored, result, snapshot};
use super::variable::{floats, frames};
use super::*;

/// A worker's round in this order: ends in bytes, positions and answers.
fn follows(rank: u32, round: u8, order: &[(u32, u32, u32)], values: [f32; 2]) -> Vec<u8> {
    let frames = adds(rank, round, FREE, values);
    let chunk = frames.len() - HEADER_BYTES - 8;
    let begin = chunk - HEADER_BYTES - MAX_BEGIN_BYTES;
    let length = MAX_BEGIN_BYTES + ORDER_ENTRY_BYTES * order.len();
    let mut head = frames[..begin + HEADER_BYTES].to_vec();
    head[begin + 24..begin + 28].copy_from_slice(&(length as u32).to_le_bytes());
    let payload = &frames[begin + HEADER_BYTES..chunk];
    [&head, payload, &done(order).1, &frames[chunk..]].concat()
}

/// A lane whose variable is 0, and the connections of two workers.
fn filled() -> (Lane, [ConnId; 2]) {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill_with([0.0, 0.0], [0, 0])).unwrap();
    frames(&mut lane, a);
    (lane, [a, b])
}

#[test]
fn a_round_waits_for_its_turn() {
    let (mut lane, [a, b]) = filled();
    feed(&mut lane, b, &follows(1, 0, &[(8, 1, 2)], [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), []);
    feed(&mut lane, a, &follows(0, 0, &[(8, 0, 1)], [10.0, 20.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([11.0, 22.0])]);
    let [own, both] = &frames(&mut lane, a)[..] else { panic!("two frames") };
    assert_eq!(*own, result([10.0, 20.0]), "its answer is from before the other's turn");
    assert_eq!(snapshot(both), (vec![1, 1], floats([11.0, 22.0])));
    feed(&mut lane, a, &mirrored(2)).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(8, 1, 2)])]);
}

#[test]
fn an_answer_waits_for_its_turn() {
    let (mut lane, [a, b]) = filled();
    feed(&mut lane, b, &follows(1, 0, &[(8, 0, 2)], [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), []);
    feed(&mut lane, a, &follows(0, 0, &[(8, 1, 2)], [10.0, 20.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([11.0, 22.0])]);
}

#[test]
fn stretches_of_a_chunk_have_turns_of_their_own() {
    let (mut lane, [a, b]) = filled();
    feed(&mut lane, b, &follows(1, 0, &[(4, 0, 1), (8, 1, 2)], [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), []);
    // Two stretches with different clocks go to the mirror: the last one has the version.
    let to_mirror = frames(&mut lane, a);
    let [first, last] = [0, 1].map(|index| snapshot(&to_mirror[index]));
    assert_eq!((first.0, last.0), (vec![0, 1], vec![0, 0]));
    feed(&mut lane, a, &mirrored(0)).unwrap();
    assert_eq!(frames(&mut lane, a), [], "it has a part of the version");
    feed(&mut lane, a, &follows(0, 0, &[(4, 1, 2), (8, 0, 1)], [10.0, 20.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [result([1.0, 22.0])]);
    assert_eq!(frames(&mut lane, a), [result([11.0, 20.0])]);
    feed(&mut lane, a, &mirrored(1)).unwrap();
    let [first, last] = &frames(&mut lane, a)[..] else { panic!("two frames") };
    let positions = |frame: &(FrameKind, Vec<u8>)| {
        let (Snapshot { clocks, .. }, _) = Snapshot::decode(&frame.1).unwrap();
        clocks.into_iter().map(|clock| clock.position).collect::<Vec<_>>()
    };
    assert_eq!((positions(first), positions(last)), (vec![1, 0], vec![0, 1]));
    feed(&mut lane, a, &mirrored(4)).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(4, 0, 1), (8, 1, 2)])]);
    assert_eq!(frames(&mut lane, a), [done(&[(4, 1, 2), (8, 0, 1)])]);
}

#[test]
fn only_the_last_stretch_of_a_change_has_its_number() {
    let (mut lane, [a, b]) = filled();
    feed(&mut lane, b, &follows(1, 0, &[(4, 0, 1), (8, 1, 2)], [1.0, 2.0])).unwrap();
    let bytes = drain(&mut lane, a);
    let (mut rest, mut numbers) = (&bytes[..], Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let head = Header::decode(head).unwrap();
        numbers.push((head.kind, head.round.0));
        rest = &tail[head.length as usize..];
    }
    // The mirror says that it has the first while the second is on its way.
    assert_eq!(numbers, [(FrameKind::Snapshot, 0), (FrameKind::Snapshot, 1)]);
}

#[test]
fn a_turn_that_is_past_is_an_error_for_all_who_change_the_variable() {
    for order in [[(8, 0, 2)], [(8, 1, 1)]] {
        let (mut lane, [a, b]) = filled();
        feed(&mut lane, a, &adds(0, 0, FREE, [10.0, 20.0])).unwrap();
        assert_eq!(frames(&mut lane, a)[0], result([10.0, 20.0]));
        feed(&mut lane, b, &follows(1, 0, &order, [1.0, 2.0])).unwrap();
        let [(FrameKind::Error, text)] = &frames(&mut lane, b)[..] else { panic!("an error") };
        let text = String::from_utf8_lossy(text);
        assert!(text.contains("the order log of rank 1 has position"), "{text}");
        assert!(text.contains("not of one run"), "{text}");
        // Another finds out when it goes on.
        feed(&mut lane, a, &mirrored(1)).unwrap();
        frames(&mut lane, a);
        feed(&mut lane, a, &adds(0, 1, FREE, [0.0, 0.0])).unwrap();
        let last = frames(&mut lane, a).pop().unwrap();
        assert_eq!((last.0, &*String::from_utf8_lossy(&last.1)), (FrameKind::Error, &*text));
    }
}

#[test]
fn a_round_whose_turn_was_before_a_failover_is_not_added_again() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill_with([10.0, 20.0], [3, 5])).unwrap();
    frames(&mut lane, a);
    feed(&mut lane, b, &follows(1, 4, &[(8, 11, 8)], [1.0, 2.0])).unwrap();
    assert_eq!(frames(&mut lane, b), [done(&[(8, 11, 8)]), result([10.0, 20.0])]);
}

#[test]
fn orders_that_make_no_sense_end_the_connection() {
    for (order, what) in [
        (&[(4, 0, 1)][..], "other bytes"),
        (&[(4, 0, 1), (12, 0, 1)], "other bytes"),
        (&[(3, 0, 1), (8, 0, 1)], "other bytes"),
        (&[(8, 0, 1), (8, 0, 1)], "end is 8"),
        (&[(0, 0, 1), (8, 0, 1)], "end is 0"),
    ] {
        let (mut lane, [_, b]) = filled();
        let refused = refusal(feed(&mut lane, b, &follows(1, 0, order, [1.0, 2.0])));
        assert!(refused.contains(what), "{what}: {refused}");
    }
}
