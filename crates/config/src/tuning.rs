//! What of the settings may change while a job runs, and which values may stand together.
//!
//! A change is a text by the setting's name. What a running job was changed to since its start is
//! kept in one normal form: whole bytes, and nothing that is as it was at the start.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::error::{ConfigError, Source};
use crate::load::{load_from, put};
use crate::parse::{GIB, KIB, MIB};
use crate::settings::{AUTO, SETTINGS, Setting, TUNERS};

/// The settings that may change while a job runs.
pub const TUNABLE: [&str; 4] = ["partition_bytes", "chunk_bytes", "credit_bytes", "tuner"];

/// Settings by name, as texts.
pub type Texts = BTreeMap<String, String>;

impl Config {
    /// These settings with what was changed since the job's start.
    ///
    /// # Errors
    /// [`ConfigError`] if a change is none.
    pub fn changed(&self, changes: &Texts) -> Result<Config, ConfigError> {
        let mut config = self.clone();
        for (name, value) in changes {
            put(&mut config, row(name)?, Source::Argument, value)?;
        }
        Ok(config)
    }

    /// The settings that may change, as they are.
    #[must_use]
    pub fn tunable(&self) -> Texts {
        TUNABLE.iter().map(|name| ((*name).to_owned(), self.text(name))).collect()
    }

    /// The credit, or that the plan decides it.
    #[must_use]
    pub fn credit_text(&self) -> String {
        self.credit_bytes.map_or_else(|| AUTO.to_owned(), |bytes| bytes.to_string())
    }

    fn text(&self, name: &str) -> String {
        match name {
            "partition_bytes" => self.partition_bytes.to_string(),
            "chunk_bytes" => self.chunk_bytes.to_string(),
            "credit_bytes" => self.credit_text(),
            _ => self.tuner.clone(),
        }
    }
}

/// What a job is changed to when `asked` comes on top of `changes`: everything that differs from
/// `start`, the settings its workers began with. A name may be given without its unit. A
/// change of a size without a tuner ends the tuner's work, so that the size stays.
///
/// # Errors
/// [`ConfigError`] for the first value that is not accepted, or does not go with the others.
pub fn change(start: &Texts, changes: &Texts, asked: &Texts) -> Result<Texts, ConfigError> {
    let mut config = load_from(&[], |_| None)?;
    for (name, value) in start.iter().filter(|(name, _)| TUNABLE.contains(&name.as_str())) {
        put(&mut config, row(name)?, Source::Job, value)?;
    }
    let began = config.tunable();
    for (name, value) in changes {
        put(&mut config, row(name)?, Source::Job, value)?;
    }
    let mut named = Vec::new();
    for (name, value) in asked {
        let setting = row(name)?;
        put(&mut config, setting, Source::Argument, value)?;
        named.push(setting.name);
    }
    let asks = |name| named.contains(&name);
    if !named.is_empty() && !asks("tuner") {
        config.tuner = TUNERS[0].to_owned();
    }
    if (asks("credit_bytes") || asks("partition_bytes"))
        && config.credit_bytes.is_some_and(|credit| credit < config.partition_bytes)
    {
        let reason = "a credit under a partition; change both";
        return Err(config.conflict("credit_bytes", "partition_bytes", reason));
    }
    if (asks("chunk_bytes") || asks("partition_bytes"))
        && config.chunk_bytes > config.partition_bytes
    {
        let reason = "a chunk over a partition; change both";
        return Err(config.conflict("chunk_bytes", "partition_bytes", reason));
    }
    let now = config.tunable();
    Ok(now.into_iter().filter(|(name, value)| began.get(name) != Some(value)).collect())
}

/// What a job runs with: the settings its workers began with, and what was changed since. What
/// cannot be read is left out.
#[must_use]
pub fn in_force(start: &Texts, changes: &Texts) -> Texts {
    let known = |(name, _): &(&String, &String)| TUNABLE.contains(&name.as_str());
    let all = start.iter().filter(known).chain(changes);
    all.map(|(name, value)| (name.clone(), value.clone())).collect()
}

