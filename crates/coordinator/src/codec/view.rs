//! Between the protocol's plan and the plain one.

use sumpter_membership::{ClusterView, RunSpeeds, ServerView, WorkerView};
use sumpter_types::{Epoch, JobId, MemberId, Rank};
use sumpter_wire::Token;

use super::speeds::{speeds_from_proto, speeds_to_proto};
use super::{
    Malformed, group_from_proto, group_to_proto, lanes_from_proto, lanes_to_proto,
    quota_from_proto, quota_to_proto, rack_from_proto, rack_to_proto,
};
use crate::proto;

/// As it travels.
pub(crate) fn view_to_proto(view: ClusterView) -> proto::ClusterView {
    let workers = view.workers.into_iter().map(|worker| proto::WorkerView {
        rank: worker.rank.0,
        host: worker.host,
        machine: worker.machine,
        lanes: lanes_to_proto(&worker.lanes),
        bandwidth_gbps: worker.bandwidth_gbps,
        rack: worker.rack.map(rack_to_proto),
        device_group: worker.device_group.map(group_to_proto),
    });
    let servers = view.servers.into_iter().map(|server| proto::ServerView {
        member: server.member.0,
        host: server.host,
        machine: server.machine,
        lanes: lanes_to_proto(&server.lanes),
        bandwidth_gbps: server.bandwidth_gbps,
        rack: server.rack.map(rack_to_proto),
    });
    proto::ClusterView {
        job: view.job.0,
        name: view.name,
        epoch: view.epoch.0,
        workers: workers.collect(),
        servers: servers.collect(),
        coordinator_rank: view.coordinator_rank.map(|rank| rank.0),
        gone: view.gone.into_iter().map(|rank| rank.0).collect(),
        key: view.key.as_ref().map_or_else(Vec::new, |key| key.reveal().to_vec()),
        quota: Some(quota_to_proto(view.quota)),
        changes: view.changes,
        worker_speeds: Some(speeds_to_proto(&view.speeds.workers)),
        server_speeds: Some(speeds_to_proto(&view.speeds.servers)),
    }
}

/// As members know it.
pub(crate) fn view_from_proto(view: proto::ClusterView) -> Result<ClusterView, Malformed> {
    let workers = view.workers.into_iter().map(|worker| {
        Ok(WorkerView {
            rank: Rank(worker.rank),
            host: worker.host,
            machine: worker.machine,
            lanes: lanes_from_proto(worker.lanes)?,
            bandwidth_gbps: worker.bandwidth_gbps,
            rack: worker.rack.map(rack_from_proto),
            device_group: worker.device_group.map(group_from_proto),
        })
    });
    let servers = view.servers.into_iter().map(|server| {
        Ok(ServerView {
            member: MemberId(server.member),
            host: server.host,
            machine: server.machine,
            lanes: lanes_from_proto(server.lanes)?,
            bandwidth_gbps: server.bandwidth_gbps,
            rack: server.rack.map(rack_from_proto),
        })
    });
    Ok(ClusterView {
        job: JobId(view.job),
        name: view.name,
        epoch: Epoch(view.epoch),
        workers: workers.collect::<Result<_, Malformed>>()?,
        servers: servers.collect::<Result<_, Malformed>>()?,
        coordinator_rank: view.coordinator_rank.map(Rank),
        gone: view.gone.into_iter().map(Rank).collect(),
        key: Some(Token::received(&view.key).ok_or("a view without the run's key")?),
        quota: quota_from_proto(view.quota),
        changes: view.changes,
        speeds: RunSpeeds {
            workers: speeds_from_proto(view.worker_speeds),
            servers: speeds_from_proto(view.server_speeds),
        },
    })
}
