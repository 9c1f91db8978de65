//! Variables: the lanes keep value and slots, and apply the rule.

use std::sync::Arc;

use sumpter_node::{Completion, DeferredRound, OpRequest, Slices, Worker};
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Dtype, Rule, TensorSpec, Update};

use super::harness::{Job, spec, wait};

const ADAM: Rule = Rule::Adam { amsgrad: false };
const LEN: usize = 100_000;

fn variable(name: &str, len: usize, rule: Rule) -> TensorSpec {
    let (collective, rule) = (Collective::Update, Some(rule));
    TensorSpec { collective, rule, ..spec(name, &[len as u64]) }
}

fn update(round: usize) -> Update {
    let step = -0.01 / (round + 1) as f64;
    Update {
        take: 0.1,
        keep_square: 0.999,
        take_square: 0.001,
        epsilon: 1e-8,
        step,
        ..Update::new(ADAM)
    }
}

fn initial(len: usize) -> Vec<u8> {
    (0..len).flat_map(|i| (i as f32 / 7.0).to_ne_bytes()).collect()
}

fn gradient(rank: u32, round: usize, len: usize) -> Vec<f32> {
    let value = |i: usize| ((i * 31 + round * 17 + rank as usize * 13) % 101) as f32 / 9.0 - 5.0;
    (0..len).map(value).collect()
}

/// The parts of a variable after rounds whose gradients were averaged in rank order.
fn expected(ranks: u32, rounds: usize, len: usize) -> Vec<Vec<u8>> {
    let mut parts = vec![initial(len), vec![0; 4 * len], vec![0; 4 * len]];
    for round in 0..rounds {
        let mut sum = gradient(0, round, len);
        for rank in 1..ranks {
            sum.iter_mut().zip(gradient(rank, round, len)).for_each(|(sum, x)| *sum += x);
        }
        let mean: Vec<u8> = sum.iter().flat_map(|x| (x / ranks as f32).to_ne_bytes()).collect();
        let mut parts: Vec<&mut [u8]> = parts.iter_mut().map(Vec::as_mut_slice).collect();
        sumpter_sum::update(&update(round), Dtype::F32, &mut parts, (Dtype::F32, &mean), None);
    }
    parts
}

/// A gradient, and where the new value comes.
type Pair = (Vec<f32>, Vec<f32>);

/// One round.
fn step(
    worker: &Worker,
    spec: &TensorSpec,
    round: usize,
    gradient: Vec<f32>,
) -> (Arc<Completion>, Arc<Pair>) {
    let len = gradient.len();
    let both = Arc::new((gradient, vec![0.0; len]));
    let (from, to) = (both.0.as_ptr().cast::<u8>(), both.1.as_ptr().cast::<u8>().cast_mut());
    // SAFETY: both are owned by the memory as well, and read only once that is done.
    let memory = unsafe { TensorMemory::new(from, to, 4 * len, Box::new(both.clone())) };
    let update = spec.rule.map(|rule| Update { rule, ..update(round) });
    let request = OpRequest { update, ..OpRequest::default() };
    (worker.declare(spec.clone(), true).submit(request, memory), both)
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_ne_bytes()).collect()
}

#[test]
fn the_rule_is_applied_on_the_lanes_and_mirrored_in_the_workers() {
    let alone = ["a", "b", "c"];
    for (machines, servers) in [(alone, 0), (alone, 2), (["a", "a", "b"], 1), (["a"; 3], 2)] {
        let job = Job::start(servers);
        let mirrored = job.run_on(&machines, &[], |worker| {
            // One that all mirror a share of, and one that a single worker mirrors.
            let specs = [variable("large", LEN, ADAM), variable("small", 11, ADAM)];
            for spec in &specs {
                let len = spec.shape[0] as usize;
                wait(&worker.declare(spec.clone(), true).set_state(vec![initial(len)])).unwrap();
            }
            for round in 0..5 {
                let rounds = specs.each_ref().map(|spec| {
                    let gradient = gradient(worker.rank(), round, spec.shape[0] as usize);
                    step(worker, spec, round, gradient)
                });
                for (completion, memory) in rounds {
                    assert_eq!(wait(&completion), Ok(()));
                    let len = memory.1.len();
                    assert_eq!(bytes(&memory.1), expected(3, round + 1, len)[0], "round {round}");
                }
            }
            specs.map(|spec| worker.declare(spec, true).mirrored())
        });
        for (which, len) in [(0, LEN), (1, 11)] {
            let parts = expected(3, 5, len);
            let mut found = 0;
            for (elements, own) in mirrored.iter().flat_map(|all| &all[which]) {
                found += elements.len();
                for (part, own) in parts.iter().zip(own) {
                    assert!(*own == part[4 * elements.start..4 * elements.end]);
                }
            }
            assert_eq!(found, len);
        }
        job.finish();
    }
}

