//! Whether a codec pays: the time of a tensor's round with and without it.
//!
//! Links and cores work side by side, on one chunk after another, so a round takes as long as the
//! slower of them, and until the first chunk's sum is back nothing overlaps:
//!
//! ```text
//! time = max(bytes on the busiest link / its rate, work of the busiest machine / its cores)
//!        + one chunk's way: encode, send, add, encode, send back, decode
//! ```
//!
//! A byte of a tensor is `c` bytes in a contribution and `a` in an answer, both 1 without a codec,
//! and `a = 1` where answers are plain. With `n` workers, machine `i` reduces the share `x` of each
//! tensor:
//!
//! | | GPU machine | CPU machine |
//! |---|---|---|
//! | sends | `c (1-x) + a (n-1) x` | `a n x` |
//! | receives | `c (n-1) x + a (1-x)` | `c n x` |
//! | encodes | 1, and if answers are encoded `x` sums | `x` |
//! | decodes | 1, if answers are encoded | |
//! | adds | `n x` decoded, `(n-1) x` plain | `n x`, `(n-1) x` |
//!
//! Sending and receiving take cores, too, so that on links faster than cores fewer bytes pay even
//! where the link has room. A codec is chosen only if it saves [`LEAST_GAIN`] of a round's time,
//! since it changes numerics; so the choice never takes longer than the best one over 0.98.

use std::fmt;

use sumpter_types::{CodecRates, Dtype};

use crate::PlanError;
use crate::machine::{Cluster, Role};
use crate::shares::shares;

/// The part of a round's time that a codec saves at least to be chosen.
pub const LEAST_GAIN: f64 = 0.02;

/// Tensors of fewer bytes are left alone: what a round of theirs takes is not bytes. (BytePS'
/// default of `BYTEPS_MIN_COMPRESS_BYTES`.)
pub const LEAST_CODED_BYTES: u64 = 64 << 10;

/// What the cores of machines do besides coding. Rates are bytes a second of one core.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cores {
    /// Cores of a GPU machine that are free for communication: the event loops of its workers.
    pub worker: f64,
    /// Those of a CPU machine: its lanes.
    pub server: f64,
    /// Adding contributions that are not encoded, in bytes of `float32`.
    pub add: f64,
    /// Sending or receiving; infinite if that is not to be counted.
    pub transport: f64,
}

/// A tensor, as far as coding it is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodedTensor {
    /// Its size.
    pub bytes: u64,
    /// Its elements' type.
    pub dtype: Dtype,
}

/// A codec that a tensor may have.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name with arguments.
    pub codec: String,
    /// Bytes of an encoded contribution of the tensor.
    pub contribution_bytes: u64,
    /// Bytes of an answer.
    pub answer_bytes: u64,
    /// Whether servers encode sums: not those of codes that are added as they are.
    pub encodes_sums: bool,
    /// Whether workers decode them.
    pub decodes_sums: bool,
    /// How fast it is on one core.
    pub rates: CodecRates,
}

/// The predicted time of a tensor's round.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoundTime {
    /// Of the busiest link.
    pub link_s: f64,
    /// Of the busiest machine's cores.
    pub cores_s: f64,
    /// Of one chunk, from a worker to its sum at a worker.
    pub chunk_s: f64,
}

impl RoundTime {
    /// All of it.
    #[must_use]
    pub fn total_s(&self) -> f64 {
        self.link_s.max(self.cores_s) + self.chunk_s
    }
}

/// Machines alike.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Kind {
    role: Role,
    bytes_per_s: f64,
    share: f64,
}

/// What predictions are about: machines and their links, cores, the size of chunks.
#[derive(Clone, Debug, PartialEq)]
pub struct Compression {
    kinds: Vec<Kind>,
    workers: f64,
    chunk_bytes: u64,
    least_bytes: u64,
    cores: Cores,
}

impl Compression {
    /// For a cluster in which every machine reduces its best share.
    ///
    /// # Errors
    /// Rates or cores that are no positive numbers, or chunks of no bytes.
    pub fn new(cluster: &Cluster, cores: Cores, chunk_bytes: u64) -> Result<Self, PlanError> {
        Self::with_shares(cluster, &shares(cluster), cores, chunk_bytes)
    }

