//! The lane of an event loop, with the runs it serves and the sockets of its connections.

use std::collections::{BTreeMap, HashMap};

use sumpter_config::Config;
use sumpter_endpoint::ConnId;
use sumpter_engine::{JobLimits, Lane, LaneLimits, Peer};
use sumpter_membership::ClusterView;
use sumpter_observe::Recording;
use sumpter_types::{Epoch, JobId, run_memory_counter};
use sumpter_wire::{Hello, Token};

use crate::cluster::lanes::all_lanes;
use crate::codecs::codecs;
use crate::recording::{of_lane, recorder};

/// What is known of a run before its workers connect.
#[derive(Debug)]
struct KnownJob {
    epoch: Epoch,
    /// What its members prove to hold.
    key: Option<Token>,
    /// Its share beside other jobs.
    weight: u32,
    /// The machine of each worker, by rank, and of each server, which has the ranks behind.
    machines: Vec<String>,
    servers: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct LaneSide {
    pub lane: Lane,
    /// The lane's number with its owner.
    index: u32,
    /// This process's machine.
    machine: String,
    /// The limits of a server's lane: its part of what the process may use for one job. A worker's
    /// lane has none beside its own job's.
    limits: Option<ServerLimits>,
    /// What a worker's lane may use.
    max_job_bytes: u64,
    /// The socket of each connection.
    sockets: HashMap<ConnId, usize>,
    /// Runs whose workers may connect.
    jobs: HashMap<JobId, KnownJob>,
}

#[derive(Debug)]
struct ServerLimits {
    /// The lanes of this process, which share a job's quota.
    lanes: u64,
    max_job_bytes: u64,
}

impl LaneSide {
    /// Lane `index` of the `lanes` of this process, a server's or a worker's.
    pub(crate) fn new(config: &Config, (index, lanes): (u32, u32), is_server: bool) -> LaneSide {
        let lanes = u64::from(lanes.max(1));
        let mut lane = Lane::new(LaneLimits {
            max_job_bytes: config.max_job_bytes / lanes,
            max_chunk_bytes: 64 << 20,
            // A worker's lane has a client beside it, which waits for the start.
            hub: !is_server,
        })
        .with_codecs(codecs());
        lane.record(recorder(config));
        let limits = ServerLimits { lanes, max_job_bytes: config.max_job_bytes };
        LaneSide {
            lane,
            index,
            machine: config.machine_id(),
            limits: is_server.then_some(limits),
            max_job_bytes: config.max_job_bytes / lanes,
            sockets: HashMap::new(),
            jobs: HashMap::new(),
        }
    }

    /// What one of the `loops` event loops of each worker serves of a run; these may connect.
    pub(crate) fn expect_job(&mut self, view: &ClusterView, loops: u32) {
        let machines = view.workers.iter().map(|worker| worker.machine.clone()).collect();
        let servers: Vec<_> = view.servers.iter().map(|server| server.machine.clone()).collect();
        let (key, weight, epoch) = (view.key.clone(), view.quota.weight, view.epoch);
        let count = servers.len() as u32;
        self.jobs.insert(view.job, KnownJob { epoch, key, weight, machines, servers });
        let any = JobLimits {
            max_bytes: self.max_job_bytes,
            max_connections: u32::MAX,
            servers: count,
            lanes: 0,
        };
        let limits = match self.limits {
            // Beside it is a client that knows the tensors.
            None => any,
            Some(ServerLimits { lanes, max_job_bytes }) => {
                let max_bytes = view.quota.max_bytes.unwrap_or(u64::MAX).min(max_job_bytes);
                let max_connections = view.quota.max_connections.unwrap_or(u32::MAX) / loops;
                let max_bytes = max_bytes / lanes / u64::from(loops);
                let lanes = all_lanes(view).0.len() as u32;
                JobLimits { max_bytes, max_connections, lanes, ..any }
            }
        };
        self.lane.know(view.job, limits);
    }

