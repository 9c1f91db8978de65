//! Whole jobs over loopback in one process: a coordinator, servers and workers as threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::{Duration, Instant};

use sumpter_config::{Config, load_from};
use sumpter_coordinator::{Coordinator, Kind, TensorSpec};
use sumpter_node::{Completion, NodeError, OpError, OpRequest, Worker, serve, start_coordinator};
use sumpter_sum::{Dtype, ReduceOp};
use sumpter_transport::TensorMemory;
use sumpter_wire::Rank;

const TOKEN: &str = "the token of a test job";
/// Far beyond what any of these takes; a test that waits so long has hung.
const LIMIT: Duration = Duration::from_secs(60);

fn config(settings: &[(&str, &str)]) -> Config {
    let all = [("token", TOKEN), ("peer_timeout_s", "2"), ("partition_bytes", "65536")];
    let merged = all.iter().chain(settings).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    load_from(&merged.collect::<Vec<_>>(), |_| None).expect("valid settings")
}

/// A running job; what is left of it ends when it is dropped.
struct Job {
    coordinator: Coordinator,
    servers: Vec<JoinHandle<Result<(), NodeError>>>,
    stop: Arc<AtomicBool>,
}

impl Job {
    fn start(servers: usize) -> Job {
        let coordinator =
            start_coordinator("127.0.0.1:0", &config(&[]), true).expect("a free port");
        let address = coordinator.address().to_string();
        let stop = Arc::new(AtomicBool::new(false));
        let servers = (0..servers).map(|index| {
            let machine = format!("cpu-{index}");
            let settings =
                config(&[("coordinator", &address), ("machine", &machine), ("lanes", "2")]);
            let stop = stop.clone();
            spawn(move || serve(&settings, &mut || stop.load(Ordering::Relaxed)))
        });
        Job { servers: servers.collect(), coordinator, stop }
    }

    fn settings(&self, rank: usize, world_size: usize, extra: &[(&str, &str)]) -> Config {
        let address = self.coordinator.address().to_string();
        let (rank, machine) = (rank.to_string(), format!("gpu-{rank}"));
        let (size, servers) = (world_size.to_string(), self.servers.len().to_string());
        let own = [
            ("coordinator", address.as_str()),
            ("rank", &rank),
            ("world_size", &size),
            ("machine", &machine),
            ("servers", &servers),
        ];
        config(&[&own[..], extra].concat())
    }

