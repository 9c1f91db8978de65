//! The event loops of a worker: how other threads reach them, and what one has of the others.
//!
//! What a loop serves of a run is [a run of its own](ClusterView::of_loop) to all others: its lane,
//! its connections, its parts of tensors and their rounds. They share what the worker has once: its
//! session with the coordinator, whose events all of them get, and the end of an operation.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crossbeam_channel::unbounded;
use sumpter_codec::BLOCK;
use sumpter_observe::Recording;
use sumpter_plan::{Cuts, loop_parts, shard_turn};
use sumpter_types::{Collective, Epoch, JobId, Stats, TensorSpec};

use crate::command::Command;
use crate::remote::Remote;
use crate::stats::add;

/// The event loops of a worker, for its other threads.
#[derive(Debug)]
pub(crate) struct Loops {
    remotes: Vec<Remote>,
    /// Held while an operation is handed to several loops: its rounds have the same number in all.
    order: Mutex<()>,
}

impl Loops {
    pub(crate) fn new(remotes: Vec<Remote>) -> Loops {
        Loops { remotes, order: Mutex::default() }
    }

    pub(crate) fn count(&self) -> u32 {
        self.remotes.len() as u32
    }

    pub(crate) fn remotes(&self) -> &[Remote] {
        &self.remotes
    }

    /// Hands a command to a loop; false when that has ended.
    pub(crate) fn send(&self, number: u32, command: Command) -> bool {
        self.remotes[number as usize].send(command)
    }

    /// Hands a command to the loop that speaks for the worker.
    pub(crate) fn send_first(&self, command: Command) -> bool {
        self.send(0, command)
    }

    /// Hands each loop a command, the first one last.
    pub(crate) fn send_all(&self, command: impl Fn() -> Command) {
        for remote in self.remotes.iter().rev() {
            remote.send(command());
        }
    }

    /// What is handed to several loops meanwhile comes before or after it in all of them.
    pub(crate) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a tensor, and the event loop that serves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TensorPart {
    pub number: u32,
    /// Bytes of the tensor.
    pub bytes: Range<usize>,
    /// The part as a tensor.
    pub spec: TensorSpec,
}

/// The parts of a tensor for so many loops. One loop serves all of a variable, and of a tensor that
/// device groups have reduced.
pub(crate) fn tensor_parts(spec: &TensorSpec, loops: u32) -> Vec<TensorPart> {
    let (elements, size) = (spec.elements().unwrap_or(0), spec.dtype.size());
    let cuts = match spec.compression.is_empty() {
        _ if spec.sharded || spec.collective == Collective::Update => Cuts::Nowhere,
        true => Cuts::Anywhere,
        false => Cuts::Blocks(BLOCK as u64),
    };
    let turn = shard_turn(&spec.name);
    let parts = loop_parts((elements, size as u64), loops, cuts, turn);
    let is_cut = parts.len() > 1;
    let part = |part: sumpter_plan::LoopPart| {
        let Range { start, end } = part.elements;
        let shape = if is_cut { vec![end - start] } else { spec.shape.clone() };
        let bytes = start as usize * size..end as usize * size;
        TensorPart { number: part.number, bytes, spec: TensorSpec { shape, ..spec.clone() } }
    };
    parts.into_iter().map(part).collect()
}

/// What one event loop serves of a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServedPart {
    /// A tensor of its own, empty if it serves none.
    pub spec: TensorSpec,
    /// Whether it speaks for the tensor, as the loop of its first part.
    pub speaks: bool,
    /// Its first element in the tensor.
    pub start: u64,
}

/// One of a worker's event loops.
#[derive(Clone, Debug)]
pub(crate) struct LoopPlace {
    pub number: u32,
    pub count: u32,
    shared: Arc<Shared>,
}

