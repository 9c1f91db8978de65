//! What people write of how tensors are compressed: by a codec, or by one that is chosen for each
//! tensor: `auto`, `auto:codecs=bf16+topk:k=0.01`.

use std::fmt;

use crate::error::CodecError;
use crate::registry::Registry;
use crate::spec::{Scheme, Spec};

/// The word for a codec that is chosen.
pub const AUTO: &str = "auto";

/// What is chosen from unless others are listed, those first that lose least. Both keep what
/// matters: `bf16` has the range of `f32`, and `int8` feeds back what it leaves out.
const DEFAULT: [&str; 2] = ["bf16", "int8"];

/// How tensors are compressed.
#[derive(Clone, Debug, PartialEq)]
pub enum Selection {
    /// By this codec.
    Codec(Spec),
    /// By the codec of these that pays for a tensor, or by none; of equal ones the first.
    Auto(Vec<Spec>),
}

impl Selection {
    /// The codec, or those to choose from.
    #[must_use]
    pub fn specs(&self) -> &[Spec] {
        match self {
            Selection::Codec(spec) => std::slice::from_ref(spec),
            Selection::Auto(candidates) => candidates,
        }
    }

    /// The same, to change them.
    pub fn specs_mut(&mut self) -> &mut [Spec] {
        match self {
            Selection::Codec(spec) => std::slice::from_mut(spec),
            Selection::Auto(candidates) => candidates,
        }
    }

    /// The codecs that `auto` chooses from by default.
    #[must_use]
    pub fn default_candidates() -> Vec<Spec> {
        DEFAULT.iter().map(|text| text.parse().expect("a codec of this crate")).collect()
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Selection::Codec(spec) => spec.fmt(f),
            Selection::Auto(candidates) => {
                let texts: Vec<String> = candidates.iter().map(ToString::to_string).collect();
                match texts == DEFAULT {
                    true => f.write_str(AUTO),
                    false => write!(f, "{AUTO}:codecs={}", texts.join("+")),
                }
            }
        }
    }
}

impl Spec {
    /// Whether tensors can travel by this codec, and not only be encoded.
    ///
    /// # Errors
    /// [`CodecError::Unsupported`] with what to use instead.
    pub fn check_on_path(&self) -> Result<(), CodecError> {
        if !matches!(self.scheme, Scheme::Int8 { shared: true }) {
            return Ok(());
        }
        Err(CodecError::Unsupported {
            codec: self.to_string(),
            reason: "ranks would have to agree on the scale of each block before they send \
                     anything, and sums of its codes take twice the bytes: use int8, of which each \
                     block has a scale of its own"
                .to_owned(),
        })
    }
}