    /// Runs `body` on every rank and returns what each gave.
    fn run<T: Send + 'static>(
        &self,
        world_size: usize,
        extra: &[(&str, &str)],
        body: impl Fn(&Worker) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let ranks: Vec<_> = (0..world_size)
            .map(|rank| {
                let (settings, body) = (self.settings(rank, world_size, extra), body.clone());
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

    fn finish(mut self) {
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

fn spec(name: &str, shape: &[u64]) -> TensorSpec {
    TensorSpec {
        name: name.to_owned(),
        dtype: Dtype::F32,
        shape: shape.to_vec(),
        kind: Kind::AllReduce,
        op: ReduceOp::Sum,
        root: Rank(0),
        ranks: Vec::new(),
    }
}

/// Submits a tensor in place; the memory lives until the operation is done.
fn submit(worker: &Worker, spec: TensorSpec, values: Vec<f32>) -> (Arc<Completion>, Arc<Tensor>) {
    let tensor = Arc::new(Tensor(std::cell::UnsafeCell::new(values)));
    let address = tensor.0.get();
    let request = OpRequest { spec, tag: String::new(), average: false, priority: 0 };
    // SAFETY: the tensor is owned by the memory as well, and read only once that is done.
    let memory = unsafe {
        let start = (*address).as_mut_ptr().cast::<u8>();
        TensorMemory::new(start, start, (*address).len() * 4, Box::new(tensor.clone()))
    };
    (worker.submit(request, memory), tensor)
}

struct Tensor(std::cell::UnsafeCell<Vec<f32>>);

// SAFETY: written by the event loop until the completion, read by the test after it.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

impl Tensor {
    fn values(&self) -> &[f32] {
        // SAFETY: called after the completion only.
        unsafe { &*self.0.get() }
    }
}

fn wait(completion: &Completion) -> Result<(), OpError> {
    completion.wait_until(Instant::now() + LIMIT).expect("done within the limit")
}

#[test]
fn every_rank_gets_the_sum_round_after_round_with_and_without_servers() {
    for servers in [0, 2] {
        let job = Job::start(servers);
        job.run(3, &[], |worker| {
            for round in 0..5 {
                let tensors: Vec<_> = [1, 1000, 100_000]
                    .into_iter()
                    .map(|len: u64| {
                        let value = |i| (i % 100) as f32 + (worker.rank() + round) as f32;
                        let spec = spec(&format!("t{len}"), &[len]);
                        submit(worker, spec, (0..len).map(value).collect())
                    })
                    .collect();
                for (completion, tensor) in tensors {
                    assert_eq!(wait(&completion), Ok(()));
                    let expected = |i| (3 * (i % 100) + 3 + 3 * round as usize) as f32;
                    let values = tensor.values().iter().enumerate();
                    assert!(values.clone().all(|(i, v)| *v == expected(i)));
                }
            }
        });
        job.finish();
    }
}

#[test]
fn a_tensor_of_another_shape_fails_on_every_rank_and_names_both() {
    let job = Job::start(0);
    let errors = job.run(2, &[], |worker| {
        let len = 10 + u64::from(worker.rank()) * 2;
        let (completion, _) = submit(worker, spec("grad", &[len]), vec![1.0; len as usize]);
        let error = wait(&completion).expect_err("the shapes differ");
        // Other tensors still work.
        let (completion, tensor) = submit(worker, spec("other", &[4]), vec![1.0; 4]);
        assert_eq!(wait(&completion), Ok(()));
        assert_eq!(tensor.values(), [2.0; 4]);
        error
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error, OpError::Mismatch(_)), "{text}");
        let parts = ["grad", "rank 0", "rank 1", "[10]", "[12]"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
    job.finish();
}

#[test]
fn a_known_tensor_of_another_shape_fails_on_every_rank_too() {
    let job = Job::start(1);
    let errors = job.run(2, &[], |worker| {
        let (completion, _) = submit(worker, spec("grad", &[8]), vec![1.0; 8]);
        assert_eq!(wait(&completion), Ok(()));
        // Once this is done, no rank waits for the first round any more.
        let (completion, _) = submit(worker, spec("other", &[1]), vec![1.0]);
        assert_eq!(wait(&completion), Ok(()));
        let len = if worker.rank() == 0 { 8 } else { 9 };
        let (completion, _) = submit(worker, spec("grad", &[len]), vec![1.0; len as usize]);
        wait(&completion).expect_err("the shapes differ").to_string()
    });
    assert!(errors.iter().all(|text| text.contains("[8]") && text.contains("[9]")), "{errors:?}");
    job.finish();
}

#[test]
fn who_waits_for_a_rank_that_has_left_is_told_so() {
    let job = Job::start(0);
    let errors = job.run(2, &[], |worker| {
        if worker.rank() == 1 {
            return None;
        }
        let (completion, _) = submit(worker, spec("lonely", &[8]), vec![1.0; 8]);
        wait(&completion).err()
    });
    let error = errors[0].as_ref().expect("nobody else contributes");
    let text = error.to_string();
    assert!(matches!(error, OpError::PeerLost(_)), "{text}");
    assert!(text.contains("rank 1 has left") && text.contains("lonely"), "{text}");
}

#[test]
fn a_result_on_its_way_survives_its_summer_leaving() {
    let job = Job::start(0);
    // Rank 1 leaves as soon as it has its own result; rank 0 must still get all of its own.
    job.run(2, &[], |worker| {
        let len = 4_000_000;
        let (completion, tensor) = submit(worker, spec("last", &[len]), vec![1.5; len as usize]);
        assert_eq!(wait(&completion), Ok(()));
        assert!(tensor.values().iter().all(|v| *v == 3.0));
    });
    job.finish();
}

#[test]
fn a_missing_rank_is_named() {
    let job = Job::start(0);
    let settings = job.settings(0, 2, &[("start_timeout_s", "1")]);
    let error = Worker::join(&settings, &mut || false).expect_err("rank 1 never comes");
    let text = error.to_string();
    assert!(matches!(error, NodeError::Start(_)), "{text}");
    assert!(text.contains("rank 1") && text.contains("127.0.0.1"), "{text}");
}

#[test]
fn a_wrong_token_and_no_token_are_refused() {
    let job = Job::start(0);
    let settings = job.settings(0, 1, &[("token", "another token, as long")]);
    let error = Worker::join(&settings, &mut || false).expect_err("the tokens differ");
    assert!(matches!(error, NodeError::Auth(_)), "{error}");
    let mut settings = job.settings(0, 1, &[]);
    settings.token = None;
    let error = Worker::join(&settings, &mut || false).expect_err("there is no token");
    assert!(error.to_string().contains("SUMPTER_TOKEN"), "{error}");
}

#[test]
fn a_port_in_use_is_named() {
    let job = Job::start(0);
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let settings = job.settings(0, 1, &[("port", &port)]);
    let error = Worker::join(&settings, &mut || false).expect_err("the port is taken");
    let text = error.to_string();
    assert!(text.contains(&port) && text.contains("SUMPTER_PORT"), "{text}");
}

#[test]
fn waiting_for_a_job_can_be_interrupted() {
    let job = Job::start(0);
    let settings = job.settings(0, 2, &[]);
    let error = Worker::join(&settings, &mut || true).expect_err("interrupted");
    assert!(matches!(error, NodeError::Interrupted), "{error}");
}

#[test]
fn joining_again_and_again_leaves_no_threads_behind() {
    let threads = || std::fs::read_dir("/proc/self/task").expect("Linux").count();
    let cycle = || {
        let job = Job::start(0);
        job.run(2, &[], |worker| {
            let (completion, _) = submit(worker, spec("t", &[1000]), vec![1.0; 1000]);
            assert_eq!(wait(&completion), Ok(()));
        });
        job.finish();
    };
    cycle();
    let before = threads();
    (0..10).for_each(|_| cycle());
    // Other tests run beside this one, so only growth with the cycles would show.
    assert!(threads() < before + 20, "{before} threads became {}", threads());
}
