//! Answers the question of `sumpter plan`: the data behind its table and its JSON.
//!
//! Shares are fractions of the model per machine, link bytes are each way, times are of one round
//! of the whole model. A value that does not exist (a parameter server without CPU machines, a
//! gain over nothing, one bandwidth where there are several) is null.

use serde::Serialize;
use sumpter_types::Rule;

use crate::{
    Cluster, NamedMachine, PlanError, PlanRequest, Prediction, Role, Uniform, link_loads,
    parse_machines, predict, shares,
};

/// The answer to a [`PlanRequest`]. With equal interfaces the shares of a CPU and a GPU machine
/// are given by role (zero for a role that has no machine); with a machine list, by machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanReport {
    /// GPU machines (n).
    pub workers: u32,
    /// CPU machines (k).
    pub servers: u32,
    /// Size of the model.
    pub bytes: u64,
    /// Bandwidth of every interface, where it is the same.
    pub bandwidth_gbps: Option<f64>,
    /// Share of a CPU machine, where bandwidths are the same.
    pub share_cpu: Option<f64>,
    /// Share of a GPU machine, where bandwidths are the same.
    pub share_gpu: Option<f64>,
    /// Bytes on a CPU machine's link, where bandwidths are the same.
    pub link_bytes_cpu: Option<f64>,
    /// Bytes on a GPU machine's link, where bandwidths are the same.
    pub link_bytes_gpu: Option<f64>,
    /// The optimum.
    pub time_s: f64,
    /// Ring all-reduce.
    pub allreduce_time_s: f64,
    /// Non-colocated parameter server.
    pub ps_time_s: Option<f64>,
    /// All-reduce over the optimum.
    pub gain_over_allreduce: Option<f64>,
    /// Parameter server over the optimum.
    pub gain_over_ps: Option<f64>,
    /// Every machine of a machine list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machines: Option<Vec<MachineReport>>,
    /// What the optimizer takes in memory, if the request names its rule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub optimizer: Option<OptimizerReport>,
    /// What a person should know about this cluster, in sentences.
    pub notes: Vec<String>,
}

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

/// One machine of a machine list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Its bandwidth each way.
    pub bandwidth_gbps: f64,
    /// Fraction of the model that it sums.
    pub share: f64,
    /// Bytes on its link each way.
    pub link_bytes: f64,
}

/// Answers a request given in JSON with a report in JSON.
///
/// ```
/// let report = sumpter_plan::report_json(r#"{"workers": 32, "servers": 16}"#)?;
/// assert!(report.contains(r#""gain_over_allreduce":1.46875"#));
///
/// let error = sumpter_plan::report_json(r#"{"workers": 0}"#).unwrap_err();
/// assert_eq!(error.to_string(), "workers is 0; expected a whole number from 1 to 100000");
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// Whatever is wrong with the request.
pub fn report_json(request_json: &str) -> Result<String, PlanError> {
    let report = PlanRequest::from_json(request_json)?.report()?;
    serde_json::to_string(&report).map_err(|error| PlanError::Request(error.to_string()))
}

impl PlanRequest {
    /// Answers the request.
    ///
    /// # Errors
    /// A value out of range, a bad machine list, or counts that contradict it.
    pub fn report(&self) -> Result<PlanReport, PlanError> {
        match &self.machines {
            None => self.report_uniform(),
            Some(toml) => self.report_listed(parse_machines(toml)?),
        }
    }

    fn report_uniform(&self) -> Result<PlanReport, PlanError> {
        let Some(workers) = self.workers else {
            let expected = "a number of GPU machines, or a machine list";
            return Err(PlanError::field("workers", "missing", expected));
        };
        let uniform = Uniform::new(workers, self.servers.unwrap_or(0))?;
        let prediction = uniform.predict(self.bytes, self.bandwidth_gbps)?;
        let mut report = self.bare(workers, self.servers.unwrap_or(0), prediction);
        report.fill_by_role(uniform, self.bandwidth_gbps);
        Ok(report)
    }

