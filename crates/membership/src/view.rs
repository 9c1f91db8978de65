//! Who takes part in a run.

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet};

use sumpter_types::{DeviceGroup, Epoch, JobId, MemberId, Quota, Rack, Rank, Speeds};
use sumpter_wire::Token;

use crate::registry::words::list;

/// What the links of all machines count as where none is known, in Gb/s.
pub const UNKNOWN_GBPS: f64 = 1.0;

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
    /// puts it in; every member that gets the view has it.
    pub key: Option<Token>,
    /// What the job may take of each server; put in likewise.
    pub quota: Quota,
    /// Settings that differ from those the workers began with, as texts by name.
    pub changes: BTreeMap<String, String>,
    /// How fast its members are.
    pub speeds: Box<RunSpeeds>,
}

/// The least of what the members of a run have measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSpeeds {
    /// By the workers that live, when they joined.
    pub workers: Speeds,
    /// By the servers.
    pub servers: Speeds,
    /// Bytes a second that the slowest worker's machine has sent while more was waiting; 0 as long
    /// as that is not known.
    pub link: u64,
}

impl RunSpeeds {
    /// What the slowest machine's link was seen to carry, in Gb/s.
    #[must_use]
    pub fn link_gbps(&self) -> Option<f64> {
        (self.link > 0).then_some(self.link as f64 * 8e-9)
    }
}

impl ClusterView {
    /// Machines with workers that live, and machines with servers only: the rule's n and k.
    #[must_use]
    pub fn machines(&self) -> (usize, usize) {
        let gpu: BTreeSet<&str> = self.living().map(|worker| worker.machine.as_str()).collect();
        let cpu: BTreeSet<&str> = self.servers.iter().map(|s| s.machine.as_str()).collect();
        (gpu.len(), cpu.difference(&gpu).count())
    }

    /// What the slowest machine's link carries each way, in Gb/s, as far as that is known; without
    /// end where there is one machine, which needs no link.
    #[must_use]
    pub fn slowest_gbps(&self) -> Option<f64> {
        match self.machines() {
            (1, 0) => Some(f64::INFINITY),
            _ => self.lowest_known_gbps(),
        }
    }

    /// The least that is known of a machine's link, in Gb/s. A machine of which nothing is known
    /// counts as that: a share too small for its link costs less than one too large, for which all
    /// the others wait.
    #[must_use]
    pub fn lowest_known_gbps(&self) -> Option<f64> {
        let known = self.links().into_values().filter_map(|(_, gbps)| gbps);
        known.reduce(f64::min)
    }

    /// What a machine's link counts as of which nothing is known: the least that is known of
    /// others, else what was measured in this run, in Gb/s.
    #[must_use]
    pub fn likely_gbps(&self) -> Option<f64> {
        self.lowest_known_gbps().or_else(|| self.speeds.link_gbps())
    }

    /// The machines of which nothing is known and what they count as, in words for the log; none
    /// if all are known, or if none is, all count as equal, and no trunk is there to compare with.
    #[must_use]
    pub fn assumed_links(&self) -> Option<String> {
        let Some(assumed) = self.lowest_known_gbps() else { return self.trunks_without_links() };
        let unknown: Vec<String> = self
            .links()
            .into_iter()
            .filter(|(_, (_, gbps))| gbps.is_none())
            .map(|(machine, (host, _))| format!("{machine} ({host})"))
            .collect();
        let (link, it) =
            if unknown.len() == 1 { ("link", "it counts") } else { ("links", "they count") };
        (!unknown.is_empty()).then(|| {
            format!(
                "no bandwidth is known of the {link} of {}: {it} as {assumed} Gb/s, the least \
                 that is known of the others; set bandwidth_gbps there",
                list(unknown)
            )
        })
    }

    /// The racks of which the trunk is known though no machine's link is, in words for the log.
    fn trunks_without_links(&self) -> Option<String> {
        let workers = self.living().map(|worker| &worker.rack);
        let racks = workers.chain(self.servers.iter().map(|server| &server.rack)).flatten();
        let known = racks.filter(|rack| rack.trunk_gbps.is_some());
        let names: BTreeSet<&str> = known.map(|rack| rack.name.as_str()).collect();
        let (trunk, rack) = if names.len() == 1 { ("trunk", "rack") } else { ("trunks", "racks") };
        (!names.is_empty()).then(|| {
            format!(
                "no bandwidth is known of any machine: all links count as {UNKNOWN_GBPS} Gb/s \
                 beside the {trunk} of {rack} {}; set bandwidth_gbps on every machine",
                list(names)
            )
        })
    }

    /// Host and bandwidth of each machine. One process of a machine may know what others do not.
    fn links(&self) -> BTreeMap<&str, (&str, Option<f64>)> {
        let workers = self.living().map(|w| (&w.machine, &w.host, w.bandwidth_gbps));
        let servers = self.servers.iter().map(|s| (&s.machine, &s.host, s.bandwidth_gbps));
        let mut links: BTreeMap<&str, (&str, Option<f64>)> = BTreeMap::new();
        for (machine, host, gbps) in workers.chain(servers) {
            let (_, known) = links.entry(machine).or_insert((host, None));
            *known = known.or(gbps);
        }
        links
    }

    /// The ranks of each device group, by its name.
    pub fn device_groups(&self) -> BTreeMap<&str, Vec<&WorkerView>> {
        let mut groups: BTreeMap<&str, Vec<&WorkerView>> = BTreeMap::new();
        for worker in &self.workers {
            if let Some(group) = &worker.device_group {
                groups.entry(&group.name).or_default().push(worker);
            }
        }
        groups
    }

