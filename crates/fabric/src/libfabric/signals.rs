//! Handlers of signals are the program's, and a library that is loaded must leave them alone.
//!
//! Those of Intel's PSM, which Debian's libfabric is linked to, do not: their constructors take
//! SIGINT, SIGTERM, SIGSEGV and others, and end the process with a backtrace. A server that is told
//! to leave would die instead.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr;

/// The signals that have a meaning of their own.
const SIGNALS: std::ops::RangeInclusive<c_int> = 1..=31;

/// Calls `load`, and puts back what handled each signal before if that has changed it. Handlers
/// that other threads install meanwhile are lost: it must be short, and before the program begins.
pub(super) fn keep_handlers<T>(load: impl FnOnce() -> T) -> T {
    let before: Vec<_> = SIGNALS.filter_map(|signal| Some((signal, handler(signal)?))).collect();
    let loaded = load();
    for (signal, old) in before {
        if handler(signal).is_some_and(|new| new.sa_sigaction != old.sa_sigaction) {
            // SAFETY: restores the action that the system returned for this signal.
            unsafe { libc::sigaction(signal, &raw const old, ptr::null_mut()) };
        }
    }
    loaded
}

/// What handles a signal.
fn handler(signal: c_int) -> Option<libc::sigaction> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: nothing is changed, and there is room for the answer, which zeros are one of.
    unsafe {
        let code = libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        (code == 0).then(|| action.assume_init())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_that_is_installed_meanwhile_is_gone() {
        let old = handler(libc::SIGUSR2).expect("a signal").sa_sigaction;
        let seen = keep_handlers(|| {
            // SAFETY: to ignore a signal does no harm.
            unsafe { libc::signal(libc::SIGUSR2, libc::SIG_IGN) };
            handler(libc::SIGUSR2).expect("a signal").sa_sigaction
        });
        assert_eq!(seen, libc::SIG_IGN);
        assert_eq!(handler(libc::SIGUSR2).expect("a signal").sa_sigaction, old);
    }
}
