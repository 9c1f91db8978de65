//! The settings of a Sumpter process: one table, and the only reader of the environment.
//!
//! Every setting is a row of [`SETTINGS`]: its name, its environment variable, its default, what
//! it accepts and what it means. An argument beats the environment, which beats the default.
//! Values are checked when they are loaded, so that the user of a [`Config`] need not check
//! again. `sumpter config --markdown` makes the documentation's page of it.
#![forbid(unsafe_code)]

mod config;
mod descriptors;
mod error;
mod load;
mod local;
mod machine;
mod parse;
mod settings;
mod tenants;
mod tls;
mod tuning;

pub use config::Config;
pub use descriptors::make_room_for_files;
pub use error::{ConfigError, Source};
pub use load::{load, load_from, load_knowing};
pub use local::{Colocated, Fabric, LocalLink};
pub use machine::{host_name, local_machine_id};
pub use settings::{SETTINGS, Setting, TUNERS};
pub use tenants::TenantRow;
pub use tls::TlsFiles;
pub use tuning::{TUNABLE, Texts, change, in_force, readable};
