//! Jobs whose connections are encrypted.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use sumpter_node::{NodeError, Worker};

use crate::harness::{Job, LIMIT, spec, submit, wait};

/// The certificates that the coordinator's tests use.
macro_rules! pem {
    ($name:literal) => {
        concat!(env!("CARGO_MANIFEST_DIR"), "/../coordinator/tests/certificates/", $name, ".pem")
    };
}

const TLS: [(&str, &str); 3] =
    [("tls_cert", pem!("cert")), ("tls_key", pem!("key")), ("tls_ca", pem!("ca"))];

/// Sums a few times; true if every sum is right.
fn sums(worker: &Worker) -> bool {
    let len = 100_000;
    (0..3).all(|round| {
        let value = (worker.rank() + round) as f32;
        let (completion, tensor) = submit(worker, spec("t", &[len]), vec![value; len as usize]);
        assert_eq!(wait(&completion), Ok(()));
        let expected = (1 + 2 * round) as f32;
        tensor.values().iter().all(|value| *value == expected)
    })
}

/// What a lane answers to a greeting without TLS.
fn greet_in_the_clear(lane: SocketAddr) -> Vec<u8> {
    let mut stream = TcpStream::connect(lane).expect("a lane");
    stream.set_read_timeout(Some(LIMIT)).expect("a socket");
    stream.write_all(&[b'S'; 72]).expect("connected");
    let mut answer = Vec::new();
    // The lane may close before it has read all, which cuts the connection.
    let _ = stream.read_to_end(&mut answer);
    answer
}

#[test]
fn workers_and_servers_with_certificates_sum_and_lanes_answer_no_plain_connection() {
    let job = Job::start_beside(1, &TLS, &TLS);
    let right = job.run(2, &TLS, |worker| {
        let lanes = worker.view().workers.iter().flat_map(|w| w.lanes.clone());
        let servers = worker.view().servers.iter().flat_map(|s| s.lanes.clone());
        for lane in lanes.chain(servers) {
            let answer = greet_in_the_clear(lane.address());
            assert!(answer.is_empty() || answer[..2] == [21, 3], "{answer:?} is no alert");
        }
        sums(worker)
    });
    assert_eq!(right, [true; 2]);
    job.finish();
}

#[test]
fn the_data_plane_can_do_without() {
    let plain = [&TLS[..], &[("tls_data", "false")]].concat();
    let job = Job::start_beside(1, &plain, &TLS);
    let answers = job.run(2, &plain, |worker| {
        assert!(sums(worker));
        greet_in_the_clear(worker.view().servers[0].lanes[0].address())
    });
    assert_eq!(answers, [b"", b""]);
    job.finish();
}

#[test]
fn ranks_that_disagree_on_encryption_are_told_so_at_the_start() {
    let job = Job::start_beside(0, &[], &TLS);
    let plain = [&TLS[..], &[("tls_data", "false")]].concat();
    let ranks: Vec<_> = [job.settings(0, 2, &TLS), job.settings(1, 2, &plain)]
        .into_iter()
        .map(|settings| std::thread::spawn(move || Worker::join(&settings, &mut || false)))
        .collect();
    let errors: Vec<_> =
        ranks.into_iter().filter_map(|r| r.join().expect("no panic").err()).collect();
    let named = |error: &NodeError| error.to_string().contains("tls_data");
    assert!(errors.iter().any(named), "{errors:?}");
}

#[test]
fn a_server_that_does_not_encrypt_is_left_out() {
    let plain = [&TLS[..], &[("tls_data", "false")]].concat();
    let job = Job::start_beside(1, &plain, &TLS);
    let extra = [&TLS[..], &[("server_timeout_s", "0.5")]].concat();
    assert_eq!(job.run(2, &extra, sums), [true; 2]);
}
