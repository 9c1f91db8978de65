//! From who takes part to which lane sums what: the coordinator's view becomes the plan.

pub(crate) mod carriers;
pub(crate) mod compression;
pub(crate) mod deal;
pub(crate) mod hubs;
pub(crate) mod interfaces;
pub(crate) mod lanes;
pub(crate) mod link_speed;
pub(crate) mod mirrors;
pub(crate) mod numa;
pub(crate) mod paths;
pub(crate) mod racks;
pub(crate) mod route;
pub(crate) mod shards;

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

use sumpter_codec::Spec;
use sumpter_endpoint::ConnId;
use sumpter_membership::{ClusterView, ServerView, UNKNOWN_GBPS, WorkerView};
use sumpter_plan::{Architecture, CodedTensor, Dealing, PlanError, Role};
use sumpter_types::{Rack, Rank};

use crate::cluster::compression::{Knowledge, Sizes, Verdict};
use crate::cluster::deal::{Deal, Planned};
use crate::cluster::hubs::Hubs;
use crate::cluster::lanes::{LaneAddress, Owner, PlacedPartition, all_lanes};

/// All lanes of a job in one order, and the placement of tensors on them; the same everywhere.
#[derive(Debug)]
pub(crate) struct Cluster {
    pub lanes: Vec<LaneAddress>,
    pub policy: Policy,
    epoch: u64,
    sources: Vec<Source>,
    /// For machines whose bandwidth is not known, in Gb/s.
    assumed_gbps: f64,
    /// The plan for tensors of all ranks.
    whole: Deal,
    /// The other plans: for tensors of some ranks, and for those that no rack passes on.
    parts: HashMap<PlanKey, Deal>,
    /// The first lane of each worker that lives.
    first_lanes: HashMap<Rank, ConnId>,
    /// What codecs are chosen by.
    knowledge: Knowledge,
}

/// The living ranks of a plan, or none for all; and whether it is without the hubs of racks.
type PlanKey = (Vec<Rank>, bool);

/// A process with lanes, and its part in a plan.
#[derive(Debug)]
struct Source {
    owner: Owner,
    machine: String,
    role: Role,
    bandwidth_gbps: Option<f64>,
    rack: Option<Rack>,
    lanes: Range<usize>,
}

/// What the plan makes of a job's racks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RackHubs {
    /// Whether each sums what its machines contribute before that leaves it.
    pub sum: bool,
    /// Whether workers may do so, and how many servers may.
    pub on_workers: bool,
    pub on_servers: usize,
}

/// What the settings say about the plan; equal on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub partition_bytes: u64,
    /// Down to which size partitions are halved for even shares.
    pub even_bytes: u64,
    pub chunk_bytes: u64,
    pub architecture: Architecture,
    pub dealing: Dealing,
    pub deterministic: bool,
    /// Whether workers may die without ending the job.
    pub workers_may_fail: bool,
    /// Whether others go on when a worker dies, so that optimizer state is kept twice.
    pub elastic: bool,
    /// Event loops of each worker.
    pub loops: u32,
    /// Smaller tensors are not compressed where that is chosen.
    pub least_coded_bytes: u64,
}

