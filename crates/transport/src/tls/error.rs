//! What TLS objects to, by what is to be done about it.

use rustls::{AlertDescription, CertificateError, Error};
use sumpter_endpoint::TlsError;

/// Why TLS ended a connection, by what is to be done about it.
pub(super) fn objection(error: Error) -> TlsError {
    match error {
        Error::InvalidCertificate(reason) => TlsError::Certificate(refusal(&reason)),
        Error::NoCertificatesPresented => TlsError::Certificate("it showed none".to_owned()),
        Error::AlertReceived(alert) => match alerted(alert) {
            Some(reason) => TlsError::Refused(reason.to_owned()),
            None => TlsError::Broken(format!("the peer says {alert:?}")),
        },
        other => TlsError::Broken(other.to_string()),
    }
}

/// What is wrong with a certificate, in words for the person who made it.
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
fn alerted(alert: AlertDescription) -> Option<&'static str> {
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
