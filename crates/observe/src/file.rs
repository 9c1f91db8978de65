//! A trace as a file for Perfetto: a process a row group, a track a row, a flow from a gradient
//! through its sum and back.
//!
//! The first event says that the file is one of Sumpter's, of which version and run, how far each
//! clock may be off, how many slices follow, and remarks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};

use prost::Message;

use crate::build::{Slice, Trace};
use crate::error::TraceError;
use crate::label::Activity;
use crate::perfetto::{
    self, CLEARED, DebugAnnotation, INSTANT, ProcessDescriptor, SLICE_BEGIN, SLICE_END,
    TracePacket, TrackDescriptor, TrackEvent,
};

/// The version of what Sumpter puts into the file; the format itself is Perfetto's.
pub const VERSION: u64 = 1;

/// The name of the first event, and its category.
const HEAD: &str = "sumpter.trace";
/// What precedes a process's name in the head.
const CLOCK_ERROR: &str = "clock_error_s/";
/// What precedes a remark's number in the head.
const REMARK: &str = "remark/";
/// Clocks that may be further apart do not order events.
const MAX_CLOCK_ERROR_S: f64 = 60.0;

/// The bytes of a trace's file.
#[must_use]
pub fn write(trace: &Trace) -> Vec<u8> {
    let mut packets = vec![head(trace)];
    for (process, (name, _)) in trace.processes.iter().enumerate() {
        let process_name = Some(name.clone());
        let pid = i32::try_from(process + 1).ok();
        let uuid = Some(process as u64 + 1);
        let process = Some(ProcessDescriptor { pid, process_name });
        packets.push(described(TrackDescriptor { uuid, process, ..TrackDescriptor::default() }));
    }
    let mut tracks: BTreeMap<(usize, &str), Vec<&Slice>> = BTreeMap::new();
    for slice in &trace.slices {
        tracks.entry((slice.process, &slice.track)).or_default().push(slice);
    }
    let mut uuid = trace.processes.len() as u64;
    for ((process, name), slices) in tracks {
        for row in rows(&slices) {
            uuid += 1;
            packets.push(described(TrackDescriptor {
                uuid: Some(uuid),
                name: Some(name.to_owned()),
                parent_uuid: Some(process as u64 + 1),
                process: None,
            }));
            packets.extend(row.into_iter().flat_map(|slice| events(slice, uuid)));
        }
    }
    perfetto::Trace { packet: packets }.encode_to_vec()
}

fn head(trace: &Trace) -> TracePacket {
    let mut debug_annotations = vec![
        DebugAnnotation::number("version", VERSION),
        DebugAnnotation::text("run", &trace.run),
        DebugAnnotation::number("slices", trace.slices.len() as u64),
    ];
    let clocks = trace.processes.iter();
    debug_annotations.extend(clocks.map(|(process, error_s)| {
        DebugAnnotation::real(&format!("{CLOCK_ERROR}{process}"), *error_s)
    }));
    let remarks = trace.remarks.iter().enumerate();
    debug_annotations.extend(
        remarks.map(|(number, line)| DebugAnnotation::text(&format!("{REMARK}{number}"), line)),
    );
    let event = TrackEvent {
        debug_annotations,
        r#type: Some(INSTANT),
        track_uuid: Some(0),
        categories: vec![HEAD.to_owned()],
        name: Some(HEAD.to_owned()),
        flow_ids: Vec::new(),
    };
    TracePacket { sequence_flags: Some(CLEARED), ..packet(Some(0), event) }
}

fn packet(timestamp: Option<u64>, event: TrackEvent) -> TracePacket {
    TracePacket {
        timestamp,
        trusted_packet_sequence_id: Some(1),
        track_event: Some(event),
        ..TracePacket::default()
    }
}

fn described(descriptor: TrackDescriptor) -> TracePacket {
    TracePacket {
        trusted_packet_sequence_id: Some(1),
        track_descriptor: Some(descriptor),
        ..TracePacket::default()
    }
}