impl Cluster {
    pub(crate) fn new(view: &ClusterView, policy: Policy) -> Result<Cluster, PlanError> {
        let (lanes, ranges) = all_lanes(view);
        let (mut sources, mut ranges) = (Vec::new(), ranges.into_iter());
        for (worker, lanes) in view.living().zip(&mut ranges) {
            let WorkerView { rank, machine, bandwidth_gbps, rack, .. } = worker;
            let (owner, role) = (Owner::Worker(*rank), Role::Gpu);
            let (machine, bandwidth_gbps, rack) = (machine.clone(), *bandwidth_gbps, rack.clone());
            sources.push(Source { owner, machine, role, bandwidth_gbps, rack, lanes });
        }
        for (server, lanes) in view.servers.iter().zip(ranges) {
            let ServerView { member, machine, bandwidth_gbps, rack, .. } = server;
            let (owner, role) = (Owner::Server(member.0), Role::Cpu);
            let (machine, bandwidth_gbps, rack) = (machine.clone(), *bandwidth_gbps, rack.clone());
            sources.push(Source { owner, machine, role, bandwidth_gbps, rack, lanes });
        }
        share_what_is_known(&mut sources);
        let epoch = u64::from(view.epoch.0);
        let assumed_gbps = view.likely_gbps().unwrap_or(UNKNOWN_GBPS);
        let whole = Deal::new(epoch, policy, (&sources, &lanes, assumed_gbps), |_| true, false)?;
        let (parts, mut first_lanes) = (HashMap::new(), HashMap::new());
        for (number, lane) in lanes.iter().enumerate() {
            if let Owner::Worker(rank) = lane.owner {
                first_lanes.entry(rank).or_insert(ConnId(number));
            }
        }
        let knowledge = Knowledge::of(view);
        Ok(Cluster {
            lanes,
            policy,
            epoch,
            sources,
            assumed_gbps,
            whole,
            parts,
            first_lanes,
            knowledge,
        })
    }

    /// Places the next tensor of the table: one of some ranks, or of all. A plan for some ranks
    /// counts only their machines: its n is theirs, not the job's.
    pub(crate) fn place(&mut self, planned: Planned<'_>, bytes: u64) -> Vec<PlacedPartition> {
        let (deal, _) = self.deal(planned);
        deal.map(|deal| deal.place(bytes, planned.block)).unwrap_or_default()
    }

    /// What of some codecs a tensor gets that is summed by these ranks, or by all: one that pays.
    pub(crate) fn choose(&mut self, ranks: &[Rank], tensor: CodedTensor, from: &[Spec]) -> Verdict {
        if !self.knowledge.has(ranks)
            && let Some((living, _)) = self.prepare(Planned::of(ranks))
        {
            let deal = if living.is_empty() { &self.whole } else { &self.parts[&(living, false)] };
            let Policy { chunk_bytes, least_coded_bytes, .. } = self.policy;
            let sizes = Sizes { chunk_bytes, least_coded_bytes };
            self.knowledge.add(ranks, sizes, (&deal.machines, deal.has_racks));
        }
        self.knowledge.choose(ranks, tensor, from)
    }

    /// A plan, unless none of its ranks lives; and the lanes.
    fn deal(&mut self, planned: Planned<'_>) -> (Option<&mut Deal>, &[LaneAddress]) {
        let deal = match self.prepare(planned) {
            Some((ranks, false)) if ranks.is_empty() => Some(&mut self.whole),
            Some(key) => self.parts.get_mut(&key),
            None => None,
        };
        (deal, &self.lanes)
    }

    /// Makes a plan if there is none yet; its key, unless none of its ranks lives.
    fn prepare(&mut self, Planned { ranks, encoded, .. }: Planned<'_>) -> Option<PlanKey> {
        let lives = |rank: &Rank| self.lane_of(*rank).is_some();
        let living: Vec<Rank> = ranks.iter().copied().filter(lives).collect();
        if living.is_empty() && !ranks.is_empty() {
            return None;
        }
        let key = (living, false);
        self.make(&key);
        let with_racks = match key.0.is_empty() {
            true => self.whole.has_racks,
            false => self.parts[&key].has_racks,
        };
        // Without racks, compressed tensors are placed with the others.
        if !encoded || !with_racks {
            return Some(key);
        }
        let flat = (key.0, true);
        self.make(&flat);
        Some(flat)
    }

    fn make(&mut self, key: &PlanKey) {
        let (ranks, flat) = key;
        if (ranks.is_empty() && !flat) || self.parts.contains_key(key) {
            return;
        }
        let takes_part = |rank: &Rank| ranks.is_empty() || ranks.contains(rank);
        let known = (self.sources.as_slice(), self.lanes.as_slice(), self.assumed_gbps);
        let part = Deal::new(self.epoch, self.policy, known, takes_part, *flat);
        // What makes a plan impossible, such as a bandwidth, was checked with the whole job.
        self.parts.insert(key.clone(), part.expect("a plan for part of a planned job"));
    }

