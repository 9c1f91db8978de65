//! How a worker reaches the lane in its own process.

use std::str::FromStr;

/// How a worker reaches the lane in its own process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colocated {
    /// By reading and writing the tensor where it is.
    #[default]
    InProcess,
    /// Over TCP like any other lane; to see what the direct way saves.
    Tcp,
}

impl FromStr for Colocated {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "in-process" => Ok(Self::InProcess),
            "tcp" => Ok(Self::Tcp),
            _ => Err(()),
        }
    }
}
