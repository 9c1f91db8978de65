//! What the links of a job could carry at best.

use std::collections::BTreeMap;

use sumpter_plan::{
    Cluster, Machine, Role, Topology, plan_trees, predict, predict_trees, racks_by_name,
};
use sumpter_types::{JobStatus, MemberStatus, Rack};

/// Bytes that are planned for; the time is proportional to them.
const PLANNED_BYTES: u64 = 1 << 40;

/// Tensor bytes in a second under the optimal plan: `M / t_opt` of BytePS (OSDI'20, section 4), or
/// of the linear program where trunks of racks are known.
/// `None` with one machine of workers, where nothing crosses the network, and unless the
/// bandwidth of every machine is known.
pub(crate) fn goodput(job: &JobStatus, servers: &BTreeMap<u64, &MemberStatus>) -> Option<f64> {
    let workers = job.workers.iter().filter(|worker| !worker.gone);
    let workers = workers.map(|worker| (Role::Gpu, worker));
    let servers = job.servers.iter().filter_map(|member| servers.get(member));
    let mut machines: BTreeMap<&str, (Machine, Option<&Rack>)> = BTreeMap::new();
    for (role, member) in workers.chain(servers.map(|server| (Role::Cpu, *server))) {
        let name = member.machine.as_str();
        // A server beside workers is one more server of their machine.
        let machine = Machine { role, bandwidth_gbps: 0.0, servers: 1 };
        let (known, rack) = machines.entry(name).or_insert((machine, None));
        if known.bandwidth_gbps == 0.0 {
            known.bandwidth_gbps = member.bandwidth.map_or(0.0, |known| known.gbps);
        }
        *rack = rack.or(member.rack.as_ref());
    }
    if machines.values().any(|(machine, _)| machine.bandwidth_gbps == 0.0) {
        return None;
    }
    let (machines, racks): (Vec<Machine>, Vec<Option<&Rack>>) = machines.into_values().unzip();
    let cluster = Cluster::new(machines).ok()?;
    let workers = cluster.workers();
    let time_s = time_s(cluster, &racks)?;
    (workers > 1).then(|| PLANNED_BYTES as f64 / time_s)
}

/// The time of the optimal plan for machines in these racks, in seconds.
fn time_s(cluster: Cluster, racks: &[Option<&Rack>]) -> Option<f64> {
    let trunk = |rack: &Rack| rack.trunk_gbps;
    if !racks.iter().flatten().any(|rack| rack.trunk_gbps.is_some()) {
        return predict(&cluster, PLANNED_BYTES).ok().map(|prediction| prediction.time_s);
    }
    let said = cluster.machines().iter().zip(racks).map(|(machine, rack)| {
        (rack.map(|rack| rack.name.as_str()), rack.and_then(trunk), machine.bandwidth_gbps)
    });
    let (rack_of, trunks) = racks_by_name(said);
    let topology = Topology::new(cluster, rack_of, trunks, None).ok()?;
    let planned = plan_trees(&topology).ok()?;
    predict_trees(&topology, &planned, PLANNED_BYTES).ok().map(|prediction| prediction.time_s)
}

#[cfg(test)]
mod tests {
    use sumpter_types::{Bandwidth, BandwidthSource};

    use super::*;

    fn member(number: u64, machine: &str, bandwidth_gbps: Option<f64>) -> MemberStatus {
        let machine = machine.to_owned();
        let known = |gbps| Bandwidth { gbps, source: BandwidthSource::Configured };
        let bandwidth = bandwidth_gbps.map(known);
        MemberStatus { member: number, machine, bandwidth, ..MemberStatus::default() }
    }

    fn optimum(workers: &[(&str, Option<f64>)], servers: &[(&str, Option<f64>)]) -> Option<f64> {
        let members = |first: u64, of: &[(&str, Option<f64>)]| -> Vec<MemberStatus> {
            of.iter().zip(first..).map(|((name, gbps), id)| member(id, name, *gbps)).collect()
        };
        let servers = members(100, servers);
        let by_number = servers.iter().map(|server| (server.member, server)).collect();
        let job = JobStatus {
            workers: members(0, workers),
            servers: servers.iter().map(|server| server.member).collect(),
            ..JobStatus::default()
        };
        goodput(&job, &by_number)
    }

    #[test]
    fn four_workers_and_two_helpers_reach_the_papers_optimum() {
        let (w, s) = (["a", "b", "c", "d"].map(|m| (m, Some(8.0))), ["e", "f"]);
        let told = optimum(&w, &s.map(|m| (m, Some(8.0)))).unwrap();
        // Every link carries 1.2 of the model: 1e9 bytes/s over 1.2.
        assert!((told - 1e9 / 1.2).abs() < 1.0, "{told}");
    }

    #[test]
    fn workers_of_one_machine_share_its_link_and_need_state_it_once() {
        let two = [("a", Some(8.0)), ("a", None), ("b", Some(8.0))];
        assert!((optimum(&two, &[]).unwrap() - 1e9).abs() < 1.0);
    }

    #[test]
    fn narrow_trunks_of_racks_are_a_limit_too() {
        let told = |trunks: [Option<f64>; 2]| {
            let worker = |number: u64| {
                let rack = number as usize / 4;
                let name = ["a", "b"][rack].to_owned();
                let rack = Some(Rack { name, trunk_gbps: trunks[rack] });
                MemberStatus { rack, ..member(number, &number.to_string(), Some(8.0)) }
            };
            let job = JobStatus { workers: (0..8).map(worker).collect(), ..JobStatus::default() };
            goodput(&job, &BTreeMap::new()).unwrap()
        };
        // Every link carries 1.75 of the model; a trunk at least the aggregate of its rack.
        for wide in [[None; 2], [Some(32.0), None], [Some(8.0); 2]] {
            assert!((told(wide) - 1e9 / 1.75).abs() < 1e3, "{wide:?}");
        }
        assert!((told([Some(2.0); 2]) - 0.25e9).abs() < 1e3);
    }

    #[test]
    fn without_a_network_or_its_bandwidth_there_is_none() {
        assert_eq!(optimum(&[("a", Some(8.0)), ("a", Some(8.0))], &[]), None);
        assert_eq!(optimum(&[("a", Some(8.0)), ("b", None)], &[]), None);
        assert_eq!(optimum(&[("a", Some(8.0)), ("b", Some(8.0))], &[("c", None)]), None);
        assert_eq!(optimum(&[], &[]), None);
    }
}
