//! The secrets of a coordinator, and what a session may do that has proved one of them.
//!
//! The *cluster token* belongs to the coordinator and the servers. With a list of tenants each job
//! has a token of its own, found by the job's name; without one the cluster token is every job's.
//! Which token a session must prove follows from its purpose alone, and a job that is not listed
//! is compared with a token without holder, so that it is refused like a wrong token.

use sumpter_membership::{ClusterView, MemberEvent, Tenants};
use sumpter_types::{RUN_MEMORY, StatusReport, run_text};
use sumpter_wire::{ProofRole, Token};

use crate::proto;
use crate::proto::purpose::Body as Purpose;

/// What a session may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Whatever it asks for.
    Cluster,
    /// What concerns the one job it named.
    Job,
}

/// The secrets of a coordinator.
#[derive(Debug)]
pub(crate) struct Keys {
    cluster: Token,
    /// Without holder: what the token of an unknown job is compared with.
    nobody: Token,
    tenants: Tenants,
}

impl Keys {
    /// `noise` must be fresh and random.
    pub fn new(cluster: Token, tenants: Tenants, noise: &[u8; 32]) -> Self {
        let nobody = Token::received(noise).expect("long enough");
        Self { cluster, nobody, tenants }
    }

    /// The token a session of this purpose has proved, and what that allows; `proves` says whether
    /// it has proved the one it is given.
    pub fn proved(
        &self,
        purpose: Option<&Purpose>,
        proves: impl Fn(&Token) -> bool,
    ) -> Option<(&Token, Scope)> {
        let by_job = |job: &str| match self.tenants.listed {
            None => &self.cluster,
            Some(_) => self.tenants.of(job).map_or(&self.nobody, |tenant| &tenant.token),
        };
        let cluster = (&self.cluster, Scope::Cluster);
        let possible = match purpose {
            Some(Purpose::Join(join)) => match &join.role {
                Some(proto::join::Role::Worker(_)) => vec![(by_job(&join.job), Scope::Job)],
                Some(proto::join::Role::Server(_)) | None => vec![cluster],
            },
            Some(Purpose::Seat(seat)) => vec![(by_job(&seat.job), Scope::Job)],
            Some(Purpose::Status(status)) if !status.job.is_empty() => {
                vec![cluster, (by_job(&status.job), Scope::Job)]
            }
            Some(Purpose::Tune(tune)) if !tune.job.is_empty() => {
                vec![cluster, (by_job(&tune.job), Scope::Job)]
            }
            Some(Purpose::Trace(trace)) if !trace.job.is_empty() => {
                vec![cluster, (by_job(&trace.job), Scope::Job)]
            }
            Some(Purpose::Status(_) | Purpose::Drain(_) | Purpose::Tune(_) | Purpose::Trace(_))
            | None => vec![cluster],
        };
        // All are tried, for the same reason as above.
        let tried: Vec<_> =
            possible.into_iter().map(|(token, s)| (proves(token), token, s)).collect();
        tried.into_iter().find(|(proved, ..)| *proved).map(|(_, token, scope)| (token, scope))
    }

    /// Whether the sender of this view was in its run: no other process gets the key.
    pub fn shows_membership(&self, view: &ClusterView) -> bool {
        let proof = |key: &Token| key.prove(ProofRole::Member, &[]);
        let ours = self.cluster.run_key(view.job);
        view.key.as_ref().is_some_and(|key| ours.verify(ProofRole::Member, &[], &proof(key)))
    }

    /// Puts into a view what its members may know and the registry need not.
    pub fn complete(&self, event: &mut MemberEvent) {
        if let Some(view) = view_of(event) {
            view.key = Some(self.cluster.run_key(view.job));
            view.quota = self.tenants.quota(&view.name);
        }
    }
}

fn view_of(event: &mut MemberEvent) -> Option<&mut ClusterView> {
    match event {
        MemberEvent::Started(view)
        | MemberEvent::JobStarted(view)
        | MemberEvent::Resume { view, .. } => Some(view),
        _ => None,
    }
}

