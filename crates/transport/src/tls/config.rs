//! Certificates, and who is trusted: one set for both directions.
//!
//! Each end of a connection must show a certificate that one of the authorities has signed, and
//! prove to hold its key. Names in certificates are not looked at: members of a job find each other
//! by the coordinator's plan, not by names, and which member a peer is, the run's key proves inside
//! the connection. Nothing is resumed and nothing is sent early, so every connection proves both.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, WebPkiClientVerifier};
use rustls::version::TLS13;
use rustls::{
    CipherSuite, ClientConfig, DigitallySignedStruct, Error, PeerIncompatible, RootCertStore,
    ServerConfig, SignatureScheme,
};

/// Why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsConfigError {
    /// A file holds nothing of its kind.
    #[error("{setting} holds no {what} in PEM: {reason}")]
    Pem {
        /// The setting that names the file.
        setting: &'static str,
        /// What is looked for.
        what: &'static str,
        /// What was found instead.
        reason: String,
    },
    /// They do not go together.
    #[error("tls_cert, tls_key and tls_ca cannot be used: {0}")]
    Unusable(String),
}

/// What connections are encrypted with. Copies share it.
#[derive(Clone)]
pub struct TlsConfig {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    /// This process's certificate.
    pub(super) own: CertificateDer<'static>,
}

impl TlsConfig {
    /// From a certificate (perhaps with intermediate ones behind it), its key, and the authorities
    /// of which one must have signed the peers', each in PEM.
    ///
    /// # Errors
    /// [`TlsConfigError`] that names the setting.
    pub fn new(cert: &[u8], key: &[u8], ca: &[u8]) -> Result<TlsConfig, TlsConfigError> {
        TlsConfig::with_provider(provider(), cert, key, ca)
    }

    pub(super) fn with_provider(
        provider: CryptoProvider,
        cert: &[u8],
        key: &[u8],
        ca: &[u8],
    ) -> Result<TlsConfig, TlsConfigError> {
        let chain = certificates("tls_cert", cert)?;
        let own = chain[0].clone();
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|reason| TlsConfigError::Pem {
            setting: "tls_key",
            what: "private key",
            reason: reason.to_string(),
        })?;
        let mut roots = RootCertStore::empty();
        for authority in certificates("tls_ca", ca)? {
            roots.add(authority).map_err(unusable)?;
        }
        let (provider, roots) = (Arc::new(provider), Arc::new(roots));
        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| TlsConfigError::Unusable(error.to_string()))?;
        let lanes = Arc::new(Members { roots, provider: provider.clone() });
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .dangerous()
            .with_custom_certificate_verifier(lanes)
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(unusable)?;
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain, key)
            .map_err(unusable)?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        Ok(TlsConfig { client: Arc::new(client), server: Arc::new(server), own })
    }
}

impl fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsConfig(..)")
    }
}

/// The control plane's cryptography, with the cheapest cipher first: both ends are ours, and
/// AES-128 takes about a quarter less time than AES-256 where the processor has instructions.
pub(super) fn provider() -> CryptoProvider {
    let mut provider = rustls::crypto::ring::default_provider();
    let first = CipherSuite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|suite| suite.suite() != first);
    provider
}

fn certificates(
    setting: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsConfigError> {
    let none = |reason: String| TlsConfigError::Pem { setting, what: "certificate", reason };
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let found = found.map_err(|error| none(error.to_string()))?;
    if found.is_empty() {
        return Err(none("it has no section CERTIFICATE".to_owned()));
    }
    Ok(found)
}

fn unusable(error: Error) -> TlsConfigError {
    TlsConfigError::Unusable(error.to_string())
}

/// Accepts every peer with a certificate of the authorities, whatever its name.
#[derive(Debug)]
struct Members {
    roots: Arc<RootCertStore>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Members {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::PeerIncompatible(PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