/// Deals slices out to as few rows as keep those of a row apart; Perfetto shows rows of one name
/// as one track.
fn rows<'a>(slices: &[&'a Slice]) -> Vec<Vec<&'a Slice>> {
    let mut slices = slices.to_vec();
    slices.sort_by_key(|slice| (slice.begin_ns, slice.end_ns));
    let mut rows: Vec<Vec<&Slice>> = Vec::new();
    let mut free: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    for slice in slices {
        let row = match free.peek() {
            Some(Reverse((end, row))) if *end <= slice.begin_ns => {
                let row = *row;
                free.pop();
                row
            }
            _ => {
                rows.push(Vec::new());
                rows.len() - 1
            }
        };
        rows[row].push(slice);
        free.push(Reverse((slice.end_ns, row)));
    }
    rows
}

fn events(slice: &Slice, uuid: u64) -> [TracePacket; 2] {
    let mut notes = Vec::new();
    let numbers = [
        ("round", slice.round.map(u64::from)),
        ("partition", slice.partition.map(u64::from)),
        ("tier", slice.tier.map(u64::from)),
        ("bytes", slice.bytes),
    ];
    let texts = [("tensor", &slice.tensor), ("peer", &slice.peer)];
    notes.extend(
        texts.iter().filter_map(|(name, text)| {
            text.as_deref().map(|text| DebugAnnotation::text(name, text))
        }),
    );
    notes.extend(
        numbers.iter().filter_map(|(name, number)| {
            number.map(|number| DebugAnnotation::number(name, number))
        }),
    );
    let activity = slice.activity.name();
    let name = match (&slice.tensor, &slice.peer, slice.round) {
        (Some(tensor), Some(peer), _) if slice.activity == Activity::Waiting => {
            format!("waiting for {peer}: {tensor}")
        }
        (Some(tensor), ..) => format!("{activity} {tensor}"),
        (None, _, Some(round)) => format!("{activity} {round}"),
        (None, _, None) => activity.to_owned(),
    };
    let begin = TrackEvent {
        debug_annotations: notes,
        r#type: Some(SLICE_BEGIN),
        track_uuid: Some(uuid),
        categories: vec![activity.to_owned()],
        name: Some(name),
        flow_ids: slice.flows.clone(),
    };
    let end =
        TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(uuid), ..TrackEvent::default() };
    [packet(Some(slice.begin_ns), begin), packet(Some(slice.end_ns), end)]
}

/// Reads a trace's file.
///
/// # Errors
/// [`TraceError::File`] if it is none, not whole, or of a newer version.
pub fn read(bytes: &[u8]) -> Result<Trace, TraceError> {
    let wrong =
        |field: &str, problem: String| TraceError::File { field: field.to_owned(), problem };
    let trace = perfetto::Trace::decode(bytes).map_err(|error| {
        let problem = format!("cut off, or no Perfetto trace ({error}); expected whole packets");
        wrong("packets", problem)
    })?;
    let head = trace.packet.first().and_then(|packet| packet.track_event.as_ref());
    let head = head.filter(|event| event.name.as_deref() == Some(HEAD)).ok_or_else(|| {
        wrong("packet 0", format!("not written by `sumpter trace`; expected the event {HEAD}"))
    })?;
    let notes = Notes::of(head);
    let version = notes.number("version").unwrap_or(0);
    if version != VERSION {
        let advice = if version > VERSION { "; read it with a newer Sumpter" } else { "" };
        return Err(wrong("version", format!("it is {version}, expected {VERSION}{advice}")));
    }
    let run = notes.text("run").ok_or_else(|| wrong("run", "missing; expected a text".into()))?;
    let remarks = (0..).map_while(|number| notes.text(&format!("{REMARK}{number}"))).collect();
    let mut found = Trace { run, remarks, ..Trace::default() };
    let rows = describe(&trace.packet, &notes, &mut found).map_err(|p| wrong("tracks", p))?;
    let count = notes.number("slices").unwrap_or(0);
    found.slices = slices(&trace.packet, &rows).map_err(|problem| wrong("slices", problem))?;
    if found.slices.len() as u64 != count {
        let there = found.slices.len();
        return Err(wrong("slices", format!("cut off: {there} are there, expected {count}")));
    }
    found.slices.sort_by_key(|slice| (slice.begin_ns, slice.process, slice.activity));
    Ok(found)
}