    /// Whether workers are on more than one machine.
    pub(crate) fn are_apart(&self, workers: &[Rank]) -> bool {
        let mut machines = workers.iter().filter_map(|rank| self.machine_of(*rank));
        let first = machines.next();
        machines.any(|machine| Some(machine) != first)
    }

    /// The machine of a worker that lives.
    pub(crate) fn machine_of(&self, rank: Rank) -> Option<&str> {
        self.lane_of(rank).map(|lane| self.lanes[lane.0].machine.as_str())
    }

    /// Who passes on what the machines of some ranks, or of all, contribute; and the lanes.
    pub(crate) fn hubs_of(&mut self, planned: Planned<'_>) -> (Option<&mut Hubs>, &[LaneAddress]) {
        let (deal, lanes) = self.deal(planned);
        (deal.and_then(|deal| deal.hubs.as_mut()), lanes)
    }

    /// What the plan makes of the racks of the machines, in words for the log; nothing if no rack
    /// is known.
    pub(crate) fn racks(&self) -> Option<String> {
        let known: BTreeSet<&str> = self
            .sources
            .iter()
            .filter_map(|source| source.rack.as_ref().map(|rack| rack.name.as_str()))
            .collect();
        let names: Vec<&str> = known.into_iter().collect();
        let names = match names.len() {
            0 => return None,
            1..=8 => format!("racks {}", names.join(", ")),
            many => format!("{many} racks"),
        };
        let RackHubs { sum, on_workers, on_servers } = self.rack_hubs()?;
        let sums = match sum {
            true => "each sums its machines' contributions before they leave it",
            false => "their uplinks limit nothing that is known, so no rack sums by itself",
        };
        // Not where they are summed by workers only, which is what a job without servers does.
        let beside = if on_workers { "workers and " } else { "" };
        let on = match on_servers {
            0 => String::new(),
            1 => format!(", on {beside}1 server"),
            many => format!(", on {beside}{many} servers"),
        };
        Some(format!("{names}: {sums}{on}"))
    }

    /// Whether each rack sums what its machines contribute, and where; `None` if no rack is known.
    pub(crate) fn rack_hubs(&self) -> Option<RackHubs> {
        let is_known = self.sources.iter().any(|source| source.rack.is_some());
        let sum = self.whole.hubs.as_ref().is_some_and(Hubs::has_racks);
        let (on_workers, on_servers) = self.whole.rack_hubs();
        is_known.then_some(RackHubs { sum, on_workers, on_servers })
    }

    /// Whether a lane's process may go without ending the job.
    pub(crate) fn may_vanish(&self, lane: ConnId) -> bool {
        self.policy.workers_may_fail || matches!(self.lanes[lane.0].owner, Owner::Server(_))
    }

    /// The first lane of a worker that lives; the only one, as workers are.
    pub(crate) fn lane_of(&self, rank: Rank) -> Option<ConnId> {
        self.first_lanes.get(&rank).copied()
    }
}

/// What one process of a machine knows of its link and its rack counts for all, so that a plan for
/// some ranks sees the machine as that for any others does: the trees of all shards of a tensor
/// have one shape.
fn share_what_is_known(sources: &mut [Source]) {
    let mut known: HashMap<String, (Option<f64>, Option<Rack>)> = HashMap::new();
    for Source { machine, bandwidth_gbps, rack, .. } in &*sources {
        let (gbps, of_rack) = known.entry(machine.clone()).or_default();
        *gbps = gbps.or(*bandwidth_gbps);
        *of_rack = of_rack.take().or_else(|| rack.clone());
    }
    for source in sources {
        (source.bandwidth_gbps, source.rack) = known[&source.machine].clone();
    }
}

#[cfg(test)]
mod tests {
    use sumpter_membership::LaneView;
    use sumpter_types::MemberId;

    use super::*;

