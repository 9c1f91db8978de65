//! Who takes part in a run.

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet};

use sumpter_types::{Epoch, JobId, MemberId, Quota, Rank};
use sumpter_wire::Token;

/// Who takes part in a run, the same for all. The servers and what was changed of the settings
/// change with the epoch; the workers stay, but for those that die.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterView {
    /// The run's number.
    pub job: JobId,
    /// The job's name.
    pub name: String,
    /// The plan's version.
    pub epoch: Epoch,
    /// All ranks of the start, in order.
    pub workers: Vec<WorkerView>,
    /// Those that have died; the others go on without them.
    pub gone: BTreeSet<Rank>,
    /// The servers, in an order that is the same for all.
    pub servers: Vec<ServerView>,
    /// The rank whose process also holds the coordinator, if one does.
    pub coordinator_rank: Option<Rank>,
    /// What the run's members prove to each other on the data plane. The coordinator's service
    /// puts it in; whoever is told of the view has it.
    pub key: Option<Token>,
    /// What the job may take of each server; put in likewise.
    pub quota: Quota,
    /// Settings that differ from those the workers began with, as texts by name.
    pub changes: BTreeMap<String, String>,
}

impl ClusterView {
    /// Machines with workers that live, and machines with servers only: the rule's n and k.
    #[must_use]
    pub fn machines(&self) -> (usize, usize) {
        let gpu: BTreeSet<&str> = self.living().map(|worker| worker.machine.as_str()).collect();
        let cpu: BTreeSet<&str> = self.servers.iter().map(|s| s.machine.as_str()).collect();
        (gpu.len(), cpu.difference(&gpu).count())
    }

    /// What the slowest machine's link carries each way, in Gb/s, if it is known of all; without
    /// end where there is one machine, which needs no link.
    #[must_use]
    pub fn slowest_gbps(&self) -> Option<f64> {
        if self.machines() == (1, 0) {
            return Some(f64::INFINITY);
        }
        let workers = self.living().map(|w| (w.machine.as_str(), w.bandwidth_gbps));
        let servers = self.servers.iter().map(|s| (s.machine.as_str(), s.bandwidth_gbps));
        // One process of a machine may know what the others do not.
        let mut machines: BTreeMap<&str, Option<f64>> = BTreeMap::new();
        for (machine, gbps) in workers.chain(servers) {
            let known = machines.entry(machine).or_default();
            *known = known.or(gbps);
        }
        let slower = |slowest: f64, gbps: Option<f64>| gbps.map(|gbps| slowest.min(gbps));
        machines.into_values().try_fold(f64::INFINITY, slower)
    }

    /// The workers that have not died, in the order of ranks.
    pub fn living(&self) -> impl Iterator<Item = &WorkerView> {
        self.workers.iter().filter(|worker| !self.gone.contains(&worker.rank))
    }
}

/// A worker as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    /// Its number in the job.
    pub rank: Rank,
    /// A name a person recognizes.
    pub host: String,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// Addresses of its colocated lanes.
    pub lanes: Vec<SocketAddr>,
    /// What its machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
}

/// A server as others see it.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerView {
    /// Its number with the coordinator.
    pub member: MemberId,
    /// A name a person recognizes.
    pub host: String,
    /// Equal for processes that share a network interface.
    pub machine: String,
    /// Addresses of its lanes.
    pub lanes: Vec<SocketAddr>,
    /// What its machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
}