/// The tracks by number: the process and the name of each.
fn describe(
    packets: &[TracePacket],
    head: &Notes<'_>,
    found: &mut Trace,
) -> Result<HashMap<u64, (usize, String)>, String> {
    let (mut processes, mut rows) = (HashMap::new(), HashMap::new());
    for track in packets.iter().filter_map(|packet| packet.track_descriptor.as_ref()) {
        let uuid = track.uuid.unwrap_or(0);
        if let Some(process) = &track.process {
            let name = process.process_name.clone().unwrap_or_default();
            let error_s = head.real(&format!("{CLOCK_ERROR}{name}")).ok_or_else(|| {
                format!("{CLOCK_ERROR}{name} is missing; expected how far its clock may be off")
            })?;
            if !(0.0..=MAX_CLOCK_ERROR_S).contains(&error_s) {
                return Err(format!(
                    "the clock of {name} may be off by {error_s:.0} s, expected at most \
                     {MAX_CLOCK_ERROR_S} s"
                ));
            }
            processes.insert(uuid, found.processes.len());
            found.processes.push((name, error_s));
        } else {
            let parent = track.parent_uuid.unwrap_or(0);
            let process = processes.get(&parent);
            let process = process.ok_or_else(|| format!("track {uuid} belongs to no process"))?;
            rows.insert(uuid, (*process, track.name.clone().unwrap_or_default()));
        }
    }
    Ok(rows)
}

fn slices(
    packets: &[TracePacket],
    rows: &HashMap<u64, (usize, String)>,
) -> Result<Vec<Slice>, String> {
    let mut open: HashMap<u64, Slice> = HashMap::new();
    let mut done = Vec::new();
    for packet in packets {
        let Some(event) = &packet.track_event else { continue };
        let at = packet.timestamp.unwrap_or(0);
        let uuid = event.track_uuid.unwrap_or(0);
        match event.r#type {
            Some(SLICE_BEGIN) => {
                let row = rows.get(&uuid);
                let (process, track) = row.ok_or_else(|| format!("a slice of no track {uuid}"))?;
                let slice = begun(event, at, (*process, track))?;
                if open.insert(uuid, slice).is_some() {
                    return Err(format!("two at once on track {uuid}"));
                }
            }
            Some(SLICE_END) => {
                let slice = open.remove(&uuid);
                let slice =
                    slice.ok_or_else(|| format!("an end without a beginning at {at} ns"))?;
                if at < slice.begin_ns {
                    return Err(format!("one ends at {at} ns, before it begins"));
                }
                done.push(Slice { end_ns: at, ..slice });
            }
            _ => {}
        }
    }
    Ok(done)
}

fn begun(event: &TrackEvent, at: u64, (process, track): (usize, &str)) -> Result<Slice, String> {
    let notes = Notes::of(event);
    let category = event.categories.first().map_or("", String::as_str);
    let activity = Activity::of(category);
    let small = |name: &str| notes.number(name).and_then(|n| u32::try_from(n).ok());
    Ok(Slice {
        process,
        track: track.to_owned(),
        activity: activity.ok_or_else(|| format!("an unknown activity {category:?}"))?,
        begin_ns: at,
        end_ns: at,
        tensor: notes.text("tensor"),
        round: small("round"),
        partition: small("partition"),
        tier: small("tier"),
        bytes: notes.number("bytes"),
        peer: notes.text("peer"),
        flows: event.flow_ids.clone(),
    })
}