    fn view(machines: &[&str], servers: &[&str]) -> ClusterView {
        let lanes = |n| vec![LaneView::from(([127, 0, 0, 1], n))];
        let worker = |(rank, machine): (u32, &&str)| WorkerView {
            rank: Rank(rank),
            host: "h".into(),
            machine: (*machine).into(),
            lanes: lanes(rank as u16),
            bandwidth_gbps: None,
            rack: None,
            device_group: None,
        };
        let server = |(id, machine): (u64, &&str)| ServerView {
            member: MemberId(id),
            host: "s".into(),
            machine: (*machine).into(),
            lanes: [lanes(1), lanes(2)].concat(),
            bandwidth_gbps: None,
            rack: None,
        };
        ClusterView {
            workers: (0..).zip(machines).map(worker).collect(),
            servers: (0..).zip(servers).map(server).collect(),
            ..ClusterView::default()
        }
    }

    #[test]
    fn the_credit_is_that_of_the_slowest_link_unless_it_is_set() {
        let config = sumpter_config::load_from(&[], |_| None).unwrap();
        let mut view = view(&["a", "a", "b"], &["s"]);
        let credit = |view: &ClusterView| {
            crate::in_force(&config, view).unwrap()["credit_bytes"].parse::<u64>().unwrap()
        };
        assert_eq!(credit(&view), 1 << 20);
        // One process of a machine knows for all.
        view.workers[0].bandwidth_gbps = Some(25.0);
        view.workers[2].bandwidth_gbps = Some(4.0);
        assert_eq!(credit(&view), 488 << 10);
        view.servers[0].bandwidth_gbps = Some(10.0);
        assert_eq!(credit(&view), 488 << 10);
        // However fast links are, no more than the most.
        let fast = |gbps| {
            let mut view = view.clone();
            view.workers.iter_mut().for_each(|worker| worker.bandwidth_gbps = Some(gbps));
            view.servers[0].bandwidth_gbps = Some(gbps);
            view
        };
        assert_eq!([fast(10.0), fast(400.0)].map(|view| credit(&view)), [1 << 20; 2]);
        // Those that have died do not count, and what is set does.
        view.gone.insert(Rank(2));
        assert_eq!(credit(&view), 1 << 20);
        view.changes.insert("credit_bytes".into(), "65536".into());
        assert_eq!(credit(&view), 64 << 10);
    }

    #[test]
    fn where_no_link_speed_is_known_tensors_are_not_cut_finer_for_even_shares() {
        let config = sumpter_config::load_from(&[], |_| None).unwrap();
        let mut view = view(&["a", "b"], &[]);
        let mut cut = |gbps| {
            view.workers[0].bandwidth_gbps = gbps;
            let mut cluster = Cluster::new(&view, crate::run::policy(&config, &view)).unwrap();
            cluster.place(Planned::of(&[]), 25 << 20)[0].bytes
        };
        let cuts = [None, Some(10.0), Some(400.0)].map(&mut cut);
        assert_eq!(cuts, [128 << 10, 32 << 10, 32 << 10]);
    }

    #[test]
    fn one_machine_has_no_slow_link() {
        assert_eq!(view(&["a", "a"], &["a"]).slowest_gbps(), Some(f64::INFINITY));
        assert_eq!(view(&["a"], &["s"]).slowest_gbps(), None);
    }

