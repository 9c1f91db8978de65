//! What a worker's operations did when, in the trace format that Chrome and Perfetto show.
//!
//! The event loop hands records to a thread that writes them, so that a slow disk does not delay
//! the loop. A reader needs no closing bracket, so the file is of use even if the process dies.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, unbounded};
use serde_json::{Value, json};
use sumpter_types::{Collective, Dtype, Rank, TensorId};

use crate::error::NodeError;

/// An operation that is done.
#[derive(Debug)]
pub(crate) struct Record {
    pub tensor: TensorId,
    pub name: String,
    pub collective: Collective,
    pub dtype: Dtype,
    pub bytes: u64,
    pub round: u64,
    pub submitted: Instant,
    /// When its name was known to the coordinator, and it could begin.
    pub begun: Instant,
    pub done: Instant,
    pub failed: bool,
}

/// A file that is being written. It is complete when every sender of records is gone.
#[derive(Debug)]
pub(crate) struct Timeline {
    path: PathBuf,
    writer: JoinHandle<io::Result<()>>,
}

impl Timeline {
    /// Begins a file; time counts from now.
    pub(crate) fn begin(
        path: &Path,
        rank: Rank,
        host: &str,
    ) -> Result<(Timeline, Sender<Record>), NodeError> {
        let path = path.to_owned();
        let (sender, records) = unbounded();
        let begun = File::create(&path).and_then(|file| {
            let mut file = BufWriter::new(file);
            let name = json!({"name": format!("rank {rank} on {host}")});
            let first = json!({"ph": "M", "name": "process_name", "pid": rank.0, "args": name});
            write!(file, "[\n{first}")?;
            file.flush()?;
            let origin = Instant::now();
            std::thread::Builder::new()
                .name("sumpter-timeline".to_owned())
                .spawn(move || write_all(file, origin, rank, &records))
        });
        match begun {
            Ok(writer) => Ok((Timeline { path, writer }, sender)),
            Err(source) => Err(NodeError::Timeline { path, source }),
        }
    }

    /// Waits until everything is written; the records' sender must be gone.
    pub(crate) fn finish(self) -> Result<(), NodeError> {
        let written = self.writer.join();
        let written = written.unwrap_or_else(|_| Err(io::Error::other("its writer panicked")));
        written.map_err(|source| NodeError::Timeline { path: self.path, source })
    }
}

fn write_all(
    mut file: impl Write,
    origin: Instant,
    rank: Rank,
    records: &Receiver<Record>,
) -> io::Result<()> {
    let mut seen = HashSet::new();
    for record in records {
        if seen.insert(record.tensor) {
            let args = json!({"name": record.name});
            let tid = record.tensor.0;
            let row = json!({"ph": "M", "name": "thread_name", "pid": rank.0, "tid": tid,
                             "args": args});
            write!(file, ",\n{row}")?;
        }
        for span in spans(&record, origin, rank) {
            write!(file, ",\n{span}")?;
        }
        if records.is_empty() {
            file.flush()?;
        }
    }
    writeln!(file, "\n]")?;
    file.flush()
}

/// The spans of an operation, in Horovod's words: the wait for its name, and itself.
fn spans(record: &Record, origin: Instant, rank: Rank) -> [Value; 2] {
    let micros = |at: Instant| at.saturating_duration_since(origin).as_nanos() as f64 / 1e3;
    let collective = record.collective.name().replace('_', "").to_uppercase();
    let span = |name: String, from: Instant, to: Instant, args: Value| {
        json!({"ph": "X", "name": name, "pid": rank.0, "tid": record.tensor.0,
               "ts": micros(from), "dur": micros(to) - micros(from), "args": args})
    };
    let dtype = record.dtype.name();
    let mut args = json!({"bytes": record.bytes, "dtype": dtype, "round": record.round});
    if record.failed {
        args["failed"] = json!(true);
    }
    [
        span(format!("NEGOTIATE_{collective}"), record.submitted, record.begun, json!({})),
        span(collective.clone(), record.begun, record.done, args),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn record(origin: Instant, name: &str, at_us: u64, failed: bool) -> Record {
        let at = |us: u64| origin + Duration::from_micros(us);
        Record {
            tensor: TensorId(name.len() as u32),
            name: name.to_owned(),
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            bytes: 4096,
            round: at_us,
            submitted: at(at_us),
            begun: at(at_us + 5),
            done: at(at_us + 25),
            failed,
        }
    }

    #[test]
    fn a_trace_is_json_with_a_row_a_tensor_and_two_spans_an_operation() {
        let origin = Instant::now();
        let (sender, records) = unbounded();
        for (name, at, failed) in [("a", 10, false), ("b\"\\\n", 20, true), ("a", 90, false)] {
            sender.send(record(origin, name, at, failed)).unwrap();
        }
        drop(sender);
        let mut text = b"[\n{}".to_vec();
        write_all(&mut text, origin, Rank(3), &records).unwrap();
        let trace: Vec<Value> = serde_json::from_slice(&text).unwrap();
        let of = |ph: &str| trace.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let names: Vec<_> = of("M").iter().map(|e| e["args"]["name"].clone()).collect();
        assert_eq!(names, ["a", "b\"\\\n"]);
        let spans = of("X");
        let told: Vec<_> = spans
            .iter()
            .map(|e| (e["name"].as_str().unwrap(), e["ts"].as_f64().unwrap().round() as u64))
            .collect();
        let expected = [10, 20, 90]
            .iter()
            .flat_map(|at| [("NEGOTIATE_ALLREDUCE", *at), ("ALLREDUCE", at + 5)])
            .collect::<Vec<_>>();
        assert_eq!(told, expected);
        let long = |e: &&Value| (e["dur"].as_f64().unwrap().round() as u64, e["pid"].as_u64());
        assert_eq!(spans.iter().map(long).collect::<Vec<_>>()[..2], [(5, Some(3)), (20, Some(3))]);
        assert_eq!(spans[1]["args"], json!({"bytes": 4096, "dtype": "float32", "round": 10}));
        assert_eq!(
            spans[3]["args"],
            json!({"bytes": 4096, "dtype": "float32", "round": 20, "failed": true})
        );
    }
}
