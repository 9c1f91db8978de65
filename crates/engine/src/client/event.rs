//! What a client reports to its driver.

use std::ops::Range;

use sumpter_types::{ExactSum, Round, TensorId};
use sumpter_wire::Tier;

use super::op::OpId;
use super::order::OrderSpan;

/// What happened to an operation.
#[derive(Debug, PartialEq, Eq)]
pub enum Event<M> {
    /// The result is there, or the operation failed with a reason.
    Finished(OpId, Result<(), String>),
    /// One more chunk of the result of an operation that is supplied in chunks is in the memory; in
    /// order, and before the operation is finished.
    Arrived {
        /// The operation.
        op: OpId,
        /// The partition's number.
        number: u32,
        /// The chunk.
        chunk: u32,
    },
    /// A partition of an operation that is supplied in chunks, and receives nothing of it, is over:
    /// its contribution is not needed any more. Before the operation is finished.
    PartitionDone {
        /// The operation.
        op: OpId,
        /// The partition's number.
        number: u32,
    },
    /// All mirrors have a partition of a variable, of an operation that is supplied in chunks: its
    /// contributions are not needed again. After its chunks have arrived.
    Mirrored {
        /// The operation.
        op: OpId,
        /// The partition's number.
        number: u32,
    },
    /// More of the result of an operation that is supplied in ranges is final and in the memory;
    /// each byte once, before the operation is finished.
    Available {
        /// The operation.
        op: OpId,
        /// Bytes of the tensor.
        bytes: Range<usize>,
    },
    /// The squares of the gradient of an operation whose update was deferred have this sum: the
    /// round waits for [`Client::decide`](super::Client::decide). Once for each operation.
    Norm {
        /// The operation.
        op: OpId,
        /// The sum over the whole tensor.
        squares: ExactSum,
    },
    /// The same of a partition of an operation that is supplied in chunks; perhaps more than once.
    PartitionNorm {
        /// The operation.
        op: OpId,
        /// The partition's number.
        number: u32,
        /// The sum over the partition.
        squares: ExactSum,
    },
    /// In which order an operation has changed a variable asynchronously: all of its elements, in
    /// ascending order. Before the operation is finished.
    Ordered {
        /// The operation.
        op: OpId,
        /// By stretches.
        order: Vec<OrderSpan>,
    },
    /// Everyone has a round's result of a partition of which this worker streams a subtotal.
    DeliveredToAll {
        /// The tensor.
        tensor: TensorId,
        /// The tier to which the subtotal goes.
        tier: Tier,
        /// The partition's number.
        number: u32,
        /// The round.
        round: Round,
    },
    /// The memory is no longer used.
    Released(OpId, M),
}
