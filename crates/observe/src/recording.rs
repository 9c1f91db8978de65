//! A ring's contents as they travel: columns of small numbers, times as differences.

use prost::Message;

use crate::event::{Event, EventKind, Part, Peer};

/// What noted the events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// The client of a worker.
    Client,
    /// A lane, by its number with its owner.
    Lane(u32),
}

/// What one state machine has noted, or a piece of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recording {
    /// Whose.
    pub source: Source,
    /// Earlier events that were overwritten.
    pub lost: u64,
    /// In the order in which they were noted.
    pub events: Vec<Event>,
}

/// Events of one piece: a piece stays well below what a coordinator takes as one message.
const EVENTS_PER_PIECE: usize = 1 << 15;

/// The version of the columns.
const VERSION: u32 = 1;

#[derive(Clone, PartialEq, Message)]
struct Columns {
    #[prost(uint32, tag = "1")]
    version: u32,
    /// 0 for the client, else one more than the lane.
    #[prost(uint32, tag = "2")]
    source: u32,
    #[prost(uint64, tag = "3")]
    lost: u64,
    /// The first as it is, the others by how much later than the one before.
    #[prost(uint64, repeated, tag = "4")]
    at_ns: Vec<u64>,
    #[prost(uint32, repeated, tag = "5")]
    kind: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    tensor: Vec<u32>,
    #[prost(uint32, repeated, tag = "7")]
    tier: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    round: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    partition: Vec<u32>,
    #[prost(uint64, repeated, tag = "10")]
    peer: Vec<u64>,
    #[prost(uint32, repeated, tag = "11")]
    bytes: Vec<u32>,
}

impl Recording {
    /// The recording in pieces, none too large for a message; at least one. Of which run the events
    /// are, is left out: a request for one run's gets only those.
    #[must_use]
    pub fn encode(&self) -> Vec<Vec<u8>> {
        let mut pieces: Vec<_> =
            self.events.chunks(EVENTS_PER_PIECE).map(|events| self.piece(events)).collect();
        if pieces.is_empty() {
            pieces.push(self.piece(&[]));
        }
        pieces
    }

    fn piece(&self, events: &[Event]) -> Vec<u8> {
        let mut before = 0;
        let since = |event: &Event| {
            let step = event.at_ns.saturating_sub(before);
            before = before.max(event.at_ns);
            step
        };
        let column = |of: fn(&Event) -> u32| events.iter().map(of).collect::<Vec<u32>>();
        let columns = Columns {
            version: VERSION,
            source: match self.source {
                Source::Client => 0,
                Source::Lane(lane) => lane + 1,
            },
            lost: self.lost,
            at_ns: events.iter().map(since).collect(),
            kind: column(|event| event.kind as u32),
            tensor: column(|event| event.part.tensor),
            tier: column(|event| u32::from(event.part.tier)),
            round: column(|event| event.part.round),
            partition: column(|event| event.part.partition),
            peer: events.iter().map(|event| event.peer.code()).collect(),
            bytes: column(|event| event.bytes),
        };
        columns.encode_to_vec()
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// A text that says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Recording, String> {
        let columns = Columns::decode(bytes).map_err(|error| error.to_string())?;
        if columns.version != VERSION {
            let theirs = columns.version;
            return Err(format!("its version is {theirs}, expected {VERSION}"));
        }
        let count = columns.at_ns.len();
        let lengths = [
            columns.kind.len(),
            columns.tensor.len(),
            columns.tier.len(),
            columns.round.len(),
            columns.partition.len(),
            columns.peer.len(),
            columns.bytes.len(),
        ];
        if lengths.iter().any(|length| *length != count) {
            return Err(format!("columns of {lengths:?} values, expected {count} each"));
        }
        let mut at_ns: u64 = 0;
        let mut events = Vec::with_capacity(count);
        for at in 0..count {
            at_ns = at_ns.saturating_add(columns.at_ns[at]);
            let (kind, peer, tier) = (columns.kind[at], columns.peer[at], columns.tier[at]);
            let kind = EventKind::of(kind).ok_or_else(|| format!("an event of kind {kind}"))?;
            let peer = Peer::of(peer).ok_or_else(|| format!("a peer {peer:#x}"))?;
            let tier = u8::try_from(tier).map_err(|_| format!("a tier {tier}"))?;
            let (tensor, round) = (columns.tensor[at], columns.round[at]);
            let part = Part { tensor, tier, round, partition: columns.partition[at] };
            let bytes = columns.bytes[at];
            events.push(Event { at_ns, kind, part, peer, bytes, run: 0 });
        }
        let source = match columns.source {
            0 => Source::Client,
            lane => Source::Lane(lane - 1),
        };
        Ok(Recording { source, lost: columns.lost, events })
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn peers() -> impl Strategy<Value = Peer> {
        prop_oneof![
            Just(Peer::Unknown),
            any::<u32>().prop_map(Peer::Rank),
            any::<(u32, u16)>().prop_map(|(rank, lane)| Peer::WorkerLane { rank, lane }),
            any::<(u32, u16)>().prop_map(|(member, lane)| Peer::ServerLane { member, lane }),
        ]
    }

    fn parts() -> impl Strategy<Value = Part> {
        any::<(u32, u8, u32, u32)>().prop_map(|(tensor, tier, round, partition)| Part {
            tensor,
            tier,
            round,
            partition,
        })
    }

    prop_compose! {
        fn recordings()(
            lane: Option<u16>,
            lost: u64,
            what in vec(
                (0..EventKind::ALL.len(), parts(), peers(), any::<u32>(), 0..u64::MAX / 128),
                0..100,
            ),
        ) -> Recording {
            let mut at_ns = 0;
            let event = |(kind, part, peer, bytes, later)| {
                at_ns += later;
                Event { at_ns, kind: EventKind::ALL[kind], part, peer, bytes, run: 0 }
            };
            let source = lane.map_or(Source::Client, |lane| Source::Lane(u32::from(lane)));
            Recording { source, lost, events: what.into_iter().map(event).collect() }
        }
    }

    proptest! {
        #[test]
        fn what_is_sent_is_what_is_read(recording in recordings()) {
            let pieces = recording.encode();
            prop_assert_eq!(pieces.len(), 1);
            prop_assert_eq!(Recording::decode(&pieces[0]), Ok(recording));
        }

        #[test]
        fn any_bytes_are_a_recording_or_refused(bytes in vec(any::<u8>(), 0..300)) {
            let _ = Recording::decode(&bytes);
        }
    }

    #[test]
    fn a_long_recording_goes_in_pieces_of_bounded_size() {
        let part = Part { tensor: u32::MAX, tier: 2, round: u32::MAX, partition: u32::MAX };
        let peer = Peer::ServerLane { member: u32::MAX, lane: u16::MAX };
        let event =
            Event { at_ns: 0, kind: EventKind::SumEnd, part, peer, bytes: u32::MAX, run: 0 };
        let events: Vec<_> = (0..100_000).map(|at| Event { at_ns: at << 30, ..event }).collect();
        let recording = Recording { source: Source::Lane(3), lost: 5, events };
        let pieces = recording.encode();
        assert!(pieces.len() == 4 && pieces.iter().all(|piece| piece.len() < 2 << 20));
        let read = pieces.iter().flat_map(|piece| Recording::decode(piece).unwrap().events);
        assert_eq!(read.collect::<Vec<_>>(), recording.events);
    }

    #[test]
    fn a_newer_version_is_named() {
        let newer = Columns { version: 2, ..Columns::default() }.encode_to_vec();
        assert!(Recording::decode(&newer).unwrap_err().contains("version is 2, expected 1"));
    }
}
