//! What this process has recorded, for traces of its runs.

use std::sync::Arc;

use crossbeam_channel::{Receiver, unbounded};
use sumpter_config::Config;
use sumpter_coordinator::Member;
use sumpter_observe::{Event, Part, Recorder, Recording, Source, monotonic_ns};
use sumpter_types::JobId;

use crate::command::Command;
use crate::remote::Remote;

/// A ring as the settings want it.
pub(crate) fn recorder(config: &Config) -> Recorder {
    Recorder::new(config.trace_events as usize, monotonic_ns)
}

/// What the client of an event loop has recorded: it takes part in one run, so its events carry
/// none.
pub(crate) fn of_client(recorder: &Recorder, event_loop: u32) -> Recording {
    let events = recorder.snapshot().into_iter().map(|event| numbered(event, event_loop));
    Recording { source: Source::Client, lost: recorder.lost(), events: events.collect() }
}

/// What lane `index` has recorded of a run; it may serve others as well.
pub(crate) fn of_lane(recorder: &Recorder, index: u32, run: JobId) -> Recording {
    let of_run = |event: &Event| JobId(event.run).run() == run;
    let events = recorder.snapshot().into_iter().filter(of_run);
    let events = events.map(|event| {
        let number = JobId(event.run).event_loop();
        numbered(Event { run: run.0, ..event }, number)
    });
    Recording { source: Source::Lane(index), lost: recorder.lost(), events: events.collect() }
}

/// Partitions of one event loop's part of a tensor, in a trace: more than any tensor has.
const PARTITIONS_OF_A_LOOP: u32 = 1 << 24;

/// An event of the part of a tensor that an event loop serves. Each loop counts the partitions of
/// its part from 0; in a trace they follow those of the loops before it.
fn numbered(event: Event, event_loop: u32) -> Event {
    let part = match event.part.partition {
        Part::WHOLE => event.part,
        number => {
            let partition = number.wrapping_add(event_loop * PARTITIONS_OF_A_LOOP);
            Part { partition, ..event.part }
        }
    };
    Event { part, ..event }
}

/// Lets the lanes of a server answer a request for a trace.
pub(crate) fn answer_of(remotes: &[Remote], request: u64, job: JobId, member: Arc<Member>) {
    let (sender, recordings): (_, Receiver<Vec<Recording>>) = unbounded();
    for remote in remotes {
        remote.send(Command::Recordings(job, sender.clone()));
    }
    drop(sender);
    answer(request, member, move || recordings.into_iter().flatten().collect());
}

/// Answers a request for a trace, from a thread of its own: encoding takes milliseconds.
pub(crate) fn answer(
    request: u64,
    member: Arc<Member>,
    recordings: impl FnOnce() -> Vec<Recording> + Send + 'static,
) {
    let body = move || {
        for recording in recordings() {
            for piece in recording.encode() {
                member.send_trace(request, piece, false);
            }
        }
        member.send_trace(request, Vec::new(), true);
    };
    if let Err(error) = std::thread::Builder::new().name("sumpter-trace".into()).spawn(body) {
        tracing::warn!(%error, "no thread to answer a request for a trace");
    }
}
