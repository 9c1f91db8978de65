//! What a member reports with its heartbeats.

use std::collections::BTreeMap;
use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::status::run_text;
use crate::{JobId, Rank};

/// A member's counters, the ranks it waited for, and its pending operations.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Stats {
    /// Numbers by name.
    pub counters: BTreeMap<String, f64>,
    /// The ranks that contributed last.
    pub late: Vec<Late>,
    /// Operations that were submitted and are not done, the oldest first.
    pub pending: Vec<PendingOp>,
    /// Of a worker: the operations of each tensor that it has begun, by the tensor's number. Left
    /// out of reports: as many numbers as tensors.
    #[serde(skip)]
    pub begun: Vec<u64>,
    /// The last operations of a worker that failed because ranks disagree, the oldest first. Left
    /// out of reports: the coordinator looks for other ranks that wait in them.
    #[serde(skip)]
    pub refused: Vec<RefusedOp>,
    /// Of the lowest rank: what `auto` has chosen for the job's tensors. Left out of reports: the
    /// job's status has it.
    #[serde(skip)]
    pub choices: Vec<CodecChoice>,
}

impl Stats {
    /// As reports have it: without what they leave out, but for the choices of `auto`.
    #[must_use]
    pub fn for_report(&self) -> Self {
        let Self { counters, late, pending, choices, .. } = self;
        Self {
            counters: counters.clone(),
            late: late.clone(),
            pending: pending.clone(),
            choices: choices.clone(),
            ..Self::default()
        }
    }
}

/// The codec that `auto` has chosen for tensors, and why: the same for all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CodecChoice {
    /// The codec; empty if they are not compressed.
    pub codec: String,
    /// How many tensors these are.
    pub tensors: u32,
    /// Their bytes.
    pub bytes: u64,
    /// The name of the largest of them.
    pub example: String,
    /// The reason in a line, with the numbers of that one.
    pub reason: String,
}

/// In a line, for the log, the status and a trace.
impl fmt::Display for CodecChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensors, bytes, example, reason, .. } = self;
        let plural = if *tensors == 1 { "" } else { "s" };
        let (size, unit) = match *bytes as f64 / 1024.0 {
            kib if kib < 1024.0 => (kib, "KiB"),
            kib if kib < 1024.0 * 1024.0 => (kib / 1024.0, "MiB"),
            kib => (kib / 1024.0 / 1024.0, "GiB"),
        };
        let size = format!("{tensors} tensor{plural} of {size:.1} {unit}");
        write!(f, "compression auto, {size}: {reason} ({example})")
    }
}

/// The parts, and the `line` that they make.
impl Serialize for CodecChoice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { codec, tensors, bytes, example, reason } = self;
        let mut parts = serializer.serialize_struct("CodecChoice", 6)?;
        parts.serialize_field("codec", codec)?;
        parts.serialize_field("tensors", tensors)?;
        parts.serialize_field("bytes", bytes)?;
        parts.serialize_field("example", example)?;
        parts.serialize_field("reason", reason)?;
        parts.serialize_field("line", &self.to_string())?;
        parts.end()
    }
}

/// How often a rank of a run came last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Late {
    /// The run, of those that a server has served.
    #[serde(serialize_with = "as_run_text")]
    pub run: JobId,
    /// The late rank.
    pub rank: Rank,
    /// How often it came last.
    pub count: u64,
    /// The seconds the others waited for it.
    pub seconds: f64,
}

fn as_run_text<S: Serializer>(run: &JobId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&run_text(*run))
}

/// An operation that was submitted and is not done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PendingOp {
    /// The tensor's name.
    pub name: String,
    /// `group#sequence|signature`, by which the coordinator finds ranks that wait for different
    /// collectives; `group#sequence.round|signature` in a later round of one. Other text is
    /// ignored.
    pub tag: String,
    /// How long it has been waiting.
    pub since_ms: u64,
    /// Its number among the tensor's operations, from 0.
    pub round: u64,
    /// The lane whose part is not done, and its state, in words; empty for a young operation.
    pub waits_for: String,
    /// How likely it is that the operation waits because of that lane.
    pub suspicion: Suspicion,
    /// Bytes that are still to come or, if none come to this worker, to go; 0 for a young
    /// operation.
    pub left_bytes: u64,
}

/// An operation that failed because ranks disagree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RefusedOp {
    /// The tensor's name.
    pub name: String,
    /// As a [`PendingOp`]'s.
    pub tag: String,
}

/// How likely it is that an operation waits because of the lane it names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suspicion {
    /// There is a connection within the machine, or no lane is named.
    #[default]
    Near,
    /// There is a connection over the network.
    Away,
    /// There is no connection.
    NotConnected,
    /// The worker itself holds the operation up: not all of its contribution has left its device.
    Own,
}

impl Serialize for Suspicion {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i32(*self as i32)
    }
}
