//! A variable in a lane: its state comes from a mirror, its rounds change it.

use sumpter_types::{ExactSum, Rule, Staleness, Update};
use sumpter_wire::{Tier, VariableSpec, encode_apply, encode_norm};

use super::*;

pub const SGD: Rule = Rule::Sgd { momentum: false, nesterov: false };

/// Two float32, mirrored by rank 0.
pub fn variable() -> PartitionSpec {
    let mirrors = [Some(Rank(0)), None];
    let staleness = Staleness::SYNCHRONOUS;
    let variable = VariableSpec { rule: SGD, divisor: 2, mirrors, home: 0, offset: 0, staleness };
    PartitionSpec {
        collective: Collective::Update,
        dtype: Dtype::F32,
        variable: Some(variable),
        ..spec(8)
    }
}

pub fn begin_with(spec: &PartitionSpec, step: f64) -> Vec<u8> {
    begin_as(spec, Update { step, ..Update::new(SGD) })
}

fn begin_as(spec: &PartitionSpec, update: Update) -> Vec<u8> {
    let payload = Begin { spec: *spec, priority: 0, call: None, update: Some(update) }.encode();
    [&header(FrameKind::Begin, payload.len()).encode()[..], &payload].concat()
}

pub fn floats(values: [f32; 2]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

/// A mirror puts the value into the lane.
pub fn fill(values: [f32; 2]) -> Vec<u8> {
    let ranks = [Rank(0)];
    let members = encode_group(&ranks);
    let group =
        Header { tensor: TensorId(group_id(&ranks).0), ..header(FrameKind::Group, members.len()) };
    let part = PartitionSpec {
        collective: Collective::Broadcast,
        dtype: Dtype::F32,
        group: group_id(&ranks),
        ..spec(8)
    };
    let frames = [begin(&part), push(0, &floats(values))].map(|mut frame| {
        frame[1] = Tier::Value as u8;
        frame
    });
    [&group.encode()[..], &members, &frames.concat()].concat()
}

/// Kinds and payloads of the frames of a lane.
pub fn frames(lane: &mut Lane, conn: ConnId) -> Vec<(FrameKind, Vec<u8>)> {
    let bytes = drain(lane, conn);
    let (mut rest, mut out) = (&bytes[..], Vec::new());
    while let Some((head, tail)) = rest.split_first_chunk::<HEADER_BYTES>() {
        let head = Header::decode(head).unwrap();
        let (payload, tail) = tail.split_at(head.length as usize);
        out.push((head.kind, payload.to_vec()));
        rest = tail;
    }
    out
}

#[test]
fn a_round_waits_for_the_state_and_the_mirror_gets_the_gradient() {
    let (mut lane, [a, b]) = lane_with_two();
    let begun = begin_with(&variable(), -0.5);
    feed(&mut lane, a, &[begun.clone(), push(0, &floats([2.0, 4.0]))].concat()).unwrap();
    feed(&mut lane, b, &[begun, push(0, &floats([6.0, 4.0]))].concat()).unwrap();
    assert_eq!((frames(&mut lane, a), frames(&mut lane, b)), (vec![], vec![]));
    feed(&mut lane, a, &fill([10.0, 20.0])).unwrap();
    // The average of the gradients to the mirror, which then is done with the part it put here.
    let done = (FrameKind::Done, vec![]);
    let sent = frames(&mut lane, a);
    assert!(sent.contains(&(FrameKind::Result, floats([4.0, 4.0]))) && sent.contains(&done));
    assert_eq!(frames(&mut lane, b), [(FrameKind::Result, floats([8.0, 18.0]))]);
    // No worker may let go of a contribution before the mirror has the gradient.
    feed(&mut lane, b, &ack()).unwrap();
    assert_eq!(frames(&mut lane, b), []);
    feed(&mut lane, a, &ack()).unwrap();
    assert_eq!(frames(&mut lane, b), [done]);
    assert_eq!(frames(&mut lane, a), [], "the only mirror knows that it has it");
    // The next round begins with the new value.
    let begun = of_tensor(5, 1, begin_with(&variable(), -1.0));
    for conn in [a, b] {
        let pushed = of_tensor(5, 1, push(0, &floats([1.0, 0.0])));
        feed(&mut lane, conn, &[begun.clone(), pushed].concat()).unwrap();
    }
    assert_eq!(frames(&mut lane, b), [(FrameKind::Result, floats([7.0, 18.0]))]);
}

#[test]
fn of_two_mirrors_each_is_told_when_both_have_a_round() {
    let (mut lane, [a, b]) = lane_with_two();
    let known = variable();
    let variable =
        known.variable.map(|v| VariableSpec { mirrors: [0, 1].map(Rank).map(Some), ..v });
    let begun = begin_with(&PartitionSpec { variable, ..known }, -0.5);
    feed(&mut lane, a, &fill([0.0, 0.0])).unwrap();
    frames(&mut lane, a);
    for conn in [a, b] {
        feed(&mut lane, conn, &[begun.clone(), push(0, &floats([1.0, 1.0]))].concat()).unwrap();
    }
    for conn in [a, b] {
        assert_eq!(frames(&mut lane, conn), [(FrameKind::Result, floats([1.0, 1.0]))]);
        feed(&mut lane, conn, &ack()).unwrap();
    }
    for conn in [a, b] {
        assert_eq!(frames(&mut lane, conn), [(FrameKind::Done, vec![])]);
    }
}

#[test]
fn what_is_said_of_rounds_waits_for_the_end_of_the_turn_and_leaves_as_one_piece() {
    const TENSORS: [u8; 9] = [5, 6, 7, 8, 9, 10, 11, 12, 13];
    let (mut lane, [a, b]) = lane_with_two();
    let dirty = |lane: &mut Lane| std::iter::from_fn(|| lane.next_dirty()).collect::<Vec<_>>();
    let round = [begin_with(&variable(), -0.5), push(0, &floats([1.0, 1.0]))];
    for tensor in TENSORS {
        let of = |frame: &Vec<u8>| of_tensor(tensor, 0, frame.clone());
        // The group of the first has its id in place of a tensor.
        let filled = fill([0.0, 0.0]);
        let (group, parts) = filled.split_at(HEADER_BYTES + 4);
        let (begun, chunk) = parts.split_at(parts.len() - HEADER_BYTES - 8);
        let parts = [group.to_vec(), of(&begun.to_vec()), of(&chunk.to_vec())].concat();
        feed(&mut lane, a, &parts).unwrap();
        for conn in [a, b] {
            feed(&mut lane, conn, &round.each_ref().map(of).concat()).unwrap();
        }
    }
    assert_eq!(dirty(&mut lane).len(), 2, "results leave at once");
    for conn in [a, b] {
        while !frames(&mut lane, conn).is_empty() {}
    }
    lane.end_turn();
    dirty(&mut lane);
    let acks = TENSORS.map(|tensor| of_tensor(tensor, 0, ack())).concat();
    feed(&mut lane, a, &acks).unwrap();
    assert_eq!(dirty(&mut lane), [], "more of them may come");
    lane.end_turn();
    assert_eq!(dirty(&mut lane), [b]);
    assert_eq!(lane.pending(b).len(), 1);
    let done = frames(&mut lane, b);
    assert_eq!(done, vec![(FrameKind::Done, vec![]); TENSORS.len()]);
    // What is to be sent at once takes along what can wait.
    let next = round.map(|frame| of_tensor(5, 1, frame));
    for conn in [a, b] {
        feed(&mut lane, conn, &next.concat()).unwrap();
    }
    feed(&mut lane, b, &of_tensor(5, 1, ack())).unwrap();
    feed(&mut lane, a, &of_tensor(5, 1, ack())).unwrap();
    let kinds: Vec<_> = frames(&mut lane, b).into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [FrameKind::Done, FrameKind::Result]);
}

