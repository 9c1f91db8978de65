//! The codecs that `auto` chooses: for each tensor anew with each plan, and in words for the log
//! and for the job's status.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sumpter_engine::Coding;
use sumpter_types::{CodecChoice, TensorId};

use crate::run::WorkerRun;
use crate::run::table::{Table, Tensor};

/// What was chosen since it was last reported, and the last report.
#[derive(Debug, Default)]
pub(crate) struct Choices {
    /// Tensors of which something was chosen.
    any: bool,
    /// Whether a tensor has another codec than before.
    is_other: bool,
    reported: Vec<CodecChoice>,
    /// What was chosen, and why, so far in this run: what is known is not logged again.
    logged: BTreeSet<Kind>,
}

/// A codec, or none, and the kind of reason.
type Kind = (Option<String>, u8);

impl WorkerRun {
    /// How a tensor is encoded in this epoch; where that is chosen, it is chosen now.
    pub(crate) fn choose_coding(&mut self, id: TensorId) -> Option<Arc<Coding>> {
        let Tensor { spec, coding, .. } = self.table.tensor(id)?;
        if let Some((tensor, candidates)) = coding.choice() {
            let verdict = self.cluster.choose(&spec.ranks, tensor, candidates);
            let is_other = self.table.known_mut(id).coding.choose(verdict);
            self.choices.any = true;
            self.choices.is_other |= is_other;
        }
        self.table.tensor(id)?.coding.now.clone()
    }

    /// What was chosen, which one rank says for all.
    pub(crate) fn choices(&self) -> &[CodecChoice] {
        match self.says_choices() {
            true => &self.choices.reported,
            false => &[],
        }
    }

    /// How many tensors are encoded in this epoch.
    pub(crate) fn compressed_tensors(&self) -> f64 {
        self.table.tensors().iter().filter(|tensor| tensor.coding.now.is_some()).count() as f64
    }

    /// Tensors for which the speed of a link must be known to choose a codec.
    pub(crate) fn tensors_awaiting_link(&self) -> f64 {
        let awaits = |tensor: &&Tensor| {
            tensor.coding.verdict().is_some_and(|(verdict, _)| verdict.awaits_link())
        };
        self.table.tensors().iter().filter(awaits).count() as f64
    }

    /// Logs what was chosen since the last time: for a new reason, or for a tensor that had another
    /// codec.
    pub(crate) fn log_choices(&mut self) {
        if !std::mem::take(&mut self.choices.any) {
            return;
        }
        let summary = summary(&self.table);
        let (epoch, says) = (self.view.epoch, self.says_choices());
        let choices = &mut self.choices;
        if std::mem::take(&mut choices.is_other) {
            choices.logged.clear();
        }
        for (kind, choice) in &summary {
            if choices.logged.insert(kind.clone()) && says {
                tracing::info!(target: "notice", %epoch, "{choice}");
            }
        }
        choices.reported = summary.into_iter().map(|(_, choice)| choice).collect();
    }

    /// Whether it is this rank, and this event loop, that says what all have chosen.
    fn says_choices(&self) -> bool {
        let first = self.view.living().next().map(|worker| worker.rank);
        first == Some(self.rank) && self.view.job.event_loop() == 0
    }
}

/// What was chosen for all tensors, the most bytes first.
fn summary(table: &Table) -> Vec<(Kind, CodecChoice)> {
    let mut kinds: BTreeMap<Kind, (CodecChoice, u64)> = BTreeMap::new();
    for (id, tensor) in (0..).map(TensorId).zip(table.tensors()) {
        let verdict = tensor.coding.verdict().filter(|_| table.request(id).is_some());
        let Some((verdict, bytes)) = verdict else { continue };
        let (codec, why) = verdict.kind();
        let (choice, largest) = kinds.entry((codec.map(str::to_owned), why)).or_default();
        choice.tensors += 1;
        choice.bytes += bytes;
        if choice.tensors == 1 || bytes > *largest {
            *largest = bytes;
            choice.codec = codec.unwrap_or_default().to_owned();
            choice.example.clone_from(&tensor.spec.name);
            choice.reason = verdict.to_string();
        }
    }
    let mut all: Vec<_> = kinds.into_iter().map(|(kind, (choice, _))| (kind, choice)).collect();
    all.sort_by_key(|(_, choice)| std::cmp::Reverse(choice.bytes));
    all
}
