//! `Worker`: a process's membership in a job.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Instant;

use pyo3::prelude::*;
use serde_json::json;
use sumpter_config::Config;
use sumpter_node::{NodeError, OpError, Worker as RustWorker};
use sumpter_types::{Collective, Dtype, Epoch, Rank, ReduceOp, Rule, Staleness, TensorSpec};

use crate::errors::{ConfigError, from_config, from_node, from_op};
use crate::functions::{interruptible, stats_json};
use crate::seat::Seat;
use crate::settings::load_with_codecs;
use crate::tensor::Tensor;

/// The process's membership in a job.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Worker {
    inner: RustWorker,
    config: Config,
    joined: Instant,
}

#[pymethods]
impl Worker {
    /// Joins the job and waits until it starts. `settings` override the environment. The wait ends
    /// early if a process of `seat`'s generation is gone.
    #[staticmethod]
    #[pyo3(signature = (settings, seat=None))]
    fn join(
        py: Python<'_>,
        settings: HashMap<String, String>,
        seat: Option<Py<Seat>>,
    ) -> PyResult<Worker> {
        let config = load_with_codecs(py, settings)?;
        let broken = || seat.as_ref().is_some_and(|seat| seat.get().is_broken());
        let joined = interruptible(py, |interrupted| {
            match RustWorker::join(&config, &mut || broken() || interrupted()) {
                Err(NodeError::Interrupted) if broken() => Err(NodeError::PeerLost(
                    "a worker of this generation died before the job started".to_owned(),
                )),
                joined => joined,
            }
        })?;
        Ok(Worker { inner: joined, config, joined: Instant::now() })
    }

