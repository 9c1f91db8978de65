//! Between the protocol's plan and the plain one.

use sumpter_membership::{ClusterView, LaneView, RunSpeeds, ServerView, WorkerView};
use sumpter_types::{DeviceGroup, Epoch, JobId, MemberId, Quota, Rack, Rank};
use sumpter_wire::Token;

use super::speeds::{speeds_from_proto, speeds_to_proto};
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
        link_bytes_per_s: view.speeds.link,
    }
}

/// As members know it.
pub(crate) fn view_from_proto(view: proto::ClusterView) -> Result<ClusterView, String> {
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
        workers: workers.collect::<Result<_, String>>()?,
        servers: servers.collect::<Result<_, String>>()?,
        coordinator_rank: view.coordinator_rank.map(Rank),
        gone: view.gone.into_iter().map(Rank).collect(),
        key: Some(Token::received(&view.key).ok_or("a view without the run's key")?),
        quota: quota_from_proto(view.quota),
        changes: view.changes,
        speeds: Box::new(RunSpeeds {
            workers: speeds_from_proto(view.worker_speeds),
            servers: speeds_from_proto(view.server_speeds),
            link: view.link_bytes_per_s,
        }),
    })
}

pub(super) fn group_to_proto(group: DeviceGroup) -> proto::DeviceGroup {
    let DeviceGroup { name, holds } = group;
    proto::DeviceGroup { name, holds }
}

pub(super) fn group_from_proto(group: proto::DeviceGroup) -> DeviceGroup {
    let proto::DeviceGroup { name, holds } = group;
    DeviceGroup { name, holds }
}

pub(super) fn rack_to_proto(rack: Rack) -> proto::Rack {
    let Rack { name, trunk_gbps } = rack;
    proto::Rack { name, trunk_gbps }
}

pub(super) fn rack_from_proto(rack: proto::Rack) -> Rack {
    let proto::Rack { name, trunk_gbps } = rack;
    Rack { name, trunk_gbps }
}

/// What a job may take.
pub(super) fn quota_to_proto(quota: Quota) -> proto::Quota {
    let Quota { weight, max_bytes, max_connections } = quota;
    proto::Quota { weight, max_bytes, max_connections }
}

pub(super) fn quota_from_proto(quota: Option<proto::Quota>) -> Quota {
    let Some(proto::Quota { weight, max_bytes, max_connections }) = quota else {
        return Quota::default();
    };
    Quota { weight: weight.max(1), max_bytes, max_connections }
}

pub(super) fn lanes_to_proto(lanes: &[LaneView]) -> Vec<proto::Lane> {
    let lane = |LaneView { addresses, own, bandwidth }: &LaneView| proto::Lane {
        addresses: addresses.iter().map(ToString::to_string).collect(),
        own: *own,
        bandwidth: *bandwidth,
    };
    lanes.iter().map(lane).collect()
}

pub(super) fn lanes_from_proto(lanes: Vec<proto::Lane>) -> Result<Vec<LaneView>, String> {
    let parse =
        |text: &String| text.parse().map_err(|_| format!("a lane's address {text:?} that is none"));
    let lane = |proto::Lane { addresses, own, bandwidth }: proto::Lane| {
        let addresses = addresses.iter().map(parse).collect::<Result<Vec<_>, String>>()?;
        if own == 0 || own as usize > addresses.len() {
            return Err(format!("a lane with {own} of {} addresses its own", addresses.len()));
        }
        Ok(LaneView { addresses, own, bandwidth })
    };
    lanes.into_iter().map(lane).collect()
}
