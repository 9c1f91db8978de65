//! Every codec against its definition, at every level this processor has.

mod customs;
mod definitions;
mod feedback;
mod formats;
mod hostile;
mod inputs;
mod lowrank;
mod shared;
mod specs;
mod statistics;
mod trial;
