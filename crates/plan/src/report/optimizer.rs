//! What an optimizer takes in memory.

use serde::Serialize;
use sumpter_types::Rule;

/// What an optimizer takes in memory, for parameters in `float32`: in every worker, or on the lanes
/// that sum its gradients and on the mirrors. One worker a machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OptimizerReport {
    /// The update rule.
    pub rule: &'static str,
    /// What it keeps of each parameter beside the value.
    pub slots: &'static [&'static str],
    /// Bytes of its state in each worker that runs it.
    pub worker_bytes: f64,
    /// On the servers: bytes of value and state that each worker mirrors.
    pub mirror_bytes: f64,
    /// Of value and state in the lane of a GPU machine, where bandwidths are the same.
    pub lane_bytes_gpu: Option<f64>,
    /// Of value and state in the lanes of a CPU machine, where bandwidths are the same.
    pub lane_bytes_cpu: Option<f64>,
    /// What mirrors add to each link in a synchronous round: a mirror receives the gradient in
    /// place of the new value.
    pub mirror_link_bytes: f64,
    /// The most that they add to what a worker receives in an asynchronous step: each change of
    /// its share by any worker.
    pub asynchronous_mirror_link_bytes: f64,
}

impl OptimizerReport {
    pub(super) fn new(rule: Rule, bytes: u64, workers: u32) -> OptimizerReport {
        let (bytes, slots) = (bytes as f64, rule.slots());
        OptimizerReport {
            rule: rule.name(),
            slots,
            worker_bytes: bytes * slots.len() as f64,
            mirror_bytes: bytes * (1 + slots.len()) as f64 / f64::from(workers),
            lane_bytes_gpu: None,
            lane_bytes_cpu: None,
            mirror_link_bytes: 0.0,
            asynchronous_mirror_link_bytes: bytes,
        }
    }
}
