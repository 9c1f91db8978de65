//! What each job may take of a lane, and that it gives everything back.

use sumpter_engine::JobLimits;

use super::*;

const ANY: JobLimits =
    JobLimits { max_bytes: 1_000_000, max_connections: u32::MAX, servers: 0, lanes: 0 };

fn peer_of(job: u64, rank: u32) -> Peer {
    Peer { job: JobId(job), ..peer(rank) }
}

fn answer(lane: &mut Lane, conn: ConnId) -> String {
    String::from_utf8_lossy(&drain(lane, conn)).into_owned()
}

#[test]
fn a_jobs_own_memory_counts_instead_of_any_jobs() {
    let mut lane = Lane::new(LIMITS);
    lane.know(JobId(1), JobLimits { max_bytes: 50_000, max_connections: 9, ..ANY });
    lane.know(JobId(2), JobLimits { max_bytes: 2_000_000, max_connections: 9, ..ANY });
    let (small, _) = lane.open(peer_of(1, 0)).unwrap();
    let (large, _) = lane.open(peer_of(2, 0)).unwrap();
    feed(&mut lane, small, &begin(&spec(600))).unwrap();
    let text = answer(&mut lane, small);
    assert!(text.contains("uses 0 of 50000"), "{text}");
    feed(&mut lane, large, &begin(&spec(12_000))).unwrap();
    assert_eq!(answer(&mut lane, large), "");
    assert_eq!((lane.job_bytes(JobId(1)), lane.job_bytes(JobId(2))), (0, 188 * 2 * PAGE));
}

#[test]
fn a_limit_that_is_known_later_holds_from_then_on() {
    let mut lane = Lane::new(LIMITS);
    let (conn, _) = lane.open(peer_of(1, 0)).unwrap();
    feed(&mut lane, conn, &begin(&spec(600))).unwrap();
    lane.know(JobId(1), JobLimits { max_bytes: 100_000, max_connections: 9, ..ANY });
    feed(&mut lane, conn, &of_tensor(6, 0, begin(&spec(600)))).unwrap();
    assert!(answer(&mut lane, conn).contains("uses 81920 of 100000"));
}

#[test]
fn small_chunks_count_as_the_pages_that_they_take() {
    let mut lane = Lane::new(LIMITS);
    let (conn, _) = lane.open(peer_of(1, 0)).unwrap();
    let chunks = 100;
    let of_bytes = PartitionSpec { chunk_bytes: 1, ..spec(chunks) };
    feed(&mut lane, conn, &begin(&of_bytes)).unwrap();
    for chunk in 0..chunks {
        feed(&mut lane, conn, &push(chunk, &[1])).unwrap();
    }
    let taken = u64::from(chunks) * PAGE;
    assert_eq!((lane.allocated_bytes(), lane.job_bytes(JobId(1))), (taken, 2 * taken));
    let more = PartitionSpec { chunk_bytes: 1, ..spec(30) };
    feed(&mut lane, conn, &of_tensor(6, 0, begin(&more))).unwrap();
    assert!(answer(&mut lane, conn).contains("no room for 245760 more bytes"));
}

#[test]
fn a_job_gets_no_more_connections_than_its_own_but_each_worker_may_come_again() {
    let mut lane = Lane::new(LIMITS);
    lane.know(JobId(1), JobLimits { max_bytes: 1000, max_connections: 1, ..ANY });
    let (first, _) = lane.open(peer_of(1, 0)).unwrap();
    let refusal = lane.open(peer_of(1, 1)).unwrap_err();
    assert!(refusal.contains("1 of at most 1") && refusal.contains("max_connections"), "{refusal}");
    let (_, old) = lane.open(peer_of(1, 0)).unwrap();
    assert_eq!(old, Some(first));
    // Another job is not concerned.
    lane.open(peer_of(2, 0)).unwrap();
    lane.open(peer_of(2, 1)).unwrap();
}

#[test]
fn servers_that_pass_subtotals_on_take_none_of_a_jobs_connections() {
    let mut lane = Lane::new(LIMITS);
    let world_size = peer(0).world_size;
    let max_connections = world_size;
    lane.know(JobId(1), JobLimits { max_bytes: 1000, max_connections, servers: 2, lanes: 2 });
    // Whether they come before the workers or after them.
    lane.open(peer_of(1, world_size)).unwrap();
    for rank in 0..world_size {
        lane.open(peer_of(1, rank)).unwrap();
    }
    lane.open(peer_of(1, world_size + 1)).unwrap();
    let beyond = lane.open(peer_of(1, world_size + 2)).unwrap_err();
    assert!(beyond.contains("rank"), "{beyond}");
}

