//! The functions of the module: servers, coordinators, plans and settings.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value, json};
use sumpter_coordinator::Coordinator as RustCoordinator;
use sumpter_membership::Serves;
use sumpter_node::NodeError;
use sumpter_sum::InstructionSet;
use sumpter_types::{Dtype, ReduceOp, Rule, Stats, Update};

use crate::errors::{ConfigError, StartError, from_config, from_node, from_plan};
use crate::settings::{load, load_with_codecs};

/// How long a coordinator that is stopped waits for its members to leave.
const LEAVE_LIMIT: Duration = Duration::from_secs(5);

/// Counters as JSON.
pub fn stats_json(stats: &Stats) -> String {
    let counters: Map<String, Value> =
        stats.counters.iter().map(|(k, v)| (k.clone(), json!(v))).collect();
    let late: Vec<_> = stats.late.iter().map(|l| json!([l.rank.0, l.count, l.seconds])).collect();
    let pending: Vec<_> = stats
        .pending
        .iter()
        .map(|p| json!({"name": p.name, "tag": p.tag, "since_ms": p.since_ms}))
        .collect();
    json!({"counters": counters, "late": late, "pending": pending}).to_string()
}

/// How often a coordinator that is waited for looks for signals.
const WAIT_SLICE: Duration = Duration::from_millis(50);

/// A coordinator inside this process, for one job.
#[pyclass(module = "sumpter._native", frozen)]
pub struct Coordinator {
    inner: std::sync::Mutex<Option<RustCoordinator>>,
    metrics: std::sync::Mutex<Option<sumpter_metrics::Endpoint>>,
    address: String,
}

#[pymethods]
impl Coordinator {
    /// Listens on `listen` (HOST:PORT; port 0 takes a free one). `repeated`: the job may end and
    /// begin again until `stop`. `metrics`: tell Prometheus where the settings say, if they do.
    #[new]
    #[pyo3(signature = (listen, settings, *, repeated = false, metrics = false))]
    fn new(
        py: Python<'_>,
        listen: &str,
        settings: HashMap<String, String>,
        repeated: bool,
        metrics: bool,
    ) -> PyResult<Self> {
        let config = load(settings)?;
        let serves = if repeated { Serves::OneJob } else { Serves::OneRun };
        let started = py.detach(|| {
            let coordinator = sumpter_node::start_coordinator(listen, &config, serves)?;
            let told = metrics.then(|| sumpter_node::tell_of_coordinator(&config, &coordinator));
            Ok((coordinator, told.transpose()?.flatten()))
        });
        let (coordinator, metrics) = started.map_err(|e: NodeError| from_node(py, e))?;
        let address = coordinator.address().to_string();
        let metrics = std::sync::Mutex::new(metrics);
        Ok(Coordinator { inner: std::sync::Mutex::new(Some(coordinator)), metrics, address })
    }

    /// HOST:PORT it listens on.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Returns once its job is over, or raises when a signal arrives.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        interruptible(py, |interrupted| {
            while !self.finished_within(WAIT_SLICE) && !interrupted() {}
            Ok(())
        })
    }

    /// Waits a little for members that have not left, then ends it. Safe to call twice.
    fn stop(&self, py: Python<'_>) {
        let inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let metrics = self.metrics.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        py.detach(|| drop(metrics));
        if let Some(mut coordinator) = inner {
            py.detach(|| {
                if coordinator.running() {
                    // Members that have not left by then are notified that the coordinator ends.
                    let _ = coordinator.wait_empty(LEAVE_LIMIT);
                }
                coordinator.stop();
            });
        }
    }
}

impl Coordinator {
    /// Whether the job is over within `limit`, or this coordinator has been stopped.
    fn finished_within(&self, limit: Duration) -> bool {
        let inner = self.inner.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        inner.as_ref().is_none_or(|coordinator| coordinator.wait_finished(limit))
    }
}

/// Runs `body` without the GIL until it ends or a signal arrives, which is then raised.
pub fn interruptible<T: Send>(
    py: Python<'_>,
    body: impl FnOnce(&mut dyn FnMut() -> bool) -> Result<T, NodeError> + Send,
) -> PyResult<T> {
    let mut signal = None;
    let result = py.detach(|| {
        body(&mut || {
            Python::attach(|py| match py.check_signals() {
                Ok(()) => false,
                Err(error) => {
                    signal = Some(error);
                    true
                }
            })
        })
    });
    match signal {
        Some(signal) => Err(signal),
        None => result.map_err(|e| from_node(py, e)),
    }
}

/// Runs a summation server until its run is over or a signal arrives.
#[pyfunction]
pub fn serve(py: Python<'_>, settings: HashMap<String, String>) -> PyResult<()> {
    let config = load_with_codecs(py, settings)?;
    interruptible(py, |interrupted| sumpter_node::serve(&config, interrupted))
}

/// Runs a coordinator for many jobs until a signal arrives.
#[pyfunction]
pub fn run_coordinator(
    py: Python<'_>,
    listen: String,
    settings: HashMap<String, String>,
) -> PyResult<()> {
    let config = load(settings)?;
    interruptible(py, |interrupted| sumpter_node::run_coordinator(&listen, &config, interrupted))
}

/// The plan for a request, both in JSON.
#[pyfunction]
pub fn plan(request_json: &str) -> PyResult<String> {
    sumpter_plan::report_json(request_json).map_err(from_plan)
}

