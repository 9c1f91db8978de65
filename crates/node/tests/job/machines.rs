//! Machines with several workers: each passes one subtotal on, whatever sums it.

use sumpter_node::{OpError, Worker};
use sumpter_types::{Collective, Dtype, Rank, TensorSpec};

use crate::harness::{Job, spec, submit, submit_as, wait};

const PAIRS: [&str; 4] = ["gpu-a", "gpu-a", "gpu-b", "gpu-b"];
/// Two machines of eight ranks.
const EIGHT_EACH: [&str; 16] =
    ["a", "a", "a", "a", "a", "a", "a", "a", "b", "b", "b", "b", "b", "b", "b", "b"];

#[test]
fn every_rank_gets_the_sum_whatever_the_machines_and_the_servers() {
    let clusters: [&[&str]; 4] =
        [&PAIRS, &["a", "b", "b"], &["a", "b", "a", "c", "b"], &["a", "a", "a"]];
    for machines in clusters {
        for servers in 0..=2 {
            let n = machines.len();
            let job = Job::start(servers);
            job.run_on(machines, &[], move |worker| {
                for round in 0..4 {
                    let tensors: Vec<_> = [1, 999, 100_003]
                        .into_iter()
                        .map(|len: u64| {
                            let value = |i| (i % 100) as f32 + (worker.rank() + round) as f32;
                            let spec = spec(&format!("t{len}"), &[len]);
                            submit(worker, spec, (0..len).map(value).collect())
                        })
                        .collect();
                    let ranks = n * (n - 1) / 2 + n * round as usize;
                    for (completion, tensor) in tensors {
                        assert_eq!(wait(&completion), Ok(()));
                        let values = tensor.values().iter().enumerate();
                        let expected = |i: usize| (n * (i % 100) + ranks) as f32;
                        assert!(values.clone().all(|(i, v)| *v == expected(i)));
                    }
                }
            });
            job.finish();
        }
    }
}

#[test]
fn links_that_no_processor_can_fill_work_alone_and_beside_others() {
    for of_server in ["400", "25", "10000"] {
        let job = Job::start_with(1, &[("bandwidth_gbps", of_server)]);
        job.run(2, &[("bandwidth_gbps", "400")], |worker| {
            for len in [1, 1_000_003] {
                let values = vec![worker.rank() as f32 + 1.0; len];
                let spec = spec(&format!("t{len}"), &[len as u64]);
                let (completion, tensor) = submit(worker, spec, values);
                assert_eq!(wait(&completion), Ok(()));
                assert!(tensor.values().iter().all(|value| *value == 3.0));
            }
        });
        job.finish();
    }
}

/// A small whole number as a 16-bit float.
fn half(n: u16) -> u16 {
    let exponent = n.checked_ilog2().map_or(0, |e| e as u16);
    if n == 0 { 0 } else { (exponent + 15) << 10 | (n << (10 - exponent)) & 0x3ff }
}

#[test]
fn halves_are_averaged_over_all_workers_not_over_machines() {
    let job = Job::start(1);
    job.run_on(&PAIRS, &[], |worker| {
        let rank = worker.rank() as u16;
        let spec = TensorSpec { dtype: Dtype::F16, ..spec("halves", &[70_001]) };
        let values = (0..70_001_u32).map(|i| half((i % 50) as u16 * 4 + 4 * rank)).collect();
        let (completion, tensor) = submit_as(worker, spec, values, true);
        assert_eq!(wait(&completion), Ok(()));
        // (0 + 4 + 8 + 12) / 4 = 6.
        let expected = |i: usize| half((i % 50) as u16 * 4 + 6);
        assert!(tensor.values().iter().enumerate().all(|(i, v)| *v == expected(i)));
    });
    job.finish();
}

