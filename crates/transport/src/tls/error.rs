//! What TLS objects to, by what is to be done about it.

use rustls::{AlertDescription, CertificateError, Error};

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

impl From<Error> for TlsError {
    fn from(error: Error) -> TlsError {
        match error {
            Error::InvalidCertificate(reason) => TlsError::Certificate(refusal(&reason)),
            Error::NoCertificatesPresented => TlsError::Certificate("it showed none".to_owned()),
            Error::AlertReceived(alert) => match objection(alert) {
                Some(reason) => TlsError::Refused(reason.to_owned()),
                None => TlsError::Broken(format!("the peer says {alert:?}")),
            },
            other => TlsError::Broken(other.to_string()),
        }
    }
}

/// What is wrong with a certificate, in words for whoever has made it.
fn refusal(reason: &CertificateError) -> String {
    match reason {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "it has expired".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "it is not valid yet; look at both machines' clocks".to_owned()
        }
        CertificateError::UnknownIssuer => "no authority of tls_ca has signed it".to_owned(),
        other => other.to_string(),
    }
}

/// What a peer's alert says about our certificate, if it is about that.
fn objection(alert: AlertDescription) -> Option<&'static str> {
    match alert {
        AlertDescription::UnknownCA => Some("no authority of its tls_ca has signed it"),
        AlertDescription::CertificateExpired => Some("it has expired or is not valid yet"),
        AlertDescription::CertificateRequired | AlertDescription::NoCertificate => {
            Some("it was shown none")
        }
        AlertDescription::BadCertificate
        | AlertDescription::UnsupportedCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => Some("it says that the certificate is not valid here"),
        _ => None,
    }
}
