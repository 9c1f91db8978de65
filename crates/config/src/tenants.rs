//! The file of tenants: which jobs a coordinator admits, with which tokens and quotas.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use sumpter_wire::Token;

use crate::config::Config;
use crate::error::ConfigError;
use crate::parse::{MIB, PIB, size_in, word};

/// Bytes of a name, as of a job's in the settings.
const NAME_LIMIT: usize = 128;
/// A larger weight says no more: what counts is the proportion.
const WEIGHT_LIMIT: u32 = 1000;

/// One entry of the file, checked.
#[derive(Clone, Debug)]
pub struct TenantRow {
    /// The job's name, in which `*` stands for any characters.
    pub name: String,
    /// What its workers must prove to hold.
    pub token: Token,
    /// Its share beside other jobs, from 1 to 1000.
    pub weight: u32,
    /// Memory on each server.
    pub max_bytes: Option<u64>,
    /// Connections to each lane.
    pub max_connections: Option<u32>,
    /// Its largest world.
    pub max_workers: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    job: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    name: String,
    token_file: PathBuf,
    weight: Option<u32>,
    max_bytes: Option<String>,
    max_connections: Option<u32>,
    max_workers: Option<u32>,
}

impl Config {
    /// The entries of the file that `tenants` names, in their order; `None` without one.
    ///
    /// # Errors
    /// [`ConfigError::Tenants`] if the file, or the file of a token, cannot be read or makes no
    /// sense.
    pub fn tenant_rows(&self) -> Result<Option<Vec<TenantRow>>, ConfigError> {
        let Some(path) = &self.tenants else { return Ok(None) };
        let rows = fs::read_to_string(path)
            .map_err(|error| format!("cannot read it: {error}"))
            .and_then(|text| rows(&text, path.parent().unwrap_or(Path::new(""))));
        rows.map(Some).map_err(|reason| ConfigError::Tenants { path: path.clone(), reason })
    }
}

/// The entries of a file's text; relative paths are looked for in `folder`.
fn rows(text: &str, folder: &Path) -> Result<Vec<TenantRow>, String> {
    let file: File = toml::from_str(text).map_err(|error| error.to_string())?;
    if file.job.is_empty() {
        return Err("it lists no job; write at least one [[job]]".to_owned());
    }
    let mut names = HashSet::new();
    if let Some(twice) = file.job.iter().find(|row| !names.insert(row.name.clone())) {
        return Err(format!("job '{}' is listed twice", twice.name));
    }
    file.job.into_iter().map(|row| checked(row, folder)).collect()
}

fn checked(row: Row, folder: &Path) -> Result<TenantRow, String> {
    let Row { name, token_file, weight, max_bytes, max_connections, max_workers } = row;
    let about = |what: String| format!("job '{name}': {what}");
    if word(&name, NAME_LIMIT).as_deref() != Some(&*name) {
        let what = format!("give a name of at most {NAME_LIMIT} bytes without white space");
        return Err(about(what));
    }
    let file = folder.join(&token_file);
    let token = fs::read_to_string(&file)
        .map_err(|error| about(format!("cannot read token_file {}: {error}", file.display())))?;
    let token = Token::new(&token).map_err(|error| about(error.to_string()))?;
    let weight = weight.unwrap_or(1);
    if !(1..=WEIGHT_LIMIT).contains(&weight) {
        return Err(about(format!("weight = {weight}; give a number from 1 to {WEIGHT_LIMIT}")));
    }
    for (what, limit) in [("max_connections", max_connections), ("max_workers", max_workers)] {
        if limit == Some(0) {
            return Err(about(format!("{what} = 0 would admit no worker")));
        }
    }
    let bytes = |text: &String| {
        size_in(text, MIB..=PIB, 1)
            .ok_or_else(|| about(format!("max_bytes = {text:?}; give a size from 1MiB to 1PiB")))
    };
    let max_bytes = max_bytes.as_ref().map(bytes).transpose()?;
    Ok(TenantRow { name, token, weight, max_bytes, max_connections, max_workers })
}
