//! From events to slices: the events of all processes of a run, on the coordinator's clock.

use std::collections::{BTreeMap, HashMap};

use crate::clock::Alignment;
use crate::error::TraceError;
use crate::event::{Event, EventKind, Part, Peer};
use crate::label::Activity;
use crate::recording::{Recording, Source};
use crate::steps::{Step, steps};

/// What a process is in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A worker of this rank.
    Worker(u32),
    /// A server of this number; of larger numbers the low 32 bits.
    Server(u32),
}

impl Role {
    /// What others call one of its lanes.
    pub(crate) fn lane(self, lane: u32) -> Peer {
        let lane = u16::try_from(lane).unwrap_or(u16::MAX);
        match self {
            Role::Worker(rank) => Peer::WorkerLane { rank, lane },
            Role::Server(member) => Peer::ServerLane { member, lane },
        }
    }
}

/// A process of the run, and what it recorded.
#[derive(Clone, Debug)]
pub struct Member {
    /// What a person calls it.
    pub process: String,
    /// What it is, and its number as such.
    pub role: Role,
    /// Its clock.
    pub clock: Alignment,
    /// Its client's events and those of each of its lanes.
    pub recordings: Vec<Recording>,
}

/// Something that took a while.
#[derive(Clone, Debug, PartialEq)]
pub struct Slice {
    /// Whose: an index of [`Trace::processes`].
    pub process: usize,
    /// The row it belongs to.
    pub track: String,
    /// What went on.
    pub activity: Activity,
    /// From when, in nanoseconds of the trace.
    pub begin_ns: u64,
    /// Until when.
    pub end_ns: u64,
    /// The tensor's name.
    pub tensor: Option<String>,
    /// The round.
    pub round: Option<u32>,
    /// The partition's number in its tensor.
    pub partition: Option<u32>,
    /// Which of the tensor's sums: 0 that of all, 1 that of one machine, 2 what is passed on after
    /// a change of servers.
    pub tier: Option<u32>,
    /// Bytes of the partition.
    pub bytes: Option<u64>,
    /// The other end of the link, or who was waited for.
    pub peer: Option<String>,
    /// The ways from a gradient to its sum that lead through here.
    pub flows: Vec<u64>,
}

/// What a run did, on one clock.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// The run.
    pub run: String,
    /// Each process's name and how far its times may be off, in seconds.
    pub processes: Vec<(String, f64)>,
    /// In the order in which they began.
    pub slices: Vec<Slice>,
    /// Lines about the run, for people.
    pub remarks: Vec<String>,
}

/// Makes a trace of the last `count` steps that are complete on every worker. `tensors` are the
/// names by number.
///
/// # Errors
/// [`TraceError::Empty`] if no step is.
pub fn build(
    run: &str,
    members: &[Member],
    tensors: &[String],
    count: usize,
) -> Result<Trace, TraceError> {
    let mut builder = Builder { tensors, ..Builder::default() };
    // Who was waited for is known where the sums are made, so the lanes come first.
    for (process, member) in members.iter().enumerate() {
        for recording in &member.recordings {
            if let Source::Lane(lane) = recording.source {
                builder.lane((process, member), lane, &recording.events);
            }
        }
    }
    for (process, member) in members.iter().enumerate() {
        for recording in &member.recordings {
            if let (Source::Client, Role::Worker(rank)) = (recording.source, member.role) {
                builder.client((process, member), rank, &recording.events);
            }
        }
    }
    let (from, to) = builder.add_steps(members, count)?;
    let mut slices = builder.slices;
    slices.retain(|raw| raw.end >= from && raw.begin <= to);
    let origin = slices.iter().map(|raw| raw.begin).min().unwrap_or(from);
    let mut slices: Vec<Slice> = slices.into_iter().map(|raw| raw.on(origin)).collect();
    slices.sort_by_key(|slice| (slice.begin_ns, slice.process, slice.activity));
    let processes = members.iter().map(|m| (m.process.clone(), m.clock.error_ns / 1e9));
    Ok(Trace { run: run.to_owned(), processes: processes.collect(), slices, remarks: Vec::new() })
}

