//! One suite for every transport: what the contract promises, whatever moves the bytes.
//!
//! Each transport is a [`Carrier`] that joins two endpoints; a test runs on all of them.

mod carriers;
mod certificates;
mod placed;
mod scripted;

use std::time::Duration;

use carriers::{Carrier, Fabric, InProcess, Shm, Sim, Simulated, Tcp, Tls, carry, has_provider};
use scripted::Scripted;
use sumpter_endpoint::{ConnId, Memory, OwnedMemory};
use sumpter_engine::{
    Client, ClientSettings, Event, Lane, LaneLimits, Peer, Place, Request, Supply,
};
use sumpter_types::{Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, TensorId};
use sumpter_wire::Tier;

/// Steps without progress after which a test gives up.
const PATIENCE: usize = 2000;

macro_rules! on_every_transport {
    ($($test:ident),* $(,)?) => {
        mod tcp { $(#[test] fn $test() { super::$test(super::Tcp::new); })* }
        mod tls { $(#[test] fn $test() { super::$test(super::Tls::new); })* }
        mod shm { $(#[test] fn $test() { super::$test(super::Shm::new); })* }
        mod in_process { $(#[test] fn $test() { super::$test(super::InProcess::new); })* }
        mod sim { $(#[test] fn $test() { super::$test(super::Sim::new); })* }
        mod fabric_sim { $(#[test] fn $test() { super::$test(super::Sim::placed); })* }
        mod fabric_link { $(#[test] fn $test() { super::$test(super::Simulated::new); })* }
        mod fabric_events { $(#[test] fn $test() { super::$test(super::with_events); })* }
        mod fabric_tcp { $(#[test] fn $test() { super::over("tcp", super::$test); })* }
        mod fabric_shm { $(#[test] fn $test() { super::over("shm", super::$test); })* }
    };
}

on_every_transport!(
    bytes_arrive_in_order_and_once,
    both_directions_at_once,
    a_reader_with_little_space_slows_the_writer_and_loses_nothing,
    nothing_to_send_moves_nothing,
    a_violation_is_reported_to_the_caller,
    a_round_of_the_engine_gives_the_sum,
);

/// Placed writes in simulation, with a descriptor to wait for.
fn with_events() -> Simulated {
    Simulated::with_descriptors()
}

/// A test over placed writes, if this provider is here.
fn over(provider: &str, test: fn(fn() -> Fabric)) {
    if has_provider(provider) {
        test(match provider {
            "tcp" => || Fabric::over("tcp"),
            _ => || Fabric::over("shm"),
        });
    }
}

fn bytes_arrive_in_order_and_once<C: Carrier>(make: fn() -> C) {
    for len in [1, 31, 4096, 1 << 20, (5 << 20) + 7] {
        let mut a = Scripted::new(len, 0, 1 << 16);
        let mut b = Scripted::new(0, len, 1 << 16);
        carry(&mut make(), &mut a, &mut b);
        assert!(b.received_right());
    }
}

fn both_directions_at_once<C: Carrier>(make: fn() -> C) {
    let mut a = Scripted::new(3 << 20, 2 << 20, 100_000);
    let mut b = Scripted::new(2 << 20, 3 << 20, 70_000);
    carry(&mut make(), &mut a, &mut b);
    assert!(a.received_right() && b.received_right());
}

fn a_reader_with_little_space_slows_the_writer_and_loses_nothing<C: Carrier>(make: fn() -> C) {
    let mut a = Scripted::new(200_000, 0, 1 << 16);
    let mut b = Scripted::new(0, 200_000, 13);
    carry(&mut make(), &mut a, &mut b);
    assert!(b.received_right());
}

fn nothing_to_send_moves_nothing<C: Carrier>(make: fn() -> C) {
    let mut carrier = make();
    let (mut a, mut b) = (Scripted::new(0, 0, 64), Scripted::new(0, 0, 64));
    for _ in 0..10 {
        assert!(!carrier.step(&mut a, &mut b).expect("no violation"));
    }
}

fn a_violation_is_reported_to_the_caller<C: Carrier>(make: fn() -> C) {
    let mut carrier = make();
    let (mut a, mut b) = (Scripted::new(100, 0, 64), Scripted::new(0, 0, 64));
    let refused = (0..PATIENCE).any(|_| carrier.step(&mut a, &mut b).is_err());
    assert!(refused, "unexpected bytes were taken");
}

fn a_round_of_the_engine_gives_the_sum<C: Carrier>(make: fn() -> C) {
    let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: false };
    let mut lane = Lane::new(limits);
    let elements = 300_000;
    let mut clients: Vec<_> = (0..2).map(|rank| worker(rank, elements)).collect();
    let mut carriers: Vec<(C, ConnId)> = Vec::new();
    for rank in 0..2 {
        let (job, epoch) = (JobId(1), Epoch(1));
        let peer =
            Peer { job, rank: Rank(rank), world_size: 2, epoch, keeps: false, checksum: false };
        carriers.push((make(), lane.open(peer).expect("a fresh lane").0));
    }
    let mut sums = Vec::new();
    let mut idle = 0;
    while sums.len() < 2 {
        let mut moved = false;
        for (client, (carrier, on_lane)) in clients.iter_mut().zip(&mut carriers) {
            moved |=
                carrier.step_on((client, ConnId(0)), (&mut lane, *on_lane)).expect("no violation");
            while let Some(event) = client.next_event() {
                if let Event::Released(_, memory) = event {
                    sums.push(memory);
                }
            }
        }
        idle = if moved { 0 } else { idle + 1 };
        assert!(idle < PATIENCE, "stuck");
    }
    for memory in sums {
        let expected = |i: usize| (2 * i + 1) as f32;
        let sum = memory.bytes.chunks_exact(4).enumerate();
        for (i, bytes) in sum {
            assert_eq!(f32::from_ne_bytes(bytes.try_into().unwrap()), expected(i));
        }
    }
}

fn worker(rank: u32, elements: usize) -> Client<OwnedMemory> {
    let settings = ClientSettings {
        rank: Rank(rank),
        world_size: 2,
        epoch: Epoch(1),
        chunk_bytes: 1 << 16,
        credit_bytes: 1 << 20,
        deterministic: false,
        checksum: false,
    };
    let mut client = Client::new(settings, 1);
    let half = elements * 2;
    let group = GroupId(0);
    let place = |number, offset| Place::new(ConnId(0), number, (offset, half), group, 1);
    client.register(TensorId(0), Tier::Root, vec![place(0, 0), place(1, half)]);
    client.connected(ConnId(0));
    let bytes = (0..elements).flat_map(|i| ((i + rank as usize) as f32).to_ne_bytes()).collect();
    let request = Request {
        tensor: TensorId(0),
        tier: Tier::Root,
        collective: Collective::AllReduce,
        dtype: Dtype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        average: false,
        priority: 0,
        supply: Supply::Whole,
        call: None,
        update: None,
        rescale: 1.0,
    };
    client.submit(request, OwnedMemory { separate: None, bytes });
    client
}

macro_rules! the_end_comes_last {
    ($test:ident, $carrier:ident) => {
        #[test]
        fn $test() {
            let mut carrier = $carrier::new();
            let mut a = Scripted::new(500_000, 0, 1 << 16);
            let mut b = Scripted::new(0, 500_000, 1 << 16);
            while !a.is_done() {
                carrier.step(&mut a, &mut b).expect("no violation");
            }
            carrier.close_a();
            let end = loop {
                if let Err(error) = carrier.receive_b(&mut b) {
                    break error;
                }
            };
            assert!(end.to_string().contains("closed by the peer"), "{end}");
            assert!(b.received_right());
        }
    };
}

the_end_comes_last!(the_end_of_a_tcp_connection_comes_last, Tcp);
the_end_comes_last!(the_end_of_a_tls_connection_comes_last, Tls);
the_end_comes_last!(the_end_of_placed_bytes_comes_last, Simulated);

/// With and without a farewell: a process that dies sends none.
#[test]
fn the_end_of_a_shared_memory_connection_is_reported_after_every_byte_before_it() {
    for finish in [true, false] {
        let mut carrier = Shm::new();
        let mut a = Scripted::new(500_000, 0, 1 << 16);
        let mut b = Scripted::new(0, 500_000, 1 << 16);
        while !a.is_done() {
            carrier.step(&mut a, &mut b).expect("no violation");
        }
        carrier.close_a(finish);
        let end = loop {
            if let Err(error) = carrier.receive_b(&mut b) {
                break error;
            }
        };
        assert!(end.to_string().contains("closed by the peer"), "{end}");
        assert!(b.received_right());
    }
}

#[test]
fn tensor_memory_reads_and_writes_the_tensor_itself() {
    let mut tensor = vec![1u8, 2, 3, 4];
    let address = tensor.as_mut_ptr();
    // SAFETY: the vector outlives the memory and is not touched meanwhile.
    let mut memory =
        unsafe { sumpter_transport::TensorMemory::new(address, address, 4, Box::new(())) };
    assert_eq!(memory.contribution(1, 2), [2, 3]);
    memory.result(2, 2).copy_from_slice(&[9, 8]);
    drop(memory);
    assert_eq!(tensor, [1, 2, 9, 8]);
}

#[test]
fn a_port_in_use_is_an_error_that_says_so() {
    let first = sumpter_transport::listen(([127, 0, 0, 1], 0).into()).expect("a free port");
    let address = first.local_addr().expect("an address");
    let error = sumpter_transport::listen(address).expect_err("the port is taken");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
}

/// Time stands still in these tests.
const NOW: Duration = Duration::ZERO;
