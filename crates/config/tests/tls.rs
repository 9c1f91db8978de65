//! The files for TLS.

use std::fs;
use std::path::PathBuf;

use sumpter_config::{Config, ConfigError, load_from};

fn config(paths: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let settings: Vec<_> = paths.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    load_from(&settings, |_| None)
}

#[test]
fn all_three_are_given_or_none() {
    assert!(config(&[]).unwrap().tls().unwrap().is_none());
    let error =
        config(&[("tls_cert", "a"), ("tls_ca", "b")]).unwrap().tls().unwrap_err().to_string();
    assert!(error.contains("setting tls_key is missing"), "{error}");
}

#[test]
fn a_file_that_cannot_be_read_is_named_with_its_setting_and_no_key_is_printed() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("tls.pem").to_string_lossy().into_owned();
    fs::write(&file, "a private key").unwrap();
    let given = config(&[("tls_cert", &file), ("tls_key", &file), ("tls_ca", &file)]).unwrap();
    let files = given.tls().unwrap().unwrap();
    assert_eq!((&files.cert[..], &files.key[..]), (&b"a private key"[..], &b"a private key"[..]));
    assert!(!format!("{files:?}").contains("private"));
    let absent = config(&[("tls_cert", &file), ("tls_key", "no/such"), ("tls_ca", &file)]).unwrap();
    let error = absent.tls().unwrap_err().to_string();
    assert!(error.contains("tls_key") && error.contains("no/such"), "{error}");
}
