//! The processor time of single threads, read by another thread, so that measuring costs the
//! measured ones nothing.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// How long a thread may take to fall asleep after its work is done.
const SETTLE: Duration = Duration::from_millis(100);

/// A thread of this process, by where the kernel keeps its times.
#[derive(Clone, Debug)]
pub(crate) struct ThreadCpu(PathBuf);

impl ThreadCpu {
    /// The calling thread.
    pub(crate) fn current() -> io::Result<ThreadCpu> {
        Ok(ThreadCpu(PathBuf::from("/proc").join(fs::read_link("/proc/thread-self")?)))
    }

    /// Seconds it has run on a processor, in user and kernel mode. Exact for another thread, since
    /// that is given a moment to fall asleep; of one that runs on, up to a scheduler's tick old.
    pub(crate) fn seconds(&self) -> io::Result<f64> {
        let deadline = Instant::now() + SETTLE;
        let own = self.0 == ThreadCpu::current()?.0;
        while !own && self.is_running()? && Instant::now() < deadline {
            thread::yield_now();
        }
        let text = fs::read_to_string(self.0.join("schedstat"))?;
        let nanoseconds = text.split_whitespace().next().and_then(|n| n.parse::<u64>().ok());
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "schedstat has no number");
        Ok(nanoseconds.ok_or_else(malformed)? as f64 * 1e-9)
    }

    fn is_running(&self) -> io::Result<bool> {
        let text = fs::read_to_string(self.0.join("stat"))?;
        // The name before the state is in parentheses and may contain anything.
        Ok(text.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('R')))
    }
}

/// Seconds all of `threads` have run.
pub(crate) fn total_s<'a>(threads: impl IntoIterator<Item = &'a ThreadCpu>) -> io::Result<f64> {
    threads.into_iter().map(ThreadCpu::seconds).sum()
}