/// What an event says of itself.
struct Notes<'a>(&'a [DebugAnnotation]);

impl<'a> Notes<'a> {
    fn of(event: &'a TrackEvent) -> Notes<'a> {
        Notes(&event.debug_annotations)
    }

    fn find(&self, name: &str) -> Option<&DebugAnnotation> {
        self.0.iter().find(|note| note.name.as_deref() == Some(name))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.find(name)?.uint_value
    }

    fn real(&self, name: &str) -> Option<f64> {
        self.find(name)?.double_value
    }

    fn text(&self, name: &str) -> Option<String> {
        self.find(name)?.string_value.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn slices_of(processes: usize)(
            process in 0..processes,
            track in 0..3u32,
            activity in 0..Activity::ALL.len(),
            begin_ns in 0..1000u64,
            length in 0..500u64,
            tensor: Option<u8>,
            round: Option<u32>,
            flows in vec(any::<u64>(), 0..3),
        ) -> Slice {
            Slice {
                process,
                track: format!("track {track}"),
                activity: Activity::ALL[activity],
                begin_ns,
                end_ns: begin_ns + length,
                tensor: tensor.map(|number| format!("layer{number}.weight")),
                round,
                partition: round,
                tier: None,
                bytes: round.map(u64::from),
                peer: tensor.map(|number| format!("rank {number}")),
                flows,
            }
        }
    }

    fn key(slice: &Slice) -> (u64, usize, u64, String) {
        (slice.begin_ns, slice.process, slice.end_ns, format!("{slice:?}"))
    }

    fn sorted(mut trace: Trace) -> Trace {
        trace.slices.sort_by_key(key);
        trace
    }

    fn trace(slices: Vec<Slice>) -> Trace {
        let processes = vec![("rank 0 on a".to_owned(), 0.0), ("server 1 on b".to_owned(), 2e-5)];
        let remarks = vec!["something of note".to_owned(), String::new()];
        Trace { run: "00ff".to_owned(), processes, slices, remarks }
    }

    proptest! {
        #[test]
        fn what_is_written_is_what_is_read(slices in vec(slices_of(2), 0..60)) {
            let trace = trace(slices);
            prop_assert_eq!(sorted(read(&write(&trace)).unwrap()), sorted(trace));
        }

        #[test]
        fn a_file_that_is_cut_off_anywhere_is_refused(
            slices in vec(slices_of(2), 1..10), at in 0.0..1.0f64
        ) {
            let bytes = write(&trace(slices));
            let cut = (bytes.len() as f64 * at) as usize;
            prop_assert!(read(&bytes[..cut]).is_err());
        }

        #[test]
        fn any_bytes_are_a_trace_or_refused(bytes in vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }
    }

    fn problem(bytes: &[u8]) -> String {
        read(bytes).unwrap_err().to_string()
    }

    #[test]
    fn whatever_is_no_trace_of_ours_is_named() {
        assert!(problem(b"{\"traceEvents\": []}").starts_with("packets: cut off, or no Perfetto"));
        assert!(problem(b"").contains("not written by `sumpter trace`"));
        let other = perfetto::Trace { packet: vec![packet(Some(3), TrackEvent::default())] };
        assert!(problem(&other.encode_to_vec()).contains("expected the event sumpter.trace"));
        let mut newer = head(&trace(Vec::new()));
        newer.track_event.as_mut().unwrap().debug_annotations[0].uint_value = Some(2);
        let newer = perfetto::Trace { packet: vec![newer] }.encode_to_vec();
        assert_eq!(problem(&newer), "version: it is 2, expected 1; read it with a newer Sumpter");
        let mut apart = trace(Vec::new());
        apart.processes[1].1 = 7200.0;
        let expected = "tracks: the clock of server 1 on b may be off by 7200 s, expected at most";
        assert!(problem(&write(&apart)).starts_with(expected));
    }
}
