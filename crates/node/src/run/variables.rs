//! The variables of a worker: what it mirrors of each, and how that gets into the lanes.

use std::collections::BTreeMap;
use std::ops::Range;

use sumpter_engine::{MirroredElements, MirroredSpan, Progress, mirrored_elements, mirrored_spans};
use sumpter_sum::AlignedBuf;
use sumpter_types::{Collective, Rank, TensorId, TensorSpec};

use crate::cluster::deal::Planned;
use crate::cluster::mirrors::shares;
use crate::command::MirroredParts;
use crate::completion::Promise;
use crate::error::OpError;
use crate::run::WorkerRun;
use crate::run::table::members;

impl WorkerRun {
    /// Who mirrors which bytes of a tensor in this epoch; none if it is no variable.
    pub(crate) fn mirrors(&mut self, id: TensorId) -> Vec<MirroredSpan> {
        if !self.mirrors.contains_key(&id) {
            // What was declared in this epoch has no state that could be lost.
            self.choose_mirrors(id, &BTreeMap::new()).unwrap_or_default();
        }
        self.mirrors.get(&id).cloned().unwrap_or_default()
    }

    /// Chooses who mirrors a variable in this epoch, and tells the client of what is mirrored here.
    ///
    /// # Errors
    /// A text if the workers that had its state have died.
    pub(crate) fn choose_mirrors(
        &mut self,
        id: TensorId,
        progress: &BTreeMap<Rank, Progress>,
    ) -> Result<(), String> {
        let spec = self.table.spec(id).filter(|spec| spec.collective == Collective::Update);
        let Some(spec) = spec.cloned() else { return Ok(()) };
        let everyone = members(&spec, self.world_size());
        let shares = shares(id, &spec, &everyone, |rank| !self.view.gone.contains(&rank));
        // A machine or a rack passes on one contribution, and one of its workers is a mirror; but
        // where there is one machine only, each worker contributes by itself.
        let apart = self.cluster.are_apart(&self.members(&spec));
        let copies = 1 + usize::from(self.cluster.policy.elastic);
        let (hubs, _) = self.cluster.hubs_of(Planned::of(&spec.ranks));
        let may_join = |a, b| !apart || hubs.as_ref().is_none_or(|hubs| !hubs.share(a, b));
        let size = spec.dtype.size();
        let chosen = mirrored_spans(id, (&shares, size), copies, may_join, progress)
            .map_err(|lost| format!("{lost}: go back to a checkpoint or the last commit"))?;
        let own = mirrored_elements(&chosen, self.rank, size);
        self.client.assign_mirrors(id, (spec.dtype.accumulator(), parts(&spec)), &own);
        self.mirrors.insert(id, chosen);
        Ok(())
    }

    /// What this worker mirrors of a variable.
    fn own_elements(&mut self, id: TensorId) -> Vec<MirroredElements> {
        let size = self.table.spec(id).map_or(1, |spec| spec.dtype.size());
        mirrored_elements(&self.mirrors(id), self.rank, size)
    }

    /// A variable has these parts from now on, each as a whole, and zeros for those that lack; done
    /// once the lanes have what this worker mirrors.
    pub(crate) fn set_state(&mut self, id: TensorId, parts: &[Vec<u8>], done: Promise) {
        let spec = self.table.spec(id).expect("a numbered tensor").clone();
        let master = spec.dtype.accumulator();
        self.client.begin_mirroring(id);
        for MirroredElements { span, share, .. } in self.own_elements(id) {
            let bytes = span.start * master.size()..span.end * master.size();
            let own = (0..self::parts(&spec)).map(|index| {
                let mut buffer = AlignedBuf::new(bytes.len());
                if let Some(part) = parts.get(index) {
                    buffer.copy_from_slice(&part[bytes.clone()]);
                }
                buffer
            });
            self.client.mirror_from(id, (share, span.start), master, own.collect());
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
        let parts = self.table.spec(id).map_or(0, parts);
        self.recovery.fill(&mut self.client, self.rank, &request, parts);
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

    /// What is mirrored here of a variable.
    pub(crate) fn mirrored(&mut self, id: TensorId) -> Vec<MirroredParts> {
        let own = self.own_elements(id);
        let parts = |elements: Range<usize>| {
            let parts = self.client.mirrored(id, &elements)?;
            Some((elements, parts.into_iter().map(<[u8]>::to_vec).collect()))
        };
        own.into_iter().filter_map(|elements| parts(elements.span)).collect()
    }
}

/// How many parts a variable has: its value, and the slots of its rule.
fn parts(spec: &TensorSpec) -> usize {
    1 + spec.rule.map_or(0, |rule| rule.slots().len())
}