    /// Whether the ranks of each device group can reduce among themselves.
    ///
    /// # Errors
    /// In words, if those of one are on several machines, or none of them holds shards.
    pub fn check_device_groups(&self) -> Result<(), String> {
        for (name, workers) in self.device_groups() {
            let first = workers[0];
            if let Some(other) = workers.iter().find(|worker| worker.machine != first.machine) {
                return Err(format!(
                    "device group '{name}' is on two machines: rank {} is on {} ({}), rank {} on \
                     {} ({}); give the groups of each machine names of their own (device_group, \
                     or SUMPTER_DEVICE_GROUP)",
                    first.rank, first.machine, first.host, other.rank, other.machine, other.host
                ));
            }
            let holds =
                |worker: &&WorkerView| worker.device_group.as_ref().is_some_and(|g| g.holds);
            if !workers.iter().any(holds) {
                let ranks = list(workers.iter().map(|worker| worker.rank));
                return Err(format!(
                    "device group '{name}' on {} ({}) has no rank that holds shards: its ranks \
                     {ranks} all have device_shards=false; leave it out for one of them",
                    first.machine, first.host
                ));
            }
        }
        Ok(())
    }

    /// How many event loops each worker has: equally many, with a lane each.
    #[must_use]
    pub fn loops(&self) -> u32 {
        let most = self.workers.iter().map(|worker| worker.lanes.len()).max();
        most.unwrap_or(0).max(1) as u32
    }

    /// What event loop `number` of each worker serves: a run of its own with all servers, in which
    /// each worker has one lane.
    #[must_use]
    pub fn of_loop(&self, number: u32) -> ClusterView {
        let lane = |worker: &WorkerView| match worker.lanes.len() {
            0 => Vec::new(),
            lanes => vec![worker.lanes[number as usize % lanes].clone()],
        };
        let of_loop = |worker: &WorkerView| WorkerView { lanes: lane(worker), ..worker.clone() };
        let workers = self.workers.iter().map(of_loop).collect();
        ClusterView { job: self.job.of_loop(number), workers, ..self.clone() }
    }

    /// The parts of all event loops.
    pub fn of_loops(&self) -> impl Iterator<Item = ClusterView> {
        (0..self.loops()).map(|number| self.of_loop(number))
    }

    /// The workers that have not died, in the order of ranks.
    pub fn living(&self) -> impl Iterator<Item = &WorkerView> {
        self.workers.iter().filter(|worker| !self.gone.contains(&worker.rank))
    }
}

/// A lane as others see it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LaneView {
    /// Where it can be reached: at the network interfaces that it belongs to, then at the others of
    /// its process.
    pub addresses: Vec<SocketAddr>,
    /// How many of the addresses are at interfaces that it belongs to: these share its traffic, the
    /// others are for failover.
    pub own: u32,
    /// The bandwidth of the interfaces that it belongs to, beside those of other lanes of its
    /// process.
    pub bandwidth: u32,
}

impl LaneView {
    /// The address that it is known by.
    ///
    /// # Panics
    /// If it has none: every lane of a member that was admitted has one.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }
}

impl<A: Into<SocketAddr>> From<A> for LaneView {
    fn from(address: A) -> LaneView {
        LaneView { addresses: vec![address.into()], own: 1, bandwidth: 1 }
    }
}

impl core::fmt::Display for LaneView {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let texts: Vec<_> = self.addresses.iter().map(ToString::to_string).collect();
        f.write_str(&texts.join(","))
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
    /// Its colocated lanes.
    pub lanes: Vec<LaneView>,
    /// What its machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
    /// Where its machine is, if that is known.
    pub rack: Option<Rack>,
    /// Its device group, if it has one.
    pub device_group: Option<DeviceGroup>,
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
    /// Its lanes.
    pub lanes: Vec<LaneView>,
    /// What its machine's interface carries each way, if it is known.
    pub bandwidth_gbps: Option<f64>,
    /// Where its machine is, if that is known.
    pub rack: Option<Rack>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(lanes: &[u16]) -> ClusterView {
        let lanes = |rank: u16| lanes.iter().map(move |n| ([10, 0, 0, rank as u8], *n).into());
        let worker = |rank: u16| WorkerView {
            rank: Rank(rank.into()),
            host: "h".into(),
            machine: "m".into(),
            lanes: lanes(rank).collect(),
            bandwidth_gbps: None,
            rack: None,
            device_group: None,
        };
        let workers = (0..3).map(worker).collect();
        ClusterView { job: JobId::drawn(u64::MAX), workers, ..ClusterView::default() }
    }

    #[test]
    fn each_event_loop_has_a_run_with_its_lane_of_every_worker() {
        let view = view(&[7000, 7001, 7002]);
        let parts: Vec<ClusterView> = view.of_loops().collect();
        assert_eq!((view.loops(), parts.len()), (3, 3));
        for (number, part) in (0..).zip(&parts) {
            assert_eq!((part.job.run(), part.job.event_loop()), (view.job, number));
            let ports: Vec<_> = part.workers.iter().map(|w| w.lanes[0].address().port()).collect();
            assert_eq!(ports, [7000 + number as u16; 3]);
            assert!(part.workers.iter().all(|worker| worker.lanes.len() == 1));
            assert_eq!(part.loops(), 1);
        }
    }

    #[test]
    fn with_one_event_loop_its_part_is_the_run() {
        let view = view(&[7000]);
        assert_eq!(view.of_loops().collect::<Vec<_>>(), [view]);
        assert_eq!(ClusterView::default().loops(), 1);
    }
}
