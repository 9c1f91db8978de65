//! The program as a child process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sumpter-server");
const TOKEN: &str = "a token that only tests use";

/// Starts the program and waits until it has said a text on standard error.
pub fn started(arguments: &[&str], says: &str) -> Child {
    let mut child = Command::new(PROGRAM)
        .args(arguments)
        .env("SUMPTER_TOKEN", TOKEN)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = lines.find(|line| line.as_ref().unwrap().contains(says));
    assert!(said.is_some(), "it ended without saying {says:?}");
    // The rest must not fill the pipe.
    std::thread::spawn(move || lines.for_each(drop));
    child
}