    /// For given shares, in the order of the cluster's machines.
    ///
    /// # Errors
    /// As [`Compression::new`]; another number of shares than machines.
    pub fn with_shares(
        cluster: &Cluster,
        shares: &[f64],
        cores: Cores,
        chunk_bytes: u64,
    ) -> Result<Self, PlanError> {
        for (field, value) in [
            ("cores of a GPU machine", cores.worker),
            ("cores of a CPU machine", cores.server),
            ("bytes added a second", cores.add),
            ("bytes sent a second", cores.transport),
        ] {
            if value.is_nan() || value <= 0.0 {
                return Err(PlanError::field(field, value, "a number above 0"));
            }
        }
        if chunk_bytes == 0 {
            return Err(PlanError::field("chunk_bytes", 0, "one byte or more"));
        }
        let machines = cluster.machines();
        if shares.len() != machines.len() {
            let expected = format!("{}, one of each machine", machines.len());
            return Err(PlanError::field("the number of shares", shares.len(), expected));
        }
        let mut kinds: Vec<Kind> = Vec::new();
        for (machine, share) in machines.iter().zip(shares) {
            let bytes_per_s = machine.bandwidth_gbps * 1e9 / 8.0;
            let kind = Kind { role: machine.role, bytes_per_s, share: *share };
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        let workers = f64::from(cluster.workers());
        Ok(Self { kinds, workers, chunk_bytes, least_bytes: LEAST_CODED_BYTES, cores })
    }

    /// The same with another size below which tensors are left alone.
    #[must_use]
    pub fn with_least_bytes(self, least_bytes: u64) -> Self {
        Self { least_bytes, ..self }
    }

    /// A round without a codec.
    #[must_use]
    pub fn plain(&self, tensor: CodedTensor) -> RoundTime {
        self.time(tensor, None)
    }

    /// A round with a codec.
    #[must_use]
    pub fn coded(&self, tensor: CodedTensor, candidate: &Candidate) -> RoundTime {
        self.time(tensor, Some(candidate))
    }

    fn time(&self, tensor: CodedTensor, candidate: Option<&Candidate>) -> RoundTime {
        let n = self.workers;
        let bytes = tensor.bytes as f64;
        let [contribution, answer] = match candidate {
            Some(one) => [one.contribution_bytes as f64, one.answer_bytes as f64],
            None => [bytes, bytes],
        };
        let work = Work::new(tensor, candidate, self.cores.add, n);
        let mut time = RoundTime { link_s: 0.0, cores_s: 0.0, chunk_s: 0.0 };
        let mut slowest = f64::INFINITY;
        for kind in &self.kinds {
            let x = kind.share;
            let (out, back, work_s, cores) = match kind.role {
                Role::Gpu => (
                    contribution * (1.0 - x) + answer * (n - 1.0) * x,
                    contribution * (n - 1.0) * x + answer * (1.0 - x),
                    work.worker_s + work.server_s * x,
                    self.cores.worker,
                ),
                Role::Cpu => {
                    let server_s = work.server_s * x;
                    (answer * n * x, contribution * n * x, server_s, self.cores.server)
                }
            };
            time.link_s = time.link_s.max(out.max(back) / kind.bytes_per_s);
            let cores_s = (work_s + (out + back) / self.cores.transport) / cores;
            time.cores_s = time.cores_s.max(cores_s);
            slowest = slowest.min(kind.bytes_per_s);
        }
        // Nothing travels where one machine is all there is.
        if time.link_s > 0.0 {
            let part = (self.chunk_bytes as f64 / bytes).min(1.0);
            let moved_s = (contribution + answer) * (1.0 / slowest + 2.0 / self.cores.transport);
            time.chunk_s = part * (moved_s + work.chunk_s);
        }
        time
    }

    /// The best codec of some for a tensor, or none, with the reason. Of candidates that take the
    /// same time within [`LEAST_GAIN`] the first is chosen: give those first that lose least.
    #[must_use]
    pub fn choose(&self, tensor: CodedTensor, candidates: &[Candidate]) -> Choice {
        let plain = self.plain(tensor);
        let leave = |why| Choice { codec: None, plain, coded: None, why };
        if !tensor.dtype.is_float() {
            return leave(Why::NoFloats(tensor.dtype.name()));
        }
        if tensor.bytes < self.least_bytes {
            return leave(Why::Small { bytes: tensor.bytes, least: self.least_bytes });
        }
        if plain.link_s == 0.0 {
            return leave(Why::NothingTravels);
        }
        let most_s = (1.0 - LEAST_GAIN) * plain.total_s();
        let timed = || candidates.iter().map(|one| (one, self.coded(tensor, one)));
        let fastest = timed().min_by(|a, b| a.1.total_s().total_cmp(&b.1.total_s()));
        let Some(fastest) = fastest else { return leave(Why::NoCandidate) };
        let enough_s = most_s.min(fastest.1.total_s() / (1.0 - LEAST_GAIN));
        let first = timed().find(|(_, time)| time.total_s() <= enough_s);
        let (best, time) = first.unwrap_or(fastest);
        let pays = time.total_s() <= most_s;
        let why = match pays {
            true => Why::Pays,
            false if best.contribution_bytes.max(best.answer_bytes) >= tensor.bytes => {
                Why::NoFewerBytes
            }
            false if time.cores_s > time.link_s => Why::Cores,
            false => Why::Link,
        };
        let coded = Some((best.codec.clone(), time));
        Choice { codec: pays.then(|| best.codec.clone()), plain, coded, why }
    }
}

/// Seconds of one core for a whole tensor.
struct Work {
    /// What each worker encodes and decodes.
    worker_s: f64,
    /// What the server of the whole tensor would do.
    server_s: f64,
    /// What one contribution's way to a sum and back takes.
    chunk_s: f64,
}

impl Work {
    fn new(tensor: CodedTensor, candidate: Option<&Candidate>, add: f64, workers: f64) -> Self {
        // Rates are of `float32`.
        let bytes = tensor.bytes as f64 * 4.0 / tensor.dtype.size() as f64;
        let Some(Candidate { rates, encodes_sums, decodes_sums, .. }) = candidate else {
            let add_s = bytes / add;
            return Self { worker_s: 0.0, server_s: (workers - 1.0) * add_s, chunk_s: add_s };
        };
        let (encode_s, add_s) = (bytes / rates.encode, bytes / rates.add);
        let again_s = if *encodes_sums { encode_s } else { 0.0 };
        let decode_s = if *decodes_sums { bytes / rates.decode } else { 0.0 };
        Self {
            worker_s: encode_s + decode_s,
            server_s: workers * add_s + again_s,
            chunk_s: encode_s + add_s + again_s + decode_s,
        }
    }
}

/// What a tensor gets, and why: its text is a line for people.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// The codec, if one pays.
    pub codec: Option<String>,
    /// A round without a codec.
    pub plain: RoundTime,
    /// The best codec, and a round with it; none where none was considered.
    pub coded: Option<(String, RoundTime)>,
    /// The reason.
    pub why: Why,
}

