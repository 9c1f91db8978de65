//! What a job lacks before its start.

use std::time::Duration;

use crate::registry::job::Job;
use crate::registry::members::Members;
use crate::registry::words::{LIST_LIMIT, list, seconds};

/// How often a waiting worker is notified of what is missing.
pub(crate) const NOTICE_EVERY: Duration = Duration::from_secs(3);

/// What a waiting job lacks, one entry each.
pub(crate) fn missing(job: &Job, members: &Members) -> Vec<String> {
    let ranks = job.missing_ranks();
    let shown = ranks.iter().take(LIST_LIMIT);
    let mut missing: Vec<String> = shown.map(|rank| format!("rank {rank}")).collect();
    if ranks.len() > LIST_LIMIT {
        missing.push(format!("{} more ranks", ranks.len() - LIST_LIMIT));
    }
    if job.run.is_none()
        && let Some((lacking, expected)) = lacking_servers(job, members)
    {
        missing.push(format!("{lacking} of {expected} servers"));
    }
    missing
}

/// How many servers are missing, and of how many.
fn lacking_servers(job: &Job, members: &Members) -> Option<(usize, usize)> {
    let expected = members.expected_servers(&job.present) as usize;
    let lacking = expected.saturating_sub(members.lasting_servers().count());
    (lacking > 0).then_some((lacking, expected))
}

/// A sentence that names the members that did not come, given the address where they were expected.
pub(crate) fn missing_sentence(job: &Job, members: &Members) -> impl Fn(&str) -> String + use<> {
    let ranks = job.missing_ranks();
    let mut who = Vec::new();
    if !ranks.is_empty() {
        let noun = if ranks.len() == 1 { "rank" } else { "ranks" };
        who.push(format!("{noun} {} of {}", list(&ranks), job.world_size));
    }
    let mut present =
        list(job.present.iter().map(|(rank, id)| format!("{rank} ({})", members.host(*id))));
    if let Some((lacking, expected)) = lacking_servers(job, members) {
        who.push(format!("{lacking} of {expected} servers"));
    }
    let servers = list(members.servers().map(|(_, member)| &member.join.host));
    if !servers.is_empty() {
        present.push_str(&format!("; servers on {servers}"));
    }
    let (who, limit) = (who.join(" and "), seconds(members.start_timeout(&job.present)));
    move |address| format!("{who} did not join within {limit} at {address}; present: {present}")
}
