//! A call of a collective, as the ranks of a group count them, and the tag that names it.

use core::fmt;

/// The number of a call in its group. Rounds of one tensor match only if they are of one call.
///
/// Numbers travel in 32 bits, so two are told apart unless they differ by a multiple of 2^32 - 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallNumber(u32);

impl CallNumber {
    /// The number as programs count, from 0.
    #[must_use]
    pub fn new(number: u64) -> CallNumber {
        CallNumber((number % u64::from(u32::MAX)) as u32)
    }

    /// The field of a frame: 0 without a number, else the number and 1.
    #[must_use]
    pub fn to_field(call: Option<CallNumber>) -> u32 {
        call.map_or(0, |call| call.0 + 1)
    }

    /// The inverse of [`to_field`](Self::to_field).
    #[must_use]
    pub fn from_field(field: u32) -> Option<CallNumber> {
        field.checked_sub(1).map(CallNumber)
    }
}

impl fmt::Display for CallNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}

/// The parts of an operation's tag: `group#number|signature` of a call's first round, and
/// `group#number.round|signature` of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag<'a> {
    /// `group#number`.
    pub call: &'a str,
    /// `group#number` or `group#number.round`.
    pub position: &'a str,
    /// What was called.
    pub signature: &'a str,
    /// The call's number in the group.
    pub number: CallNumber,
}

impl<'a> Tag<'a> {
    /// `None` for free text. Groups are named by programs, so their names may have bars.
    #[must_use]
    pub fn parse(text: &'a str) -> Option<Self> {
        text.match_indices('|').find_map(|(bar, _)| {
            let (position, signature) = (&text[..bar], &text[bar + 1..]);
            let (group, place) = position.rsplit_once('#')?;
            let (number, round) = place.split_once('.').unwrap_or((place, "0"));
            let is_number =
                |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            let call = &position[..group.len() + 1 + number.len()];
            if !is_number(number) || !is_number(round) {
                return None;
            }
            let number = CallNumber::new(number.parse().ok()?);
            Some(Self { call, position, signature, number })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_may_have_bars_and_number_signs() {
        let parts = |text| Tag::parse(text).map(|tag| (tag.call, tag.position, tag.signature));
        let expected = ("allreduce.a|b#x#3", "allreduce.a|b#x#3", "all|reduce");
        assert_eq!(parts("allreduce.a|b#x#3|all|reduce"), Some(expected));
        assert_eq!(parts("g#3.12|s"), Some(("g#3", "g#3.12", "s")));
        let beyond = "g#99999999999999999999|s";
        for text in ["", "|", "#|", "g|s", "g#x|s", "g#1.|s", "g#.1|s", "g#1", "#", beyond] {
            assert_eq!(parts(text), None, "{text}");
        }
    }

    #[test]
    fn all_rounds_of_a_call_have_its_number_which_survives_the_wire() {
        let number = |text| Tag::parse(text).expect("a tag").number;
        assert_eq!(number("g#17|s"), number("g#17.2|s"));
        assert_ne!(number("g#17|s"), number("g#18|s"));
        for call in [None, Some(CallNumber::new(0)), Some(CallNumber::new(u64::from(u32::MAX) - 1))]
        {
            assert_eq!(CallNumber::from_field(CallNumber::to_field(call)), call);
        }
    }
}
