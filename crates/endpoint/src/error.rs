//! Why a connection ended, by what the driver must do about it.

use std::io;

use crate::endpoint::Violation;

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer broke the protocol.
    #[error("protocol violation: {0}")]
    Violation(#[from] Violation),
    /// The operating system reported a failure.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The ends do not agree on how to encrypt, or on each other's certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The peer closed the connection.
    #[error("closed by the peer")]
    Closed,
}

/// Why TLS ended a connection.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// What the other end sent first is no TLS.
    #[error(
        "the peer does not use TLS; give every process tls_cert, tls_key, tls_ca and the same \
         tls_data"
    )]
    NotTls,
    /// The other end closed the connection instead of answering; it may not use TLS.
    #[error("the peer closed the connection in the TLS handshake; it may have tls_data = false")]
    NoAnswer,
    /// The other end's certificate is not accepted here.
    #[error("the peer's certificate is not accepted: {0}")]
    Certificate(String),
    /// Ours is not accepted there.
    #[error("the peer does not accept this process's certificate (tls_cert): {0}")]
    Refused(String),
    /// The other end broke the protocol, or bytes were changed on their way.
    #[error("TLS: {0}")]
    Broken(String),
}

impl TlsError {
    /// Whether another attempt must end the same way.
    #[must_use]
    pub fn is_permanent(&self) -> bool {
        match self {
            TlsError::NotTls | TlsError::Certificate(_) | TlsError::Refused(_) => true,
            TlsError::NoAnswer | TlsError::Broken(_) => false,
        }
    }
}
