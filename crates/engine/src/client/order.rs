//! The order in which this worker's rounds change variables asynchronously: reported when a round
//! is over, and asked of the lanes when a log is replayed.
//!
//! Orders are about elements of the tensor, whatever partitions it is cut into.

use std::ops::Range;

use sumpter_wire::OrderEntry;

use super::op::{Op, Place};

/// A stretch of a variable, in one round of one worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderSpan {
    /// Elements of the tensor.
    pub elements: Range<usize>,
    /// How many rounds, of all workers and modulo 2^32, were in it before this one.
    pub position: u32,
    /// How many were in the value that the worker got.
    pub answer: u32,
}

impl<M> Op<M> {
    /// When the stretches of this round had their turns, once it is over.
    pub(super) fn order(&self) -> Vec<OrderSpan> {
        let mut out: Vec<OrderSpan> = Vec::new();
        let size = self.request.dtype.size();
        for (place, part) in self.places.iter().zip(&self.parts) {
            let mut start = place.origin / size;
            for OrderEntry { end, position, answer } in part.order.iter().copied() {
                let end = (place.origin + end as usize) / size;
                match out.last_mut() {
                    Some(last) if (last.position, last.answer) == (position, answer) => {
                        last.elements.end = end;
                    }
                    _ => out.push(OrderSpan { elements: start..end, position, answer }),
                }
                start = end;
            }
        }
        out
    }

    /// What of the order that the round is to follow is about a partition.
    pub(super) fn order_of(&self, place: &Place) -> Vec<OrderEntry> {
        let size = self.request.dtype.size();
        let within = place.origin / size..(place.origin + place.bytes) / size;
        let first = self.follows.partition_point(|span| span.elements.end <= within.start);
        let spans = self.follows[first..].iter();
        let spans = spans.take_while(|span| span.elements.start < within.end);
        let entry = |OrderSpan { elements, position, answer }: &OrderSpan| OrderEntry {
            end: ((elements.end.min(within.end) - within.start) * size) as u32,
            position: *position,
            answer: *answer,
        };
        spans.map(entry).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Request, Supply};
    use sumpter_endpoint::ConnId;
    use sumpter_types::{Collective, Dtype, GroupId, Rank, ReduceOp, Round, TensorId};
    use sumpter_wire::Tier;

    fn op(partition_bytes: usize) -> Op<()> {
        let request = Request {
            tensor: TensorId(0),
            tier: Tier::Worker,
            collective: Collective::Update,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority: 0,
            supply: Supply::Whole,
            call: None,
            update: None,
            rescale: 1.0,
        };
        let place = |number: usize| {
            let bytes = (number * partition_bytes, partition_bytes);
            Place::new(ConnId(0), number as u32, bytes, GroupId(0), 1)
        };
        let places: Vec<Place> = (0..96 / partition_bytes).map(place).collect();
        Op::new(request, Round(0), (), (places.into(), None))
    }

    fn span(elements: Range<usize>, position: u32) -> OrderSpan {
        OrderSpan { elements, position, answer: position + 1 }
    }

    #[test]
    fn an_order_is_the_same_whatever_the_partitions() {
        let order = [span(0..3, 7), span(3..15, 8), span(15..24, 7)];
        for partition_bytes in [8, 32, 48, 96] {
            let mut op = op(partition_bytes);
            op.follows = order.to_vec();
            for index in 0..op.places.len() {
                let entries = op.order_of(&op.places[index]);
                assert_eq!(entries.last().unwrap().end as usize, partition_bytes);
                op.parts[index].order = entries;
            }
            assert_eq!(op.order(), order, "{partition_bytes}");
        }
    }
}