#[test]
fn who_lost_the_connection_hears_again_that_the_mirror_has_it() {
    let (mut lane, [a, b]) = lane_with_two();
    let begun = begin_with(&variable(), -0.5);
    feed(&mut lane, a, &fill([0.0, 0.0])).unwrap();
    for conn in [a, b] {
        feed(&mut lane, conn, &[begun.clone(), push(0, &floats([1.0, 1.0]))].concat()).unwrap();
    }
    frames(&mut lane, b);
    feed(&mut lane, a, &ack()).unwrap();
    lane.close(b);
    let (b, _) = lane.open(peer(1)).unwrap();
    let mut again = begun;
    // It has the only chunk.
    again[20] = 1;
    feed(&mut lane, b, &again).unwrap();
    assert_eq!(frames(&mut lane, b), [(FrameKind::Done, vec![])]);
}

#[test]
fn ranks_that_update_differently_are_all_told() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &[begin_with(&variable(), -0.5), push(0, &floats([1.0, 1.0]))].concat())
        .unwrap();
    feed(&mut lane, b, &begin_with(&variable(), -0.25)).unwrap();
    for conn in [a, b] {
        let [(kind, text)] = &frames(&mut lane, conn)[..] else { panic!("one frame") };
        let text = String::from_utf8_lossy(text);
        assert_eq!(*kind, FrameKind::Error);
        assert!(text.contains("rank 1") && text.contains("step is -0.25"), "{text}");
        // What is on its way is dropped, and other tensors go on.
        feed(&mut lane, conn, &push(0, &floats([1.0, 1.0]))).unwrap();
        feed(&mut lane, conn, &of_tensor(6, 0, begin(&spec(3)))).unwrap();
        feed(&mut lane, conn, &of_tensor(6, 0, push(0, &[1, 2, 3]))).unwrap();
    }
    assert_eq!(frames(&mut lane, a), [(FrameKind::Result, vec![2, 4, 6])]);
}

