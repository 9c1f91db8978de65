//! How it stands, for a person who asks.

use std::collections::BTreeSet;
use std::time::Duration;

use sumpter_wire::PROTOCOL_VERSION;

use super::job::Job;
use super::{Member, Registry};
use crate::codec::stats_to_proto;
use crate::proto::{JobStatus, MachineCount, MemberStatus, StatusReport};
use crate::types::{MemberId, Role};

impl Registry {
    /// The state of one job, or of all.
    pub fn status(&self, now: Duration, only: Option<&str>) -> StatusReport {
        let jobs = self.jobs.iter().filter(|(name, _)| only.is_none_or(|only| only == *name));
        StatusReport {
            protocol_version: u32::from(PROTOCOL_VERSION),
            uptime_s: now.as_secs_f64(),
            jobs: jobs.map(|(name, job)| self.job_status(now, name, job)).collect(),
            servers: self.servers().map(|(id, member)| member_status(now, id, member)).collect(),
        }
    }

    fn job_status(&self, now: Duration, name: &str, job: &Job) -> JobStatus {
        let workers: Vec<(MemberId, &Member)> =
            job.present.values().filter_map(|id| Some((*id, self.members.get(id)?))).collect();
        let servers: Vec<(MemberId, &Member)> = match &job.run {
            None => self.servers().collect(),
            Some(run) => run
                .view
                .servers
                .iter()
                .filter_map(|server| Some((server.member, self.members.get(&server.member)?)))
                .collect(),
        };
        let run = job.run.as_ref();
        JobStatus {
            name: name.to_owned(),
            run: run.map_or_else(String::new, |run| format!("{:016x}", run.id.0)),
            state: job.stage().name().to_owned(),
            seconds: now.saturating_sub(job.since).as_secs_f64(),
            world_size: job.world_size,
            expected_servers: self.expected_servers(job),
            missing: self.missing(job),
            epoch: run.map_or(0, |run| run.view.epoch.0),
            machines: Some(machines(&workers, &servers)),
            tensors: run.map_or(0, |run| run.table.len() as u32),
            failure: job.failure.as_ref().map_or_else(String::new, |f| f.message.clone()),
            workers: workers.iter().map(|(id, member)| member_status(now, *id, member)).collect(),
            servers: servers.iter().map(|(id, _)| id.0).collect(),
        }
    }
}

/// Workers of one machine count once; a server beside a worker is no machine that only helps.
fn machines(workers: &[(MemberId, &Member)], servers: &[(MemberId, &Member)]) -> MachineCount {
    let distinct = |members: &[(MemberId, &Member)]| -> BTreeSet<String> {
        members.iter().map(|(_, member)| member.join.machine.clone()).collect()
    };
    let gpu = distinct(workers);
    let cpu = distinct(servers).difference(&gpu).count();
    MachineCount { gpu: gpu.len() as u32, cpu: cpu as u32 }
}

fn member_status(now: Duration, id: MemberId, member: &Member) -> MemberStatus {
    let join = &member.join;
    let (rank, local_rank) = match join.role {
        Role::Worker { rank, local_rank, .. } => (Some(rank.0), Some(local_rank)),
        Role::Server => (None, None),
    };
    MemberStatus {
        member: id.0,
        rank,
        local_rank,
        host: join.host.clone(),
        machine: join.machine.clone(),
        lanes: join.lanes.iter().map(ToString::to_string).collect(),
        bandwidth_gbps: join.bandwidth_gbps,
        joined_s: now.saturating_sub(member.joined).as_secs_f64(),
        silent_s: now.saturating_sub(member.heard).as_secs_f64(),
        stats: Some(stats_to_proto(&member.stats)),
    }
}