#[test]
fn what_cannot_be_updated_fails_on_every_rank_and_says_why() {
    let job = Job::start(1);
    let errors = job.run(2, &[], |worker| {
        let text = |completion: &Completion| wait(completion).expect_err("refused").to_string();
        let parts = worker.declare(variable("parts", 4, ADAM), true);
        let two = text(&parts.set_state(vec![vec![0; 16]; 2]));
        let short = text(&parts.set_state(vec![vec![0; 15]]));
        let unset = text(&step(worker, &variable("unset", 4, ADAM), 0, vec![1.0; 4]).0);
        // Ranks that update differently.
        let spec = variable("differs", 4, ADAM);
        wait(&worker.declare(spec.clone(), true).set_state(vec![vec![0; 16]])).unwrap();
        let differs = text(&step(worker, &spec, worker.rank() as usize, vec![1.0; 4]).0);
        let rule = if worker.rank() == 0 { ADAM } else { Rule::Lion };
        let spec = variable("rules", 4, rule);
        // The first to declare it may be done before the other does.
        let _ = wait(&worker.declare(spec.clone(), true).set_state(vec![vec![0; 16]]));
        let rules = text(&step(worker, &spec, 0, vec![1.0; 4]).0);
        // A round without coefficients, and one of another rule, are refused before they begin.
        let spec = variable("bare", 4, ADAM);
        let bare = worker.declare(spec.clone(), true);
        wait(&bare.set_state(vec![initial(4)])).unwrap();
        let lacks = text(&bare.submit(OpRequest::default(), TensorMemory::zeros(16)));
        let update = Some(Update::new(Rule::Lion));
        let request = OpRequest { update, ..OpRequest::default() };
        let foreign = text(&bare.submit(request, TensorMemory::zeros(16)));
        assert_eq!(wait(&step(worker, &spec, 0, vec![1.0; 4]).0), Ok(()));
        // One that only one rank cannot take part in.
        let spec = variable("refused", 4, ADAM);
        let refused = worker.declare(spec.clone(), true);
        let refused = if worker.rank() == 0 {
            // The other rank's refusal may come before the value is there.
            let set = wait(&refused.set_state(vec![initial(4)]));
            set.map_or_else(|e| e.to_string(), |()| text(&step(worker, &spec, 0, vec![1.0; 4]).0))
        } else {
            refused.refuse("rank 1 has another shape");
            "tensor 'refused': rank 1 has another shape".to_owned()
        };
        let integers = TensorSpec { dtype: Dtype::I32, ..variable("integers", 4, ADAM) };
        let integers = text(&worker.declare(integers, false).set_state(vec![vec![0; 16]]));
        // Others go on.
        let spec = variable("well", 4, ADAM);
        wait(&worker.declare(spec.clone(), true).set_state(vec![initial(4)])).unwrap();
        let (completion, memory) = step(worker, &spec, 0, gradient(worker.rank(), 0, 4));
        assert_eq!(wait(&completion), Ok(()));
        assert_eq!(bytes(&memory.1), expected(2, 1, 4)[0]);
        [two, short, unset, differs, rules, lacks, foreign, refused, integers]
    });
    let parts: [&[&str]; 9] = [
        &["exp_avg", "not 2 parts"],
        &["15 bytes instead of 16"],
        &["unset", "given it no value"],
        &["step is"],
        &["adam", "lion", "rank 0", "rank 1"],
        &["bare", "needs the coefficients", "adam"],
        &["bare", "adam, not lion"],
        &["tensor 'refused': rank 1 has another shape"],
        &["int32", "only floats"],
    ];
    for errors in errors {
        for (text, parts) in errors.iter().zip(parts) {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
    job.finish();
}

/// One round of which it is decided later what it does; its gradient may come in ranges.
fn deferred(
    worker: &Worker,
    spec: &TensorSpec,
    gradient: Vec<f32>,
    in_ranges: bool,
) -> (DeferredRound, Arc<Pair>) {
    let len = gradient.len();
    let both = Arc::new((gradient, vec![0.0; len]));
    let (from, to) = (both.0.as_ptr().cast::<u8>(), both.1.as_ptr().cast::<u8>().cast_mut());
    // SAFETY: both are owned by the memory as well, and read only once that is done.
    let memory = unsafe { TensorMemory::new(from, to, 4 * len, Box::new(both.clone())) };
    let (tensor, request) = (worker.declare(spec.clone(), true), OpRequest::default());
    if !in_ranges {
        return (tensor.submit_deferred(request, ADAM, memory), both);
    }
    let slices = Slices { bytes: 4096, on_final: Box::new(|_| ()) };
    let (staged, round) = tensor.submit_staged_deferred(request, ADAM, memory, slices);
    staged.supply(2 * len..4 * len);
    staged.supply(0..2 * len);
    (round, both)
}

#[test]
fn a_round_that_is_deferred_does_what_all_ranks_decide_from_its_norm() {
    let alone = ["a", "b", "c"];
    for (machines, servers) in [(alone, 0), (alone, 2), (["a", "a", "b"], 1), (["a"; 3], 2)] {
        let job = Job::start(servers);
        job.run_on(&machines, &[], |worker| {
            let specs = [variable("large", LEN, ADAM), variable("small", 11, ADAM)];
            for spec in &specs {
                let len = spec.shape[0] as usize;
                wait(&worker.declare(spec.clone(), true).set_state(vec![initial(len)])).unwrap();
            }
            // A round that is skipped comes before each of the others.
            for (round, skips) in (0..3).flat_map(|round| [(round, true), (round, false)]) {
                let rounds = specs.each_ref().map(|spec| {
                    let values = gradient(worker.rank(), round, spec.shape[0] as usize);
                    let in_ranges = (worker.rank() as usize + round).is_multiple_of(2);
                    deferred(worker, spec, values, in_ranges)
                });
                for (begun, memory) in rounds {
                    assert_eq!(wait(begun.norm()), Ok(()));
                    let len = memory.1.len();
                    let mut sum = gradient(0, round, len);
                    for rank in 1..3 {
                        sum.iter_mut().zip(gradient(rank, round, len)).for_each(|(a, b)| *a += b);
                    }
                    let squares = sum.iter().map(|x| f64::from(x / 3.0).powi(2)).sum::<f64>();
                    let found = begun.squares().expect("it is known");
                    assert!((found / squares - 1.0).abs() < 1e-12, "{found} {squares}");
                    assert!(begun.completion().poll().is_none(), "nothing was decided");
                    begun.decide(if skips { Update::skip(ADAM) } else { update(round) });
                    assert_eq!(wait(begun.completion()), Ok(()));
                    let rounds = round + usize::from(!skips);
                    assert_eq!(bytes(&memory.1), expected(3, rounds, len)[0], "round {round}");
                }
            }
        });
        job.finish();
    }
}

#[test]
fn ranks_that_decide_differently_are_told_and_a_norm_ends_with_its_round() {
    let job = Job::start(1);
    let errors = job.run(2, &[], |worker| {
        let text = |completion: &Completion| wait(completion).expect_err("refused").to_string();
        let spec = variable("differs", 4, ADAM);
        wait(&worker.declare(spec.clone(), true).set_state(vec![initial(4)])).unwrap();
        let (begun, _memory) = deferred(worker, &spec, vec![1.0; 4], false);
        assert_eq!(wait(begun.norm()), Ok(()));
        assert_eq!(begun.squares(), Some(4.0));
        begun.decide(if worker.rank() == 0 { Update::skip(ADAM) } else { update(0) });
        let differs = text(begun.completion());
        let (unset, _memory) = deferred(worker, &variable("unset", 4, ADAM), vec![1.0; 4], true);
        let no_norm = text(unset.norm());
        assert_eq!(unset.squares(), None);
        [differs, no_norm]
    });
    for [differs, no_norm] in errors {
        assert!(differs.contains("skips the round") && differs.contains("applies it"), "{differs}");
        assert!(no_norm.contains("given it no value"), "{no_norm}");
    }
    job.finish();
}
