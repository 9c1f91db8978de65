//! Choices a plan leaves to its user, for comparison with what the literature does.

use std::str::FromStr;

/// Which machines' servers may sum. Everything in the literature is a restriction of the rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Architecture {
    /// All, in the optimal shares.
    #[default]
    Sumpter,
    /// Those of GPU machines only: all-reduce, the rule's `k = 0`.
    Allreduce,
    /// Those of CPU machines only: a parameter server that is not colocated.
    Ps,
}

/// How partitions are given to servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dealing {
    /// Every window of the stream in proportion: [`Dealer`](crate::Dealer).
    #[default]
    Balanced,
    /// By hash, in proportion on average: [`HashedDealer`](crate::HashedDealer).
    Hashed,
}

impl FromStr for Architecture {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "sumpter" => Ok(Self::Sumpter),
            "allreduce" => Ok(Self::Allreduce),
            "ps" => Ok(Self::Ps),
            _ => Err(()),
        }
    }
}

impl Architecture {
    /// The word that [`FromStr`] takes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Sumpter => "sumpter",
            Self::Allreduce => "allreduce",
            Self::Ps => "ps",
        }
    }
}

impl FromStr for Dealing {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "balanced" => Ok(Self::Balanced),
            "hashed" => Ok(Self::Hashed),
            _ => Err(()),
        }
    }
}

impl Dealing {
    /// The word that [`FromStr`] takes.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Balanced => "balanced",
            Self::Hashed => "hashed",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_are_written() {
        for choice in [Architecture::Sumpter, Architecture::Allreduce, Architecture::Ps] {
            assert_eq!(choice.word().parse(), Ok(choice));
        }
        for choice in [Dealing::Balanced, Dealing::Hashed] {
            assert_eq!(choice.word().parse(), Ok(choice));
        }
        assert_eq!("ring".parse::<Architecture>(), Err(()));
        assert_eq!("random".parse::<Dealing>(), Err(()));
    }
}