/// A number of bytes in its largest unit, such as `4MiB`; any other text as it is.
#[must_use]
pub fn readable(text: &str) -> String {
    let units = [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")];
    let Ok(bytes) = text.parse::<u64>() else { return text.to_owned() };
    let unit = units.iter().find(|(unit, _)| bytes > 0 && bytes % unit == 0);
    unit.map_or_else(|| text.to_owned(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// The row of a setting that may change.
fn row(name: &str) -> Result<&'static Setting, ConfigError> {
    let called = |known: &str| known == name || known.strip_suffix("_bytes") == Some(name);
    let found =
        SETTINGS.iter().find(|setting| TUNABLE.contains(&setting.name) && called(setting.name));
    found.ok_or_else(|| ConfigError::Fixed { name: name.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(entries: &[(&str, &str)]) -> Texts {
        entries.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    fn start() -> Texts {
        texts(&[("partition_bytes", "1048576"), ("credit_bytes", "4194304"), ("redo", "true")])
    }

    fn refused(asked: &[(&str, &str)]) -> String {
        change(&start(), &Texts::new(), &texts(asked)).unwrap_err().to_string()
    }

    #[test]
    fn changes_add_up_in_one_normal_form() {
        let first = change(&start(), &Texts::new(), &texts(&[("partition", "2MiB")])).unwrap();
        assert_eq!(first, texts(&[("partition_bytes", "2097152")]));
        let second = change(&start(), &first, &texts(&[("chunk_bytes", "64 KiB")])).unwrap();
        assert_eq!(second, texts(&[("partition_bytes", "2097152"), ("chunk_bytes", "65536")]));
        // What is as at the start is no change.
        let third = change(&start(), &second, &texts(&[("partition", "1MiB")])).unwrap();
        assert_eq!(third, texts(&[("chunk_bytes", "65536")]));
        assert_eq!(in_force(&start(), &third)["chunk_bytes"], "65536");
    }

    #[test]
    fn a_size_that_is_asked_for_stays_unless_a_tuner_is_asked_for() {
        let tuned = change(&start(), &Texts::new(), &texts(&[("tuner", "bayes")])).unwrap();
        assert_eq!(tuned, texts(&[("tuner", "bayes")]));
        let asked = texts(&[("credit", "8MiB")]);
        assert_eq!(
            change(&start(), &tuned, &asked).unwrap(),
            texts(&[("credit_bytes", "8388608")])
        );
        let both = texts(&[("credit", "8MiB"), ("tuner", "bayes")]);
        assert_eq!(change(&start(), &tuned, &both).unwrap()["tuner"], "bayes");
    }

    #[test]
    fn what_cannot_be_is_named() {
        assert!(refused(&[("partition", "0")]).contains("multiple of 4KiB"));
        assert!(refused(&[("partition", "8MiB")]).contains("a credit under a partition"));
        assert!(refused(&[("credit", "64KiB")]).contains("credit_bytes = 64KiB (argument)"));
        assert!(refused(&[("chunk", "2MiB")]).contains("1048576 (as the job runs)"));
        assert!(refused(&[("tuner", "magic")]).contains("autobyte"));
        assert!(refused(&[("redo", "false")]).contains("\"redo\" cannot be changed"));
        // Not what was so before.
        let low = texts(&[("credit_bytes", "4096")]);
        assert!(change(&low, &Texts::new(), &texts(&[("chunk", "64KiB")])).is_ok());
    }

    #[test]
    fn a_credit_that_the_plan_decides_goes_with_every_partition() {
        let automatic = texts(&[("partition_bytes", "262144"), ("credit_bytes", "auto")]);
        let larger = texts(&[("partition", "8MiB")]);
        let changes = change(&automatic, &Texts::new(), &larger).unwrap();
        assert_eq!(in_force(&automatic, &changes)["credit_bytes"], "auto");
        let back = change(&start(), &Texts::new(), &texts(&[("credit", "auto")])).unwrap();
        assert_eq!(back, texts(&[("credit_bytes", "auto")]));
    }

    #[test]
    fn settings_are_changed_as_their_rows_say() {
        let config = crate::load_from(&[], |_| None).unwrap();
        let changed = config.changed(&texts(&[("partition_bytes", "2MiB")])).unwrap();
        assert_eq!((changed.partition_bytes, changed.chunk_bytes), (2 << 20, config.chunk_bytes));
        assert!(config.changed(&texts(&[("partition_bytes", "1")])).is_err());
        assert_eq!(changed.tunable()["partition_bytes"], "2097152");
        assert_eq!(readable("2097152"), "2MiB");
        assert_eq!((readable("4097").as_str(), readable("grid").as_str()), ("4097", "grid"));
    }
}