/// What the loops of a worker have in common.
#[derive(Debug)]
struct Shared {
    remotes: OnceLock<Vec<Remote>>,
    /// What each loop has, for epochs for which not all loops have answered.
    progress: Mutex<BTreeMap<Epoch, Vec<Option<Vec<u8>>>>>,
    /// What each loop has counted, as of its last report.
    stats: Mutex<Vec<Stats>>,
}

impl LoopPlace {
    /// The places of so many loops.
    pub(crate) fn all(count: u32) -> Vec<LoopPlace> {
        let shared = Arc::new(Shared {
            remotes: OnceLock::new(),
            progress: Mutex::default(),
            stats: Mutex::new(vec![Stats::default(); count as usize]),
        });
        (0..count).map(|number| LoopPlace { number, count, shared: shared.clone() }).collect()
    }

    /// Tells each loop how it reaches the others, before any of them runs.
    pub(crate) fn connect(&self, remotes: Vec<Remote>) {
        let _ = self.shared.remotes.set(remotes);
    }

    /// Whether this loop speaks for the worker.
    pub(crate) fn is_first(&self) -> bool {
        self.number == 0
    }

    /// What this loop serves of a tensor.
    pub(crate) fn own_part(&self, spec: &TensorSpec) -> ServedPart {
        let parts = tensor_parts(spec, self.count);
        match parts.into_iter().enumerate().find(|(_, part)| part.number == self.number) {
            Some((at, TensorPart { spec, bytes, .. })) => {
                let start = (bytes.start / spec.dtype.size()) as u64;
                ServedPart { spec, speaks: at == 0, start }
            }
            None => {
                let spec = TensorSpec { shape: vec![0], ..spec.clone() };
                ServedPart { spec, speaks: false, start: 0 }
            }
        }
    }

    /// Hands each of the other loops a command.
    pub(crate) fn tell_others(&self, command: impl Fn() -> Command) {
        let remotes = self.shared.remotes.get().map_or(&[][..], Vec::as_slice);
        for (_, remote) in (0..).zip(remotes).filter(|(number, _)| *number != self.number) {
            remote.send(command());
        }
    }

    /// Hands the first loop a command, if this is another one.
    pub(crate) fn tell_first(&self, command: Command) {
        let first = self.shared.remotes.get().and_then(|remotes| remotes.first());
        if let Some(first) = first.filter(|_| !self.is_first()) {
            first.send(command);
        }
    }

    /// What the other loops have recorded of a run, as they answer.
    pub(crate) fn recordings_of_others(
        &self,
        job: JobId,
    ) -> impl Iterator<Item = Recording> + use<> {
        let (answer, recordings) = unbounded::<Vec<Recording>>();
        self.tell_others(|| Command::Recordings(job, answer.clone()));
        recordings.into_iter().flatten()
    }

    /// This loop's answer to the suspension before an epoch. Returns those of all loops once this
    /// is the last.
    pub(crate) fn collect(&self, epoch: Epoch, progress: Vec<u8>) -> Option<Vec<Vec<u8>>> {
        let mut all = self.shared.progress.lock().unwrap_or_else(PoisonError::into_inner);
        let of_epoch = all.entry(epoch).or_insert_with(|| vec![None; self.count as usize]);
        of_epoch[self.number as usize] = Some(progress);
        if of_epoch.iter().any(Option::is_none) {
            return None;
        }
        all.remove(&epoch).into_iter().flatten().collect()
    }

    /// Stores what this loop has counted.
    pub(crate) fn store(&self, stats: Stats) {
        let mut all = self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        all[self.number as usize] = stats;
    }