#[test]
fn broadcasts_barriers_and_subgroups_work_beside_them() {
    let job = Job::start(1);
    job.run_on(&PAIRS, &[], |worker| {
        let rank = worker.rank();
        for _ in 0..2 {
            let collective = Collective::Broadcast;
            let from_two = TensorSpec { collective, root: Rank(2), ..spec("b", &[50_000]) };
            let (completion, tensor) = submit(worker, from_two, vec![rank as f32; 50_000]);
            assert_eq!(wait(&completion), Ok(()));
            assert!(tensor.values().iter().all(|v| *v == 2.0));
            let barrier = TensorSpec { collective: Collective::Barrier, ..spec("all here", &[1]) };
            assert_eq!(wait(&submit(worker, barrier, vec![0.0]).0), Ok(()));
            if rank != 1 {
                let ranks = [0, 2, 3].map(Rank).to_vec();
                let some = TensorSpec { ranks, ..spec("some", &[50_000]) };
                let (completion, tensor) = submit(worker, some, vec![1.0; 50_000]);
                assert_eq!(wait(&completion), Ok(()));
                assert!(tensor.values().iter().all(|v| *v == 3.0));
            }
        }
        // Rank 1 sums a part of what the others do without it, so it must not leave first.
        let end = TensorSpec { collective: Collective::Barrier, ..spec("end", &[1]) };
        assert_eq!(wait(&submit(worker, end, vec![0.0]).0), Ok(()));
    });
    job.finish();
}

#[test]
fn a_groups_members_on_one_machine_contribute_once() {
    const LEN: u64 = 1_000_000;
    const MACHINES: [&str; 6] = ["a", "a", "a", "b", "b", "b"];
    let members = [0, 1, 3, 4, 5].map(Rank).to_vec();
    for (servers, deterministic) in [(0, "false"), (1, "false"), (0, "true")] {
        let job = Job::start(servers);
        let members = members.clone();
        let settings = [("deterministic", deterministic)];
        let counted = job.run_on(&MACHINES, &settings, move |worker| {
            if worker.rank() != 2 {
                for round in 0..3_u32 {
                    let spec = TensorSpec { ranks: members.clone(), ..spec("some", &[LEN]) };
                    let value = (worker.rank() + round) as f32;
                    let (completion, tensor) = submit(worker, spec, vec![value; LEN as usize]);
                    assert_eq!(wait(&completion), Ok(()));
                    let sum = (13 + 5 * round) as f32;
                    assert!(tensor.values().iter().all(|value| *value == sum));
                }
            }
            let barrier = TensorSpec { collective: Collective::Barrier, ..spec("end", &[1]) };
            assert_eq!(wait(&submit(worker, barrier, vec![0.0]).0), Ok(()));
            let counters = worker.stats().counters;
            (counters["bytes_sent_away"], counters["bytes_received_away"])
        });
        // Two machines: each sends, and receives, the model once a round.
        let model = (LEN * 4 * 3) as f64;
        for machine in counted.chunks(3) {
            let sent: f64 = machine.iter().map(|c| c.0).sum();
            let received: f64 = machine.iter().map(|c| c.1).sum();
            assert!((model..1.02 * model).contains(&sent), "{sent} of {model}: {counted:?}");
            assert!((model..1.02 * model).contains(&received), "{received}: {counted:?}");
        }
        job.finish();
    }
}

#[test]
fn a_machines_link_carries_the_model_once_however_many_workers_it_has() {
    const LEN: u64 = 1_000_000;
    const ROUNDS: u32 = 3;
    let clusters =
        [(&PAIRS[..], 0), (&PAIRS, 1), (&["a", "b"], 0), (&EIGHT_EACH, 0), (&EIGHT_EACH, 2)];
    for (machines, servers) in clusters {
        let job = Job::start(servers);
        let counted = job.run_on(machines, &[], |worker| {
            for _ in 0..ROUNDS {
                let (completion, _) = submit(worker, spec("m", &[LEN]), vec![1.0; LEN as usize]);
                assert_eq!(wait(&completion), Ok(()));
            }
            // When all have come, all that was sent has been received, hence counted.
            let barrier = TensorSpec { collective: Collective::Barrier, ..spec("end", &[1]) };
            assert_eq!(wait(&submit(worker, barrier, vec![0.0]).0), Ok(()));
            let counters = worker.stats().counters;
            (counters["bytes_sent_away"], counters["bytes_received_away"], counters["bytes_sent"])
        });
        // Two machines: each sends, and receives, the model once a round for any placement.
        let model = (LEN * 4 * u64::from(ROUNDS)) as f64;
        for machine in counted.chunks(machines.len() / 2) {
            let sent: f64 = machine.iter().map(|c| c.0).sum();
            let received: f64 = machine.iter().map(|c| c.1).sum();
            assert!((model..1.02 * model).contains(&sent), "{sent} of {model}: {counted:?}");
            assert!((model..1.02 * model).contains(&received), "{received}: {counted:?}");
            let within: f64 = machine.iter().map(|c| c.2 - c.0).sum();
            assert!((within > 0.0) == (machine.len() > 1), "{counted:?}");
        }
        job.finish();
    }
}

