//! Between the protocol's status report and the plain one.

use sumpter_membership::RunMembers;
use sumpter_types::{JobStatus, MachineCount, MemberStatus, StallStatus, StatusReport};

use super::speeds::{choices_from_proto, choices_to_proto};
use super::{
    bandwidth_from_proto, late_from_proto, late_to_proto, quota_from_proto, quota_to_proto,
    rack_from_proto, rack_to_proto, source_to_proto, stats_from_proto, stats_to_proto,
};
use crate::proto;

/// As it travels.
pub(crate) fn report_to_proto(report: StatusReport) -> proto::StatusReport {
    proto::StatusReport {
        protocol_version: report.protocol_version,
        uptime_s: report.uptime_s,
        jobs: report.jobs.into_iter().map(job_to_proto).collect(),
        servers: report.servers.into_iter().map(member_to_proto).collect(),
        events: report.events,
    }
}

/// As it is printed.
pub(crate) fn report_from_proto(report: proto::StatusReport) -> StatusReport {
    StatusReport {
        protocol_version: report.protocol_version,
        uptime_s: report.uptime_s,
        jobs: report.jobs.into_iter().map(job_from_proto).collect(),
        servers: report.servers.into_iter().map(member_from_proto).collect(),
        events: report.events,
    }
}

/// The members of a run, for a trace.
pub(crate) fn run_members_to_proto(run: RunMembers) -> proto::TraceHead {
    let members = run.members.into_iter().map(|member| proto::TraceMember {
        member: member.member.0,
        rank: member.rank.map(|rank| rank.0),
        host: member.host,
    });
    let members = members.collect();
    proto::TraceHead { job: run.job, run: run.run.0, members, tensors: run.tensors }
}

fn job_to_proto(job: JobStatus) -> proto::JobStatus {
    let MachineCount { gpu, cpu } = job.machines;
    proto::JobStatus {
        name: job.name,
        run: job.run,
        state: job.state,
        seconds: job.seconds,
        world_size: job.world_size,
        expected_servers: job.expected_servers,
        missing: job.missing,
        epoch: job.epoch,
        machines: Some(proto::MachineCount { gpu, cpu }),
        tensors: job.tensors,
        failure: job.failure,
        workers: job.workers.into_iter().map(member_to_proto).collect(),
        servers: job.servers,
        last_change: job.last_change,
        quota: Some(quota_to_proto(job.quota)),
        stall: job.stall.map(|stall| {
            let StallStatus { message, tensor, round, seconds, ranks } = stall;
            proto::Stall { message, tensor, round, seconds, ranks }
        }),
        over: job.over,
        settings: job.settings,
        compression: choices_to_proto(&job.compression),
        late: late_to_proto(&job.late),
    }
}

fn job_from_proto(job: proto::JobStatus) -> JobStatus {
    let proto::MachineCount { gpu, cpu } = job.machines.unwrap_or_default();
    JobStatus {
        name: job.name,
        run: job.run,
        state: job.state,
        seconds: job.seconds,
        world_size: job.world_size,
        expected_servers: job.expected_servers,
        missing: job.missing,
        epoch: job.epoch,
        machines: MachineCount { gpu, cpu },
        tensors: job.tensors,
        failure: job.failure,
        workers: job.workers.into_iter().map(member_from_proto).collect(),
        servers: job.servers,
        last_change: job.last_change,
        quota: quota_from_proto(job.quota),
        stall: job.stall.map(|stall| {
            let proto::Stall { message, tensor, round, seconds, ranks } = stall;
            StallStatus { message, tensor, round, seconds, ranks }
        }),
        over: job.over,
        settings: job.settings,
        compression: choices_from_proto(job.compression),
        late: late_from_proto(job.late),
    }
}

fn member_to_proto(member: MemberStatus) -> proto::MemberStatus {
    proto::MemberStatus {
        member: member.member,
        rank: member.rank,
        local_rank: member.local_rank,
        host: member.host,
        machine: member.machine,
        lanes: member.lanes,
        bandwidth_gbps: member.bandwidth.map(|known| known.gbps),
        bandwidth_source: source_to_proto(member.bandwidth),
        rack: member.rack.map(rack_to_proto),
        joined_s: member.joined_s,
        silent_s: member.silent_s,
        stats: Some(stats_to_proto(&member.stats)),
        draining: member.draining,
        gone: member.gone,
    }
}

fn member_from_proto(member: proto::MemberStatus) -> MemberStatus {
    MemberStatus {
        member: member.member,
        rank: member.rank,
        local_rank: member.local_rank,
        host: member.host,
        machine: member.machine,
        lanes: member.lanes,
        bandwidth: bandwidth_from_proto(member.bandwidth_gbps, member.bandwidth_source),
        rack: member.rack.map(rack_from_proto),
        joined_s: member.joined_s,
        silent_s: member.silent_s,
        stats: member.stats.map(stats_from_proto).unwrap_or_default(),
        draining: member.draining,
        gone: member.gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumpter_types::{
        Bandwidth, BandwidthSource, CodecChoice, JobId, Late, Quota, Rack, Rank, Stats,
    };

    #[test]
    fn a_report_arrives_as_it_was_sent() {
        let stats = Stats { counters: [("step".to_owned(), 3.0)].into(), ..Stats::default() };
        let member = MemberStatus {
            member: 7,
            rank: Some(1),
            local_rank: Some(0),
            host: "host".into(),
            machine: "machine".into(),
            lanes: vec!["10.0.0.1:7000".into()],
            bandwidth: Some(Bandwidth { gbps: 12.5, source: BandwidthSource::Interface }),
            rack: Some(Rack { name: "a".into(), trunk_gbps: Some(25.0) }),
            joined_s: 3.0,
            silent_s: 0.5,
            stats,
            draining: true,
            gone: true,
        };
        let stall = StallStatus {
            message: "waiting".into(),
            tensor: "w".into(),
            round: 3,
            seconds: 12.0,
            ranks: vec![1],
        };
        let job = JobStatus {
            name: "job".into(),
            run: "0a".into(),
            state: "running".into(),
            seconds: 1.5,
            world_size: 2,
            expected_servers: 1,
            missing: vec!["rank 0".into()],
            epoch: 4,
            machines: MachineCount { gpu: 2, cpu: 1 },
            tensors: 9,
            failure: "failure".into(),
            workers: vec![member.clone()],
            servers: vec![3],
            last_change: "change".into(),
            quota: Quota { weight: 2, max_bytes: Some(1), max_connections: Some(4) },
            stall: Some(stall),
            over: true,
            settings: [("chunk_bytes".to_owned(), "1".to_owned())].into(),
            compression: vec![CodecChoice { codec: "int8".into(), ..CodecChoice::default() }],
            late: vec![Late { run: JobId(10), rank: Rank(1), count: 2, seconds: 0.5 }],
        };
        let report = StatusReport {
            protocol_version: 9,
            uptime_s: 60.0,
            jobs: vec![job],
            servers: vec![member],
            events: [("refused".to_owned(), 2)].into(),
        };
        assert_eq!(report_from_proto(report_to_proto(report.clone())), report);
    }
}
