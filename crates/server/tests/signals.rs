//! How the program ends: cluster managers and scripts decide by its exit code what comes next.

mod common;

use std::process::{Child, Command};

use common::{PROGRAM, started};

/// The exit code after a signal, by the program that people use for it.
fn code_after(signal: &str, mut child: Child) -> Option<i32> {
    let kill = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
    assert!(kill.success());
    child.wait().unwrap().code()
}

#[test]
fn a_signal_is_told_in_the_exit_code() {
    let coordinator = || started(&["coordinator", "--listen", "127.0.0.1:0"], "coordinating at");
    assert_eq!(code_after("-TERM", coordinator()), Some(143));
    assert_eq!(code_after("-INT", coordinator()), Some(130));
}

#[test]
fn a_server_that_waits_for_the_name_of_its_coordinator_obeys_signals() {
    // The top-level domain that never exists (RFC 6761).
    let line = ["serve", "--join", "coordinator.invalid:7700", "--set", "start_timeout_s=600"];
    let server = started(&line, "waiting for the coordinator at coordinator.invalid:7700");
    assert_eq!(code_after("-TERM", server), Some(143));
}

#[test]
fn a_token_that_is_missing_is_told_before_the_wait() {
    let mut program = Command::new(PROGRAM);
    let line = ["serve", "--join", "coordinator.invalid:7700", "--set", "start_timeout_s=600"];
    let done = program.args(line).env_remove("SUMPTER_TOKEN").output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&done.stderr).contains("SUMPTER_TOKEN"));
}
