//! The order in which workers change variables asynchronously: it must explain every value that any
//! of them got, and give the same values when it is followed.

use std::collections::HashMap;

use sumpter_engine::OrderSpan;
use sumpter_types::{Rank, TensorId};

use crate::model;
use crate::tensor::Tensor;
use crate::world::{Size, World};

/// By the tensor's index, the worker and the round.
pub type Orders = HashMap<(usize, Rank, u32), Vec<OrderSpan>>;

/// A stretch of a round of a worker.
type Turn = (u32, Rank, u32);

impl Tensor {
    /// Checks that the positions of each element are those of all rounds of all workers, each
    /// once, and that each worker got what its answers say.
    pub fn check_order(
        &self,
        index: usize,
        orders: &Orders,
        results: impl Fn(Rank, u32) -> Vec<u8>,
    ) {
        let TensorId(id) = self.request.tensor;
        let rounds =
            || (0..self.rounds).flat_map(|round| self.everyone.iter().map(move |r| (*r, round)));
        let mut turns: Vec<Vec<Turn>> = vec![Vec::new(); self.elements];
        for (rank, round) in rounds() {
            let mut next = 0;
            for OrderSpan { elements, position, .. } in &orders[&(index, rank, round)] {
                assert_eq!(elements.start, next, "an order with gaps: {self:?}");
                next = elements.end;
                turns[elements.clone()].iter_mut().for_each(|t| t.push((*position, rank, round)));
            }
            assert_eq!(next, self.elements, "an order of some elements: {self:?}");
        }
        for (element, turns) in turns.iter_mut().enumerate() {
            turns.sort_unstable();
            let positions: Vec<u32> = turns.iter().map(|turn| turn.0).collect();
            let all: Vec<u32> = (0..turns.len() as u32).collect();
            assert_eq!(positions, all, "element {element}: {turns:?}: {self:?}");
        }
        for (rank, round) in rounds() {
            let result = results(rank, round);
            for span in &orders[&(index, rank, round)] {
                let values = span.elements.clone().map(|element| {
                    let first = &turns[element][..span.answer as usize];
                    let deltas = first.iter().map(|(_, rank, _)| model::delta(rank.0, element));
                    model::initial(id, element) + deltas.sum::<i64>() as f64
                });
                let size = self.request.dtype.size();
                let got = &result[span.elements.start * size..span.elements.end * size];
                let expected = model::encode(self.request.dtype, values);
                assert_eq!(got, expected, "{span:?} of round {round} of rank {rank}: {self:?}");
            }
        }
    }
}

impl World {
    /// Another run of the same tensors that follows the orders of this one, with other machines,
    /// partitions and chunks; nothing if no tensor has an order, or one failed too early.
    pub fn replay(&self, seed: u64) -> Option<World> {
        let orders = self.orders();
        let is_whole = !orders.is_empty() && self.refused.is_empty();
        is_whole.then(|| World::following(seed, &Size::SMALL, Some(orders)))
    }

    /// Checks that a replay has given the same, in the same order.
    pub fn check_replay(&self, replay: &World) {
        let (orders, again) = (self.orders(), replay.orders());
        for (key, order) in &orders {
            let (index, rank, round) = *key;
            assert_eq!(again[key], *order, "tensor {index}, round {round} of rank {rank}");
            let same = self.result(index, rank, round) == replay.result(index, rank, round);
            assert!(same, "other bytes of tensor {index} in round {round} of rank {rank}");
        }
    }
}
