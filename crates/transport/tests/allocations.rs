//! What a chunk costs in heap allocations once a tensor has been summed before, and in copies
//! beside the link's own: nothing, and a few bytes. Counted, for the state machines between the
//! bytes of any link.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use sumpter_codec::Registry;
use sumpter_endpoint::{ConnId, OwnedMemory};
use sumpter_engine::{
    Client, ClientSettings, Coding, Event, Lane, LaneLimits, OpMemory, Peer, Place, Recovery,
    Request, Supply, VariablePlace, exchange,
};
use sumpter_sum::AlignedBuf;
use sumpter_transport::in_process;
use sumpter_types::{
    Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, Rule, Staleness, TensorId, Update,
};
use sumpter_wire::Tier;

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    ALLOCATIONS.with(|n| n.set(n.get() + 1));
}

// SAFETY: everything is passed on to the system's allocator; counting does not allocate, since
// the counter is a constant-initialised thread-local without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CHUNK: u32 = 16 << 10;
const PARTITIONS: u32 = 4;
const WORKERS: u32 = 3;

const MOMENTUM: Rule = Rule::Sgd { momentum: true, nesterov: true };

/// What the rounds of a tensor do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rounds {
    Sum,
    /// They sum what is encoded, with error feedback.
    Encoded,
    /// They update a variable, of which each worker but the last mirrors partitions.
    Update,
}

struct Job {
    lane: Lane,
    clients: Vec<(Client<OpMemory<OwnedMemory>>, ConnId, bool)>,
    rounds: Rounds,
}