impl Registry {
    /// Reads what people write of how tensors are compressed.
    ///
    /// # Errors
    /// As [`Registry::parse`] and [`Spec::check_on_path`]; if a codec cannot be one of several, or
    /// is listed twice.
    pub fn select(&self, text: &str) -> Result<Selection, CodecError> {
        let (name, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        if name != AUTO {
            let spec = self.parse(text).map_err(|error| match error {
                CodecError::Unknown { name, known } => {
                    CodecError::Unknown { name, known: format!("{known}, {AUTO}") }
                }
                error => error,
            });
            let spec = spec?;
            return spec.check_on_path().map(|()| Selection::Codec(spec));
        }
        if rest.trim().is_empty() {
            return Ok(Selection::Auto(Selection::default_candidates()));
        }
        let (key, list) = rest.split_once('=').unwrap_or((rest, ""));
        if key.trim() != "codecs" {
            let (codec, key) = (AUTO.to_owned(), key.trim().to_owned());
            let known = "codecs".to_owned();
            return Err(CodecError::UnknownArgument { codec, key, known });
        }
        let wrong = |expected: &str| CodecError::Argument {
            codec: AUTO.to_owned(),
            key: "codecs".to_owned(),
            value: list.to_owned(),
            expected: expected.to_owned(),
        };
        let mut candidates: Vec<Spec> = Vec::new();
        for text in list.split('+').map(str::trim) {
            if text.is_empty() {
                return Err(wrong("one or more codecs with '+' between them"));
            }
            let spec = self.parse(text)?;
            spec.check_on_path()?;
            if let Some(reason) = unfit(&spec) {
                let (codec, reason) = (spec.to_string(), reason.to_owned());
                return Err(CodecError::Unsupported { codec, reason });
            }
            if candidates.contains(&spec) {
                return Err(wrong("each codec once"));
            }
            candidates.push(spec);
        }
        Ok(Selection::Auto(candidates))
    }
}

/// Why a codec cannot be one that is chosen, if it cannot.
fn unfit(spec: &Spec) -> Option<&'static str> {
    if spec.momentum.is_some() {
        return Some(
            "a tensor that auto leaves uncompressed would have no momentum: give it to the \
             optimizer",
        );
    }
    match spec.scheme {
        Scheme::PowerSgd { .. } => {
            Some("it sums factors of matrices in two rounds, so it is the only codec or none")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select(text: &str) -> Result<Selection, String> {
        Registry::new().select(text).map_err(|error| error.to_string())
    }

    #[test]
    fn auto_chooses_from_what_loses_least_unless_others_are_listed() {
        let auto = select("auto").unwrap();
        assert_eq!(auto, Selection::Auto(Selection::default_candidates()));
        let names: Vec<&str> = auto.specs().iter().map(|spec| spec.scheme.name()).collect();
        assert_eq!(names, ["bf16", "int8"]);
        for text in ["auto", " auto: ", "auto:codecs=bf16+int8", "auto:codecs = bf16 + int8"] {
            assert_eq!(select(text).unwrap().to_string(), "auto", "{text}");
        }
        let listed = select("auto:codecs=topk:nan=skip,k=0.01+int8:ef=false").unwrap();
        assert_eq!(listed.specs().len(), 2);
        let canonical = "auto:codecs=topk:k=0.01,nan=skip+int8:ef=false";
        assert_eq!(listed.to_string(), canonical);
        assert_eq!(select(canonical).unwrap(), listed);
    }

    #[test]
    fn a_codec_is_selected_as_it_is() {
        let selected = select("topk:k=0.01").unwrap();
        assert_eq!(selected, Selection::Codec("topk:k=0.01".parse().unwrap()));
        assert_eq!((selected.to_string(), selected.specs().len()), ("topk:k=0.01".to_owned(), 1));
    }

    #[test]
    fn what_auto_cannot_choose_is_refused_by_name() {
        let refused = [
            ("mystery", "no codec is called 'mystery': give one of fp16"),
            ("mystery", "powersgd, auto"),
            ("auto:codecs=int8+mystery", "no codec is called 'mystery'"),
            ("auto:codecs=auto", "no codec is called 'auto'"),
            ("auto:k=0.1", "codec auto takes no argument 'k': give codecs"),
            ("auto:int8", "codec auto takes no argument 'int8'"),
            ("auto:codecs=", "codec auto: codecs=: give one or more codecs with '+'"),
            ("auto:codecs=int8+", "give one or more codecs"),
            ("auto:codecs=int8+bf16+int8", "give each codec once"),
            ("auto:codecs=int8:momentum=0.9", "codec int8:momentum=0.9 cannot be used here: a t"),
            ("auto:codecs=powersgd", "codec powersgd:rank=4 cannot be used here: it sums factors"),
            ("auto:codecs=int8:scale=shared", "ranks would have to agree on the scale"),
            (
                "int8:scale=shared,ef=false",
                "codec int8:scale=shared,ef=false cannot be used here: ranks",
            ),
            ("int8:scale=shared", "twice the bytes: use int8, of which each block has a scale"),
            ("auto:codecs=topk", "k=: give a part of all elements"),
        ];
        for (text, expected) in refused {
            let error = select(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
