//! Lists and durations in messages.

use std::time::Duration;

/// Entries of a list in a message; a thousand ranks would bury what it says.
pub(crate) const LIST_LIMIT: usize = 16;

/// `30 s`, `2.5 s`.
pub(crate) fn seconds(duration: Duration) -> String {
    let text = format!("{:.2}", duration.as_secs_f64());
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// The entries with commas between; a long list is cut and says how much is left out.
pub(crate) fn list<T: ToString>(entries: impl IntoIterator<Item = T>) -> String {
    let mut entries = entries.into_iter();
    let shown: Vec<String> =
        entries.by_ref().take(LIST_LIMIT).map(|entry| entry.to_string()).collect();
    let text = shown.join(", ");
    match entries.count() {
        0 => text,
        rest => format!("{text} and {rest} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_as_short_as_they_can_be() {
        assert_eq!(seconds(Duration::from_secs(30)), "30 s");
        assert_eq!(seconds(Duration::from_millis(2500)), "2.5 s");
        assert_eq!(seconds(Duration::from_millis(50)), "0.05 s");
        assert_eq!(seconds(Duration::ZERO), "0 s");
    }

    #[test]
    fn long_lists_are_cut() {
        assert_eq!(list([1, 2]), "1, 2");
        assert_eq!(list(Vec::<u32>::new()), "");
        assert!(list(0..20).ends_with("15 and 4 more"));
    }
}
