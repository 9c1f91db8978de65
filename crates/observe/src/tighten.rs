//! Clocks from the data connections, after the fact: what one process sent and another received.
//!
//! A contribution begins to arrive at a lane after the client began to send it, and a result at a
//! client after the lane began to return it. So each partition says of two clocks that one moment
//! was before another, in both directions. If the sender's clock is known to within some error,
//! the receiver's is bounded from below by it; if the receiver's is, the sender's is from above.
//! A member that is far from the coordinator, or whose heartbeats were slow, is so aligned through
//! one that is near. Each bound is taken at its worst, so the truth stays within what is stated.
//!
//! Only what was sent once counts: a round of which the recording has the beginning, and each event
//! once. What was sent again after a cut would pair a moment with the wrong one.

use std::collections::{BTreeMap, HashMap, HashSet};

use crate::build::{Member, Role};
use crate::clock::{Alignment, Limit, Limits, Sample, align_within};
use crate::event::{EventKind, Part, Peer};
use crate::recording::{Recording, Source};

/// Bounds are passed on from member to member as often as this: the second takes them to members
/// that exchange nothing with the first.
const PASSES: usize = 3;

/// A recording's time is cut into so many pieces, and of each the tightest bound counts. Fewer
/// bounds are still true.
const PIECES: u64 = 16;

/// What a member's clock was aligned by.
#[derive(Clone, Debug, Default)]
pub struct Clockwork {
    /// Its exchanges with the coordinator, oldest first.
    pub samples: Vec<Sample>,
    /// From when to when its times are wanted, by its own clock.
    pub window: (u64, u64),
}

/// What the data connections said of the clocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Tightened {
    /// Everything fits; the largest error of all members before, in nanoseconds.
    From(f64),
    /// This member's messages would have arrived before they were sent: nothing was changed.
    Contradicted(String),
}

/// `sent` by one member's clock was before `arrived` by the other's.
#[derive(Clone, Copy, Debug)]
struct Before {
    sender: usize,
    sent_ns: u64,
    receiver: usize,
    arrived_ns: u64,
}

/// Aligns the clocks of all members anew, with what they sent each other. `clocks` are in their
/// order.
pub fn tighten(members: &mut [Member], clocks: &[Clockwork]) -> Tightened {
    let worst = |of: &[Alignment]| of.iter().map(|clock| clock.error_ns).fold(0.0, f64::max);
    let mut aligned: Vec<Alignment> = members.iter().map(|member| member.clock).collect();
    let before = worst(&aligned);
    let orders = orders(members);
    for _ in 0..PASSES {
        let limits = limits(&orders, &aligned, clocks);
        let mut next = aligned.clone();
        for (index, limits) in limits.iter().enumerate() {
            let Clockwork { samples, window } = &clocks[index];
            match align_within(samples, *window, limits) {
                // Among fewer samples, after a change of rate, more lines may be possible.
                Ok(found) if found.error_ns <= aligned[index].error_ns => next[index] = found,
                Ok(_) => {}
                Err(_) => return Tightened::Contradicted(members[index].process.clone()),
            }
        }
        aligned = next;
    }
    for (member, clock) in members.iter_mut().zip(aligned) {
        member.clock = clock;
    }
    Tightened::From(before)
}

/// What the orders say of each member, given what is known of the others.
fn limits(orders: &[Before], known: &[Alignment], clocks: &[Clockwork]) -> Vec<Limits> {
    let mut above = vec![BTreeMap::new(); known.len()];
    let mut below = above.clone();
    for order in orders {
        let Before { sender, sent_ns, receiver, arrived_ns } = *order;
        let latest = known[receiver].map(arrived_ns) as f64 + known[receiver].error_at(arrived_ns);
        let earliest = known[sender].map(sent_ns) as f64 - known[sender].error_at(sent_ns);
        let at_most = Limit { at_ns: sent_ns, theirs_ns: latest.ceil() as i64 };
        let at_least = Limit { at_ns: arrived_ns, theirs_ns: earliest.floor() as i64 };
        keep(&mut above[sender], clocks[sender].window, at_most, 1);
        keep(&mut below[receiver], clocks[receiver].window, at_least, -1);
    }
    let only = |of: BTreeMap<u64, Limit>| of.into_values().collect();
    above.into_iter().zip(below).map(|(a, b)| Limits { above: only(a), below: only(b) }).collect()
}

/// Keeps the tighter of two limits in a piece of the window; `side` is 1 from above.
fn keep(pieces: &mut BTreeMap<u64, Limit>, window: (u64, u64), limit: Limit, side: i128) {
    let length = (window.1.saturating_sub(window.0) / PIECES).max(1);
    let piece = limit.at_ns.saturating_sub(window.0) / length;
    let room = |l: &Limit| side * (i128::from(l.theirs_ns) - i128::from(l.at_ns));
    let entry = pieces.entry(piece).or_insert(limit);
    if room(&limit) < room(entry) {
        *entry = limit;
    }
}

