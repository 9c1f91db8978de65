//! How processes reach each other, on one machine and between machines.

use std::str::FromStr;

/// How a worker reaches the lane in its own process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Colocated {
    /// By reading and writing the tensor where it is.
    #[default]
    InProcess,
    /// As it reaches any other process of its machine; to see what the direct way saves.
    Linked,
}

/// How the processes of one machine reach each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalLink {
    /// Through shared memory.
    #[default]
    Shm,
    /// Over TCP, as between machines.
    Tcp,
}

/// How the bytes of tensors go between machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fabric {
    /// Placed in the peer's memory where both ends name a provider or a device, else over TCP.
    #[default]
    Auto,
    /// Over TCP.
    Tcp,
    /// Placed, by libfabric, or not at all.
    Libfabric,
}

impl FromStr for Fabric {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            "tcp" => Ok(Self::Tcp),
            "libfabric" => Ok(Self::Libfabric),
            _ => Err(()),
        }
    }
}

impl FromStr for Colocated {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "in-process" => Ok(Self::InProcess),
            "linked" => Ok(Self::Linked),
            _ => Err(()),
        }
    }
}

impl FromStr for LocalLink {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.trim() {
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
            _ => Err(()),
        }
    }
}
