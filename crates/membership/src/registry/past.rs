//! What a status still shows of members and jobs that are gone, so that a look after the end
//! sees how it went. Bounded: the last run of each job name, of few names, and of as many workers
//! as one report has room for.

use std::collections::VecDeque;

use sumpter_types::{JobStatus, MemberStatus};

/// Jobs and servers that are remembered: more than a person looks at.
const REMEMBERED: usize = 64;
/// Workers of jobs that are over, at about 4 KiB each in a report; the last job has all of its own.
const REMEMBERED_WORKERS: usize = 4096;

#[derive(Default)]
pub(super) struct Past {
    workers: Vec<(String, MemberStatus)>,
    servers: VecDeque<MemberStatus>,
    jobs: VecDeque<JobStatus>,
}

impl Past {
    /// Keeps a member's last numbers; of a worker, with its job.
    pub(super) fn member_gone(&mut self, job: Option<&str>, status: MemberStatus) {
        let status = MemberStatus { gone: true, ..status };
        match job {
            Some(job) => {
                let job = job.to_owned();
                // A worker that comes again before the start takes its own place.
                self.workers.retain(|(name, known)| *name != job || known.rank != status.rank);
                self.workers.push((job, status));
            }
            None => push_bounded(&mut self.servers, status),
        }
    }

    /// Keeps a job's last state; its workers are those that are gone.
    pub(super) fn job_over(&mut self, mut job: JobStatus) {
        job.workers = self.workers(&job.name).cloned().collect();
        job.workers.sort_by_key(|worker| worker.rank);
        self.workers.retain(|(name, _)| *name != job.name);
        job.over = true;
        if job.failure.is_empty() {
            job.state = "ended".to_owned();
        }
        push_bounded(&mut self.jobs, job);
        let mut workers: usize = self.jobs.iter().map(|job| job.workers.len()).sum();
        while workers > REMEMBERED_WORKERS && self.jobs.len() > 1 {
            workers -= self.jobs.pop_front().map_or(0, |job| job.workers.len());
        }
    }

    /// A job of this name begins anew.
    pub(super) fn forget_job(&mut self, name: &str) {
        self.jobs.retain(|job| job.name != name);
        self.workers.retain(|(job, _)| job != name);
    }

    /// The workers of a job that are gone.
    pub(super) fn workers<'a>(
        &'a self,
        name: &'a str,
    ) -> impl Iterator<Item = &'a MemberStatus> + 'a {
        self.workers.iter().filter(move |(job, _)| job == name).map(|(_, status)| status)
    }

    /// The jobs that are over.
    pub(super) fn jobs(&self) -> impl Iterator<Item = &JobStatus> {
        self.jobs.iter()
    }

    /// The servers that are gone.
    pub(super) fn servers(&self) -> impl Iterator<Item = &MemberStatus> {
        self.servers.iter()
    }
}

fn push_bounded<T>(queue: &mut VecDeque<T>, entry: T) {
    queue.push_back(entry);
    if queue.len() > REMEMBERED {
        queue.pop_front();
    }
}