/// All pairs of events of which one was before the other.
fn orders(members: &[Member]) -> Vec<Before> {
    let (mut lanes, mut ranks) = (HashMap::new(), HashMap::new());
    for (index, member) in members.iter().enumerate() {
        if let Role::Worker(rank) = member.role {
            ranks.insert(rank, index);
        }
        for recording in &member.recordings {
            if let Source::Lane(lane) = recording.source {
                lanes.insert(member.role.lane(lane), index);
            }
        }
    }
    let (mut sent, mut arrived) = (Events::default(), Events::default());
    for member in members {
        let clients = member.recordings.iter().filter(|r| r.source == Source::Client);
        let whole = whole(clients);
        let known: HashSet<Part> = member
            .recordings
            .iter()
            .flat_map(|r| &r.events)
            .filter(|e| e.kind == EventKind::ArriveBegin)
            .map(|e| e.part)
            .collect();
        for recording in &member.recordings {
            for event in &recording.events {
                let part = event.part;
                let way = match (recording.source, member.role, event.kind, event.peer) {
                    (Source::Client, Role::Worker(rank), kind, lane) => (kind, lane, rank),
                    (Source::Lane(lane), role, kind, Peer::Rank(rank)) => {
                        (kind, role.lane(lane), rank)
                    }
                    _ => continue,
                };
                let (kind, lane, rank) = way;
                let of_part = Part { partition: Part::WHOLE, tier: 0, ..part };
                match kind {
                    EventKind::SendBegin if whole.contains(&of_part) => {
                        sent.note((part, lane, rank, true), event.at_ns);
                    }
                    EventKind::ReturnBegin if known.contains(&part) => {
                        sent.note((part, lane, rank, false), event.at_ns);
                    }
                    EventKind::ArriveBegin => arrived.note((part, lane, rank, true), event.at_ns),
                    EventKind::ReceiveBegin => arrived.note((part, lane, rank, false), event.at_ns),
                    _ => {}
                }
            }
        }
    }
    let order = |(way, sent_ns): (&Way, &Option<u64>)| {
        let (_, lane, rank, there) = way;
        let (sent_ns, arrived_ns) = ((*sent_ns)?, (*arrived.0.get(way)?)?);
        let (client, lane) = (*ranks.get(rank)?, *lanes.get(lane)?);
        let (sender, receiver) = if *there { (client, lane) } else { (lane, client) };
        (sender != receiver).then_some(Before { sender, sent_ns, receiver, arrived_ns })
    };
    sent.0.iter().filter_map(order).collect()
}

/// A partition's way between a worker and a lane: there, or back.
type Way = (Part, Peer, u32, bool);

/// When something happened; `None` if more than once.
#[derive(Default)]
struct Events(HashMap<Way, Option<u64>>);

impl Events {
    fn note(&mut self, way: Way, at_ns: u64) {
        self.0.entry(way).and_modify(|at| *at = None).or_insert(Some(at_ns));
    }
}