/// A round of a collective with a tensor for each root; the values of each that this rank has
/// then.
fn rooted(
    worker: &Worker,
    (collective, roots): (Collective, std::ops::Range<u32>),
    len: u64,
) -> Vec<f32> {
    let value = (worker.rank() + 1) as f32;
    let begin = |root: u32| {
        let name = format!("{collective:?} {root}");
        let spec = TensorSpec { collective, root: Rank(root), ..spec(&name, &[len]) };
        submit(worker, spec, vec![value; len as usize])
    };
    let begun: Vec<_> = roots.map(begin).collect();
    let mut got = Vec::new();
    for (completion, tensor) in begun {
        assert_eq!(wait(&completion), Ok(()));
        let values = tensor.values();
        assert!(values.iter().all(|value| *value == values[0]));
        got.push(values[0]);
    }
    got
}

/// What each machine's ranks send to and receive from others, in tensors of `len` floats.
fn link_bytes(counted: &[(f64, f64)], ranks: usize, len: u64) -> Vec<(f64, f64)> {
    let tensors = |bytes: f64| bytes / (len * 4) as f64;
    let of = |machine: &[(f64, f64)]| {
        let (sent, received): (Vec<f64>, Vec<f64>) = machine.iter().copied().unzip();
        (tensors(sent.iter().sum()), tensors(received.iter().sum()))
    };
    counted.chunks(ranks).map(of).collect()
}

fn is_about(got: f64, expected: f64) -> bool {
    (expected..1.03 * expected).contains(&got)
}

#[test]
fn every_collective_costs_a_machine_what_one_rank_on_it_would_cost() {
    const LEN: u64 = 500_000;
    let clusters: [&[&str]; 3] =
        [&["a", "a", "b", "b"], &["a", "a", "b", "b", "c", "c"], &["a", "a", "a", "b", "b", "b"]];
    let clusters = clusters.into_iter().flat_map(|m| [(m, 0), (m, 1)]);
    for (machines, servers) in clusters.chain([(&EIGHT_EACH[..], 0), (&EIGHT_EACH, 2)]) {
        let n = machines.len() as u32;
        let on_each = machines.iter().filter(|machine| **machine == "a").count();
        let hosts = machines.len() / on_each;
        let run = |collective, roots: std::ops::Range<u32>| {
            let job = Job::start(servers);
            let counted = job.run_on(machines, &[], move |worker| {
                let got = rooted(worker, (collective, roots.clone()), LEN);
                let barrier = TensorSpec { collective: Collective::Barrier, ..spec("end", &[1]) };
                assert_eq!(wait(&submit(worker, barrier, vec![0.0]).0), Ok(()));
                for (root, got) in roots.clone().zip(got) {
                    let expected = match collective {
                        Collective::Broadcast => root + 1,
                        _ if root == worker.rank() => n * (n + 1) / 2,
                        _ => worker.rank() + 1,
                    };
                    assert_eq!(got, expected as f32, "rank {}, root {root}", worker.rank());
                }
                let counters = worker.stats().counters;
                (counters["bytes_sent_away"], counters["bytes_received_away"])
            });
            job.finish();
            link_bytes(&counted, on_each, LEN)
        };
        // All ranks' tensors, without those of the machine's own.
        let others = f64::from(n) - on_each as f64;
        for (sent, received) in run(Collective::ReduceScatter, 0..n) {
            assert!(is_about(sent, others), "{sent} of {others}, {machines:?}, {servers}");
            assert!(is_about(received, others), "{received} of {others}, {machines:?}, {servers}");
        }
        for (sent, received) in run(Collective::Broadcast, 0..n) {
            // Servers send on what a machine has sent once.
            assert!(sent < 1.03 * others, "{sent} of {others}, {machines:?}, {servers}");
            assert!(servers > 0 || is_about(sent, others), "{sent} of {others}, {machines:?}");
            assert!(is_about(received, others), "{received} of {others}, {machines:?}, {servers}");
        }
        let root_at = (n - 1) as usize / on_each;
        let broadcast = run(Collective::Broadcast, n - 1..n);
        let reduce = run(Collective::Reduce, n - 1..n);
        for host in (0..hosts).filter(|host| *host != root_at) {
            assert!(is_about(broadcast[host].1, 1.0), "{broadcast:?}, {machines:?}, {servers}");
            assert!(is_about(reduce[host].0, 1.0), "{reduce:?}, {machines:?}, {servers}");
        }
    }
}