    #[test]
    fn a_machine_of_unknown_bandwidth_counts_as_the_slowest_known_one() {
        let gbps = |view: &mut ClusterView, known: [Option<f64>; 4]| {
            view.workers.iter_mut().zip(known).for_each(|(w, gbps)| w.bandwidth_gbps = gbps);
            view.servers[0].bandwidth_gbps = known[3];
        };
        let shares_of = |known: [Option<f64>; 4]| {
            let mut view = view(&["a", "b", "c"], &["x"]);
            gbps(&mut view, known);
            (shares(&mut build(&view, Architecture::Sumpter).unwrap()), view)
        };
        let (four, ten) = (Some(4.0), Some(10.0));
        let (assumed, view) = shares_of([ten, ten, None, four]);
        assert_eq!(assumed, shares_of([ten, ten, four, four]).0);
        assert_ne!(assumed, shares_of([None; 4]).0, "the known ones count");
        assert_eq!(view.slowest_gbps(), Some(4.0));
        let text = view.assumed_links().unwrap();
        assert_eq!(
            text,
            "no bandwidth is known of the link of c (h): it counts as 4 Gb/s, the least that is \
             known of the others; set bandwidth_gbps there"
        );
        for known in [[ten; 4], [None; 4]] {
            assert_eq!(shares_of(known).1.assumed_links(), None, "{known:?}");
        }
        // The same in a part of the job whose machines are not the slowest.
        let (_, view) = shares_of([four, ten, None, ten]);
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        let ranks = [Rank(1), Rank(2)];
        let part = cluster.place(Planned::of(&ranks), 72 << 15).len();
        let (_, told) = shares_of([four, ten, four, ten]);
        let mut expected = build(&told, Architecture::Sumpter).unwrap();
        let expected = expected.place(Planned::of(&ranks), 72 << 15);
        assert_eq!(part, expected.len());
        let roots = |spots: Vec<PlacedPartition>| -> Vec<ConnId> {
            spots.into_iter().map(|spot| spot.root).collect()
        };
        let mut again = build(&view, Architecture::Sumpter).unwrap();
        assert_eq!(roots(again.place(Planned::of(&ranks), 72 << 15)), roots(expected));
    }

    #[test]
    fn trunks_that_no_known_link_can_be_compared_with_are_named() {
        let mut view = in_racks(Some(25.0), Some("c"));
        assert_eq!(view.assumed_links(), None, "all links are known");
        view.workers.iter_mut().for_each(|worker| worker.bandwidth_gbps = None);
        view.servers[0].bandwidth_gbps = None;
        assert_eq!(
            view.assumed_links().unwrap(),
            "no bandwidth is known of any machine: all links count as 1 Gb/s beside the trunks of \
             racks a, b, c; set bandwidth_gbps on every machine"
        );
        let without = ClusterView { workers: in_racks(None, None).workers, ..view.clone() };
        let without = ClusterView { servers: Vec::new(), ..without };
        assert_eq!(without.assumed_links(), None);
    }

    fn build(view: &ClusterView, architecture: Architecture) -> Result<Cluster, PlanError> {
        Cluster::new(view, policy(architecture))
    }

    fn policy(architecture: Architecture) -> Policy {
        let dealing = Dealing::Balanced;
        let (deterministic, workers_may_fail, elastic) = (false, false, false);
        Policy {
            partition_bytes: 1 << 15,
            even_bytes: 1 << 15,
            chunk_bytes: 1 << 15,
            architecture,
            dealing,
            deterministic,
            workers_may_fail,
            elastic,
            loops: 1,
            least_coded_bytes: 64 << 10,
        }
    }

    fn shares(cluster: &mut Cluster) -> Vec<usize> {
        let mut shares = vec![0; cluster.lanes.len()];
        for spot in cluster.place(Planned::of(&[]), 72 << 15) {
            shares[spot.root.0] += spot.bytes >> 15;
        }
        shares
    }

    #[test]
    fn shares_follow_the_rule() {
        let view = view(&["a", "b", "c"], &["x"]);
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        // n = 3, k = 1: D = 10; CPU 4/10, GPU 2/10 of 72 partitions.
        let shares = shares(&mut cluster);
        assert_eq!(shares.iter().sum::<usize>(), 72);
        assert!(shares[..3].iter().all(|s| (14..=15).contains(s)), "{shares:?}");
        assert!(shares[3..].iter().all(|s| (14..=15).contains(s)), "{shares:?}");
    }

