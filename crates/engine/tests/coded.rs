//! Encoded rounds by the hundred, over connections that break: what was contributed is in the
//! results, or was left out.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use sumpter_codec::Registry;
use sumpter_endpoint::{ConnId, OwnedMemory};
use sumpter_engine::{
    Carrier, Client, ClientSettings, Coding, Event, Lane, LaneLimits, Layout, Peer, Place, Request,
    Supply, exchange,
};
use sumpter_transport::in_process;
use sumpter_types::{Collective, Dtype, Epoch, GroupId, JobId, Rank, ReduceOp, TensorId};
use sumpter_wire::Tier;

const WORKERS: u32 = 3;
const ELEMENTS: usize = 2500;
const LANE: ConnId = ConnId(0);
const JOB: JobId = JobId(1);

struct Job {
    rng: Rng,
    epoch: Epoch,
    lane: Lane,
    workers: Vec<(Client<OwnedMemory>, ConnId)>,
    cuts: u32,
}

fn settings(rank: u32, epoch: Epoch) -> ClientSettings {
    ClientSettings {
        rank: Rank(rank),
        world_size: WORKERS,
        epoch,
        chunk_bytes: 4096,
        credit_bytes: 1 << 20,
        deterministic: true,
        checksum: false,
    }
}

fn peer(rank: u32, epoch: Epoch) -> Peer {
    let (job, rank, world_size) = (JOB, Rank(rank), WORKERS);
    Peer { job, rank, world_size, epoch, keeps: false, checksum: false }
}

/// Partitions of a block or two; each worker keeps what is left out of the sum of one.
fn layout(codec: Option<&str>) -> Layout {
    let elements = ELEMENTS as u64;
    let coding = codec.map(|text| {
        let coding = Coding::new(&Registry::new(), &text.parse().unwrap(), elements, 0..elements);
        Arc::new(coding.unwrap())
    });
    let keeps = coding.as_ref().is_some_and(|coding| coding.codec().feeds_back_sums());
    let cuts = [0, 1024, 2048, ELEMENTS];
    let place = |number: usize| {
        let (start, end) = (4 * cuts[number], 4 * cuts[number + 1]);
        let place = Place::new(LANE, number as u32, (start, end - start), GroupId(0), WORKERS);
        let carrier = Carrier { rank: Rank(number as u32), contributions: WORKERS };
        Place { carrier: keeps.then_some(carrier), ..place }
    };
    Layout::new((0..3).map(place).collect()).coded(coding)
}

impl Job {
    fn new(codec: &str) -> Job {
        let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: false };
        let (lane, epoch) = (Lane::new(limits), Epoch(1));
        let client = |rank| {
            let mut client = Client::new(settings(rank, epoch), 1);
            client.register(TensorId(0), Tier::Root, layout(Some(codec)));
            (client, LANE)
        };
        let workers = (0..WORKERS).map(client).collect();
        let mut job = Job { rng: Rng::with_seed(7), epoch, lane, workers, cuts: 0 };
        (0..WORKERS).for_each(|rank| job.connect(rank));
        job
    }

    /// The first worker shares its process with the lane.
    fn connect(&mut self, rank: u32) {
        let (client, conn) = &mut self.workers[rank as usize];
        let peer = peer(rank, self.epoch);
        *conn = if rank == 0 {
            client.attached(LANE);
            self.lane.open_resident(peer).unwrap()
        } else {
            client.connected(LANE);
            self.lane.open(peer).unwrap().0
        };
    }

    /// Another epoch, in which the tensor may not be encoded.
    fn change(&mut self, codec: Option<&str>) {
        self.lane.end_job(JOB);
        self.epoch = Epoch(self.epoch.0 + 1);
        for rank in 0..WORKERS {
            let client = &mut self.workers[rank as usize].0;
            client.suspend();
            client.resume(settings(rank, self.epoch), 1);
            client.lay_out(TensorId(0), Tier::Root, layout(codec));
            self.connect(rank);
        }
    }

    /// A round of these contributions, while connections break; its result.
    fn round(&mut self, contributions: &[Vec<f32>], rescale: f32) -> Vec<f32> {
        let request = Request {
            tensor: TensorId(0),
            tier: Tier::Root,
            collective: Collective::AllReduce,
            dtype: Dtype::F32,
            op: ReduceOp::Sum,
            root: Rank(0),
            average: false,
            priority: 0,
            supply: Supply::Whole,
            call: None,
            update: None,
            rescale,
        };
        for ((client, _), x) in self.workers.iter_mut().zip(contributions) {
            let bytes = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
            client.submit(request, OwnedMemory { separate: None, bytes });
        }
        let mut results = vec![None; self.workers.len()];
        while results.iter().any(Option::is_none) {
            let rank = self.rng.u32(0..WORKERS);
            let (client, conn) = &mut self.workers[rank as usize];
            let budget = self.rng.usize(1..6000);
            let (on_client, on_lane) = ((&mut *client, LANE), (&mut self.lane, *conn));
            in_process(on_client, on_lane, Duration::ZERO, budget).unwrap();
            if rank == 0 {
                exchange((client, LANE), (&mut self.lane, *conn), budget).unwrap();
            }
            while let Some(event) = self.workers[rank as usize].0.next_event() {
                match event {
                    Event::Finished(_, outcome) => assert_eq!(outcome, Ok(())),
                    Event::Released(_, memory) => results[rank as usize] = Some(memory.bytes),
                    _ => {}
                }
            }
            if rank > 0 && self.rng.u32(0..40) == 0 {
                let (client, conn) = &mut self.workers[rank as usize];
                client.disconnected(LANE);
                self.lane.close(*conn);
                self.connect(rank);
                self.cuts += 1;
            }
        }
        let results: Vec<Vec<u8>> = results.into_iter().flatten().collect();
        assert!(results.iter().all(|result| *result == results[0]), "all get the same bytes");
        results[0].as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect()
    }

    fn left_out(&self) -> Vec<f64> {
        let mut all = vec![0.0; ELEMENTS];
        for (client, _) in &self.workers {
            let residual = client.residual(TensorId(0)).expect("error feedback");
            for (all, x) in all.iter_mut().zip(residual.as_chunks().0) {
                *all += f64::from(f32::from_ne_bytes(*x));
            }
        }
        all
    }
}

