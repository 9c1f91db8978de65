//! Settings from arguments, the environment and the defaults.

use sumpter_codec::Registry;
use sumpter_wire::Token;

use crate::config::Config;
use crate::error::{ConfigError, Source};
use crate::settings::{SETTINGS, Setting};

/// Loads the settings from arguments, the process environment and the defaults, in this order.
///
/// # Errors
/// [`ConfigError`] for the first setting that does not hold.
pub fn load(overrides: &[(String, String)]) -> Result<Config, ConfigError> {
    load_knowing(overrides, &Registry::new())
}

/// [`load`] where there are codecs of users.
///
/// # Errors
/// As [`load`].
pub fn load_knowing(
    overrides: &[(String, String)],
    codecs: &Registry,
) -> Result<Config, ConfigError> {
    read(overrides, |name| std::env::var(name).ok(), codecs)
}

/// [`load`] with another environment. An empty variable counts as absent; of an argument given
/// twice the last one counts.
///
/// # Errors
/// [`ConfigError`] for the first setting that does not hold.
pub fn load_from(
    overrides: &[(String, String)],
    env: impl Fn(&str) -> Option<String>,
) -> Result<Config, ConfigError> {
    read(overrides, env, &Registry::new())
}

fn read(
    overrides: &[(String, String)],
    env: impl Fn(&str) -> Option<String>,
    codecs: &Registry,
) -> Result<Config, ConfigError> {
    for (name, _) in overrides {
        if !SETTINGS.iter().any(|s| s.name == name) {
            return Err(ConfigError::Unknown { name: name.clone(), nearest: nearest(name) });
        }
    }
    let mut config = Config::default();
    for setting in SETTINGS {
        if let Some((source, value)) = find(setting, overrides, &env) {
            put(&mut config, setting, source, &value)?;
        }
    }
    config.settle_token_sources()?;
    config.settle_compression_early(codecs)?;
    config.check_pairs()?;
    Ok(config)
}

/// Puts a text into the field of its setting.
pub(crate) fn put(
    config: &mut Config,
    setting: &'static Setting,
    source: Source,
    value: &str,
) -> Result<(), ConfigError> {
    if (setting.put)(config, value).is_none() {
        return Err(refusal(setting, source, value));
    }
    config.record(setting.name, source, value);
    Ok(())
}

fn find(
    setting: &Setting,
    overrides: &[(String, String)],
    env: &impl Fn(&str) -> Option<String>,
) -> Option<(Source, String)> {
    let argument = overrides.iter().rev().find(|(name, _)| name == setting.name);
    if let Some((_, value)) = argument {
        return Some((Source::Argument, value.clone()));
    }
    if let Some(value) = env(setting.env).filter(|value| !value.trim().is_empty()) {
        return Some((Source::Environment(setting.env), value));
    }
    (!setting.default.is_empty()).then(|| (Source::Default, setting.default.to_owned()))
}

fn refusal(setting: &'static Setting, source: Source, value: &str) -> ConfigError {
    if setting.name == "token"
        && let Err(reason) = Token::new(value)
    {
        return ConfigError::Token { name: setting.name, origin: source, reason };
    }
    let value = value.to_owned();
    ConfigError::Invalid { name: setting.name, origin: source, value, range: setting.range }
}

/// The setting whose name shares the most letters with `name`, if it is at all like it.
fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase().replace('-', "_");
    SETTINGS
        .iter()
        .map(|s| (edits(&name, s.name), s.name))
        .min()
        .filter(|(distance, candidate)| *distance * 2 <= candidate.len())
        .map(|(_, candidate)| candidate)
}

/// Letters to insert, delete or replace to turn one text into the other.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}