    #[test]
    fn the_plan_of_some_ranks_counts_their_machines_only() {
        let view = view(&["a", "a", "b", "c"], &["x"]);
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        let mut shares = |ranks: &[u32]| {
            let ranks: Vec<_> = ranks.iter().copied().map(Rank).collect();
            let mut shares = vec![0; 6];
            for spot in cluster.place(Planned::of(&ranks), 72 << 15) {
                shares[spot.root.0] += spot.bytes >> 15;
            }
            shares
        };
        // Both on one machine: nothing leaves it.
        assert_eq!(shares(&[0, 1]), [36, 36, 0, 0, 0, 0]);
        // n = 2, k = 1: a CPU machine takes half.
        assert_eq!(shares(&[2, 3]), [0, 0, 18, 18, 18, 18]);
        assert_eq!(shares(&[1, 3]), [0, 18, 0, 18, 18, 18]);
        // n = 3, k = 1: 4/10 on the CPU machine, 2/10 on each of the others.
        let three = shares(&[0, 2, 3]);
        assert!(three[1] == 0 && three.iter().filter(|s| (14..=15).contains(*s)).count() == 5);
        // One rank alone has nothing to sum with anybody.
        assert_eq!(shares(&[3]), [0, 0, 0, 72, 0, 0]);
    }

    #[test]
    fn workers_of_one_machine_share_its_part_and_a_server_beside_them_too() {
        let view = view(&["a", "a", "b"], &["b"]);
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        assert_eq!(shares(&mut cluster), [18, 18, 18, 9, 9]);
    }

    #[test]
    fn a_servers_interfaces_carry_parts_in_proportion_to_their_bandwidth() {
        let mut view = view(&["a", "b"], &["x"]);
        let lane = |ip: u8, port, bandwidth| LaneView {
            bandwidth,
            ..LaneView::from(([10, 0, 0, ip], port))
        };
        view.servers[0].lanes = vec![lane(1, 1, 25), lane(2, 1, 50), lane(1, 2, 25)];
        let mut cluster = build(&view, Architecture::Ps).unwrap();
        assert_eq!(shares(&mut cluster), [0, 0, 12, 48, 12]);
    }

    #[test]
    fn an_architecture_restricts_who_sums() {
        let view = view(&["a", "b"], &["x", "y"]);
        let sums = |architecture| shares(&mut build(&view, architecture).unwrap());
        assert_eq!(sums(Architecture::Allreduce), [36, 36, 0, 0, 0, 0]);
        assert_eq!(sums(Architecture::Ps), [0, 0, 18, 18, 18, 18]);
        let alone = self::view(&["a", "b"], &[]);
        assert!(matches!(build(&alone, Architecture::Ps), Err(PlanError::NoServer { .. })));
    }

