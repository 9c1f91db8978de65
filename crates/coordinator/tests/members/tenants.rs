//! Jobs that share a coordinator and do not trust each other.

use sumpter_coordinator::{TuneRequest, status, tune};
use sumpter_membership::Tenant;
use sumpter_types::Quota;

use super::*;

fn token_of(job: &str) -> Token {
    Token::new(&format!("the token of job {job}")).unwrap()
}

fn tenant(name: &str, weight: u32) -> Tenant {
    let quota = Quota { weight, max_connections: Some(5), ..Quota::default() };
    Tenant { name: name.to_owned(), token: token_of(name), quota, max_workers: None }
}

fn shared() -> Coordinator {
    let listed = Some(vec![tenant("red", 3), tenant("blue", 1)]);
    let tenants = Tenants { listed, max_jobs: None };
    let options = CoordinatorOptions { tenants, ..options(Serves::ManyJobs) };
    Coordinator::start("127.0.0.1:0", options).unwrap()
}

fn worker_of(coordinator: &Coordinator, job: &str, token: Token, rank: u32) -> JoinOptions {
    JoinOptions { job: job.to_owned(), token, ..worker(coordinator.address(), rank, 2) }
}

#[test]
fn all_without_a_jobs_token_are_refused_alike() {
    let coordinator = shared();
    let mistakes = [
        ("red", Token::new("a wrong token, long enough").unwrap()),
        ("red", token_of("blue")),
        ("red", token()),
        ("no such job", token_of("red")),
        ("no such job", token()),
    ];
    let texts: std::collections::BTreeSet<String> = mistakes
        .into_iter()
        .map(|(job, token)| {
            let error = refusal(worker_of(&coordinator, job, token, 0));
            assert!(matches!(error, JoinError::TokenRefused { .. }), "{error}");
            error.to_string()
        })
        .collect();
    assert_eq!(texts.len(), 1, "{texts:?}");
    // A job's token makes no server.
    let error = refusal(JoinOptions { token: token_of("red"), ..server(coordinator.address()) });
    assert!(matches!(error, JoinError::TokenRefused { .. }), "{error}");
}

#[test]
fn each_run_has_its_own_key_which_its_members_and_the_servers_are_told() {
    let coordinator = shared();
    let server = Peer::join(server(coordinator.address()));
    let mut keys = Vec::new();
    let mut peers = Vec::new();
    for (job, weight) in [("red", 3), ("blue", 1)] {
        let both = [0, 1].map(|rank| worker_of(&coordinator, job, token_of(job), rank));
        let both = both.map(Peer::join);
        let told = server.started();
        assert_eq!((told.name.as_str(), told.quota.weight), (job, weight));
        assert_eq!(told.quota.max_connections, Some(5));
        for peer in &both {
            assert_eq!(peer.started().key, told.key);
        }
        keys.push(told.key.expect("a key"));
        peers.extend(both);
    }
    assert_ne!(keys[0], keys[1]);
    for secret in [token(), token_of("red"), token_of("blue")] {
        assert!(!keys.contains(&secret));
    }
}

#[test]
fn a_jobs_token_shows_that_job_and_the_clusters_all() {
    let coordinator = shared();
    let address = coordinator.address().to_string();
    let _red = Peer::join(worker_of(&coordinator, "red", token_of("red"), 0));
    let _blue = Peer::join(worker_of(&coordinator, "blue", token_of("blue"), 0));
    let names = |token: Token, job: Option<&str>| {
        let report = status(&address, &token, None, job)?;
        Ok::<_, JoinError>(report.jobs.into_iter().map(|job| job.name).collect::<Vec<_>>())
    };
    assert_eq!(names(token(), None).unwrap(), ["blue", "red"]);
    assert_eq!(names(token_of("red"), Some("red")).unwrap(), ["red"]);
    for (held, job) in [("red", None), ("red", Some("blue")), ("red", Some("no such job"))] {
        let error = names(token_of(held), job).unwrap_err();
        assert!(matches!(error, JoinError::TokenRefused { .. }), "{error}");
    }
}

#[test]
fn a_jobs_token_tunes_that_job_and_shows_no_other() {
    let coordinator = shared();
    let address = coordinator.address().to_string();
    let _blue = Peer::join(worker_of(&coordinator, "blue", token_of("blue"), 0));
    let refusal = |token: Token| {
        let request = TuneRequest { job: "red".to_owned(), ..TuneRequest::default() };
        tune(&address, &token, None, request).unwrap().refusal
    };
    assert_eq!(refusal(token_of("red")), "there is no job 'red'");
    assert!(refusal(token()).contains("jobs there are: blue"), "the cluster's token shows all");
}