/// A slice whose times are those of the coordinator's clock.
struct Raw {
    begin: i64,
    end: i64,
    slice: Slice,
}

impl Raw {
    fn on(self, origin: i64) -> Slice {
        let since = |at: i64| at.saturating_sub(origin).max(0) as u64;
        Slice { begin_ns: since(self.begin), end_ns: since(self.end), ..self.slice }
    }
}

/// A round of a partition in the lane that sums it: several machines may sum their parts of it.
type Site = (Part, Peer);

#[derive(Default)]
struct Builder<'a> {
    tensors: &'a [String],
    slices: Vec<Raw>,
    /// The rank whose contribution came last.
    last: HashMap<Site, u32>,
    /// Numbers of the ways from a worker's gradient to its sum and back.
    flows: HashMap<(Site, u32), u64>,
}

/// What is common to the slices made of one event.
struct About<'a> {
    process: (usize, &'a Member),
    event: &'a Event,
    flows: Vec<u64>,
}

impl Builder<'_> {
    fn flow(&mut self, site: Site, rank: u32) -> u64 {
        let next = self.flows.len() as u64 + 1;
        *self.flows.entry((site, rank)).or_insert(next)
    }

    /// Adds a slice from a member's time `begin` to that of the event.
    fn add(
        &mut self,
        about: About<'_>,
        begin_ns: u64,
        (track, activity): (String, Activity),
        peer: Option<String>,
    ) {
        let About { process: (process, member), event, flows } = about;
        let Part { tensor, tier, round, partition } = event.part;
        let name = self.tensors.get(tensor as usize).cloned();
        let slice = Slice {
            process,
            track,
            activity,
            begin_ns: 0,
            end_ns: 0,
            tensor: Some(name.unwrap_or_else(|| format!("tensor {tensor}"))),
            round: Some(round),
            partition: Some(partition),
            tier: Some(u32::from(tier)),
            bytes: Some(u64::from(event.bytes)),
            peer,
            flows,
        };
        let (begin, end) = (member.clock.map(begin_ns), member.clock.map(event.at_ns));
        self.slices.push(Raw { begin, end: end.max(begin), slice });
    }

    fn lane(&mut self, process: (usize, &Member), lane: u32, events: &[Event]) {
        let own = process.1.role.lane(lane);
        let mut begun: HashMap<(Part, EventKind, Peer), u64> = HashMap::new();
        let mut arrived: HashMap<Part, Vec<(u64, u32)>> = HashMap::new();
        for event in events {
            let (part, peer) = (event.part, event.peer);
            let rank = if let Peer::Rank(rank) = peer { rank } else { u32::MAX };
            let site = (part, own);
            match event.kind {
                EventKind::ArriveBegin | EventKind::ReturnBegin | EventKind::SumBegin => {
                    begun.insert((part, event.kind, peer), event.at_ns);
                }
                EventKind::ArriveEnd => {
                    arrived.entry(part).or_default().push((event.at_ns, rank));
                    let flows = vec![self.flow(site, rank)];
                    // What lies in this process does not arrive: it is there.
                    if let Some(begin) = begun.remove(&(part, EventKind::ArriveBegin, peer)) {
                        let track = format!("lane {lane} from rank {rank}");
                        let about = About { process, event, flows };
                        let peer = Some(format!("rank {rank}"));
                        self.add(about, begin, (track, Activity::Receiving), peer);
                    }
                }
                EventKind::SumEnd => {
                    let mut all = arrived.remove(&part).unwrap_or_default();
                    all.sort_unstable();
                    let begin = begun.remove(&(part, EventKind::SumBegin, peer));
                    self.summed((process, lane), event, begin, &all);
                }
                EventKind::ReturnEnd => {
                    let flows = vec![self.flow(site, rank)];
                    if let Some(begin) = begun.remove(&(part, EventKind::ReturnBegin, peer)) {
                        let track = format!("lane {lane} to rank {rank}");
                        let about = About { process, event, flows };
                        let peer = Some(format!("rank {rank}"));
                        self.add(about, begin, (track, Activity::Sending), peer);
                    }
                }
                _ => {}
            }
        }
    }

    /// A round of a partition is complete in a lane; `all` contributions by when they were in.
    fn summed(
        &mut self,
        (process, lane): ((usize, &Member), u32),
        event: &Event,
        begin: Option<u64>,
        all: &[(u64, u32)],
    ) {
        let site = (event.part, process.1.role.lane(lane));
        let flows: Vec<u64> = all.iter().map(|(_, rank)| self.flow(site, *rank)).collect();
        if let Some((_, rank)) = all.last() {
            self.last.insert(site, *rank);
        }
        if let [.., (before, _), (last, rank)] = all {
            let until = Event { at_ns: *last, ..*event };
            let about = About { process, event: &until, flows: Vec::new() };
            let track = format!("lane {lane} waiting");
            let peer = Some(format!("rank {rank}"));
            self.add(about, *before, (track, Activity::Waiting), peer);
        }
        let begin = begin.or(all.last().map(|(at, _)| *at)).unwrap_or(event.at_ns);
        let about = About { process, event, flows };
        self.add(about, begin, (format!("lane {lane} summing"), Activity::Summing), None);
    }

    fn client(&mut self, process: (usize, &Member), rank: u32, events: &[Event]) {
        let mut submitted: HashMap<Part, u64> = HashMap::new();
        let mut begun: HashMap<(Part, EventKind), u64> = HashMap::new();
        for event in events {
            let (part, kind) = (event.part, event.kind);
            let lane = lane_label(event.peer);
            let site = (part, event.peer);
            let begin_of = |kind| begun.get(&(part, kind)).copied();
            match kind {
                EventKind::Submitted | EventKind::Supplied => {
                    submitted.insert(part, event.at_ns);
                }
                EventKind::Offered | EventKind::SendBegin => {
                    begun.insert((part, kind), event.at_ns);
                    let whole = Part { partition: Part::WHOLE, ..part };
                    // What comes from a device queues from when it is there.
                    let begin = submitted.remove(&part).or(submitted.get(&whole).copied());
                    if let Some(begin) = begin {
                        let flows = match kind {
                            EventKind::Offered => vec![self.flow(site, rank)],
                            _ => Vec::new(),
                        };
                        let about = About { process, event, flows };
                        let track = ("queue".to_owned(), Activity::Queued);
                        self.add(about, begin, track, Some(lane));
                    }
                }
                EventKind::SendEnd => {
                    let begin = begin_of(EventKind::SendBegin);
                    begun.insert((part, kind), event.at_ns);
                    if let Some(begin) = begin {
                        let flows = vec![self.flow(site, rank)];
                        let about = About { process, event, flows };
                        let track = (format!("to {lane}"), Activity::Sending);
                        self.add(about, begin, track, Some(lane));
                    }
                }
                EventKind::ReceiveBegin | EventKind::CopyBegin => {
                    // Results may begin to come back while the last chunks go.
                    let since = begin_of(EventKind::SendEnd).or(begin_of(EventKind::Offered));
                    begun.insert((part, kind), event.at_ns);
                    if let Some(begin) = since {
                        let last = self.last.get(&site).filter(|last| **last != rank);
                        let peer = last.map_or(lane, |last| format!("rank {last}"));
                        let about = About { process, event, flows: Vec::new() };
                        let track = ("waiting".to_owned(), Activity::Waiting);
                        self.add(about, begin, track, Some(peer));
                    }
                }
                EventKind::ReceiveEnd | EventKind::CopyEnd => {
                    let (of, activity, track) = match kind {
                        EventKind::CopyEnd => {
                            (EventKind::CopyBegin, Activity::Copying, "copying".to_owned())
                        }
                        _ => (EventKind::ReceiveBegin, Activity::Receiving, format!("from {lane}")),
                    };
                    let begin = begin_of(of);
                    for known in OF_A_CLIENT {
                        begun.remove(&(part, known));
                    }
                    if let Some(begin) = begin {
                        let flows = vec![self.flow(site, rank)];
                        let about = About { process, event, flows };
                        self.add(about, begin, (track, activity), Some(lane));
                    }
                }
                EventKind::Finished => drop(submitted.remove(&part)),
                _ => {}
            }
        }
    }

    /// Adds the steps; from when to when they last.
    fn add_steps(&mut self, members: &[Member], count: usize) -> Result<(i64, i64), TraceError> {
        let mut workers: Vec<(usize, &Member, BTreeMap<u32, Step>)> = Vec::new();
        for (process, member) in members.iter().enumerate() {
            let clients = member.recordings.iter().filter(|r| r.source == Source::Client);
            let events: Vec<Event> = clients.flat_map(|r| r.events.iter().copied()).collect();
            if matches!(member.role, Role::Worker(_)) {
                workers.push((process, member, steps(&events)));
            }
        }
        let Some((_, _, first)) = workers.first() else {
            return Err(TraceError::Empty("no worker of the run has answered".to_owned()));
        };
        let everywhere = |step: &u32| workers.iter().all(|(.., steps)| steps.contains_key(step));
        let common: Vec<u32> = first.keys().copied().filter(everywhere).collect();
        let chosen = &common[common.len().saturating_sub(count)..];
        if chosen.is_empty() {
            return Err(TraceError::Empty(
                "no step that is complete on every worker is recorded: wait for one, or enlarge \
                 trace_events"
                    .to_owned(),
            ));
        }
        let (mut from, mut to) = (i64::MAX, i64::MIN);
        for (process, member, steps) in &workers {
            for number in chosen {
                let step = steps[number];
                let [begin, last, end] =
                    [step.begin_ns, step.last_ns, step.end_ns].map(|at| member.clock.map(at));
                (from, to) = (from.min(begin), to.max(last));
                let slice = Slice {
                    process: *process,
                    track: "steps".to_owned(),
                    activity: Activity::Step,
                    begin_ns: 0,
                    end_ns: 0,
                    tensor: None,
                    round: Some(*number),
                    partition: None,
                    tier: None,
                    bytes: None,
                    peer: None,
                    flows: Vec::new(),
                };
                self.slices.push(Raw { begin, end, slice });
            }
        }
        Ok((from, to))
    }
}

