//! How long a list of declared tensors may be.

/// Tensors of a list.
pub(crate) const MOST_LISTED: usize = 4096;

/// Whether a list may have so many tensors.
///
/// # Errors
/// In words, if it may not.
pub(super) fn check_list(tensors: usize) -> Result<(), String> {
    match tensors {
        0..=MOST_LISTED => Ok(()),
        more => Err(format!("a declaration of {more} tensors at once, of at most {MOST_LISTED}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_too_long_is_refused_with_the_limit() {
        assert_eq!(check_list(MOST_LISTED), Ok(()));
        let error = check_list(MOST_LISTED + 1).unwrap_err();
        assert!(error.contains("4097 tensors") && error.contains("at most 4096"), "{error}");
    }
}