/// Why a tensor is encoded, or is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// A round takes less time with the codec.
    Pays,
    /// Too small for bytes to matter.
    Small {
        /// The tensor's size.
        bytes: u64,
        /// What it would have to be.
        least: u64,
    },
    /// Its elements are integers of this type.
    NoFloats(&'static str),
    /// There is one worker, and its sums are its own.
    NothingTravels,
    /// There is no codec to choose.
    NoCandidate,
    /// The code has as many bytes as the tensor.
    NoFewerBytes,
    /// The cores would be slower than the link is without a codec.
    Cores,
    /// The link gains too little.
    Link,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain_s = self.plain.total_s();
        let Some((codec, time)) = &self.coded else {
            f.write_str("not compressed: ")?;
            return match self.why {
                Why::Small { bytes, least } => write!(f, "{bytes} bytes are fewer than {least}"),
                Why::NoFloats(dtype) => write!(f, "its elements are {dtype}, not floats"),
                Why::NothingTravels => f.write_str("it does not cross the network"),
                _ => f.write_str("no codec is to be considered"),
            };
        };
        let total_s = time.total_s();
        if self.codec.is_some() {
            let times = plain_s / total_s;
            write!(f, "{codec}: {} a round instead of {}, ", Time(total_s), Time(plain_s))?;
            write!(f, "{times:.2} times as fast ({})", Parts(time))
        } else {
            write!(f, "not compressed: {} a round, ", Time(plain_s))?;
            write!(f, "with {codec} {} ({}); ", Time(total_s), Parts(time))?;
            f.write_str(match self.why {
                Why::NoFewerBytes => "it would not send fewer bytes",
                Why::Cores => "the cores are the limit",
                _ => "it would gain less than 2 %",
            })
        }
    }
}

/// Seconds in a unit that fits.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            s if s < 1e-3 => write!(f, "{:.1} us", 1e6 * s),
            s if s < 1.0 => write!(f, "{:.2} ms", 1e3 * s),
            s => write!(f, "{s:.2} s"),
        }
    }
}

/// The parts of a round's time.
struct Parts<'a>(&'a RoundTime);

impl fmt::Display for Parts<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RoundTime { link_s, cores_s, chunk_s } = *self.0;
        let (link, cores, chunk) = (Time(link_s), Time(cores_s), Time(chunk_s));
        write!(f, "link {link}, cores {cores}, one chunk {chunk}")
    }
}