    /// This worker's rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.inner.rank()
    }

    /// Workers in the job.
    #[getter]
    fn world_size(&self) -> usize {
        self.inner.view().workers.len()
    }

    /// This worker's number on its machine.
    #[getter]
    fn local_rank(&self) -> u32 {
        self.config.local_rank.unwrap_or_else(|| self.local().0)
    }

    /// Workers on this machine.
    #[getter]
    fn local_size(&self) -> u32 {
        self.config.local_size.unwrap_or_else(|| self.local().1)
    }

    /// The coordinator's HOST:PORT.
    #[getter]
    fn coordinator(&self) -> &str {
        self.config.coordinator.as_deref().unwrap_or_default()
    }

    /// The job's name.
    #[getter]
    fn job(&self) -> &str {
        &self.config.job
    }

    /// Whether contributions are added in rank order.
    #[getter]
    fn deterministic(&self) -> bool {
        self.config.deterministic
    }

    /// Whether a `DistributedOptimizer` trains asynchronously.
    #[getter]
    fn asynchronous(&self) -> bool {
        self.config.asynchronous
    }

    /// The codec of tensors that say nothing of their own; empty for none.
    #[getter]
    fn compression(&self) -> &str {
        &self.config.compression
    }

    /// Tensors of fewer bytes are not compressed unless a call asks for it.
    #[getter]
    fn compression_min_bytes(&self) -> u64 {
        self.config.compression_min_bytes
    }

    /// The directory of the order log that is written, if one is.
    #[getter]
    fn record_order(&self) -> Option<PathBuf> {
        self.config.record_order.clone()
    }

    /// The directory of the order log that is followed, if one is.
    #[getter]
    fn replay_order(&self) -> Option<PathBuf> {
        self.config.replay_order.clone()
    }

    /// Whether `wait()` of a device's tensors holds the calling thread.
    #[getter]
    fn blocking_wait(&self) -> bool {
        self.config.blocking_wait
    }

    /// The ranks of this rank's device group, and whether each holds shards; see the stub.
    #[getter]
    fn device_group(&self) -> Vec<(u32, bool)> {
        self.inner.device_group().iter().map(|(rank, holds)| (rank.0, *holds)).collect()
    }

    /// Declares a tensor; see the stub for the arguments.
    #[pyo3(signature = (name, collective, shape, dtype, op="sum", *, root=0, average=false,
                        ranks=None, rule=None, staleness=Some(0), sharded=false,
                        compression=String::new()))]
    #[allow(clippy::too_many_arguments)] // One argument a field of the Python signature.
    fn declare(
        &self,
        name: String,
        collective: &str,
        shape: Vec<u64>,
        dtype: &str,
        op: &str,
        root: u32,
        average: bool,
        ranks: Option<Vec<u32>>,
        rule: Option<&str>,
        staleness: Option<u32>,
        sharded: bool,
        compression: String,
    ) -> PyResult<Tensor> {
        let unknown =
            |what: &str, value: &str| ConfigError::new_err(format!("unknown {what} '{value}'"));
        let mut spec = TensorSpec {
            name,
            dtype: Dtype::from_name(dtype).ok_or_else(|| unknown("dtype", dtype))?,
            op: ReduceOp::from_name(op).ok_or_else(|| unknown("operator", op))?,
            shape,
            collective: Collective::from_name(collective)
                .ok_or_else(|| unknown("collective", collective))?,
            root: Rank(root),
            ranks: ranks.unwrap_or_default().into_iter().map(Rank).collect(),
            rule: rule
                .map(|rule| Rule::from_name(rule).ok_or_else(|| unknown("update rule", rule)))
                .transpose()?,
            staleness: staleness.map_or(Staleness::UNBOUNDED, Staleness),
            sharded,
            compression,
        };
        if spec.collective == Collective::Barrier {
            (spec.dtype, spec.shape) = (Dtype::U8, vec![1]);
        }
        let rank = Rank(self.inner.rank());
        Ok(Tensor::new(self.inner.declare(spec, average), rank))
    }

    /// Takes part with zeros until every worker has called this; the last of them.
    fn out_of_data(&self, py: Python<'_>) -> PyResult<u32> {
        let mut signal = None;
        let last = py.detach(|| {
            self.inner.out_of_data(&mut || {
                Python::attach(|py| py.check_signals()).map_err(|e| signal = Some(e)).is_err()
            })
        });
        match (last, signal) {
            (_, Some(signal)) => Err(signal),
            (Ok(last), None) => Ok(last.0),
            (Err(error), None) => {
                Err(from_op(error.unwrap_or(OpError::Closed("interrupted".to_owned()))))
            }
        }
    }

    /// Writes what operations do from now on to the file `path`.
    fn start_timeline(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        py.detach(|| self.inner.start_timeline(&path)).map_err(|e| from_node(py, e))
    }

    /// Completes the file of `start_timeline`, if there is one.
    fn stop_timeline(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.inner.stop_timeline()).map_err(|e| from_node(py, e))
    }

    /// Counts samples trained on, for the live line of `sumpter run`.
    fn record_samples(&self, count: u64) {
        self.inner.record_samples(count);
    }

    /// What has been counted so far, as JSON.
    fn stats(&self, py: Python<'_>) -> String {
        stats_json(&py.detach(|| self.inner.stats()))
    }

    /// Has the job's coordinator change settings while the job runs; returns the epoch from which
    /// on they hold. With `epoch`, only if the plan is still that one's.
    #[pyo3(signature = (changes, *, reset = false, epoch = None))]
    fn tune(
        &self,
        py: Python<'_>,
        changes: BTreeMap<String, String>,
        reset: bool,
        epoch: Option<u32>,
    ) -> PyResult<u32> {
        let job = Some(self.config.job.as_str());
        let report = py.detach(|| sumpter_node::tune(&self.config, job, changes, reset, epoch));
        report.map(|report| report.epoch).map_err(|e| from_node(py, e))
    }

    /// The plan's epoch, the machines and architecture, and the settings that may change, as JSON,
    /// once the plan is that of `epoch` or a later one.
    #[pyo3(signature = (epoch = 0))]
    fn plan(&self, py: Python<'_>, epoch: u32) -> PyResult<String> {
        let view = py.detach(|| self.inner.plan_from(Epoch(epoch)));
        let view = view.map_err(|e| from_node(py, e))?;
        let settings = sumpter_node::in_force(&self.config, &view).map_err(from_config)?;
        let gone: Vec<u32> = view.gone.iter().map(|rank| rank.0).collect();
        let machines = view.machines();
        Ok(json!({
            "epoch": view.epoch.0,
            "settings": settings,
            "gone": gone,
            "architecture": self.config.architecture.word(),
            "machines": {"gpu": machines.0, "cpu": machines.1},
        })
        .to_string())
    }

    /// The training step, once it is `step` or a later one, and the seconds since the worker
    /// joined at which it was seen.
    fn step(&self, py: Python<'_>, step: u64) -> PyResult<(u64, f64)> {
        let seen = py.detach(|| self.inner.step_from(step));
        let (step, at) = seen.map_err(|e| from_node(py, e))?;
        Ok((step, at.saturating_duration_since(self.joined).as_secs_f64()))
    }

    /// Sends what others still wait for, leaves the job and ends the threads.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| self.inner.shutdown());
    }
}

impl Worker {
    /// This worker's number among those of its machine, and how many they are.
    fn local(&self) -> (u32, u32) {
        let workers = &self.inner.view().workers;
        let rank = Rank(self.inner.rank());
        let own = workers.iter().find(|w| w.rank == rank).map(|w| &w.machine);
        let peers = || workers.iter().filter(|w| Some(&w.machine) == own);
        let before = peers().filter(|w| w.rank < rank).count();
        (before as u32, peers().count() as u32)
    }
}
