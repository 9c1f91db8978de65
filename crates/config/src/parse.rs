//! Texts to values. A parser returns `None` for what it does not accept; the table's row says
//! what would have been accepted.

use std::ops::RangeInclusive;
use std::str::FromStr;

/// One kibibyte.
pub const KIB: u64 = 1 << 10;
/// One mebibyte.
pub const MIB: u64 = 1 << 20;
/// One gibibyte.
pub const GIB: u64 = 1 << 30;
/// One tebibyte.
pub const TIB: u64 = 1 << 40;
/// One pebibyte.
pub const PIB: u64 = 1 << 50;

/// The suffixes of sizes, in lower case: binary with an `i`, decimal without.
const UNITS: [(&str, u64); 10] = [
    ("kib", KIB),
    ("mib", MIB),
    ("gib", GIB),
    ("tib", TIB),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("b", 1),
    ("", 1),
];

/// A number of bytes: `65536`, `1MiB`, `4 MB`, `0.5GiB`.
pub fn size(text: &str) -> Option<u64> {
    let text = text.trim().to_ascii_lowercase();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (_, unit) = UNITS.iter().find(|(name, _)| *name == suffix.trim_start())?;
    match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(*unit),
        Some((whole, fraction)) => {
            let whole = whole.parse::<u64>().ok()?.checked_mul(*unit)?;
            whole.checked_add(fraction_of(fraction, *unit)?)
        }
    }
}

/// `0.fraction * unit` in integers, if that is a whole number of bytes.
fn fraction_of(fraction: &str, unit: u64) -> Option<u64> {
    let scale = 10u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let scaled = u128::from(fraction.parse::<u64>().ok()?).checked_mul(u128::from(unit))?;
    if scaled % scale != 0 {
        return None;
    }
    u64::try_from(scaled / scale).ok()
}

/// A size within limits and a multiple of `step`.
pub fn size_in(text: &str, range: RangeInclusive<u64>, step: u64) -> Option<u64> {
    size(text).filter(|bytes| range.contains(bytes) && bytes % step == 0)
}

/// A number within limits.
pub fn number<T: FromStr + PartialOrd>(text: &str, range: RangeInclusive<T>) -> Option<T> {
    text.trim().parse().ok().filter(|n| range.contains(n))
}

/// `1`, `true`, `yes`, `on` and their opposites.
pub fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

/// `HOST:PORT`, with an IPv6 address in brackets.
pub fn host_port(text: &str) -> Option<String> {
    let text = text.trim();
    let (host, port) = text.rsplit_once(':')?;
    let bracketed = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let named = !host.is_empty() && host.chars().all(plain);
    let port = number(port, 1..=u16::MAX);
    (bracketed || named).then_some(())?;
    port.map(|_| text.to_owned())
}

/// A name of at most `limit` bytes without white space or control characters.
pub fn word(text: &str, limit: usize) -> Option<String> {
    let text = text.trim();
    let fine = |c: char| !c.is_whitespace() && !c.is_control();
    (!text.is_empty() && text.len() <= limit && text.chars().all(fine)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_take_binary_and_decimal_suffixes_in_any_case() {
        assert_eq!(size("65536"), Some(65_536));
        assert_eq!(size("1MiB"), Some(MIB));
        assert_eq!(size("4 MB"), Some(4_000_000));
        assert_eq!(size("0.5gib"), Some(GIB / 2));
        assert_eq!(size("12b"), Some(12));
        assert_eq!(size("1.5KiB"), Some(1536));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "MiB", "-1", "1 MiB extra", "1..5k", "0.3", "1.b", "1e6", "1K", "٣"] {
            assert_eq!(size(text), None, "{text:?}");
        }
        assert_eq!(size("99999999999999999999"), None);
        assert_eq!(size("18446744073709551615KiB"), None);
        assert_eq!(size("0.00000000000000000000000000000000000000001GiB"), None);
    }

    #[test]
    fn addresses_need_a_host_and_a_port() {
        assert_eq!(host_port("node-1:29400").as_deref(), Some("node-1:29400"));
        assert_eq!(host_port("[::1]:80").as_deref(), Some("[::1]:80"));
        for text in ["node", ":1", "node:", "node:0", "node:99999", "::1:80", "http://a:1", "[]:1"]
        {
            assert_eq!(host_port(text), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_size_or_refused(text in ".{0,40}") {
            let _ = size(&text);
            let _ = host_port(&text);
        }

        #[test]
        fn a_plain_number_of_bytes_is_itself(bytes: u64) {
            prop_assert_eq!(size(&bytes.to_string()), Some(bytes));
        }
    }
}
