//! A worker that computes nothing: a thread with the client of a real one.

use sumpter_engine::{Client, ClientSettings, Event, Place, Request, Supply};
use sumpter_types::{Collective, Dtype, Rank, ReduceOp, TensorId};
use sumpter_wire::Tier;

use super::{EPOCH, Pages, Piece, RawClient, ServerSpec, Variant};
use crate::driver::Driver;
use crate::error::BenchError;
use crate::pattern::Pattern;

/// What a worker is told to do.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// One round of all tensors.
    Round(Variant),
    /// Compare the results of the last round with what they must be.
    Check(Variant),
}

pub(super) struct Worker {
    rank: Rank,
    workers: usize,
    memory: Vec<Pages>,
    /// By variant.
    drivers: Vec<Driver>,
    /// Of the variants that send frames.
    clients: [Client<Pages>; 3],
    pieces: Vec<Vec<Piece>>,
}

impl Worker {
    pub(super) fn new(
        spec: &ServerSpec,
        places: &[Vec<Place>],
        rank: Rank,
        drivers: Vec<Driver>,
    ) -> Worker {
        // Rank r contributes r + 1 times the pattern.
        let memory = spec.tensors.iter().map(|bytes| Pages::new(*bytes, rank.0 + 1)).collect();
        let clients = [false, true, false].map(|ordered| client(spec, places, rank, ordered));
        let (workers, pieces) = (spec.workers, pieces(spec, places));
        Worker { rank, workers, memory, drivers, clients, pieces }
    }

    pub(super) fn obey(&mut self, order: Order) -> Result<(), BenchError> {
        match order {
            Order::Round(Variant::Sum) => self.engine_round(Variant::Sum, 0),
            Order::Round(Variant::Ordered) => self.engine_round(Variant::Ordered, 1),
            Order::Round(Variant::Relay) => self.engine_round(Variant::Relay, 2),
            Order::Round(variant @ (Variant::Raw | Variant::Bare)) => self.raw_round(variant),
            Order::Check(variant) => self.check(variant),
        }
        .inspect_err(|_| {
            // The others wait for this worker's contributions: they must not wait for ever.
            self.drivers.clear();
        })
    }

    fn engine_round(&mut self, variant: Variant, client: usize) -> Result<(), BenchError> {
        let (client, driver) = (&mut self.clients[client], self.drivers.get_mut(variant as usize));
        let driver = driver.ok_or(BenchError::Interrupted)?;
        let mut returned: Vec<_> = self.memory.iter().map(|_| None).collect();
        let mut left = returned.len();
        let mut first = None;
        for (index, memory) in self.memory.drain(..).enumerate() {
            let id = client.submit(request(index), memory);
            first.get_or_insert(id.0);
        }
        let first = first.unwrap_or(0);
        driver.flush(client)?;
        while left > 0 {
            driver.turn(client)?;
            while let Some(event) = client.next_event() {
                match event {
                    Event::Finished(_, Ok(()))
                    | Event::Available { .. }
                    | Event::Ordered { .. }
                    | Event::Arrived { .. }
                    | Event::PartitionDone { .. }
                    | Event::Mirrored { .. }
                    | Event::DeliveredToAll { .. } => {}
                    Event::Finished(_, Err(reason)) => return Err(BenchError::Wrong(reason)),
                    Event::Released(id, memory) => {
                        returned[(id.0 - first) as usize] = Some(memory);
                        left -= 1;
                    }
                }
            }
        }
        self.memory = returned.into_iter().flatten().collect();
        Ok(())
    }

    fn raw_round(&mut self, variant: Variant) -> Result<(), BenchError> {
        let driver = self.drivers.get_mut(variant as usize);
        let driver = driver.ok_or(BenchError::Interrupted)?;
        let mut client = RawClient::new(std::mem::take(&mut self.memory), self.pieces.clone());
        driver.flush(&mut client)?;
        while !client.is_done() {
            driver.turn(&mut client)?;
        }
        self.memory = client.into_memory();
        Ok(())
    }

    fn check(&mut self, variant: Variant) -> Result<(), BenchError> {
        let expected = Pattern::new(match variant {
            Variant::Sum | Variant::Ordered | Variant::Bare => (1..=self.workers as u32).sum(),
            // Servers that do not sum answer with zeros.
            Variant::Relay | Variant::Raw => 0,
        });
        for (tensor, memory) in self.memory.iter_mut().enumerate() {
            if let Some(at) = memory.check(&expected) {
                return Err(BenchError::Wrong(format!(
                    "{variant:?}: rank {} has a wrong tensor {tensor} from byte {at} on",
                    self.rank
                )));
            }
        }
        Ok(())
    }
}

fn client(spec: &ServerSpec, places: &[Vec<Place>], rank: Rank, ordered: bool) -> Client<Pages> {
    let settings = ClientSettings {
        rank,
        world_size: spec.workers as u32,
        epoch: EPOCH,
        chunk_bytes: spec.chunk_bytes as u32,
        credit_bytes: spec.credit_bytes,
        deterministic: ordered,
        checksum: false,
    };
    let mut client = Client::new(settings, spec.lanes);
    for (index, places) in places.iter().enumerate() {
        client.register(TensorId(index as u32), Tier::Root, places.clone());
    }
    (0..spec.lanes).for_each(|lane| client.connected(sumpter_endpoint::ConnId(lane)));
    client
}

fn request(index: usize) -> Request {
    Request {
        tensor: TensorId(index as u32),
        tier: Tier::Root,
        collective: Collective::AllReduce,
        dtype: Dtype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        average: false,
        priority: 0,
        supply: Supply::Whole,
        update: None,
    }
}

/// What plain TCP sends over each connection: the same bytes in the same pieces.
fn pieces(spec: &ServerSpec, places: &[Vec<Place>]) -> Vec<Vec<Piece>> {
    let mut pieces = vec![Vec::new(); spec.lanes];
    for (tensor, places) in places.iter().enumerate() {
        for place in places {
            for start in (0..place.bytes).step_by(spec.chunk_bytes) {
                let bytes = spec.chunk_bytes.min(place.bytes - start);
                let offset = place.offset + start;
                pieces[place.lane.0].push(Piece { tensor, offset, bytes });
            }
        }
    }
    pieces
}
