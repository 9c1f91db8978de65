//! The variables of a worker: what it mirrors of each, and how that gets into the lanes.

use std::ops::Range;

use sumpter_engine::MirroredSpan;
use sumpter_sum::AlignedBuf;
use sumpter_types::{Collective, TensorId};

use crate::cluster::mirrors::mirrors;
use crate::command::MirroredParts;
use crate::completion::Promise;
use crate::error::OpError;
use crate::run::WorkerRun;

impl WorkerRun {
    /// Who mirrors which bytes of a tensor; none if it is no variable.
    pub(crate) fn mirrors(&self, id: TensorId) -> Vec<MirroredSpan> {
        let spec = self.table.spec(id).filter(|spec| spec.collective == Collective::Update);
        spec.map_or_else(Vec::new, |spec| mirrors(id, spec, &self.members(spec)))
    }

    /// The elements of a variable that this worker mirrors.
    fn own_elements(&self, id: TensorId) -> Vec<Range<usize>> {
        let size = self.table.spec(id).map_or(1, |spec| spec.dtype.size());
        let own = |(_, ranks): &MirroredSpan| ranks.contains(&Some(self.rank));
        let spans = self.mirrors(id).into_iter().filter(own);
        spans.map(|(span, _)| span.start / size..span.end / size).collect()
    }

    /// A variable has these parts from now on, each as a whole, and zeros for those that lack; done
    /// once the lanes have what this worker mirrors.
    pub(crate) fn set_state(&mut self, id: TensorId, parts: &[Vec<u8>], done: Promise) {
        let spec = self.table.spec(id).expect("a numbered tensor").clone();
        let master = spec.dtype.accumulator();
        for elements in self.own_elements(id) {
            let bytes = elements.start * master.size()..elements.end * master.size();
            let slots = spec.rule.map_or(0, |rule| rule.slots().len());
            let own = (0..=slots).map(|index| {
                let mut buffer = AlignedBuf::new(bytes.len());
                if let Some(part) = parts.get(index) {
                    buffer.copy_from_slice(&part[bytes.clone()]);
                }
                buffer
            });
            self.client.mirror_from(id, elements.start, master, own.collect());
        }
        if !spec.staleness.is_synchronous() {
            let workers = self.members(&spec);
            self.client.mirror_rounds_of(id, spec.dtype, &workers);
        }
        self.variables.insert(id);
        self.filling.push((id, done));
        if !self.suspended {
            self.fill(id);
        }
    }

    /// Puts what this worker mirrors of a variable into the lanes of this epoch.
    pub(crate) fn fill(&mut self, id: TensorId) {
        let Some(request) = self.table.request(id) else { return };
        let alone = self.client.define_group(&[self.rank]);
        self.recovery.fill(&mut self.client, (self.rank, alone), &request);
    }

    /// Ends what waited for the lanes. Returns the variables that these have refused, by name, and
    /// why.
    pub(crate) fn settle_fills(&mut self) -> Vec<(String, String)> {
        let mut failed = Vec::new();
        if self.suspended {
            return failed;
        }
        let recovery = &mut self.recovery;
        let filled = |(id, _): &mut (TensorId, Promise)| recovery.is_filled(*id);
        let filled: Vec<_> = self.filling.extract_if(.., filled).collect();
        for (id, done) in filled {
            let outcome = recovery.take_refusal(id).map_or(Ok(()), Err);
            let name = self.table.spec(id).map(|spec| spec.name.clone()).unwrap_or_default();
            done.finish(outcome.map_err(|reason| {
                let message = format!("variable '{name}': {reason}");
                failed.push((name, message.clone()));
                OpError::Mismatch(message)
            }));
        }
        failed
    }

    /// What this worker mirrors of a variable.
    pub(crate) fn mirrored(&self, id: TensorId) -> Vec<MirroredParts> {
        let parts = |elements: Range<usize>| {
            let parts = self.client.mirrored(id, &elements)?;
            Some((elements, parts.into_iter().map(<[u8]>::to_vec).collect()))
        };
        self.own_elements(id).into_iter().filter_map(parts).collect()
    }
}