    fn report_listed(&self, named: Vec<NamedMachine>) -> Result<PlanReport, PlanError> {
        let cluster = Cluster::new(named.iter().map(|named| named.machine).collect())?;
        let counts = [
            ("workers", self.workers, cluster.workers(), Role::Gpu),
            ("servers", self.servers, cluster.servers(), Role::Cpu),
        ];
        for (field, given, listed, role) in counts {
            if let Some(given) = given.filter(|&given| given != listed) {
                return Err(PlanError::Disagree { field, given, listed, role: role.word() });
            }
        }

        let shares = shares(&cluster);
        let loads = link_loads(&cluster, &shares);
        let rows = named.into_iter().zip(shares.iter().zip(loads));
        let rows = rows.map(|(NamedMachine { name, machine }, (&share, load))| MachineReport {
            name,
            role: machine.role,
            bandwidth_gbps: machine.bandwidth_gbps,
            share,
            link_bytes: load * self.bytes as f64,
        });
        let prediction = predict(&cluster, self.bytes)?;
        let mut report = self.bare(cluster.workers(), cluster.servers(), prediction);
        report.machines = Some(rows.collect());
        if let Some(bandwidth_gbps) = cluster.common_bandwidth_gbps() {
            let uniform = Uniform::new(cluster.workers(), cluster.servers())?;
            report.fill_by_role(uniform, bandwidth_gbps);
        }
        report.note_idle_machines();
        Ok(report)
    }

    fn bare(&self, workers: u32, servers: u32, prediction: Prediction) -> PlanReport {
        PlanReport {
            workers,
            servers,
            bytes: self.bytes,
            bandwidth_gbps: None,
            share_cpu: None,
            share_gpu: None,
            link_bytes_cpu: None,
            link_bytes_gpu: None,
            time_s: prediction.time_s,
            allreduce_time_s: prediction.allreduce_time_s,
            ps_time_s: prediction.ps_time_s,
            gain_over_allreduce: prediction.gain_over_allreduce,
            gain_over_ps: prediction.gain_over_ps,
            machines: None,
            optimizer: self.rule.map(|rule| OptimizerReport::new(rule, self.bytes, workers)),
            notes: notes(workers, servers),
        }
    }
}

impl PlanReport {
    fn fill_by_role(&mut self, uniform: Uniform, bandwidth_gbps: f64) {
        let bytes = self.bytes as f64;
        self.bandwidth_gbps = Some(bandwidth_gbps);
        self.share_cpu = Some(uniform.cpu_share());
        self.share_gpu = Some(uniform.gpu_share());
        self.link_bytes_cpu = Some(uniform.cpu_link() * bytes);
        self.link_bytes_gpu = Some(uniform.gpu_link() * bytes);
        if let Some(optimizer) = &mut self.optimizer {
            let kept = bytes * (1 + optimizer.slots.len()) as f64;
            optimizer.lane_bytes_gpu = Some(uniform.gpu_share() * kept);
            optimizer.lane_bytes_cpu = Some(uniform.cpu_share() * kept);
        }
    }

    /// With three machines or more, a worker without a share has a link that is full already.
    fn note_idle_machines(&mut self) {
        let rows = self.machines.iter().flatten();
        let idle = rows.filter(|row| row.role == Role::Gpu && row.share == 0.0).count();
        if self.workers > 2 && idle > 0 && idle < self.workers as usize {
            self.notes.push(format!(
                "{idle} GPU machine(s) with slow interfaces sum nothing: their own gradients keep \
                 their links busy for as long as the others need."
            ));
        }
    }
}

impl OptimizerReport {
    fn new(rule: Rule, bytes: u64, workers: u32) -> OptimizerReport {
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

fn notes(workers: u32, servers: u32) -> Vec<String> {
    let note = match (workers, servers) {
        (1, _) => "One GPU machine: the sum never leaves it, and no helper can make it faster.",
        (2, 1..) => {
            "Two GPU machines: each sends its gradient once wherever it is summed, so no helper \
             makes it faster."
        }
        (n, k) if k > n => {
            "More CPU than GPU machines: the workers' own links are the limit, and further \
             helpers do not make it faster."
        }
        _ => return Vec::new(),
    };
    vec![note.to_owned()]
}