#[test]
fn a_job_that_ends_gives_back_all_memory_whatever_was_under_way() {
    for deterministic in [false, true] {
        let mut lane = Lane::new(LIMITS);
        let spec = PartitionSpec { deterministic, ..spec(200) };
        let conns = [0, 1].map(|rank| lane.open(peer_of(1, rank)).unwrap().0);
        // A finished round, one with a contribution that waits, and half a chunk.
        let chunks: Vec<u8> =
            (0..4).flat_map(|c| push(c, &[1; 64][..if c == 3 { 8 } else { 64 }])).collect();
        for conn in conns {
            feed(&mut lane, conn, &[begin(&spec), chunks.clone()].concat()).unwrap();
        }
        let tail = [of_tensor(6, 0, begin(&spec)), of_tensor(6, 0, push(0, &[1; 64]))].concat();
        let half = of_tensor(6, 0, push(1, &[1; 64]));
        feed(&mut lane, conns[1], &[&tail[..], &half[..40]].concat()).unwrap();
        assert!(lane.allocated_bytes() > 0);
        assert_eq!(lane.end_job(JobId(1)).len(), 2);
        assert_eq!(lane.allocated_bytes(), 0, "deterministic: {deterministic}");
        assert_eq!(lane.job_bytes(JobId(1)), 0);
    }
}

#[test]
fn a_job_that_ends_takes_nothing_from_another() {
    let mut lane = Lane::new(LIMITS);
    let (ending, _) = lane.open(peer_of(1, 0)).unwrap();
    let conns = [0, 1].map(|rank| lane.open(peer_of(2, rank)).unwrap().0);
    feed(&mut lane, ending, &[begin(&spec(64)), push(0, &[9; 64])].concat()).unwrap();
    feed(&mut lane, conns[0], &[begin(&spec(3)), push(0, &[1, 2, 3])].concat()).unwrap();
    lane.end_job(JobId(1));
    feed(&mut lane, conns[1], &[begin(&spec(3)), push(0, &[10, 20, 30])].concat()).unwrap();
    assert_eq!(drain(&mut lane, conns[0])[HEADER_BYTES..], [11, 22, 33]);
}

#[test]
fn what_waits_for_a_late_rank_takes_no_more_than_the_sums_may() {
    let limits = JobLimits { max_bytes: 45_000, ..ANY };
    let of_floats = PartitionSpec { dtype: Dtype::F32, deterministic: true, ..spec(256) };
    let lane_of_four = || {
        let mut lane = Lane::new(LIMITS);
        lane.know(JobId(1), limits);
        let open = |rank| lane.open(Peer { world_size: 4, ..peer(rank) }).unwrap().0;
        let conns = [0, 1, 2, 3].map(open);
        (lane, conns)
    };
    let all = |lane: &mut Lane, conn| {
        feed(lane, conn, &begin(&of_floats)).unwrap();
        for chunk in 0..4 {
            feed(lane, conn, &push(chunk, &[0; 64])).unwrap();
        }
    };
    // In the order of ranks nothing waits for long.
    let (mut lane, conns) = lane_of_four();
    conns.into_iter().for_each(|conn| all(&mut lane, conn));
    let result = answer(&mut lane, conns[3]);
    assert!(!result.is_empty() && !result.contains("late"));
    // Two wait, but not three.
    let (mut lane, [zero, one, two, three]) = lane_of_four();
    all(&mut lane, two);
    all(&mut lane, one);
    assert_eq!(answer(&mut lane, one), "");
    all(&mut lane, three);
    for conn in [one, two, three] {
        let text = answer(&mut lane, conn);
        assert!(text.contains("rank 0 is late") && text.contains("the 45000 of"), "{text}");
    }
    all(&mut lane, zero);
    assert!(answer(&mut lane, zero).contains("rank 0 is late"));
    // What waited is gone with it: another tensor has all the room.
    let small = PartitionSpec { bytes: 32, ..of_floats };
    for conn in [three, two, one, zero] {
        assert_eq!(answer(&mut lane, conn), "");
        feed(&mut lane, conn, &of_tensor(6, 0, begin(&small))).unwrap();
        feed(&mut lane, conn, &of_tensor(6, 0, push(0, &[0; 32]))).unwrap();
    }
    assert_eq!(drain(&mut lane, one).len(), HEADER_BYTES + 32);
}