/// The rounds of which a client's recording has the beginning.
fn whole<'a>(clients: impl Iterator<Item = &'a Recording>) -> HashSet<Part> {
    let events = clients.flat_map(|recording| &recording.events);
    let begun = events.filter(|event| event.kind == EventKind::Submitted);
    begun.map(|event| Part { tier: 0, ..event.part }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::clock::align;
    use crate::event::Event;

    const ORIGIN: u64 = 1 << 40;

    /// A member's time at a true time: the coordinator's.
    #[derive(Clone, Copy, Debug)]
    struct Truth {
        behind: i64,
        drift: f64,
    }

    impl Truth {
        fn own(&self, at: u64) -> u64 {
            let drifted = (at - ORIGIN) as f64 * self.drift;
            (at as i64 + self.behind + drifted as i64) as u64
        }
    }

    /// A message between two members: who, when, how long.
    type Message = (bool, u64, u64);

    fn member(
        rank: u32,
        truth: Truth,
        delays: &[(u64, u64)],
        events: Vec<Event>,
    ) -> (Member, Clockwork) {
        let sample = |(beat, (there, back)): (usize, &(u64, u64))| {
            let sent = ORIGIN + beat as u64 * 1_000_000_000;
            Sample {
                sent_ns: truth.own(sent),
                received_ns: sent + there,
                replied_ns: sent + there,
                heard_ns: truth.own(sent + there + back),
            }
        };
        let samples: Vec<Sample> = delays.iter().enumerate().map(sample).collect();
        let window = (samples[0].sent_ns, samples[samples.len() - 1].heard_ns);
        let clock = align(&samples, window).unwrap();
        let source = if rank == 0 { Source::Client } else { Source::Lane(0) };
        let recordings = vec![Recording { source, lost: 0, events }];
        let process = format!("rank {rank}");
        let role = Role::Worker(rank);
        (Member { process, role, clock, recordings }, Clockwork { samples, window })
    }

    /// The client of rank 0 and the lane of rank 1, with what they sent each other.
    fn pair(
        truths: [Truth; 2],
        delays: [&[(u64, u64)]; 2],
        messages: &[Message],
    ) -> (Vec<Member>, Vec<Clockwork>) {
        let (mut client, mut lane) = (Vec::new(), Vec::new());
        let far = Peer::WorkerLane { rank: 1, lane: 0 };
        for (round, (there, at, delay)) in messages.iter().enumerate() {
            let part = Part { tensor: 0, tier: 0, round: round as u32, partition: 0 };
            let event =
                |kind, part, peer, at_ns| Event { at_ns, kind, part, peer, bytes: 1, run: 0 };
            let [own, theirs] = [truths[0], truths[1]];
            let (begun, ended) = (ORIGIN + at, ORIGIN + at + delay);
            if *there {
                let whole = Part { partition: Part::WHOLE, ..part };
                client.push(event(EventKind::Submitted, whole, Peer::Unknown, own.own(begun)));
                client.push(event(EventKind::SendBegin, part, far, own.own(begun)));
                lane.push(event(EventKind::ArriveBegin, part, Peer::Rank(0), theirs.own(ended)));
            } else {
                lane.push(event(EventKind::ArriveBegin, part, Peer::Rank(5), theirs.own(begun)));
                lane.push(event(EventKind::ReturnBegin, part, Peer::Rank(0), theirs.own(begun)));
                client.push(event(EventKind::ReceiveBegin, part, far, own.own(ended)));
            }
        }
        let both = [member(0, truths[0], delays[0], client), member(1, truths[1], delays[1], lane)];
        both.into_iter().unzip()
    }

    fn truths() -> impl Strategy<Value = Truth> {
        (-(1i64 << 38)..(1 << 38), -4e-4..4e-4).prop_map(|(behind, drift)| Truth { behind, drift })
    }

    fn delays() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let delay = prop_oneof![1_000..200_000u64, 1_000..50_000_000u64];
        vec((delay.clone(), delay), 2..12)
    }

    proptest! {
        #[test]
        fn the_truth_stays_within_a_bound_that_never_grows(
            truths in (truths(), truths()),
            delays in (delays(), delays()),
            messages in vec((any::<bool>(), 0..1_000_000_000u64, 1_000..5_000_000u64), 0..40),
        ) {
            let delays = [&delays.0[..], &delays.1[..]];
            let truths = [truths.0, truths.1];
            let (mut members, clocks) = pair(truths, delays, &messages);
            let before: Vec<f64> = members.iter().map(|m| m.clock.error_ns).collect();
            let found = tighten(&mut members, &clocks);
            prop_assert!(matches!(found, Tightened::From(_)), "{:?}", found);
            for (index, member) in members.iter().enumerate() {
                prop_assert!(member.clock.error_ns <= before[index]);
                for at in [ORIGIN, ORIGIN + 500_000_000, ORIGIN + 1_000_000_000] {
                    let error = member.clock.map(truths[index].own(at)) - at as i64;
                    // A member's true time is computed in floats and whole nanoseconds.
                    let bound = member.clock.error_ns + 10.0;
                    prop_assert!(error.abs() as f64 <= bound, "{error} ns, bound {bound}");
                }
            }
        }
    }

    const NEAR: [(u64, u64); 3] = [(10_000, 10_000); 3];
    const FAR: [(u64, u64); 3] = [(900_000, 2_000_000); 3];
    const CLOCKS: [Truth; 2] =
        [Truth { behind: 1 << 33, drift: 1e-4 }, Truth { behind: -(1 << 35), drift: -2e-4 }];

    fn messages(delay: u64) -> Vec<Message> {
        (0..40).map(|round| (round % 2 == 0, round * 50_000_000, delay)).collect()
    }

    #[test]
    fn a_member_far_from_the_coordinator_is_aligned_through_one_that_is_near() {
        let (mut members, clocks) = pair(CLOCKS, [&NEAR, &FAR], &messages(40_000));
        let before = members[1].clock.error_ns;
        let Tightened::From(worst) = tighten(&mut members, &clocks) else { panic!() };
        assert_eq!(worst, before);
        let after = members[1].clock.error_ns;
        assert!(before > 1_400_000.0 && after < 150_000.0, "{before} {after}");
    }

    #[test]
    fn what_was_sent_twice_says_nothing() {
        let (mut members, clocks) = pair(CLOCKS, [&NEAR, &FAR], &messages(40_000));
        for member in &mut members {
            for recording in &mut member.recordings {
                let again = recording.events.clone();
                recording.events.extend(again);
            }
        }
        let before = members[1].clock;
        assert!(matches!(tighten(&mut members, &clocks), Tightened::From(_)));
        assert_eq!(members[1].clock, before);
    }

    #[test]
    fn messages_that_arrive_before_they_are_sent_change_nothing_and_name_a_member() {
        let (mut members, clocks) = pair(CLOCKS, [&NEAR, &NEAR], &messages(40_000));
        for event in &mut members[1].recordings[0].events {
            event.at_ns -= 5_000_000;
        }
        let before: Vec<Alignment> = members.iter().map(|member| member.clock).collect();
        let Tightened::Contradicted(who) = tighten(&mut members, &clocks) else { panic!() };
        assert!(who.starts_with("rank "));
        let after: Vec<Alignment> = members.iter().map(|member| member.clock).collect();
        assert_eq!(before, after);
    }
}
