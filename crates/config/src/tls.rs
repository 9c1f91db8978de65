//! The files for TLS: all three or none.

use std::fs;
use std::path::PathBuf;

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
        match self.tls_paths() {
            [(_, None), (_, None), (_, None)] => Ok(None),
            paths => {
                let [cert, key, ca] = paths.map(|(name, path)| read(name, path.as_ref()));
                Ok(Some(TlsFiles { cert: cert?, key: key?, ca: ca? }))
            }
        }
    }

    fn tls_paths(&self) -> [(&'static str, &Option<PathBuf>); 3] {
        [("tls_cert", &self.tls_cert), ("tls_key", &self.tls_key), ("tls_ca", &self.tls_ca)]
    }
}

fn read(name: &'static str, path: Option<&PathBuf>) -> Result<Vec<u8>, ConfigError> {
    let path = path.ok_or(ConfigError::TlsMissing { missing: name })?;
    fs::read(path).map_err(|reason| ConfigError::TlsFile { name, path: path.clone(), reason })
}