/// The beginnings that a client's events leave behind.
const OF_A_CLIENT: [EventKind; 5] = [
    EventKind::Offered,
    EventKind::SendBegin,
    EventKind::SendEnd,
    EventKind::ReceiveBegin,
    EventKind::CopyBegin,
];

/// A lane in words.
fn lane_label(peer: Peer) -> String {
    match peer {
        Peer::Unknown => "a lane".to_owned(),
        Peer::Rank(rank) => format!("rank {rank}"),
        Peer::WorkerLane { rank, lane: 0 } => format!("rank {rank}"),
        Peer::WorkerLane { rank, lane } => format!("rank {rank} lane {lane}"),
        Peer::ServerLane { member, lane } => format!("server {member} lane {lane}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_a_device_queues_from_when_it_is_there() {
        let part = |round, partition| Part { tensor: 0, tier: 0, round, partition };
        let event =
            |kind, part, at_ns| Event { at_ns, kind, part, peer: Peer::Unknown, bytes: 64, run: 0 };
        let mut events = Vec::new();
        for round in 0..2 {
            let at = u64::from(round) * 1000;
            events.push(event(EventKind::Submitted, part(round, Part::WHOLE), at));
            events.push(event(EventKind::Supplied, part(round, 0), at + 200));
            events.push(event(EventKind::SendBegin, part(round, 0), at + 250));
            // In host memory from the start.
            events.push(event(EventKind::SendBegin, part(round, 1), at + 300));
            events.push(event(EventKind::Finished, part(round, Part::WHOLE), at + 500));
        }
        let client = Recording { source: Source::Client, lost: 0, events };
        let member = Member {
            process: "rank 0".to_owned(),
            role: Role::Worker(0),
            clock: Alignment::same(),
            recordings: vec![client],
        };
        let trace = build("run", &[member], &["x".to_owned()], 1).expect("complete steps");
        let queued = trace.slices.iter().filter(|slice| slice.activity == Activity::Queued);
        let waited = |slice: &Slice| (slice.partition, slice.end_ns - slice.begin_ns);
        let waited: Vec<_> = queued.map(waited).collect();
        assert_eq!(waited, [(Some(1), 300), (Some(0), 50)]);
    }
}