#[test]
fn deterministic_sums_are_the_same_bytes_with_any_servers_and_in_any_run() {
    let value = |rank: u32, i: u32| (0.1 + rank as f32) * [1.0, 3.0e4, 1.0e-3][i as usize % 3];
    let sums = |machines: &[&str], servers| {
        let job = Job::start(servers);
        let results = job.run_on(machines, &[("deterministic", "true")], move |worker| {
            let values = (0..60_000).map(|i| value(worker.rank(), i)).collect();
            let (completion, tensor) = submit(worker, spec("rough", &[60_000]), values);
            assert_eq!(wait(&completion), Ok(()));
            tensor.values().to_vec()
        });
        job.finish();
        results
    };
    for machines in [["a", "a", "b", "c", "c"], ["a", "b", "c", "b", "a"]] {
        let on = |name| (0..5).filter(move |rank| machines[*rank as usize] == name);
        let subtotal = |name, i| on(name).map(|rank| value(rank, i)).reduce(|a, b| a + b);
        let subtotals = |i| ["a", "b", "c"].map(|name| subtotal(name, i).expect("a worker"));
        let total = |i| subtotals(i).into_iter().reduce(|a, b| a + b).expect("a machine");
        let expected: Vec<f32> = (0..60_000).map(total).collect();
        for servers in 0..=3 {
            for (rank, sum) in sums(&machines, servers).into_iter().enumerate() {
                assert!(sum == expected, "rank {rank} of {machines:?} with {servers} servers");
            }
        }
    }
}

#[test]
fn a_hub_that_leaves_has_passed_on_what_others_wait_for() {
    let rooted = [Collective::Broadcast, Collective::Reduce, Collective::ReduceScatter];
    for (collective, servers) in
        rooted.into_iter().chain([Collective::AllReduce]).flat_map(|c| [(c, 0), (c, 1)])
    {
        let job = Job::start(servers);
        // All leave as soon as they are done; the others must still get all of theirs.
        job.run_on(&PAIRS, &[], move |worker| {
            let len = 2_000_000;
            let root = Rank(2);
            let spec = TensorSpec { collective, root, ..spec("last", &[len]) };
            let (completion, tensor) = submit(worker, spec, vec![1.5; len as usize]);
            assert_eq!(wait(&completion), Ok(()));
            let (rank, sums) = (Rank(worker.rank()), collective.has_op());
            let summed = sums && collective.receives(rank, root);
            let expected = if summed { 6.0 } else { 1.5 };
            assert!(tensor.values().iter().all(|v| *v == expected));
        });
        job.finish();
    }
}

#[test]
fn who_waits_for_a_hub_that_has_left_is_told_so() {
    let job = Job::start(0);
    let errors = job.run_on(&PAIRS, &[], |worker| {
        if worker.rank() == 2 {
            return None;
        }
        let (completion, _) = submit(worker, spec("lonely", &[80_000]), vec![1.0; 80_000]);
        wait(&completion).err()
    });
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != 2) {
        let text = error.as_ref().expect("no contribution for rank 2").to_string();
        assert!(matches!(error, Some(OpError::PeerLost(_))), "rank {rank}: {text}");
        // The first to notice leaves too, and may be the one the others name.
        assert!(text.contains("has left") && text.contains("lonely"), "rank {rank}: {text}");
    }
}

#[test]
fn a_sum_that_no_server_has_room_for_fails_on_every_worker_of_a_machine() {
    let job = Job::start_with(1, &[("max_job_bytes", "1MiB")]);
    let errors = job.run_on(&PAIRS, &[("architecture", "ps")], |worker| {
        let (completion, _) = submit(worker, spec("large", &[600_000]), vec![1.0; 600_000]);
        wait(&completion).expect_err("there is no room").to_string()
    });
    assert!(errors.iter().all(|text| text.contains("max_job_bytes")), "{errors:?}");
}
