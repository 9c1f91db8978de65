//! Answers the question of `sumpter plan`: the data behind its table and its JSON.
//!
//! Shares are fractions of the model per machine, link bytes are each way, times are of one round
//! of the whole model. A value that does not exist (a parameter server without CPU machines, a
//! gain over nothing, one bandwidth where there are several) is null.

mod optimizer;
mod racks;

use serde::Serialize;

use crate::trees::plan_trees_and_job;
use crate::{
    Cluster, InsideReport, MachineList, MinimumBandwidth, NamedMachine, Offer, PlanError,
    PlanRequest, Prediction, Role, Uniform, offers, parse_machines, parse_prices, predict,
    predict_trees, reduce_inside,
};

pub use optimizer::OptimizerReport;
pub use racks::{JobTrees, RackCase, RackDecision, RackReport, TreesPart, TreesReport, TreesTime};

/// Machines whose links carry parts of the model that differ by less are alike.
const SAME_LOAD: f64 = 1e-6;

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
    /// Ring all-reduce, one rack after another.
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
    /// The reduction trees, where the machines are in racks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trees: Option<TreesReport>,
    /// What happens inside machines that list their devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<Vec<InsideMachine>>,
    /// The bandwidth that hides communication behind computation, if the request has its time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub minimum_bandwidth: Option<MinimumBandwidth>,
    /// The bandwidth that each machine needs each way for this plan to be hidden: of the busiest
    /// link, where bandwidths are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plan_minimum_gbps: Option<f64>,
    /// What other machines and links would bring for their price, if the request has prices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offers: Option<Vec<Offer>>,
    /// What a person should know about this cluster, in sentences.
    pub notes: Vec<String>,
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
    /// Fraction of the model that it sums: for which it is the root of reduction trees.
    pub share: f64,
    /// Bytes on its link each way.
    pub link_bytes: f64,
    /// Its rack.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
    /// Fraction of the model for which it is its rack's hub, but not the root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hub: Option<f64>,
    /// Its network interfaces, if they are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nics: Vec<NicReport>,
}

/// A network interface. Partitions go to the lanes of each in proportion to its bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct NicReport {
    /// Its name.
    pub name: String,
    /// Its bandwidth each way.
    pub bandwidth_gbps: f64,
    /// Its NUMA node, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Bytes on it each way.
    pub link_bytes: f64,
}