    /// Four workers in each of two racks, whose uplinks carry so much, and a server.
    fn in_racks(trunk_gbps: Option<f64>, server: Option<&str>) -> ClusterView {
        let names: Vec<String> = (0..8).map(|n| n.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut view = view(&names, &["x"]);
        let rack = |name: &str| Some(Rack { name: name.to_owned(), trunk_gbps });
        for worker in &mut view.workers {
            worker.bandwidth_gbps = Some(1.0);
            worker.rack = rack(if worker.rank.0 < 4 { "a" } else { "b" });
        }
        view.servers[0].bandwidth_gbps = Some(1.0);
        view.servers[0].rack = server.and_then(rack);
        view
    }

    #[test]
    fn servers_do_not_change_the_order_of_additions_if_it_matters() {
        // Fast servers make flat trees the better plan; a slow one would make links look slow.
        let hubs = |trunk: f64, server_gbps: Option<f64>, deterministic: bool| {
            let mut view = in_racks(Some(trunk), Some("c"));
            for worker in &mut view.workers {
                worker.bandwidth_gbps = worker.bandwidth_gbps.filter(|_| worker.rank.0 > 0);
            }
            match server_gbps {
                Some(gbps) => view.servers[0].bandwidth_gbps = Some(gbps),
                None => view.servers.clear(),
            }
            view.servers.iter_mut().for_each(|server| server.rack = None);
            let policy = Policy { deterministic, ..policy(Architecture::Sumpter) };
            Cluster::new(&view, policy).unwrap().hubs_of(Planned::of(&[])).0.is_some()
        };
        for trunk in [1.0, 2.0, 2.2, 2.5, 4.0] {
            let alone = hubs(trunk, None, true);
            for gbps in [0.1, 1.0, 100.0] {
                assert_eq!(hubs(trunk, Some(gbps), true), alone, "{trunk} {gbps}");
            }
        }
        assert!(hubs(1.0, None, true) && !hubs(4.0, None, true));
        let mut changes = [1.0, 2.0, 2.2].iter().flat_map(|trunk| {
            [0.1, 1.0, 100.0]
                .map(|gbps| hubs(*trunk, Some(gbps), false) != hubs(*trunk, None, false))
        });
        assert!(changes.any(|changed| changed), "without it they may");
    }

    #[test]
    fn the_plans_of_all_shards_have_trees_of_one_shape() {
        let mut view = view(&["a", "a", "b", "b", "c", "c", "d", "d"], &[]);
        for (index, worker) in view.workers.iter_mut().enumerate() {
            // One rank of each machine knows of its rack and its link.
            let name = if index < 4 { "r" } else { "s" }.to_owned();
            let rack = Rack { name, trunk_gbps: Some(1.0) };
            worker.rack = (index % 2 == 0).then_some(rack);
            worker.bandwidth_gbps = (index % 2 == 1).then_some(1.0);
        }
        let mut cluster = build(&view, Architecture::Sumpter).unwrap();
        for first in [0, 1] {
            let holders: Vec<Rank> = (0..4).map(|machine| Rank(2 * machine + first)).collect();
            let hubs = cluster.hubs_of(Planned::of(&holders)).0.expect("hubs of racks");
            assert!(hubs.has_racks(), "{holders:?}");
        }
    }

    #[test]
    fn racks_with_narrow_uplinks_have_hubs_and_others_have_none() {
        for server in [None, Some("a"), Some("c")] {
            for (trunk, has_hubs) in [(Some(1.0), true), (Some(8.0), false), (None, false)] {
                let mut cluster = build(&in_racks(trunk, server), Architecture::Sumpter).unwrap();
                assert_eq!(cluster.rack_hubs().map(|hubs| hubs.sum), Some(has_hubs));
                let placed = cluster.place(Planned::of(&[]), 1 << 20);
                let (hubs, lanes) = cluster.hubs_of(Planned::of(&[]));
                assert_eq!(hubs.is_some(), has_hubs, "{server:?} {trunk:?}");
                let Some(hubs) = hubs else { continue };
                let mut seen = BTreeSet::<Rank>::new();
                for PlacedPartition { root, tree, .. } in placed {
                    let owner = lanes[root.0].owner;
                    let chosen = hubs.next(owner, None, tree);
                    let [a, b] = chosen.racks[..] else { panic!("one hub a rack") };
                    assert!(a.0 < 4 && (4..8).contains(&b.0), "{a} {b}");
                    if let Owner::Worker(_) = owner {
                        let root = lanes[root.0].hub;
                        assert!(chosen.racks.contains(&root), "a root is the hub of its rack");
                    }
                    seen.extend([a, b]);
                }
                assert_eq!(seen.len(), 8, "all have a part: {seen:?}");
            }
        }
        let apart = build(&view(&["a", "b"], &["s"]), Architecture::Sumpter).unwrap();
        assert_eq!(apart.rack_hubs(), None, "no rack is known");
        // Of some ranks in one rack, nothing crosses a trunk.
        let mut cluster = build(&in_racks(Some(1.0), None), Architecture::Sumpter).unwrap();
        assert!(cluster.hubs_of(Planned::of(&[Rank(0), Rank(1), Rank(2)])).0.is_none());
        let four = [0, 1, 4, 5].map(Rank);
        assert!(cluster.hubs_of(Planned::of(&four)).0.is_some());
    }

    #[test]
    fn compressed_tensors_are_placed_without_the_hubs_of_racks_and_cut_between_blocks() {
        let mut cluster = build(&in_racks(Some(1.0), Some("c")), Architecture::Sumpter).unwrap();
        for ranks in [&[][..], &[0, 1, 4, 5].map(Rank)] {
            let compressed = Planned { ranks, block: Some(12_288), encoded: true };
            let placed = cluster.place(compressed, 1 << 20);
            assert!(placed.iter().all(|part| part.offset % 12_288 == 0), "{placed:?}");
            let mut roots: Vec<ConnId> = placed.iter().map(|part| part.root).collect();
            roots.sort_unstable();
            roots.dedup();
            assert!(roots.len() >= 4, "all that take part have a share: {roots:?}");
            assert!(cluster.hubs_of(compressed).0.is_none());
            assert!(cluster.hubs_of(Planned::of(ranks)).0.is_some(), "others have them");
        }
        // Without racks they are dealt out with the others.
        let view = view(&["a", "b"], &["s"]);
        let [mut mixed, mut plain] = [0; 2].map(|_| build(&view, Architecture::Sumpter).unwrap());
        let compressed = Planned { ranks: &[], block: Some(4096), encoded: true };
        assert_eq!(mixed.place(compressed, 3 << 15), plain.place(Planned::of(&[]), 3 << 15));
        assert_eq!(mixed.place(Planned::of(&[]), 5 << 15), plain.place(compressed, 5 << 15));
    }

    #[test]
    fn a_member_says_where_the_subtotal_of_a_server_goes() {
        let mut view = in_racks(Some(1.0), Some("a"));
        // A server in each rack, whose ranks follow those of the eight workers.
        let mut other = ServerView { member: MemberId(1), ..view.servers[0].clone() };
        (other.machine, other.rack) = ("y".into(), view.workers[7].rack.clone());
        view.servers.push(other);
        for (deterministic, is_served) in [(false, true), (true, false)] {
            let policy = Policy { deterministic, ..policy(Architecture::Sumpter) };
            let mut routes = Vec::new();
            for rank in [Rank(1), Rank(5)] {
                let mut cluster = Cluster::new(&view, policy).unwrap();
                let settings = crate::run::client_settings(
                    &sumpter_config::load_from(&[], |_| None).unwrap(),
                    &view,
                );
                let mut client = sumpter_engine::Client::new(settings, cluster.lanes.len());
                let placed = cluster.place(Planned::of(&[]), 1 << 20);
                let placed: Vec<_> = (0..).zip(placed).collect();
                let everyone: Vec<Rank> = (0..8).map(Rank).collect();
                let spec = sumpter_types::TensorSpec {
                    name: "x".to_owned(),
                    dtype: sumpter_types::Dtype::F32,
                    shape: vec![1 << 18],
                    collective: sumpter_types::Collective::AllReduce,
                    op: sumpter_types::ReduceOp::Sum,
                    root: Rank(0),
                    ranks: Vec::new(),
                    rule: None,
                    staleness: sumpter_types::Staleness::default(),
                    sharded: false,
                    compression: String::new(),
                };
                let (planned, members) = (&[][..], &everyone[..]);
                let (contributors, encoded) = (8, false);
                let among = route::Participants { planned, members, contributors, encoded };
                let of = (&spec, among);
                let route = route::route(&mut cluster, &mut client, rank, of, &placed);
                assert_eq!(route.tier, sumpter_wire::Tier::Rack);
                for place in &route.places {
                    assert_eq!(place.route.is_some(), place.lane.0 >= 8, "{place:?}");
                    if let Some(route) = place.route {
                        let server = if rank == Rank(1) { 8 } else { 9 };
                        assert_eq!((route.rank, route.keeps), (Rank(server), route.lane >= 8));
                        let lane = cluster.lanes[place.lane.0].hub;
                        assert_eq!(lane, route.rank, "its subtotals are those of this lane");
                        routes.push((place.number, route));
                    }
                }
                for ((_, to), places) in &route.passed_on {
                    assert_eq!(*to, sumpter_wire::Tier::Root);
                    assert!(places.iter().all(|place| place.route.is_none()));
                }
            }
            assert_eq!(!routes.is_empty(), is_served, "{deterministic}");
            let text = Cluster::new(&view, policy).unwrap().racks().unwrap();
            assert_eq!(text.contains("2 servers"), is_served, "{text}");
        }
    }
}
