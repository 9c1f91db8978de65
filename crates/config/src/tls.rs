//! The files for TLS: all three or none.

use std::fs;
use std::path::Path;

use crate::config::Config;
use crate::error::ConfigError;

/// What the files hold. The key is never printed.
#[derive(Clone)]
pub struct TlsFiles {
    /// This process's certificate.
    pub cert: Vec<u8>,
    /// Its private key.
    pub key: Vec<u8>,
    /// Who signs the others' certificates.
    pub ca: Vec<u8>,
}

impl std::fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsFiles(..)")
    }
}

impl Config {
    /// What the files of `tls_cert`, `tls_key` and `tls_ca` hold; `None` if they are not given.
    ///
    /// # Errors
    /// [`ConfigError::TlsMissing`] if some are given but not all, [`ConfigError::TlsFile`] for one
    /// that cannot be read.
    pub fn tls(&self) -> Result<Option<TlsFiles>, ConfigError> {
        let missing = |missing| Err(ConfigError::TlsMissing { missing });
        match (&self.tls_cert, &self.tls_key, &self.tls_ca) {
            (None, None, None) => Ok(None),
            (Some(cert), Some(key), Some(ca)) => Ok(Some(TlsFiles {
                cert: read("tls_cert", cert)?,
                key: read("tls_key", key)?,
                ca: read("tls_ca", ca)?,
            })),
            (None, _, _) => missing("tls_cert"),
            (_, None, _) => missing("tls_key"),
            (_, _, None) => missing("tls_ca"),
        }
    }
}

fn read(name: &'static str, path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|reason| ConfigError::TlsFile { name, path: path.to_owned(), reason })
}
