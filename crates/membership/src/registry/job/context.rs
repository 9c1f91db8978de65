//! What a job sees of its cluster, and how it acts on it.

use crate::registry::io::Options;
use crate::registry::members::Members;
use crate::registry::outbox::Outbox;
use crate::registry::tally::Tally;

pub(crate) struct Context<'a> {
    /// The job's name.
    pub name: &'a str,
    pub members: &'a Members,
    pub options: &'a Options,
    /// Gives the numbers of runs.
    pub draw: &'a mut (dyn FnMut() -> u64 + Send),
    pub tally: &'a mut Tally,
    pub outbox: &'a mut Outbox,
}