#[test]
fn a_variable_counts_against_the_jobs_memory_and_ends_with_the_job() {
    let (mut lane, [a, _]) = lane_with_two();
    feed(&mut lane, a, &begin_with(&variable(), -0.5)).unwrap();
    assert_eq!(lane.job_bytes(JobId(1)), 2 * PAGE);
    feed(&mut lane, a, &fill([0.0, 0.0])).unwrap();
    assert_eq!(lane.job_bytes(JobId(1)), 3 * PAGE);
    assert!(lane.allocated_bytes() > 0);
    lane.end_job(JobId(1));
    assert_eq!((lane.job_bytes(JobId(1)), lane.allocated_bytes()), (0, 0));
}

fn apply_frame(round: u8, update: &Update) -> Vec<u8> {
    let payload = encode_apply(update);
    let frame = [&header(FrameKind::Apply, payload.len()).encode()[..], &payload].concat();
    of_tensor(5, round, frame)
}

fn squares(values: &[f64]) -> Vec<u8> {
    let mut sum = ExactSum::default();
    values.iter().for_each(|x| sum.add(x * x));
    encode_norm(&sum).to_vec()
}

#[test]
fn a_round_that_is_deferred_waits_for_what_all_decide() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill([10.0, 20.0])).unwrap();
    frames(&mut lane, a);
    let begun = begin_as(&variable(), Update::defer(SGD));
    feed(&mut lane, a, &[begun.clone(), push(0, &floats([2.0, 4.0]))].concat()).unwrap();
    assert_eq!(frames(&mut lane, a), []);
    feed(&mut lane, b, &[begun.clone(), push(0, &floats([6.0, 4.0]))].concat()).unwrap();
    // The norm is that of the average.
    let norm = (FrameKind::Norm, squares(&[4.0, 4.0]));
    for conn in [a, b] {
        assert_eq!(frames(&mut lane, conn), std::slice::from_ref(&norm));
    }
    // One that lost its connection gets it again.
    lane.close(b);
    let (b, _) = lane.open(peer(1)).unwrap();
    feed(&mut lane, b, &begun).unwrap();
    assert_eq!(frames(&mut lane, b), [norm]);
    let update = Update { step: -1.0, scale: 0.5, ..Update::new(SGD) };
    feed(&mut lane, a, &apply_frame(0, &update)).unwrap();
    // Saying it twice is saying it once.
    feed(&mut lane, a, &apply_frame(0, &update)).unwrap();
    assert_eq!((frames(&mut lane, a), frames(&mut lane, b)), (vec![], vec![]));
    feed(&mut lane, b, &apply_frame(0, &update)).unwrap();
    assert_eq!(frames(&mut lane, a), [(FrameKind::Result, floats([4.0, 4.0]))]);
    assert_eq!(frames(&mut lane, b), [(FrameKind::Result, floats([8.0, 18.0]))]);
}