/// Leaves of a report on one job what that job may know: of the servers only those that serve it,
/// and of their numbers and stragglers only its own.
pub(crate) fn keep_to_job(report: &mut StatusReport) {
    let serves = |member: u64| report.jobs.iter().any(|job| job.servers.contains(&member));
    let runs: Vec<String> = report.jobs.iter().map(|job| job.run.clone()).collect();
    let own: Vec<String> = runs.iter().map(|run| format!("{RUN_MEMORY}{run}")).collect();
    report.servers.retain(|server| serves(server.member));
    report.events.clear();
    for stats in report.servers.iter_mut().map(|server| &mut server.stats) {
        stats.counters.retain(|name, _| own.contains(name));
        stats.late.retain(|late| runs.contains(&run_text(late.run)));
        stats.pending.clear();
        stats.refused.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sumpter_membership::Tenant;
    use sumpter_types::{
        JobId, JobStatus, Late, MemberStatus, Quota, Rank, Stats, run_memory_counter,
    };

    fn token(text: &str) -> Token {
        Token::new(&format!("the token of {text}, long enough")).unwrap()
    }

    fn tenant(name: &str) -> Tenant {
        let quota = Quota { weight: name.len() as u32, ..Quota::default() };
        Tenant { name: name.to_owned(), token: token(name), quota, max_workers: None }
    }

    fn keys() -> Keys {
        let listed = Some(["red", "blue-*"].map(tenant).to_vec());
        Keys::new(token("the cluster"), Tenants { listed, max_jobs: None }, &[9; 32])
    }

    fn join(job: &str, worker: bool) -> Purpose {
        let role = match worker {
            true => proto::join::Role::Worker(proto::WorkerRole::default()),
            false => proto::join::Role::Server(proto::ServerRole {}),
        };
        Purpose::Join(proto::Join { job: job.into(), role: Some(role), ..proto::Join::default() })
    }

    fn status(job: &str) -> Purpose {
        Purpose::Status(proto::StatusRequest { job: job.to_owned() })
    }

    fn scope(purpose: &Purpose, held: &Token) -> Option<Scope> {
        keys().proved(Some(purpose), |token| token == held).map(|(_, scope)| scope)
    }

    #[test]
    fn each_purpose_takes_its_own_token_and_no_other() {
        let (cluster, red, blue) = (token("the cluster"), token("red"), token("blue-*"));
        assert_eq!(scope(&join("red", true), &red), Some(Scope::Job));
        assert_eq!(scope(&join("blue-7", true), &blue), Some(Scope::Job));
        assert_eq!(scope(&join("red", false), &cluster), Some(Scope::Cluster));
        assert_eq!(scope(&status(""), &cluster), Some(Scope::Cluster));
        assert_eq!(scope(&status("red"), &cluster), Some(Scope::Cluster));
        assert_eq!(scope(&status("red"), &red), Some(Scope::Job));
        for held in [&cluster, &blue] {
            assert_eq!(scope(&join("red", true), held), None);
        }
        for held in [&red, &blue] {
            assert_eq!(scope(&join("red", false), held), None);
            assert_eq!(scope(&status(""), held), None);
            assert_eq!(scope(&status("green"), held), None);
            assert_eq!(scope(&join("green", true), held), None);
        }
        assert_eq!(scope(&join("green", true), &cluster), None);
        assert!(keys().proved(None, |token| *token == cluster).is_some());
    }

    #[test]
    fn without_a_list_the_cluster_token_is_every_jobs() {
        let keys = Keys::new(token("the cluster"), Tenants::default(), &[9; 32]);
        let held = token("the cluster");
        let proved = |purpose| keys.proved(Some(&purpose), |token| *token == held).is_some();
        assert!(proved(join("any", true)) && proved(join("", false)) && proved(status("any")));
    }

    #[test]
    fn a_view_is_completed_with_its_runs_key_and_its_jobs_quota() {
        let view = |job, name: &str| ClusterView {
            job: JobId(job),
            name: name.to_owned(),
            ..ClusterView::default()
        };
        let complete = |mut event| {
            keys().complete(&mut event);
            view_of(&mut event).unwrap().clone()
        };
        let red = complete(MemberEvent::Started(view(1, "red")));
        assert_eq!(red.key, complete(MemberEvent::JobStarted(view(1, "red"))).key);
        assert_ne!(red.key, complete(MemberEvent::Started(view(2, "red"))).key);
        assert_eq!(red.quota.weight, 3);
    }

    #[test]
    fn a_job_sees_its_own_servers_and_of_them_its_own_numbers() {
        let [own, others] = [10, 11].map(JobId);
        let [memory, of_others] = [own, others].map(run_memory_counter);
        let counters = [(memory.clone(), 1.0), (of_others, 2.0), ("step".to_owned(), 3.0)];
        let late = [own, others].map(|run| Late { run, rank: Rank(1), count: 1, seconds: 0.5 });
        let stats = Stats { counters: counters.into(), late: late.into(), ..Stats::default() };
        let server =
            |member| MemberStatus { member, stats: stats.clone(), ..MemberStatus::default() };
        let job = JobStatus { run: run_text(own), servers: vec![2], ..JobStatus::default() };
        let mut report = StatusReport {
            jobs: vec![job],
            servers: vec![server(1), server(2)],
            ..StatusReport::default()
        };
        keep_to_job(&mut report);
        let [server] = &report.servers[..] else { panic!("{report:?}") };
        assert_eq!(server.member, 2);
        let left: Vec<_> = server.stats.counters.keys().collect();
        assert_eq!(left, [&memory]);
        let left: Vec<_> = server.stats.late.iter().map(|late| late.run).collect();
        assert_eq!(left, [own]);
    }
}