/// What the coordinator knows of its jobs and servers, or of one job, as JSON.
#[pyfunction]
#[pyo3(signature = (settings, job = None))]
pub fn status(
    py: Python<'_>,
    settings: HashMap<String, String>,
    job: Option<&str>,
) -> PyResult<String> {
    let config = load(settings)?;
    let report = py.detach(|| sumpter_node::status(&config, job));
    let report = report.map_err(|e| from_node(py, e))?;
    serde_json::to_string(&report).map_err(|e| StartError::new_err(e.to_string()))
}

/// Has the coordinator take servers out of all jobs: the one with this number, or all of this
/// host. Which these are, and which others there are, as JSON.
#[pyfunction]
pub fn drain(py: Python<'_>, who: &str, settings: HashMap<String, String>) -> PyResult<String> {
    let config = load(settings)?;
    let report = py.detach(|| sumpter_node::drain(&config, who));
    let report = report.map_err(|e| from_node(py, e))?;
    serde_json::to_string(&report).map_err(|e| StartError::new_err(e.to_string()))
}

/// Has the coordinator change settings of a running job, given as texts by name. What it is asked
/// to run with, as JSON.
#[pyfunction]
#[pyo3(signature = (changes, settings, *, job = None, reset = false))]
pub fn tune(
    py: Python<'_>,
    changes: BTreeMap<String, String>,
    settings: HashMap<String, String>,
    job: Option<&str>,
    reset: bool,
) -> PyResult<String> {
    let config = load(settings)?;
    let report = py.detach(|| sumpter_node::tune(&config, job, changes, reset, None));
    let report = report.map_err(|e| from_node(py, e))?;
    serde_json::to_string(&report).map_err(|e| StartError::new_err(e.to_string()))
}

/// The credit in bytes where none is set, for machines the slowest of which carries `gbps`.
#[pyfunction]
#[pyo3(signature = (gbps))]
pub fn default_credit(gbps: Option<f64>) -> u64 {
    sumpter_plan::default_credit(gbps)
}

/// How large partitions are under a plan's two sizes: those of a tensor, or the largest.
#[pyfunction]
#[pyo3(signature = (partition_bytes, credit_bytes, tensor_bytes = None, servers = 1))]
pub fn cut_bytes(
    partition_bytes: u64,
    credit_bytes: u64,
    tensor_bytes: Option<u64>,
    servers: u64,
) -> u64 {
    let largest = sumpter_plan::largest_partition(partition_bytes, credit_bytes);
    // The models that ask know the speed of the links.
    let sizes = (largest, sumpter_plan::even_partition(largest, Some(1.0)));
    tensor_bytes.map_or(largest, |bytes| sumpter_plan::partition_of(bytes, sizes, servers))
}

/// The table of settings.
#[pyfunction]
pub fn settings(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let row = |s: &sumpter_config::Setting| {
        let row = PyDict::new(py);
        row.set_item("name", s.name)?;
        row.set_item("env", s.env)?;
        row.set_item("unit", s.unit)?;
        row.set_item("default", s.default)?;
        row.set_item("range", s.range)?;
        row.set_item("doc", s.doc)?;
        Ok(row)
    };
    sumpter_config::SETTINGS.iter().map(row).collect()
}

/// The table of metrics.
#[pyfunction]
pub fn metrics(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    use sumpter_metrics::{Counts, FAMILIES, Family, Metric};
    let row = |family: &&Family| {
        let row = PyDict::new(py);
        row.set_item("name", family.name())?;
        let kind = match family.metric {
            Metric::Counter => "counter",
            Metric::Gauge => "gauge",
        };
        row.set_item("type", kind)?;
        let of = match family.of {
            Counts::Coordinator => "coordinator",
            Counts::Member => "member",
            Counts::Worker => "worker",
        };
        row.set_item("of", of)?;
        row.set_item("labels", family.labels)?;
        row.set_item("help", family.help)?;
        Ok(row)
    };
    FAMILIES.iter().map(row).collect()
}

/// Raises ConfigError for the first setting that does not hold in an environment such as this.
#[pyfunction]
pub fn check_environment(environment: HashMap<String, String>) -> PyResult<()> {
    let checked = sumpter_config::load_from(&[], |name| environment.get(name).cloned());
    checked.map(drop).map_err(from_config)
}

/// The identity of this machine: equal for processes that share its network.
#[pyfunction]
pub fn machine_id() -> String {
    sumpter_config::local_machine_id()
}

/// A fresh secret for a job.
#[pyfunction]
pub fn generate_token() -> String {
    let mut bytes = [0u8; 16];
    getrandom::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The update rules, and what each keeps beside the value.
#[pyfunction]
pub fn update_rules() -> HashMap<&'static str, Vec<&'static str>> {
    Rule::ALL.into_iter().map(|rule| (rule.name(), rule.slots().to_vec())).collect()
}

/// What the coefficients of an update are called, in their order.
#[pyfunction]
pub fn update_coefficients() -> Vec<&'static str> {
    Update::NAMES.to_vec()
}

/// The kernels chosen on this processor, or those of them that sum a type.
#[pyfunction]
#[pyo3(signature = (dtype = None))]
pub fn instruction_set(dtype: Option<&str>) -> PyResult<&'static str> {
    let Some(name) = dtype else { return Ok(InstructionSet::preferred().name()) };
    let dtype = Dtype::from_name(name)
        .ok_or_else(|| ConfigError::new_err(format!("there are no kernels for '{name}'")))?;
    Ok(InstructionSet::preferred_for(ReduceOp::Sum, dtype).name())
}
