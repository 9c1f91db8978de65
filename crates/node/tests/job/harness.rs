//! A job whose members are threads of one process, and tensors to sum in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use sumpter_config::{Config, load_from};
use sumpter_coordinator::Coordinator;
use sumpter_membership::Serves;
use sumpter_node::{Completion, NodeError, OpError, OpRequest, Worker, serve, start_coordinator};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Dtype, Rank, ReduceOp, Staleness, TensorSpec};

pub const TOKEN: &str = "the token of a test job";
/// Far beyond what any of these takes; a test that waits so long has hung.
pub const LIMIT: Duration = Duration::from_secs(60);

pub fn config(settings: &[(&str, &str)]) -> Config {
    let all = [("token", TOKEN), ("peer_timeout_s", "20"), ("partition_bytes", "65536")];
    let merged = all.iter().chain(settings).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    load_from(&merged.collect::<Vec<_>>(), |_| None).expect("valid settings")
}

/// A running job; what is left of it ends when it is dropped.
pub struct Job {
    coordinator: Coordinator,
    servers: Vec<JoinHandle<Result<(), NodeError>>>,
    stop: Arc<AtomicBool>,
}

impl Job {
    pub fn start(servers: usize) -> Job {
        Job::start_with(servers, &[])
    }

    /// As [`start`](Self::start), with more settings for the servers.
    pub fn start_with(servers: usize, extra: &[(&str, &str)]) -> Job {
        Job::start_beside(servers, extra, &[])
    }

    /// As [`start_with`](Self::start_with), with more settings for the coordinator.
    pub fn start_beside(
        servers: usize,
        extra: &[(&str, &str)],
        coordinating: &[(&str, &str)],
    ) -> Job {
        let coordinator = start_coordinator("127.0.0.1:0", &config(coordinating), Serves::OneRun);
        let coordinator = coordinator.expect("a free port");
        let address = coordinator.address().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let servers = (0..servers).map(|index| {
            let machine = format!("cpu-{index}");
            let own = [("coordinator", address.as_str()), ("machine", &machine), ("lanes", "2")];
            let settings = config(&[&own[..], extra].concat());
            let stop = stop.clone();
            spawn(move || serve(&settings, &mut || stop.load(Ordering::Relaxed)))
        });
        Job { servers: servers.collect(), coordinator, stop }
    }

    /// The coordinator's.
    pub fn address(&self) -> String {
        self.coordinator.address().to_string()
    }

    pub fn settings(&self, rank: usize, world_size: usize, extra: &[(&str, &str)]) -> Config {
        let address = self.address();
        let rank = rank.to_string();
        let (size, servers) = (world_size.to_string(), self.servers.len().to_string());
        let own = [
            ("coordinator", address.as_str()),
            ("rank", &rank),
            ("world_size", &size),
            ("servers", &servers),
        ];
        config(&[&own[..], extra].concat())
    }

    /// Runs `body` on every rank and returns what each gave.
    pub fn run<T: Send + 'static>(
        &self,
        world_size: usize,
        extra: &[(&str, &str)],
        body: impl Fn(&Worker) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let machines: Vec<_> = (0..world_size).map(|rank| format!("gpu-{rank}")).collect();
        self.run_on(&machines.iter().map(String::as_str).collect::<Vec<_>>(), extra, body)
    }

    /// Runs `body` on a rank for each of `machines`, which says where it is.
    pub fn run_on<T: Send + 'static>(
        &self,
        machines: &[&str],
        extra: &[(&str, &str)],
        body: impl Fn(&Worker) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let world_size = machines.len();
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let extra = [&[("machine", machines[rank])], extra].concat();
                let (settings, body) = (self.settings(rank, world_size, &extra), body.clone());
                spawn(move || {
                    let worker = Worker::join(&settings, &mut || false).expect("joined");
                    let value = body(&worker);
                    worker.shutdown();
                    value
                })
            })
            .collect();
        ranks.into_iter().map(|r| r.join().expect("no panic")).collect()
    }

    pub fn finish(mut self) {
        assert!(self.coordinator.wait_finished(LIMIT));
        for server in self.servers.drain(..) {
            server.join().expect("no panic").expect("the server ended well");
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.coordinator.stop();
    }
}

pub fn spec(name: &str, shape: &[u64]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        collective: Collective::AllReduce,
        op: ReduceOp::Sum,
        root: Rank(0),
        ranks: Vec::new(),
        rule: None,
        staleness: Staleness::default(),
        sharded: false,
        compression: String::new(),
    }
}

/// Submits a tensor of floats in place; the memory lives until the operation is done.
pub fn submit(
    worker: &Worker,
    spec: TensorSpec,
    values: Vec<f32>,
) -> (Arc<Completion>, Arc<Tensor<f32>>) {
    submit_as(worker, spec, values, false)
}

/// As [`submit`], of any elements, and perhaps for their average.
pub fn submit_as<T: Send + 'static>(
    worker: &Worker,
    spec: TensorSpec,
    values: Vec<T>,
    average: bool,
) -> (Arc<Completion>, Arc<Tensor<T>>) {
    let tensor = Arc::new(Tensor(std::cell::UnsafeCell::new(values)));
    let address = tensor.0.get();
    let request = OpRequest::default();
    // SAFETY: the tensor is owned by the memory as well, and read only once that is done.
    let memory = unsafe {
        let start = (*address).as_mut_ptr().cast::<u8>();
        let bytes = size_of_val((*address).as_slice());
        TensorMemory::new(start, start, bytes, Box::new(tensor.clone()))
    };
    (worker.declare(spec, average).submit(request, memory), tensor)
}

pub struct Tensor<T>(std::cell::UnsafeCell<Vec<T>>);

// SAFETY: written by the event loop until the completion, read by the test after it.
unsafe impl<T: Send> Send for Tensor<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Tensor<T> {}

impl<T> Tensor<T> {
    pub fn values(&self) -> &[T] {
        // SAFETY: called after the completion only.
        unsafe { &*self.0.get() }
    }
}

pub fn wait(completion: &Completion) -> Result<(), OpError> {
    completion.wait_until(Instant::now() + LIMIT).expect("done within the limit")
}
