//! What is refused because something is full.

use std::sync::Arc;

use sumpter_types::Quota;
use sumpter_wire::Token;

use super::*;
use crate::tenants::{Tenant, Tenants};

fn tenant(name: &str, max_bytes: Option<u64>, max_workers: Option<u32>) -> Tenant {
    let token = Token::new("a token of these tests").unwrap();
    let quota = Quota { max_bytes, ..Quota::default() };
    Tenant { name: name.to_owned(), token, quota, max_workers }
}

fn world(listed: Vec<Tenant>, max_jobs: Option<u32>) -> World {
    let mut world = World::new();
    world.registry.options.tenants = Arc::new(Tenants { listed: Some(listed), max_jobs });
    world
}

fn server_with(max_bytes: u64, max_job_bytes: u64) -> Join {
    Join { memory: ServerMemory { max_bytes: Some(max_bytes), max_job_bytes }, ..server("cpu") }
}

fn full(refusal: &Refusal, words: &[&str]) {
    assert_eq!((refusal.kind, refusal.retry), (FatalKind::Start, false));
    let missing: Vec<_> = words.iter().filter(|w| !refusal.message.contains(**w)).collect();
    assert!(missing.is_empty(), "{missing:?} not in {:?}", refusal.message);
}

#[test]
fn a_job_beyond_max_jobs_waits_for_another_to_end() {
    let mut world = world(vec![tenant("*", None, None)], Some(1));
    let first = world.join(worker_of("secret-name", 0, 1));
    let refusal = world.refused(worker_of("b", 0, 2));
    full(&refusal, &["coordinator is full", "1 of at most 1", "max_jobs"]);
    assert!(!refusal.message.contains("secret-name"));
    world.told.clear();
    world.leave(first);
    world.join(worker_of("b", 0, 2));
    world.join(worker_of("b", 1, 2));
}

#[test]
fn the_generations_of_a_job_are_one_job_and_few() {
    let mut world = world(vec![tenant("a", Some(6 << 20), None)], Some(1));
    world.join(server_with(8 << 20, 8 << 20));
    // In each of them a worker hangs.
    for name in ["a@1", "a@2", "a@3"] {
        world.join(worker_of(name, 0, 2));
    }
    let refusal = world.refused(worker_of("a@4", 0, 2));
    assert!(refusal.retry && refusal.message.contains("3 generations of job 'a'"), "{refusal:?}");
    full(&world.refused(worker_of("b", 0, 2)), &["1 of at most 1", "max_jobs"]);
}

#[test]
fn a_job_with_too_many_workers_is_refused() {
    let mut world = world(vec![tenant("a", None, Some(2))], None);
    let refusal = world.refused(worker_of("a", 0, 3));
    full(&refusal, &["3 workers", "quota is 2", "max_workers"]);
    world.join(worker_of("a", 0, 2));
}

#[test]
fn jobs_are_promised_no_more_memory_than_a_server_has() {
    let listed = vec![tenant("small-*", Some(3 << 20), None), tenant("large", None, None)];
    let mut world = world(listed, None);
    world.join(server_with(8 << 20, 6 << 20));
    world.join(worker_of("small-1", 0, 2));
    world.join(worker_of("small-2", 0, 2));
    let refusal = world.refused(worker_of("small-3", 0, 2));
    full(&refusal, &["server on cpu is full", "8.0 MiB", "6.0 MiB", "3.0 MiB", "max_bytes"]);
    // Without a quota of its own a job may take what the server gives any job.
    let refusal = world.refused(worker_of("large", 0, 2));
    full(&refusal, &["job 'large' up to 6.0 MiB"]);
    // The second worker of a job that is here needs no room of its own.
    world.join(worker_of("small-1", 1, 2));
}
