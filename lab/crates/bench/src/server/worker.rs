//! A worker that computes nothing: a thread with the client of a real one.

use sumpter_engine::{Client, ClientSettings, Event, OpMemory, Place, Recovery, Request, Supply};
use sumpter_types::{Collective, Dtype, Rank, ReduceOp, TensorId, Update};
use sumpter_wire::Tier;

use super::updates::{self, Reference};
use super::{EPOCH, Pages, Piece, RawClient, ServerSpec, Variant};
use crate::driver::Driver;
use crate::error::BenchError;
use crate::pattern::Pattern;

/// The commands of a worker, with the index of a variant.
#[derive(Clone, Copy, Debug)]
pub(super) enum Order {
    /// One round of all tensors.
    Round(usize),
    /// Compare the results of the last round with what they must be.
    Check(usize),
}

pub(super) struct Worker {
    rank: Rank,
    memory: Vec<Pages>,
    /// By variant.
    drivers: Vec<Driver>,
    variants: Vec<(Variant, Sender, Expected)>,
    pieces: Vec<Vec<Piece>>,
}

/// How a variant sends.
enum Sender {
    Frames(Box<Engine>),
    Plain,
}

/// The client of a variant that sends frames.
struct Engine {
    client: Client<OpMemory<Pages>>,
    recovery: Recovery,
    update: Option<Update>,
}

/// What the results of a variant must be.
enum Expected {
    Always(Pattern),
    Updated(Reference),
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
        let sum = (1..=spec.workers as u32).sum();
        let variant = |variant| {
            let engine = |update| Engine::new(spec, places, rank, (variant, update));
            let frames = |update| Sender::Frames(Box::new(engine(update)));
            let always = |scale| Expected::Always(Pattern::new(scale));
            let (sender, expected) = match variant {
                Variant::Sum | Variant::Ordered => (frames(None), always(sum)),
                // Servers that do not sum answer with zeros.
                Variant::Relay => (frames(None), always(0)),
                Variant::Raw => (Sender::Plain, always(0)),
                Variant::Bare => (Sender::Plain, always(sum)),
                Variant::Update(rule) => {
                    let update = updates::update(rule);
                    (frames(Some(update)), Expected::Updated(Reference::new(update, sum)))
                }
            };
            (variant, sender, expected)
        };
        let variants = spec.variants().into_iter().map(variant).collect();
        Worker { rank, memory, drivers, variants, pieces: pieces(spec, places) }
    }

    pub(super) fn obey(&mut self, order: Order) -> Result<(), BenchError> {
        match order {
            Order::Round(variant) => self.round(variant),
            Order::Check(variant) => self.check(variant),
        }
        .inspect_err(|_| {
            // The others wait for this worker's contributions: they must not wait for ever.
            self.drivers.clear();
        })
    }

    fn round(&mut self, variant: usize) -> Result<(), BenchError> {
        let driver = self.drivers.get_mut(variant).ok_or(BenchError::Interrupted)?;
        let memory = std::mem::take(&mut self.memory);
        self.memory = match &mut self.variants[variant].1 {
            Sender::Frames(engine) => engine.round(driver, memory)?,
            Sender::Plain => raw_round(driver, memory, self.pieces.clone())?,
        };
        Ok(())
    }

    fn check(&mut self, variant: usize) -> Result<(), BenchError> {
        let (variant, _, expected) = &mut self.variants[variant];
        let expected = match expected {
            Expected::Always(pattern) => pattern,
            Expected::Updated(reference) => reference.step(),
        };
        for (tensor, memory) in self.memory.iter_mut().enumerate() {
            if let Some(at) = memory.check(expected) {
                return Err(BenchError::Wrong(format!(
                    "{variant:?}: rank {} has a wrong tensor {tensor} from byte {at} on",
                    self.rank
                )));
            }
        }
        Ok(())
    }
}

impl Engine {
    fn new(
        spec: &ServerSpec,
        places: &[Vec<Place>],
        rank: Rank,
        (variant, update): (Variant, Option<Update>),
    ) -> Engine {
        let mut recovery = Recovery::default();
        let mut client = client(spec, rank, variant == Variant::Ordered);
        let variables = update.map(|_| updates::variables(spec, places));
        let places = variables.as_deref().unwrap_or(places);
        for (index, places) in places.iter().enumerate() {
            client.register(TensorId(index as u32), Tier::Root, places.clone());
        }
        (0..spec.lanes).for_each(|lane| client.connected(sumpter_endpoint::ConnId(lane)));
        if let Some(update) = update {
            updates::fill(&mut client, &mut recovery, rank, (update, places));
        }
        Engine { client, recovery, update }
    }

    fn round(&mut self, driver: &mut Driver, memory: Vec<Pages>) -> Result<Vec<Pages>, BenchError> {
        let Engine { client, recovery, update } = self;
        let mut returned: Vec<_> = memory.iter().map(|_| None).collect();
        let mut left = returned.len();
        let mut first = None;
        for (index, memory) in memory.into_iter().enumerate() {
            let id = client.submit(request(index, *update), OpMemory::Tensor(memory));
            first.get_or_insert(id.0);
        }
        let first = first.unwrap_or(0);
        driver.flush(client)?;
        while left > 0 {
            driver.turn(client)?;
            while let Some(event) = client.next_event() {
                match recovery.on_event(event, client) {
                    Some(Event::Finished(_, Err(reason))) => return Err(BenchError::Wrong(reason)),
                    Some(Event::Released(id, OpMemory::Tensor(memory))) => {
                        returned[(id.0 - first) as usize] = Some(memory);
                        left -= 1;
                    }
                    Some(_) => {}
                    // A lane has a part of a variable, or refuses it.
                    None => {
                        let tensors = (0..returned.len() as u32).map(TensorId);
                        let refusal = tensors.filter_map(|id| recovery.take_refusal(id)).next();
                        refusal.map_or(Ok(()), |reason| Err(BenchError::Wrong(reason)))?;
                    }
                }
            }
        }
        if update.is_some() {
            // The others wait for what this worker acknowledges as a mirror.
            driver.drain(client)?;
        }
        Ok(returned.into_iter().flatten().collect())
    }
}

fn raw_round(
    driver: &mut Driver,
    memory: Vec<Pages>,
    pieces: Vec<Vec<Piece>>,
) -> Result<Vec<Pages>, BenchError> {
    let mut client = RawClient::new(memory, pieces);
    driver.flush(&mut client)?;
    while !client.is_done() {
        driver.turn(&mut client)?;
    }
    Ok(client.into_memory())
}

fn client(spec: &ServerSpec, rank: Rank, ordered: bool) -> Client<OpMemory<Pages>> {
    let settings = ClientSettings {
        rank,
        world_size: spec.workers as u32,
        epoch: EPOCH,
        chunk_bytes: spec.chunk_bytes as u32,
        credit_bytes: spec.credit_bytes,
        deterministic: ordered,
        checksum: false,
    };
    Client::new(settings, spec.lanes)
}

/// One round of a tensor.
pub(super) fn request(index: usize, update: Option<Update>) -> Request {
    let all_reduce = Collective::AllReduce;
    Request {
        tensor: TensorId(index as u32),
        tier: Tier::Root,
        collective: update.map_or(all_reduce, |_| Collective::Update),
        dtype: Dtype::F32,
        op: ReduceOp::Sum,
        root: Rank(0),
        average: false,
        priority: 0,
        supply: Supply::Whole,
        call: None,
        update,
        rescale: 1.0,
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