    /// What this loop has counted now, and the others had when they stored it.
    pub(crate) fn total(&self, stats: Stats) -> Stats {
        self.store(stats);
        let all = self.shared.stats.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().cloned().reduce(add).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use sumpter_types::{Dtype, Rank, ReduceOp, Rule, Staleness};

    use super::*;

    fn spec(name: &str, collective: Collective, shape: &[u64]) -> TensorSpec {
        TensorSpec {
            name: name.to_owned(),
            dtype: Dtype::Bf16,
            shape: shape.to_vec(),
            collective,
            op: ReduceOp::Sum,
            root: Rank(0),
            ranks: Vec::new(),
            rule: (collective == Collective::Update).then_some(Rule::Lion),
            staleness: Staleness::default(),
            sharded: false,
            compression: String::new(),
        }
    }

    #[test]
    fn every_loop_has_its_part_of_a_large_tensor_and_one_speaks_for_it() {
        let places = LoopPlace::all(3);
        let large = spec("weight", Collective::AllReduce, &[1000, 1001]);
        let own: Vec<_> = places.iter().map(|place| place.own_part(&large)).collect();
        let elements = own.iter().map(|part| part.spec.elements().unwrap()).sum::<u64>();
        assert_eq!((elements, own.iter().filter(|part| part.speaks).count()), (1_001_000, 1));
        let shape = |part: &ServedPart| part.spec.shape.clone();
        assert!(own.iter().map(shape).all(|shape| shape.len() == 1 && shape[0] > 300_000));
        let bytes: Vec<_> = tensor_parts(&large, 3).into_iter().map(|part| part.bytes).collect();
        assert_eq!((bytes[0].start, bytes[1].start, bytes[2].end), (0, bytes[0].end, 2_002_000));
    }

    #[test]
    fn variables_and_shards_are_served_as_a_whole() {
        let variable = spec("weight", Collective::Update, &[1000, 1000]);
        let sharded = spec("weight", Collective::AllReduce, &[1000, 1000]);
        let sharded = TensorSpec { sharded: true, ..sharded };
        for spec in [variable, sharded, spec("small", Collective::Broadcast, &[3])] {
            let places = LoopPlace::all(4);
            let own: Vec<_> = places.iter().map(|place| place.own_part(&spec)).collect();
            let (serving, others): (Vec<_>, Vec<_>) = own.iter().partition(|part| part.speaks);
            assert_eq!((serving.len(), &serving[0].spec, serving[0].start), (1, &spec, 0));
            assert!(others.iter().all(|part| part.spec.elements() == Some(0)));
        }
    }

    #[test]
    fn a_compressed_tensor_is_cut_between_blocks() {
        for dtype in [Dtype::F16, Dtype::F32, Dtype::F64] {
            let plain = spec("weight", Collective::AllReduce, &[1_000_003]);
            let compressed = TensorSpec { dtype, compression: "int8".to_owned(), ..plain };
            let mut parts: Vec<_> =
                LoopPlace::all(3).iter().map(|place| place.own_part(&compressed)).collect();
            parts.sort_by_key(|part| part.start);
            let mut end = 0;
            for part in &parts {
                assert_eq!((part.start, part.start % BLOCK as u64), (end, 0), "{parts:?}");
                end += part.spec.elements().unwrap();
            }
            assert_eq!((end, parts[0].speaks), (1_000_003, true));
        }
    }

    #[test]
    fn with_one_loop_a_tensor_is_its_only_part() {
        let spec = spec("weight", Collective::AllReduce, &[1000, 1000]);
        let part = ServedPart { spec: spec.clone(), speaks: true, start: 0 };
        assert_eq!(LoopPlace::all(1)[0].own_part(&spec), part);
    }

    #[test]
    fn an_epoch_is_answered_once_all_loops_have() {
        let places = LoopPlace::all(2);
        assert_eq!(places[1].collect(Epoch(2), vec![1]), None);
        // Another change came before the first loop had answered.
        assert_eq!(places[1].collect(Epoch(3), vec![3]), None);
        assert_eq!(places[0].collect(Epoch(2), vec![0]), Some(vec![vec![0], vec![1]]));
        assert_eq!(places[0].collect(Epoch(3), vec![2]), Some(vec![vec![2], vec![3]]));
        assert_eq!(LoopPlace::all(1)[0].collect(Epoch(2), Vec::new()), Some(vec![Vec::new()]));
    }
}
