//! Whether a coordinator or a server on this machine answers: the health check of a container that
//! holds no other program.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long connecting, and each read, may take; as long as the probes of the Helm chart wait.
const LIMIT: Duration = Duration::from_secs(5);
const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
/// The version, a space and the status.
const STATUS: &[u8] = b"HTTP/1.1 200";

/// Why a process does not count as healthy.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// The settings name no metrics port.
    #[error(
        "no metrics port to ask: give the --metrics-port of the process, or set \
         SUMPTER_METRICS_PORT"
    )]
    NoPort,
    /// Nothing listens, or it does not answer in time.
    #[error(
        "http://{address}/metrics does not answer: {reason}; does a coordinator or server run \
         here with this metrics port?"
    )]
    Silent {
        /// What was asked.
        address: SocketAddr,
        /// Why there is no answer.
        reason: io::Error,
    },
    /// It answers, but not as a metrics endpoint.
    #[error("http://{address}/metrics answers {answer:?}: another program has this port")]
    Stranger {
        /// What was asked.
        address: SocketAddr,
        /// How the answer begins.
        answer: String,
    },
}

/// Asks the metrics endpoint at `address`, whose answer comes from the state of jobs.
///
/// # Errors
/// [`HealthError`] unless it answers with status 200.
pub fn check(address: Option<SocketAddr>) -> Result<(), HealthError> {
    let address = address.ok_or(HealthError::NoPort)?;
    let answer = ask(address).map_err(|reason| HealthError::Silent { address, reason })?;
    if answer == STATUS {
        return Ok(());
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    Err(HealthError::Stranger { address, answer })
}

/// As much of the answer as holds its status.
fn ask(address: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    stream.take(STATUS.len() as u64).read_to_end(&mut answer)?;
    Ok(answer)
}