fn contributions(rng: &mut Rng, whole: bool) -> Vec<Vec<f32>> {
    let mut value = || match whole {
        true => rng.i32(-8..9) as f32,
        false => rng.f32() - 0.5,
    };
    (0..WORKERS).map(|_| (0..ELEMENTS).map(|_| value()).collect()).collect()
}

#[test]
fn a_thousand_rounds_lose_nothing_over_connections_that_break() {
    // How far off a sum of so many rounds may be by rounding.
    for (codec, rounds, off) in [
        ("topk:k=0.25", 1000, 0.0),
        ("topk:k=0.25,two_way=false", 1000, 0.0),
        ("onebit", 1000, 0.05),
        ("int8:sum_ef=true", 1000, 0.01),
        ("dithering:bits=4,ef=true,two_way=false", 300, 0.01),
        ("fp8:two_way=false", 300, 0.01),
    ] {
        let (mut job, mut rng) = (Job::new(codec), Rng::with_seed(1));
        let mut contributed = vec![0.0; ELEMENTS];
        let mut got = vec![0.0; ELEMENTS];
        for _ in 0..rounds {
            let all = contributions(&mut rng, off == 0.0);
            for x in &all {
                contributed.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let result = job.round(&all, 1.0);
            got.iter_mut().zip(result).for_each(|(sum, x)| *sum += f64::from(x));
        }
        assert!(job.cuts > rounds / 10, "{} cuts", job.cuts);
        let left = job.left_out();
        for (at, ((contributed, got), left)) in contributed.iter().zip(&got).zip(&left).enumerate()
        {
            let lost = contributed - (got + left);
            assert!(lost.abs() <= off, "{codec}: element {at} lost {lost} of {contributed}");
            // It is left out for some rounds, not for ever.
            assert!(left.abs() < 500.0, "{codec}: {left} left of element {at}");
        }
    }
}

#[test]
fn what_was_left_out_goes_with_the_next_contribution_when_nothing_is_encoded_any_more() {
    let (mut job, mut rng) = (Job::new("topk:k=0.25"), Rng::with_seed(2));
    let mut left = [0.0; ELEMENTS];
    for codec in [Some("topk:k=0.25"), Some("topk:k=0.25"), None] {
        job.change(codec);
        let all = contributions(&mut rng, true);
        for x in &all {
            left.iter_mut().zip(x).for_each(|(left, x)| *left += f64::from(*x));
        }
        let result = job.round(&all, 1.0);
        left.iter_mut().zip(&result).for_each(|(left, x)| *left -= f64::from(*x));
        assert_eq!(job.left_out(), left);
    }
    assert_eq!(left, [0.0; ELEMENTS]);
}

#[test]
fn what_is_left_out_is_rescaled_with_the_learning_rate() {
    let mut job = Job::new("topk:k=0.25,two_way=false");
    let ones = || vec![vec![1.0; ELEMENTS]; WORKERS as usize];
    let first = job.round(&ones(), 1.0);
    // Each block kept its first quarter: the others are next, times the change of the rate.
    let second = job.round(&ones(), 0.5);
    assert_eq!((first[0], first[1023]), (3.0, 0.0));
    assert_eq!((second[0], second[256], second[1023]), (0.0, 4.5, 0.0));
    let left = job.left_out();
    assert_eq!((left[0], left[256], left[1023]), (3.0, 0.0, 4.5));
}
