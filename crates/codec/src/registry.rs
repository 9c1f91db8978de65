//! Codecs of users beside those of this crate.

use std::collections::BTreeMap;
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
pub type Factory = fn(&Arguments) -> Result<Arc<dyn CustomCodec>, CodecError>;

/// The codecs of this crate, and those that were registered.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    custom: BTreeMap<String, Factory>,
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
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let expected = if self.names().chain([AUTO]).any(|taken| taken == name) {
            "a name that is not taken"
        } else if name.is_empty() || !name.chars().all(plain) {
            "lower-case letters, digits and '_'"
        } else {
            self.custom.insert(name.to_owned(), factory);
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
        let spec = parse(text, |name| self.custom.contains_key(name)).map_err(|error| {
            let known = self.names().collect::<Vec<_>>().join(", ");
            match error {
                CodecError::Unknown { name, .. } => CodecError::Unknown { name, known },
                error => error,
            }
        })?;
        self.custom(&spec.scheme)?;
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
        self.custom.get(name).map(|factory| factory(arguments)).transpose()
    }
}
