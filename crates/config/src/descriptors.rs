//! Open files: how many this process has and needs, and how many the system lets it have.
//!
//! A connection is a file. In a job of `n` workers each process has about `2 n`, and many systems
//! allow 1024 at first (`ulimit -n`), but more on request (`ulimit -Hn`). What is asked for is
//! what a job needs and no more: programs that use `select` break beyond 1024.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files beside what is open and what is about to be: those of a checkpoint, of a data loader.
const SPARE: u64 = 32;

/// Makes room for `more` open files beside those that there are, by raising the soft limit where
/// that is needed. `what` says for what, as in "64 connections to lanes".
///
/// # Errors
/// In words, with both numbers and the remedy, if the hard limit is too low.
pub fn make_room_for_files(more: u64, what: &str) -> Result<(), String> {
    let open = open_files();
    let needed = open.saturating_add(more).saturating_add(SPARE);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|soft| soft >= needed) {
        return Ok(());
    }
    if maximum.is_none_or(|hard| hard >= needed) {
        let raised = Rlimit { current: Some(needed), maximum };
        return setrlimit(Resource::Nofile, raised).map_err(|error| {
            format!("{what}: the limit of open files cannot be raised to {needed}: {error}")
        });
    }
    let hard = maximum.unwrap_or(u64::MAX);
    Err(format!(
        "{what} take {more} open files beside the {open} that this process has, but the system \
         allows it {hard} at most: raise the limit to {needed} or more before the start, with \
         `ulimit -n {needed}`, LimitNOFILE={needed} for a service, or --ulimit nofile={needed} \
         for a container"
    ))
}

/// How many files this process has open; a few where the system does not say.
fn open_files() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(SPARE, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_raised_as_far_as_needed_or_named() {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let (soft, hard) = (current.unwrap_or(1 << 20), maximum.unwrap_or(1 << 20));
        let lowered = Rlimit { current: Some(soft.min(256)), maximum };
        setrlimit(Resource::Nofile, lowered).expect("a soft limit may be lowered");
        assert_eq!(make_room_for_files(16, "sixteen files"), Ok(()));
        assert_eq!(getrlimit(Resource::Nofile), lowered, "there was room");
        let more = 400.min(hard - 256);
        assert_eq!(make_room_for_files(more, "more files"), Ok(()));
        let raised = getrlimit(Resource::Nofile).current.expect("a limit");
        assert!((more..more + 256).contains(&raised), "{raised} for {more}");
        if maximum.is_some() {
            let error = make_room_for_files(hard, "all files").unwrap_err();
            for part in ["all files take", &format!("allows it {hard}"), "`ulimit -n "] {
                assert!(error.contains(part), "{error}");
            }
        }
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("as before");
    }
}
