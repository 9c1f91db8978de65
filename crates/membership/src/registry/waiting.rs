//! A job before its start: what is missing, who is told, and when it is given up.

use std::time::Duration;

use super::Registry;
use super::job::{Job, Stage};
use super::words::{LIST_LIMIT, list, seconds};
use crate::event::{FatalKind, MemberEvent};

/// How often a waiting worker is told what is missing.
pub(super) const NOTICE_EVERY: Duration = Duration::from_secs(3);

impl Registry {
    /// Tells a waiting job what is missing, or gives it up.
    pub(super) fn tick_job(&mut self, now: Duration, name: &str) {
        let Some(job) = self.jobs.get(name) else { return };
        let waited = now.saturating_sub(job.since);
        match job.stage() {
            Stage::Waiting if waited >= self.start_timeout(job) => {
                let what = self.missing_sentence(job);
                self.fail_job(name, FatalKind::Start, |join| what(&join.coordinator));
            }
            Stage::Waiting if now >= job.next_notice => {
                let missing = self.missing(job);
                let seconds = waited.as_secs_f64();
                self.tell_workers(name, &MemberEvent::Waiting { missing, seconds });
                if let Some(job) = self.jobs.get_mut(name) {
                    job.next_notice = now + NOTICE_EVERY;
                }
            }
            Stage::Starting => {
                let Some(run) = &job.run else { return };
                let limit = self.options.start_timeout;
                if now.saturating_sub(run.epochs.since) >= limit {
                    let hosts = list(run.epochs.preparing.iter().map(|id| self.host(*id)));
                    let limit = seconds(limit);
                    self.fail_job(name, FatalKind::Start, |_| {
                        format!("the servers on {hosts} did not get ready within {limit}")
                    });
                }
            }
            Stage::Running => {
                self.tick_run(now, name);
                self.watch(now, name);
            }
            Stage::Returning => self.tick_return(now, name),
            Stage::Waiting | Stage::Failed => {}
        }
    }

    /// The longest wait a worker asks for.
    pub(super) fn start_timeout(&self, job: &Job) -> Duration {
        let timeouts = job.present.values().filter_map(|id| self.members.get(id));
        timeouts.map(|member| member.join.start_timeout).max().unwrap_or_default()
    }

    /// The most servers a worker asks for.
    pub(super) fn expected_servers(&self, job: &Job) -> u32 {
        let workers = job.present.values().filter_map(|id| self.members.get(id));
        workers.map(|member| member.join.expected_servers).max().unwrap_or_default()
    }

    /// What a waiting job lacks, one entry each.
    pub(super) fn missing(&self, job: &Job) -> Vec<String> {
        let ranks = job.missing_ranks();
        let shown = ranks.iter().take(LIST_LIMIT);
        let mut missing: Vec<String> = shown.map(|rank| format!("rank {rank}")).collect();
        if ranks.len() > LIST_LIMIT {
            missing.push(format!("{} more ranks", ranks.len() - LIST_LIMIT));
        }
        if job.run.is_none()
            && let Some((lacking, expected)) = self.lacking_servers(job)
        {
            missing.push(format!("{lacking} of {expected} servers"));
        }
        missing
    }

    /// How many servers are missing, and of how many.
    fn lacking_servers(&self, job: &Job) -> Option<(usize, usize)> {
        let expected = self.expected_servers(job) as usize;
        let lacking = expected.saturating_sub(self.lasting_servers().count());
        (lacking > 0).then_some((lacking, expected))
    }

    /// A sentence that says who did not come, given the address where they were expected.
    fn missing_sentence(&self, job: &Job) -> impl Fn(&str) -> String + use<> {
        let ranks = job.missing_ranks();
        let mut who = Vec::new();
        if !ranks.is_empty() {
            let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
            who.push(format!("{noun} {} of {}", list(&ranks), job.world_size));
        }
        let mut present =
            list(job.present.iter().map(|(rank, id)| format!("{rank} ({})", self.host(*id))));
        if let Some((lacking, expected)) = self.lacking_servers(job) {
            who.push(format!("{lacking} of {expected} servers"));
        }
        let servers = list(self.servers().map(|(_, member)| &member.join.host));
        if !servers.is_empty() {
            present.push_str(&format!("; servers on {servers}"));
        }
        let (who, limit) = (who.join(" and "), seconds(self.start_timeout(job)));
        move |address| format!("{who} did not join within {limit} at {address}; present: {present}")
    }
}
