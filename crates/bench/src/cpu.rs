//! The processor time of single threads, read by another thread, so that measuring costs the
//! measured ones nothing.

use std::path::PathBuf;
use std::{fs, io};

/// A thread of this process, by where the kernel keeps its times.
#[derive(Clone, Debug)]
pub(crate) struct ThreadCpu(PathBuf);

impl ThreadCpu {
    /// The calling thread.
    pub(crate) fn current() -> io::Result<ThreadCpu> {
        Ok(ThreadCpu(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self")?)))
    }

    /// Seconds it has run on a processor, in user and kernel mode. Exact while it sleeps, and up
    /// to a scheduler's tick old while it runs.
    pub(crate) fn seconds(&self) -> io::Result<f64> {
        let text = fs::read_to_string(self.0.join("schedstat"))?;
        let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "schedstat has no number");
        Ok(nanoseconds.ok_or_else(malformed)? as f64 * 1e-9)
    }
}

/// Seconds all of `threads` have run.
pub(crate) fn total_s<'a>(threads: impl IntoIterator<Item = &'a ThreadCpu>) -> io::Result<f64> {
    threads.into_iter().map(ThreadCpu::seconds).sum()
}
