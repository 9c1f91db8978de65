//! TLS with certificates on both ends of the control plane.
//!
//! It comes before the proofs of the token and does not replace them: a certificate says that a
//! process belongs to the cluster, a token which job it belongs to.

use std::fmt;
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Identity, ServerTlsConfig};

/// How long a peer may take for the handshake.
const HANDSHAKE_LIMIT: Duration = Duration::from_secs(10);

/// A certificate, its key, and who signs the others' certificates, each in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Tls {
    /// This process's certificate, perhaps with intermediate ones behind it.
    pub cert: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// The certificates of which one must have signed the peer's.
    pub ca: Vec<u8>,
}

impl Tls {
    /// For a coordinator: every member must show a certificate.
    pub(crate) fn of_server(&self) -> ServerTlsConfig {
        ServerTlsConfig::new()
            .identity(self.identity())
            .client_ca_root(Certificate::from_pem(&self.ca))
            .timeout(HANDSHAKE_LIMIT)
    }

    /// For a member: the coordinator's certificate must name the host it is reached by.
    pub(crate) fn of_client(&self) -> ClientTlsConfig {
        ClientTlsConfig::new()
            .identity(self.identity())
            .ca_certificate(Certificate::from_pem(&self.ca))
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.cert, &self.key)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls(..)")
    }
}