    /// What is known here of a run, by event loop of its workers.
    pub(crate) fn parts_of(&self, run: JobId) -> Vec<JobId> {
        self.jobs.keys().copied().filter(|job| job.run() == run).collect()
    }

    /// What an event loop serves of a run is over: frees its buffers. Returns the sockets of its
    /// connections.
    pub(crate) fn end_job(&mut self, job: JobId) -> Vec<usize> {
        self.jobs.remove(&job);
        let ended = self.lane.end_job(job);
        ended.into_iter().filter_map(|conn| self.sockets.remove(&conn)).collect()
    }

    /// What the members of a run prove to hold.
    pub(crate) fn key_of(&self, job: JobId) -> Option<Token> {
        self.jobs.get(&job).and_then(|known| known.key.clone())
    }

    /// A run's share beside other jobs.
    pub(crate) fn weight_of(&self, job: JobId) -> u32 {
        self.jobs.get(&job).map_or(1, |known| known.weight)
    }

    /// Whether a worker is on another machine.
    pub(crate) fn is_away(&self, hello: &Hello) -> bool {
        let machine = |job: &KnownJob| {
            let mut all = job.machines.iter().chain(&job.servers);
            all.nth(hello.rank.0 as usize) == Some(&self.machine)
        };
        !self.jobs.get(&hello.job).is_some_and(machine)
    }

    /// Opens a worker's connection. With it comes the one that it replaces.
    pub(crate) fn open(&mut self, hello: &Hello) -> Result<(ConnId, Option<ConnId>), String> {
        if hello.lane != self.index {
            return Err(format!("this is lane {}, not {}", self.index, hello.lane));
        }
        match self.jobs.get(&hello.job) {
            None => Err("the job is not known here (yet)".to_owned()),
            Some(KnownJob { epoch, machines, .. })
                if (*epoch, machines.len()) != (hello.epoch, hello.world_size as usize) =>
            {
                Err(format!("the job has epoch {epoch} and {} workers", machines.len()))
            }
            Some(_) => self.lane.open(Peer {
                job: hello.job,
                rank: hello.rank,
                world_size: hello.world_size,
                epoch: hello.epoch,
                keeps: hello.keeps,
                checksum: hello.checksum,
            }),
        }
    }

    /// Connection `conn` is on this socket.
    pub(crate) fn attach(&mut self, conn: ConnId, socket: usize) {
        self.sockets.insert(conn, socket);
    }

    /// A connection is on no socket any more; the one that it was on.
    pub(crate) fn detach(&mut self, conn: ConnId) -> Option<usize> {
        self.sockets.remove(&conn)
    }

    /// The connection's socket is gone.
    pub(crate) fn close(&mut self, conn: ConnId) {
        self.lane.close(conn);
        self.sockets.remove(&conn);
    }

    pub(crate) fn socket(&self, conn: ConnId) -> Option<usize> {
        self.sockets.get(&conn).copied()
    }

    /// Whether any connection is on a socket.
    pub(crate) fn is_connected(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Counters of memory: what each run occupies, and in a server's lane, what one may.
    pub(crate) fn memory_counters(&self) -> impl Iterator<Item = (String, f64)> {
        let mut used: BTreeMap<JobId, f64> = BTreeMap::new();
        for job in self.jobs.keys() {
            *used.entry(job.run()).or_default() += self.lane.job_bytes(*job) as f64;
        }
        let limit = self.limits.as_ref().map(|limits| limits.max_job_bytes / limits.lanes);
        let limit = limit.map(|bytes| ("max_job_bytes".to_owned(), bytes as f64));
        used.into_iter().map(|(run, bytes)| (run_memory_counter(run), bytes)).chain(limit)
    }

    /// What has been recorded of a run.
    pub(crate) fn recording(&self, job: JobId) -> Recording {
        of_lane(self.lane.recorder(), self.index, job)
    }
}
