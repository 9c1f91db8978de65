//! How fast a process is, as it says when it joins.

use std::collections::BTreeMap;

use crate::CodecRates;

/// What one core of a process does in a second, in whole bytes, so that all members calculate with
/// the same numbers; and how many cores it has. 0 is what is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Speeds {
    /// Cores that it may use.
    pub cores: u32,
    /// Bytes of `float32` that it adds to others.
    pub add: u64,
    /// Bytes that it sends or receives.
    pub transport: u64,
    /// By codec, as it is written.
    pub codecs: BTreeMap<String, CodecSpeeds>,
}

/// [`CodecRates`] in whole bytes a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CodecSpeeds {
    /// Encoding.
    pub encode: u64,
    /// Decoding.
    pub decode: u64,
    /// Decoding and adding.
    pub add: u64,
}

impl From<CodecRates> for CodecSpeeds {
    /// Rates that are finite; none below 1.
    fn from(rates: CodecRates) -> CodecSpeeds {
        let whole = |rate: f64| (rate as u64).max(1);
        CodecSpeeds {
            encode: whole(rates.encode),
            decode: whole(rates.decode),
            add: whole(rates.add),
        }
    }
}

impl From<CodecSpeeds> for CodecRates {
    fn from(speeds: CodecSpeeds) -> CodecRates {
        let CodecSpeeds { encode, decode, add } = speeds;
        CodecRates { encode: encode as f64, decode: decode as f64, add: add as f64 }
    }
}

impl CodecSpeeds {
    /// The lower ones of two processes.
    #[must_use]
    pub fn least(self, other: CodecSpeeds) -> CodecSpeeds {
        CodecSpeeds {
            encode: known(self.encode, other.encode),
            decode: known(self.decode, other.decode),
            add: known(self.add, other.add),
        }
    }

    /// Whether none is unknown.
    #[must_use]
    pub fn are_known(self) -> bool {
        self.encode > 0 && self.decode > 0 && self.add > 0
    }
}

impl Speeds {
    /// The lower ones of two processes: what only one knows is what it knows.
    #[must_use]
    pub fn least(mut self, other: &Speeds) -> Speeds {
        for (codec, speeds) in &other.codecs {
            match self.codecs.get_mut(codec) {
                Some(own) => *own = own.least(*speeds),
                None => drop(self.codecs.insert(codec.clone(), *speeds)),
            }
        }
        Speeds {
            cores: known(self.cores.into(), other.cores.into()) as u32,
            add: known(self.add, other.add),
            transport: known(self.transport, other.transport),
            codecs: self.codecs,
        }
    }
}

/// The lower one of two numbers that are known.
fn known(one: u64, other: u64) -> u64 {
    match (one, other) {
        (0, only) | (only, 0) => only,
        (one, other) => one.min(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_of_all_processes_counts_and_what_is_unknown_does_not() {
        let speeds = |encode, decode, add| CodecSpeeds { encode, decode, add };
        let one = Speeds {
            cores: 4,
            add: 100,
            transport: 0,
            codecs: [("int8".to_owned(), speeds(10, 30, 20)), ("bf16".to_owned(), speeds(1, 1, 1))]
                .into(),
        };
        let other = Speeds {
            cores: 8,
            add: 90,
            transport: 50,
            codecs: [("int8".to_owned(), speeds(11, 0, 19)), ("fp8".to_owned(), speeds(2, 2, 2))]
                .into(),
        };
        let least = one.clone().least(&other);
        assert_eq!((least.cores, least.add, least.transport), (4, 90, 50));
        let names: Vec<&String> = least.codecs.keys().collect();
        assert_eq!(names, ["bf16", "fp8", "int8"]);
        assert_eq!(least.codecs["int8"], speeds(10, 30, 19));
        assert_eq!(other.least(&one), least, "in any order");
        assert_eq!(one.clone().least(&Speeds::default()), one);
        assert!(!speeds(1, 0, 1).are_known() && speeds(1, 2, 1).are_known());
    }

    #[test]
    fn rates_travel_as_whole_bytes() {
        let speeds = CodecSpeeds::from(CodecRates { encode: 1e9 + 0.7, decode: 0.3, add: 2.0 });
        assert_eq!((speeds.encode, speeds.decode, speeds.add), (1_000_000_000, 1, 2));
        assert_eq!(CodecRates::from(speeds).encode, 1e9);
    }
}