#[test]
fn a_rank_that_has_decided_before_meets_one_that_has_not() {
    let (mut lane, [a, b]) = lane_with_two();
    feed(&mut lane, a, &fill([10.0, 20.0])).unwrap();
    frames(&mut lane, a);
    let begun = begin_as(&variable(), Update::skip(SGD));
    feed(&mut lane, a, &[begun, push(0, &floats([1.0, 1.0]))].concat()).unwrap();
    let begun = begin_as(&variable(), Update::defer(SGD));
    feed(&mut lane, b, &[begun, push(0, &floats([1.0, 1.0]))].concat()).unwrap();
    assert_eq!(frames(&mut lane, a), []);
    assert_eq!(frames(&mut lane, b), [(FrameKind::Norm, squares(&[1.0, 1.0]))]);
    feed(&mut lane, b, &apply_frame(0, &Update::skip(SGD))).unwrap();
    assert_eq!(frames(&mut lane, b), [(FrameKind::Result, floats([10.0, 20.0]))]);
}

#[test]
fn ranks_that_decide_differently_are_all_told() {
    let (mut lane, [a, b]) = lane_with_two();
    let begun = begin_as(&variable(), Update::defer(SGD));
    for conn in [a, b] {
        feed(&mut lane, conn, &[begun.clone(), push(0, &floats([1.0, 1.0]))].concat()).unwrap();
    }
    for conn in [a, b] {
        assert_eq!(frames(&mut lane, conn), [(FrameKind::Norm, squares(&[1.0, 1.0]))]);
    }
    feed(&mut lane, a, &apply_frame(0, &Update::new(SGD))).unwrap();
    feed(&mut lane, b, &apply_frame(0, &Update::skip(SGD))).unwrap();
    for conn in [a, b] {
        let [(kind, text)] = &frames(&mut lane, conn)[..] else { panic!("one frame") };
        let text = String::from_utf8_lossy(text);
        assert_eq!(*kind, FrameKind::Error);
        assert!(text.contains("rank 1: it skips the round, another rank applies it"), "{text}");
        // What is on its way is dropped.
        feed(&mut lane, conn, &apply_frame(0, &Update::new(SGD))).unwrap();
    }
}

#[test]
fn a_decision_about_what_was_not_begun_is_a_violation() {
    let (mut lane, [a, b]) = lane_with_two();
    let unknown = feed(&mut lane, a, &apply_frame(0, &Update::skip(SGD)));
    assert!(unknown.unwrap_err().to_string().contains("unknown partition"));
    let (mut lane2, [c, d]) = lane_with_two();
    feed(&mut lane2, c, &begin_as(&variable(), Update::defer(SGD))).unwrap();
    let early = feed(&mut lane2, d, &apply_frame(0, &Update::skip(SGD)));
    assert!(early.unwrap_err().to_string().contains("has not begun"));
    feed(&mut lane, b, &begin(&spec(3))).unwrap();
    let plain = feed(&mut lane, b, &apply_frame(0, &Update::skip(SGD)));
    assert!(plain.unwrap_err().to_string().contains("no variable"));
}
