//! The certificates of tests, which the folder's script `make` has made for 127.0.0.1.

use sumpter_transport::TlsConfig;

macro_rules! pem {
    ($name:literal) => {
        include_bytes!(concat!("../../../coordinator/tests/certificates/", $name, ".pem"))
    };
}

pub fn ours() -> TlsConfig {
    TlsConfig::new(pem!("cert"), pem!("key"), pem!("ca")).expect("good certificates")
}

/// One whose certificate another authority has signed, though it trusts ours.
#[allow(dead_code)]
pub fn stranger() -> TlsConfig {
    TlsConfig::new(pem!("other-cert"), pem!("other-key"), pem!("ca")).expect("good certificates")
}

/// Two whose authority is the same, of which the second's certificate has expired.
#[allow(dead_code)]
pub fn trusting_and_expired() -> (TlsConfig, TlsConfig) {
    let trusting = TlsConfig::new(pem!("cert"), pem!("key"), pem!("expired-ca"));
    let expired = TlsConfig::new(pem!("expired-cert"), pem!("expired-key"), pem!("ca"));
    (trusting.expect("good certificates"), expired.expect("good but for its age"))
}
