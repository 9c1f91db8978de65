//! Who is refused, and in which words.

use sumpter_types::Rack;

use super::*;

#[test]
fn a_rank_that_is_taken_is_refused_with_both_hosts() {
    let mut world = World::new();
    world.join(worker(1, 4));
    let refusal = world.refused(Join { host: "elsewhere".into(), ..worker(1, 4) });
    assert_eq!((refusal.kind, refusal.retry), (FatalKind::Start, false));
    let text = refusal.message;
    assert!(text.contains("rank 1 of job 'default' is taken by a process on host1"), "{text}");
    assert!(text.contains("elsewhere"), "{text}");
}

#[test]
fn a_rank_outside_its_world_is_refused() {
    let text = World::new().refused(worker(4, 4)).message;
    assert!(text.contains("rank 4 on host4 is outside its world of 4 workers"), "{text}");
}

#[test]
fn another_world_size_is_refused_with_both_hosts() {
    let mut world = World::new();
    let zero = world.join(worker(0, 4));
    let text = world.refused(worker(1, 3)).message;
    assert!(text.contains("rank 1 on host1 counts 3 workers"), "{text}");
    assert!(text.contains("rank 0 on host0 counts 4"), "{text}");
    assert_eq!(world.told(zero), [], "the others go on waiting");
}

#[test]
fn another_setting_is_an_error_for_all() {
    let mut world = World::new();
    let zero = world.join(worker(0, 3));
    let one = world.join(worker(1, 3));
    let settings = BTreeMap::from([("chunk_bytes".to_owned(), "65536".to_owned())]);
    let refusal = world.refused(Join { settings, ..worker(2, 3) });
    assert_eq!(refusal.kind, FatalKind::Mismatch);
    let text = refusal.message.clone();
    assert!(text.contains("setting chunk_bytes differs: rank 0 on host0 has 262144"), "{text}");
    assert!(text.contains("rank 2 on host2 has 65536"), "{text}");
    for member in [zero, one] {
        assert_eq!(world.fatal(member), (FatalKind::Mismatch, refusal.message.clone()));
    }
}

#[test]
fn a_setting_that_is_absent_differs_from_one_that_is_given() {
    let mut world = World::new();
    world.join(worker(0, 3));
    let text = world.refused(Join { settings: BTreeMap::new(), ..worker(1, 3) }).message;
    assert!(text.contains("rank 1 on host1 has no value"), "{text}");
}

#[test]
fn a_run_that_has_begun_admits_no_worker() {
    let mut world = World::new();
    world.started(2);
    let refusal = world.refused(Join { host: "late".into(), ..worker(1, 2) });
    assert!(!refusal.retry);
    let text = refusal.message;
    assert!(text.contains("already running with ranks 0 (host0), 1 (host1)"), "{text}");
    assert!(text.contains("rank 1 on late"), "{text}");
}

#[test]
fn while_a_run_is_ending_an_applicant_may_ask_again_and_is_taken_once_it_is_over() {
    let mut world = World::new();
    let workers = world.started(2);
    world.leave(workers[0]);
    assert!(world.refused(worker(0, 2)).retry);
    world.told(workers[1]);
    world.leave(workers[1]);
    world.join(worker(0, 2));

    let mut world = World::new();
    let workers = world.started(2);
    world.close(workers[0]);
    let refusal = world.refused(worker(0, 2));
    assert!(refusal.retry && refusal.message.contains("rank 0 on host0 was lost"), "{refusal:?}");
    world.close(workers[1]);
    world.join(worker(0, 2));
}

#[test]
fn after_a_failed_start_the_reason_reaches_latecomers() {
    let mut world = World::new();
    world.join(worker(0, 3));
    world.refused(Join { settings: BTreeMap::new(), ..worker(1, 3) });
    let refusal = world.refused(worker(2, 3));
    assert!(!refusal.retry);
    assert!(refusal.message.contains("setting chunk_bytes differs"), "{}", refusal.message);
}

#[test]
fn a_coordinator_for_one_run_takes_no_other_job() {
    let mut world = World::with(Serves::OneRun);
    world.join(worker_of("mine", 0, 2));
    let text = world.refused(worker_of("yours", 0, 1)).message;
    assert!(text.contains("job 'mine' alone, not job 'yours'"), "{text}");
}

#[test]
fn applicants_that_make_no_sense_are_refused() {
    let nowhere = vec![([0, 0, 0, 0], 7000).into()];
    let lane = LaneView::from(([10, 0, 0, 1], 7000));
    let of = |gbps| Some(Bandwidth { gbps, source: BandwidthSource::Configured });
    let senseless = [
        Join { host: String::new(), ..worker(0, 1) },
        Join { machine: "x".repeat(300), ..worker(0, 1) },
        Join { job: String::new(), ..worker(0, 1) },
        Join { lanes: nowhere, ..worker(0, 1) },
        Join { lanes: vec![([10, 0, 0, 1], 0).into()], ..worker(0, 1) },
        Join { lanes: Vec::new(), ..server("a") },
        Join { lanes: vec![LaneView { own: 2, ..lane.clone() }], ..server("a") },
        Join { lanes: vec![LaneView { addresses: Vec::new(), own: 0, ..lane }], ..server("a") },
        Join { bandwidth: of(f64::NAN), ..worker(0, 1) },
        Join { bandwidth: of(-1.0), ..worker(0, 1) },
        Join { rack: Some(Rack { name: String::new(), trunk_gbps: None }), ..worker(0, 1) },
        Join { rack: Some(Rack { name: "r".into(), trunk_gbps: Some(0.0) }), ..worker(0, 1) },
        Join {
            settings: (0..100).map(|i| (i.to_string(), String::new())).collect(),
            ..worker(0, 1)
        },
        worker(0, 0),
        worker(0, u32::MAX),
    ];
    for join in senseless {
        let refusal = World::new().refused(join.clone());
        assert_eq!(refusal.kind, FatalKind::Protocol, "{join:?}");
    }
}

#[test]
fn what_is_beyond_a_limit_is_refused_with_the_limit() {
    let mut world = World::new();
    let text = world.refused(worker(0, 65_537)).message;
    assert_eq!(text, "a world of 65537 workers; 1 to 65536 are possible");
    let lanes = vec![([10, 0, 0, 1], 7000).into(); 1025];
    let text = world.refused(Join { lanes: lanes.clone(), ..server("a") }).message;
    assert_eq!(text, "1025 lanes; at most 1024 are possible");
    // Of a worker no more than event loops.
    let lanes = lanes[..65].to_vec();
    let text = world.refused(Join { lanes, ..worker(0, 2) }).message;
    assert_eq!(text, "65 lanes; at most 64 are possible");
}
