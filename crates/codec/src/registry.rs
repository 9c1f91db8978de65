//! Codecs of users beside those of this crate.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::codec::Codec;
use crate::error::CodecError;
use crate::formats::CustomCodec;
use crate::selection::AUTO;
use crate::spec::{Arguments, NAMES, Scheme, Spec, parse};

/// Makes a codec of its arguments.
///
/// # Errors
/// [`CodecError::UnknownArgument`] or [`CodecError::Argument`].
pub type Factory =
    Arc<dyn Fn(&Arguments) -> Result<Arc<dyn CustomCodec>, CodecError> + Send + Sync>;

/// The codecs of this crate, and those that were registered.
#[derive(Clone, Default)]
pub struct Registry {
    custom: BTreeMap<String, Registered>,
}

#[derive(Clone)]
struct Registered {
    factory: Factory,
    /// Whether sums are encoded as well, unless somebody says otherwise.
    encodes_sums: bool,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.custom.keys()).finish()
    }
}

impl Registry {
    /// The codecs of this crate.
    #[must_use]
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Adds a codec under a name of lower-case letters, digits and `_`. All ranks must register the
    /// same ones.
    ///
    /// # Errors
    /// If the name is taken, or none.
    pub fn register(&mut self, name: &str, factory: Factory) -> Result<(), CodecError> {
        self.add(name, Registered { factory, encodes_sums: true })
    }

    /// The same of a codec that may fail to encode: sums are sent as they are, since a server that
    /// cannot send one could only end the job.
    ///
    /// # Errors
    /// As [`register`](Registry::register).
    pub fn register_one_way(&mut self, name: &str, factory: Factory) -> Result<(), CodecError> {
        self.add(name, Registered { factory, encodes_sums: false })
    }

    fn add(&mut self, name: &str, registered: Registered) -> Result<(), CodecError> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let expected = if self.names().chain([AUTO]).any(|taken| taken == name) {
            "a name that is not taken"
        } else if name.is_empty() || !name.chars().all(plain) {
            "lower-case letters, digits and '_'"
        } else {
            self.custom.insert(name.to_owned(), registered);
            return Ok(());
        };
        Err(CodecError::Argument {
            codec: name.to_owned(),
            key: "name".to_owned(),
            value: name.to_owned(),
            expected: expected.to_owned(),
        })
    }

    /// The names of all codecs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        NAMES.into_iter().chain(self.custom.keys().map(String::as_str))
    }

    /// Reads what people write of a codec; the arguments of registered ones are checked, too.
    ///
    /// # Errors
    /// If there is no such codec, or an argument is not one of its.
    pub fn parse(&self, text: &str) -> Result<Spec, CodecError> {
        let mut spec = parse(text, |name| self.custom.contains_key(name)).map_err(|error| {
            let known = self.names().collect::<Vec<_>>().join(", ");
            match error {
                CodecError::Unknown { name, .. } => CodecError::Unknown { name, known },
                error => error,
            }
        })?;
        self.custom(&spec.scheme)?;
        let registered = self.custom.get(spec.scheme.name());
        if registered.is_some_and(|registered| !registered.encodes_sums) {
            // Two ways are the default of others, so the text says whether they were asked for.
            let asks_both_ways = text.split([':', ',']).any(|pair| {
                let argument =
                    pair.split_once('=').map(|(name, value)| (name.trim(), value.trim()));
                argument == Some(("two_way", "true"))
            });
            let asks = spec.sum_feedback || asks_both_ways;
            if asks {
                return Err(CodecError::Unsupported {
                    codec: spec.scheme.name().to_owned(),
                    reason: "its sums come back as they are: leave out two_way and sum_ef"
                        .to_owned(),
                });
            }
            spec.two_way = false;
        }
        Ok(spec)
    }

    /// The codec for a tensor of so many elements.
    ///
    /// # Errors
    /// As [`Codec::new`]; and if a registered codec refuses its arguments.
    pub fn codec(&self, spec: &Spec, elements: u64) -> Result<Codec, CodecError> {
        match self.custom(&spec.scheme)? {
            Some(custom) => Ok(Codec::custom(spec, custom)),
            None => Codec::new(spec, elements),
        }
    }

    fn custom(&self, scheme: &Scheme) -> Result<Option<Arc<dyn CustomCodec>>, CodecError> {
        let Scheme::Custom { name, arguments } = scheme else { return Ok(None) };
        self.custom.get(name).map(|known| (known.factory)(arguments)).transpose()
    }
}