/// What happens inside machines of one entry of the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InsideMachine {
    /// The first of them.
    pub machine: String,
    /// How many they are.
    pub count: usize,
    /// What GPUs do, and what links carry.
    pub report: InsideReport,
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
            Some(toml) => self.report_listed(&parse_machines(toml)?),
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
        self.add_costs(&mut report)?;
        Ok(report)
    }

    fn report_listed(&self, list: &MachineList) -> Result<PlanReport, PlanError> {
        let topology = list.topology()?;
        let cluster = topology.cluster();
        let counts = [
            ("workers", self.workers, cluster.workers(), Role::Gpu),
            ("servers", self.servers, cluster.servers(), Role::Cpu),
        ];
        for (field, given, listed, role) in counts {
            if let Some(given) = given.filter(|&given| given != listed) {
                return Err(PlanError::Disagree { field, given, listed, role: role.word() });
            }
        }

        let (planned, job) = plan_trees_and_job(&topology)?;
        let prediction = predict_trees(&topology, &planned, self.bytes)?;
        let mut report = self.bare(cluster.workers(), cluster.servers(), prediction);
        let parts = racks::parts(&topology, &planned);
        let rows = list.machines.iter().zip(&parts).zip(&planned.loads.machines);
        let rows = rows.map(|((named, parts), load)| {
            MachineReport::new(named, list, *parts, load * self.bytes as f64)
        });
        report.machines = Some(rows.collect());
        if !list.racks.is_empty() {
            let trees = TreesReport::new(list, &topology, (&planned, &job), self.bytes);
            report.trees = Some(trees);
        } else if let Some(bandwidth_gbps) = cluster.common_bandwidth_gbps() {
            let uniform = Uniform::new(cluster.workers(), cluster.servers())?;
            report.fill_by_role(uniform, bandwidth_gbps);
        }
        report.inside = self.inside(list, &planned.loads.machines);
        report.note_idle_machines();
        report.note_inside();
        self.add_costs(&mut report)?;
        Ok(report)
    }

    /// Machines of each entry with devices, those that carry the same between machines as one.
    fn inside(&self, list: &MachineList, loads: &[f64]) -> Option<Vec<InsideMachine>> {
        let mut kinds: Vec<(usize, usize, usize)> = Vec::new();
        for (at, named) in list.machines.iter().enumerate() {
            let Some(entry) = named.devices else { continue };
            let same = |&&mut (known, first, _): &&mut (usize, usize, usize)| {
                known == entry && (loads[at] - loads[first]).abs() <= SAME_LOAD
            };
            match kinds.iter_mut().find(same) {
                Some((.., count)) => *count += 1,
                None => kinds.push((entry, at, 1)),
            }
        }
        let of = |(entry, first, count): (usize, usize, usize)| InsideMachine {
            machine: list.machines[first].name.clone(),
            count,
            report: reduce_inside(&list.devices[entry], self.bytes, loads[first]),
        };
        let inside: Vec<_> = kinds.into_iter().map(of).collect();
        (!inside.is_empty()).then_some(inside)
    }

    /// What the time of computing and prices say, if they are given.
    fn add_costs(&self, report: &mut PlanReport) -> Result<(), PlanError> {
        let Some(compute_s) = self.compute_s else {
            let missing = || PlanError::field("compute_s", "missing", "a number, beside prices");
            return self.prices.as_ref().map_or(Ok(()), |_| Err(missing()));
        };
        report.minimum_bandwidth =
            Some(MinimumBandwidth::new(report.workers, report.bytes, compute_s)?);
        let rate = 8e-9 / compute_s;
        let busiest = report.link_bytes_gpu.into_iter().chain(report.link_bytes_cpu);
        report.plan_minimum_gbps = busiest.map(|bytes| bytes * rate).reduce(f64::max);
        let Some(prices) = &self.prices else { return Ok(()) };
        let prices = parse_prices(prices)?;
        let Some(bandwidth_gbps) = report.bandwidth_gbps.filter(|_| report.inside.is_none()) else {
            let expected = "machines of one bandwidth, without racks and devices";
            return Err(PlanError::field("machines beside prices", "a list of others", expected));
        };
        let round_s = |workers, servers, gbps| {
            let cluster = Cluster::uniform(workers, servers, gbps)?;
            Ok(predict(&cluster, self.bytes)?.time_s)
        };
        let now = (report.workers, report.servers);
        report.offers = Some(offers(&prices, now, bandwidth_gbps, compute_s, round_s)?);
        Ok(())
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
            trees: None,
            inside: None,
            minimum_bandwidth: None,
            plan_minimum_gbps: None,
            offers: None,
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

    /// With three machines or more, a worker without a share has a link that is full already. In
    /// racks, trunks may be why.
    fn note_idle_machines(&mut self) {
        if self.trees.is_some() {
            return;
        }
        let rows = self.machines.iter().flatten();
        let idle = rows.filter(|row| row.role == Role::Gpu && row.share == 0.0).count();
        if self.workers > 2 && idle > 0 && idle < self.workers as usize {
            self.notes.push(format!(
                "{idle} GPU machine(s) with slow interfaces sum nothing: their own gradients keep \
                 their links busy for as long as the others need."
            ));
        }
    }

    /// Times of a round are those of links between machines.
    fn note_inside(&mut self) {
        let slower = |inside: &&InsideMachine| inside.report.time_s > self.time_s * (1.0 + 1e-9);
        let note = |inside: &InsideMachine| {
            if self.time_s == 0.0 {
                return format!(
                    "Nothing crosses the network: a round takes the {:.3} ms of the links inside \
                     {}.",
                    inside.report.time_s * 1e3,
                    inside.machine
                );
            }
            let times = inside.report.time_s / self.time_s;
            format!(
                "Links inside {} take {times:.3} times as long as those between machines: a round \
                 takes at least that long.",
                inside.machine
            )
        };
        let notes: Vec<String> = self.inside.iter().flatten().filter(slower).map(note).collect();
        self.notes.extend(notes);
    }
}

impl MachineReport {
    fn new(
        NamedMachine { name, machine, rack, nics, .. }: &NamedMachine,
        list: &MachineList,
        (share, hub): (f64, f64),
        link_bytes: f64,
    ) -> Self {
        let nic = |nic: &crate::Nic| NicReport {
            name: nic.name.clone(),
            bandwidth_gbps: nic.gbps,
            numa: nic.numa,
            link_bytes: link_bytes * nic.gbps / machine.bandwidth_gbps,
        };
        Self {
            name: name.clone(),
            role: machine.role,
            bandwidth_gbps: machine.bandwidth_gbps,
            share,
            link_bytes,
            rack: rack.map(|rack| list.racks[rack].name.clone()),
            hub: rack.map(|_| hub),
            nics: nics.iter().map(nic).collect(),
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
