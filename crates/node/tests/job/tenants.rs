//! Quotas from the coordinator's file to the lanes, and memory that comes back.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use sumpter_config::{Config, load_from};
use sumpter_membership::Serves;
use sumpter_node::{Worker, serve, start_coordinator, status};

use crate::harness::{LIMIT, spec, submit, wait};

fn config(token: &str, settings: &[(&str, &str)]) -> Config {
    let all = [("token", token), ("start_timeout_s", "2"), ("architecture", "ps")];
    let merged = all.iter().chain(settings).map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    load_from(&merged.collect::<Vec<_>>(), |_| None).expect("valid settings")
}

/// What the coordinator's only server counts.
fn counter(watcher: &Config, name: &str) -> Option<f64> {
    let report = status(watcher, None).expect("an answer");
    let (_, value) = report.servers[0].stats.counters.iter().find(|c| c.0.contains(name))?;
    Some(*value)
}

#[test]
fn a_quota_reaches_the_lanes_and_a_jobs_memory_comes_back() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (cluster, secret) = ("the token of the cluster", "the token of the job");
    std::fs::write(folder.join("job.token"), secret).unwrap();
    let file = folder.join("tenants.toml").to_string_lossy().into_owned();
    let text = "[[job]]\nname = \"*\"\ntoken_file = \"job.token\"\nmax_connections = 1\n";
    std::fs::write(&file, text).unwrap();
    let coordinating = config(cluster, &[("tenants", &file)]);
    let mut coordinator =
        start_coordinator("127.0.0.1:0", &coordinating, Serves::ManyJobs).expect("a free port");
    let address = coordinator.address().to_string();
    let at = ("coordinator", address.as_str());
    let stop = Arc::new(AtomicBool::new(false));
    let (serving, stopped) =
        (config(cluster, &[at, ("lanes", "1"), ("machine", "cpu")]), stop.clone());
    let server = spawn(move || serve(&serving, &mut || stopped.load(Ordering::Relaxed)));

    let watcher = config(cluster, &[at]);
    // One worker alone is within the quota, two are not.
    for (job, size, fits) in [("one", "1", true), ("two", "2", false)] {
        let ranks: Vec<_> = ["0", "1"][..if fits { 1 } else { 2 }]
            .iter()
            .map(|rank| {
                let own = [at, ("job", job), ("rank", *rank), ("world_size", size)];
                let machine = ("machine", ["gpu-0", "gpu-1"][usize::from(*rank == "1")]);
                let settings = config(secret, &[&own[..], &[machine, ("servers", "1")]].concat());
                let watcher = watcher.clone();
                spawn(move || {
                    let worker = Worker::join(&settings, &mut || false).expect("joined");
                    let (done, _tensor) = submit(&worker, spec("t", &[1000]), vec![1.0; 1000]);
                    let outcome = wait(&done);
                    let memory =
                        (outcome.is_ok()).then(|| settle(&watcher, |bytes| bytes > Some(0.0)));
                    worker.shutdown();
                    assert_ne!(memory, Some(false), "the server reports no memory of the run");
                    outcome.map_err(|error| error.to_string())
                })
            })
            .collect();
        let outcomes: Vec<_> = ranks.into_iter().map(|r| r.join().expect("no panic")).collect();
        let refused = |outcome: &Result<(), String>| {
            outcome.as_ref().is_err_and(|text| text.contains("(max_connections)"))
        };
        assert_eq!(outcomes.iter().any(refused), !fits, "{outcomes:?}");
        assert_eq!(outcomes.iter().all(Result::is_ok), fits, "{outcomes:?}");
        assert!(settle(&watcher, |bytes| bytes.is_none()), "job {job} is still counted");
        assert_eq!(counter(&watcher, "lane_memory_bytes"), Some(0.0), "after job {job}");
    }
    stop.store(true, Ordering::Relaxed);
    server.join().expect("no panic").expect("the server ended well");
    coordinator.stop();
}

/// Waits until what runs occupy on the server is as asked; false if it never is.
fn settle(watcher: &Config, wanted: impl Fn(Option<f64>) -> bool) -> bool {
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        if wanted(counter(watcher, "run_memory_bytes/")) {
            return true;
        }
        sleep(Duration::from_millis(50));
    }
    false
}