fn request(dtype: Dtype, rounds: Rounds) -> Request {
    let update = Update { keep: 0.5, step: -0.5, ..Update::new(MOMENTUM) };
    let (collective, update) = match rounds {
        Rounds::Sum | Rounds::Encoded => (Collective::AllReduce, None),
        Rounds::Update => (Collective::Update, Some(update)),
    };
    Request {
        tensor: TensorId(0),
        tier: Tier::Root,
        collective,
        dtype,
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

/// A worker puts what it mirrors into the lane.
fn fill(client: &mut Client<OpMemory<OwnedMemory>>, rank: Rank, dtype: Dtype, places: &[Place]) {
    let mirrored = |place: &&Place| place.variable.is_some_and(|v| v.is_mirror(rank));
    for place in places.iter().filter(mirrored) {
        let (first, master) = (place.origin / dtype.size(), dtype.accumulator());
        let bytes = place.bytes / dtype.size() * master.size();
        let parts = (0..=MOMENTUM.slots().len()).map(|_| AlignedBuf::new(bytes)).collect();
        let share = first..first + place.bytes / dtype.size();
        client.mirror_from(TensorId(0), (share, first), master, parts);
    }
    let request = request(dtype, Rounds::Update);
    Recovery::default().fill(client, rank, &request, 1 + MOMENTUM.slots().len());
}

impl Job {
    /// Workers and one lane, which shares the process and the memory of the first if `resident`.
    fn new(dtype: Dtype, chunks: u32, resident: bool, rounds: Rounds) -> Job {
        let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: false };
        let mut job = Job { lane: Lane::new(limits), clients: Vec::new(), rounds };
        for rank in 0..WORKERS {
            let settings = ClientSettings {
                rank: Rank(rank),
                world_size: WORKERS,
                epoch: Epoch(1),
                chunk_bytes: CHUNK,
                credit_bytes: 64 << 10,
                deterministic: false,
                checksum: false,
            };
            let mut client = Client::new(settings, 1);
            let bytes = (chunks * CHUNK) as usize;
            let place = |number: u32| {
                let stretch = (number as usize * bytes, bytes);
                let variable = VariablePlace {
                    mirrors: [Some(Rank(number % (WORKERS - 1))), None],
                    home: number,
                    offset: 0,
                    staleness: Staleness::SYNCHRONOUS,
                    lacks: false,
                };
                let variable = (rounds == Rounds::Update).then_some(variable);
                Place { variable, ..Place::new(ConnId(0), number, stretch, GroupId(0), 1) }
            };
            let places: Vec<_> = (0..PARTITIONS).map(place).collect();
            let elements = u64::from(PARTITIONS * chunks * CHUNK) / dtype.size() as u64;
            let coding = (rounds == Rounds::Encoded).then(|| {
                let (registry, spec) = (Registry::new(), "int8".parse().unwrap());
                Arc::new(Coding::new(&registry, &spec, elements, 0..elements).unwrap())
            });
            let layout = sumpter_engine::Layout::new(places.clone()).coded(coding);
            client.register(TensorId(0), Tier::Root, layout);
            let peer = Peer {
                job: JobId(1),
                rank: Rank(rank),
                world_size: WORKERS,
                epoch: Epoch(1),
                keeps: false,
                checksum: false,
            };
            let shares = resident && rank == 0;
            let conn = if shares {
                client.attached(ConnId(0));
                job.lane.open_resident(peer).unwrap()
            } else {
                client.connected(ConnId(0));
                job.lane.open(peer).unwrap().0
            };
            fill(&mut client, Rank(rank), dtype, &places);
            job.clients.push((client, conn, shares));
        }
        // Else the counter does not count.
        assert!(job.round(dtype, chunks) > 0, "the first round allocates");
        job
    }

    /// One round; the allocations while bytes moved, without those of beginning and ending it.
    fn round(&mut self, dtype: Dtype, chunks: u32) -> u64 {
        for (client, ..) in &mut self.clients {
            let bytes = vec![0; (PARTITIONS * chunks * CHUNK) as usize];
            let separate = (self.rounds == Rounds::Update).then(|| bytes.clone());
            let memory = OpMemory::Tensor(OwnedMemory { separate, bytes });
            client.submit(request(dtype, self.rounds), memory);
        }
        let before = ALLOCATIONS.with(Cell::get);
        let mut moved = 1;
        while moved > 0 {
            moved = 0;
            for (client, conn, resident) in &mut self.clients {
                let (on_client, on_lane) = ((&mut *client, ConnId(0)), (&mut self.lane, *conn));
                moved += in_process(on_client, on_lane, Duration::ZERO, 100_000).unwrap();
                if *resident {
                    let (client, lane) = ((client, ConnId(0)), (&mut self.lane, *conn));
                    moved += exchange(client, lane, 100_000).unwrap();
                }
            }
        }
        let after = ALLOCATIONS.with(Cell::get);
        for (client, ..) in &mut self.clients {
            let mut events = std::iter::from_fn(|| client.next_event());
            let outcome = events.find(|event| matches!(event, Event::Finished(..)));
            assert!(matches!(outcome, Some(Event::Finished(_, Ok(())))), "{outcome:?}");
            events.for_each(drop);
        }
        after - before
    }
}

/// A link reads as much as there is: what follows a chunk in the same read is staged and copied.
#[test]
fn of_a_large_chunk_next_to_nothing_is_copied_twice() {
    // Behind a large chunk; and where nothing was expected, in front of a burst.
    const STAGED_WITH_A_CHUNK: u64 = 512;
    const STAGED_AT_FIRST: u64 = 4096;
    let chunks = 16;
    let mut job = Job::new(Dtype::F32, chunks, false, Rounds::Sum);
    let copied = |job: &Job| {
        let clients = job.clients.iter().map(|(client, ..)| client.copied_bytes());
        [job.lane.copied_bytes(), clients.sum()]
    };
    let before = copied(&job);
    job.round(Dtype::F32, chunks);
    let partitions = u64::from(WORKERS * PARTITIONS);
    let most = partitions * (STAGED_AT_FIRST + u64::from(chunks) * STAGED_WITH_A_CHUNK);
    for (after, before) in copied(&job).into_iter().zip(before) {
        assert!((1..=most).contains(&(after - before)), "{} of {most}", after - before);
    }
}

/// Allocations of a round after some that warmed up.
fn in_a_warm_round(dtype: Dtype, chunks: u32, resident: bool, rounds: Rounds) -> u64 {
    let mut job = Job::new(dtype, chunks, resident, rounds);
    for _ in 0..3 {
        job.round(dtype, chunks);
    }
    job.round(dtype, chunks)
}

#[test]
fn a_chunk_costs_no_allocation() {
    for resident in [false, true] {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let (few, many) = (4, 64);
            let of =
                |rounds| [few, many].map(|chunks| in_a_warm_round(dtype, chunks, resident, rounds));
            // A partition whose contributor shares the process begins with a list of its chunks.
            let named = if resident { u64::from(PARTITIONS) } else { 0 };
            assert_eq!(of(Rounds::Sum), [named; 2], "{dtype:?}, resident: {resident}");
            let [few, many] = of(Rounds::Encoded);
            // What was encoded is listed by stretches, which are joined.
            assert!(few == many && many < 50, "{few}, {many} encoded, {dtype:?}, {resident}");
            // Lists of what is under way may grow, a few times in all.
            let [few, many] = of(Rounds::Update);
            let most = few + u64::from(PARTITIONS);
            assert!(many <= most, "{few}, {many} of an update, {dtype:?}, resident: {resident}");
        }
    }
}
