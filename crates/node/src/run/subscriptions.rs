//! Threads that wait for the plan of an epoch, or for a training step.

use std::time::Instant;

use crossbeam_channel::Sender;
use sumpter_membership::ClusterView;
use sumpter_types::Epoch;

/// What is waited for, each with where to send it. A receiver may be gone by then.
#[derive(Debug, Default)]
pub(crate) struct Subscriptions {
    plans: Vec<(Epoch, Sender<ClusterView>)>,
    steps: Vec<(u64, Sender<(u64, Instant)>)>,
}

impl Subscriptions {
    /// Waits for the plan of this epoch or of a later one.
    pub(crate) fn add_plan(&mut self, epoch: Epoch, answer: Sender<ClusterView>) {
        self.plans.push((epoch, answer));
    }

    /// Waits for this training step or a later one.
    pub(crate) fn add_step(&mut self, step: u64, answer: Sender<(u64, Instant)>) {
        self.steps.push((step, answer));
    }

    /// This plan is in force.
    pub(crate) fn notify_plan(&mut self, view: &ClusterView) {
        for (_, answer) in self.plans.extract_if(.., |(epoch, _)| *epoch <= view.epoch) {
            let _ = answer.send(view.clone());
        }
    }

    /// This training step has been reached.
    pub(crate) fn notify_step(&mut self, reached: u64) {
        if self.steps.is_empty() {
            return;
        }
        let now = Instant::now();
        for (_, answer) in self.steps.extract_if(.., |(step, _)| *step <= reached) {
            let _ = answer.send((reached, now));
        }
    }

    /// Nothing will come any more.
    pub(crate) fn clear(&mut self) {
        *self = Subscriptions::default();
    }
}
