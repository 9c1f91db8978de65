//! Why a configuration is refused, in words its author can act on.

use std::fmt;
use std::path::PathBuf;

use sumpter_codec::CodecError;
use sumpter_wire::TokenError;

/// Where a setting's value was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An argument of the program or of the call.
    Argument,
    /// The named environment variable.
    Environment(&'static str),
    /// The table's own default.
    Default,
    /// The running job.
    Job,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Argument => f.write_str("argument"),
            Source::Environment(name) => write!(f, "environment variable {name}"),
            Source::Default => f.write_str("default"),
            Source::Job => f.write_str("as the job runs"),
        }
    }
}

/// Why a configuration is refused. In every case the caller must change a setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value outside what its setting accepts.
    #[error("setting {name} ({origin}): {value:?} is not accepted; give {range}")]
    Invalid {
        /// The setting.
        name: &'static str,
        /// Where the value was found.
        origin: Source,
        /// The value.
        value: String,
        /// What the setting accepts.
        range: &'static str,
    },
    /// An argument that names no setting.
    #[error("there is no setting {name:?}{}", suggest(.nearest))]
    Unknown {
        /// The name that was given.
        name: String,
        /// The setting whose name is most like it.
        nearest: Option<&'static str>,
    },
    /// A name that is not one of the settings that may change while a job runs.
    #[error(
        "{name:?} cannot be changed while a job runs; partition_bytes, chunk_bytes, credit_bytes \
         and tuner can"
    )]
    Fixed {
        /// The name that was given.
        name: String,
    },
    /// Two settings that cannot both hold.
    #[error("settings {first} and {second} contradict each other: {reason}")]
    Conflict {
        /// One setting, with its value and source.
        first: String,
        /// The other setting, with its value and source.
        second: String,
        /// What must hold between them.
        reason: &'static str,
    },
    /// A token that cannot be one. The value is never shown.
    #[error("setting {name} ({origin}): {reason}")]
    Token {
        /// `token` or `token_file`.
        name: &'static str,
        /// Where the value was found.
        origin: Source,
        /// What is wrong with it.
        reason: TokenError,
    },
    /// A codec that does not exist, or does not take its arguments.
    #[error("setting compression ({origin}): {reason}{}", of_own(reason))]
    Compression {
        /// Where the value was found.
        origin: Source,
        /// What is wrong with it.
        reason: CodecError,
    },
    /// Some of the settings for TLS are given, and one is not.
    #[error("setting {missing} is missing: tls_cert, tls_key and tls_ca are given together")]
    TlsMissing {
        /// The setting.
        missing: &'static str,
    },
    /// A file for TLS cannot be read.
    #[error("setting {name}: cannot read {}: {reason}", path.display())]
    TlsFile {
        /// The setting.
        name: &'static str,
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        reason: std::io::Error,
    },
    /// The file of tenants cannot be used.
    #[error("setting tenants: {}: {reason}", path.display())]
    Tenants {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and where.
        reason: String,
    },
    /// The token's file cannot be read.
    #[error("setting token_file ({origin}): cannot read {}: {reason}", path.display())]
    TokenFile {
        /// Where the path was found.
        origin: Source,
        /// The file.
        path: PathBuf,
        /// What the operating system says.
        reason: std::io::Error,
    },
}

fn suggest(nearest: &Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean {name}?"))
}

/// How codecs of users are found, where one may be meant.
fn of_own(reason: &CodecError) -> &'static str {
    match reason {
        CodecError::Unknown { .. } => {
            ", or one of your own, which a module of the setting codecs registers"
        }
        _ => "",
    }
}
