//! What a peer may say at most. Names decide who is meant, so one that is too long is refused;
//! words for people are cut, and so are lists that nothing depends on.

/// Bytes of a host's, a machine's or a job's name.
pub const MAX_NAME_BYTES: usize = 255;
/// Bytes of a tensor's name.
pub const MAX_TENSOR_NAME_BYTES: usize = 1024;
/// Bytes of a codec with its arguments.
pub const MAX_CODEC_BYTES: usize = 256;
/// Lanes of a server.
pub const MAX_LANES: usize = 1024;
/// Lanes of a worker, one for each of its event loops: the most that `io_threads` may be.
pub const MAX_LOOPS: usize = 64;
/// Workers of one job.
pub const MAX_WORLD: u32 = 65_536;
/// Tensors of one run: far above the parameters of any model, and a bound on memory.
pub const MAX_TENSORS: usize = 1 << 18;
/// Bytes of a text that a person reads: a reason, or what an operation is.
pub const MAX_TEXT_BYTES: usize = 4096;
/// Counters in a member's report. A server has one for each run, beside its own.
pub const MAX_COUNTERS: usize = 16_384;
/// Codecs of which a member says how fast they are: those that `auto` may be given.
pub const MAX_MEASURED: usize = 64;
/// Choices of codecs in a member's report: by codec and kind of reason.
pub const MAX_CHOICES: usize = 256;
/// Operations of a kind in a member's report; a worker lists 64.
pub const MAX_PENDING: usize = 256;

/// Whether such a name is possible; `what` says whose it is.
///
/// # Errors
/// In words, if it is empty or too long, or has control characters, which would reach terminals.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    check_length(&format!("the {what}'s name"), name, MAX_NAME_BYTES)?;
    match name.chars().find(|letter| letter.is_control()) {
        Some(letter) => Err(format!("the {what}'s name has the control character {letter:?}")),
        None => Ok(()),
    }
}

/// Whether a tensor may have such a name.
///
/// # Errors
/// In words, if it is empty or too long.
pub fn check_tensor_name(name: &str) -> Result<(), String> {
    check_length("a tensor's name", name, MAX_TENSOR_NAME_BYTES)
}

/// Whether this can be what a tensor is compressed by.
///
/// # Errors
/// In words, if it is too long.
pub fn check_compression(codec: &str) -> Result<(), String> {
    check_length("a codec with its arguments", codec, MAX_CODEC_BYTES)
}

fn check_length(what: &str, name: &str, most: usize) -> Result<(), String> {
    match name.len() {
        length if (1..=most).contains(&length) => Ok(()),
        length => Err(format!("{what} has {length} bytes; it needs 1 to {most}")),
    }
}

/// Words for people, as long as they may be.
#[must_use]
pub fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT_BYTES {
        text.truncate(text.floor_char_boundary(MAX_TEXT_BYTES));
        text.shrink_to_fit();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_at_least_one_byte_and_not_too_many() {
        assert_eq!(check_name("host", &"h".repeat(MAX_NAME_BYTES)), Ok(()));
        let refused = check_name("host", &"h".repeat(MAX_NAME_BYTES + 1));
        assert_eq!(refused, Err("the host's name has 256 bytes; it needs 1 to 255".to_owned()));
        assert!(check_tensor_name("").is_err_and(|what| what.contains("0 bytes")));
        let refused = check_name("job", "red\u{1b}[2J");
        assert!(refused.is_err_and(|what| what.contains("control character '\\u{1b}'")));
    }

    #[test]
    fn words_are_cut_between_characters() {
        let words = "a".repeat(MAX_TEXT_BYTES - 1) + "é and more";
        assert_eq!(cut(words), "a".repeat(MAX_TEXT_BYTES - 1));
        assert_eq!(cut("short".to_owned()), "short");
    }
}
