//! What each job may take of a lane.

use sumpter_types::JobId;

use super::Lane;

/// What one job may take of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobLimits {
    /// Bytes of accumulators.
    pub max_bytes: u64,
    /// Connections at once.
    pub max_connections: u32,
}

impl Lane {
    /// A job's own limits, in place of the lane's for any job; they hold until the job ends.
    pub fn know(&mut self, job: JobId, limits: JobLimits) {
        self.known.insert(job, limits);
        if let Some(at) = self.jobs.find(job) {
            self.jobs[at].limit(limits.max_bytes);
        }
    }

    /// Bytes of accumulators that a job's tensors occupy when all are under way.
    #[must_use]
    pub fn job_bytes(&self, job: JobId) -> u64 {
        self.jobs.find(job).map_or(0, |at| self.jobs[at].bytes())
    }

    /// The limits of a job: its own, or those of any job.
    pub(super) fn limits_of(&self, job: JobId) -> JobLimits {
        let any = JobLimits { max_bytes: self.limits.max_job_bytes, max_connections: u32::MAX };
        self.known.get(&job).copied().unwrap_or(any)
    }
}
