//! Encoded rounds by the hundred, over connections that break: what was contributed is in the
//! results, or was left out.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use sumpter_codec::Registry;
use sumpter_endpoint::{ConnId, OwnedMemory};
use sumpter_engine::{
    Carrier, Client, ClientSettings, CodecMemory, CodecMemoryError, Coding, Event, Lane,
    LaneLimits, Layout, Peer, Place, Request, Supply, exchange,
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

fn settings(rank: u32, workers: u32, epoch: Epoch) -> ClientSettings {
    ClientSettings {
        rank: Rank(rank),
        world_size: workers,
        epoch,
        chunk_bytes: 4096,
        credit_bytes: 1 << 20,
        deterministic: true,
        checksum: false,
    }
}

fn peer(rank: u32, world_size: u32, epoch: Epoch) -> Peer {
    let (job, rank) = (JOB, Rank(rank));
    Peer { job, rank, world_size, epoch, keeps: false, checksum: false }
}

/// Partitions of a block or two; each worker keeps what is left out of the sum of one.
fn layout(codec: Option<&str>, workers: u32) -> Layout {
    let elements = ELEMENTS as u64;
    let coding = codec.map(|text| {
        let coding = Coding::new(&Registry::new(), &text.parse().unwrap(), elements, 0..elements);
        Arc::new(coding.unwrap())
    });
    let keeps = coding.as_ref().is_some_and(|coding| coding.codec().feeds_back_sums());
    let cuts = [0, 1024, 2048, ELEMENTS];
    let place = |number: usize| {
        let (start, end) = (4 * cuts[number], 4 * cuts[number + 1]);
        let place = Place::new(LANE, number as u32, (start, end - start), GroupId(0), workers);
        let carrier = Carrier { rank: Rank(number as u32 % workers), contributions: workers };
        Place { carrier: keeps.then_some(carrier), ..place }
    };
    Layout::new((0..3).map(place).collect()).coded(coding)
}

/// A round; what was left out before is multiplied by `rescale`.
fn request(rescale: f32) -> Request {
    Request {
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
    }
}

impl Job {
    fn new(codec: &str) -> Job {
        Job::of(codec, WORKERS)
    }

    fn of(codec: &str, workers: u32) -> Job {
        let limits = LaneLimits { max_job_bytes: 1 << 30, max_chunk_bytes: 1 << 20, hub: false };
        let (lane, epoch) = (Lane::new(limits), Epoch(1));
        let client = |rank| {
            let mut client = Client::new(settings(rank, workers, epoch), 1);
            client.register(TensorId(0), Tier::Root, layout(Some(codec), workers));
            (client, LANE)
        };
        let clients = (0..workers).map(client).collect();
        let mut job = Job { rng: Rng::with_seed(7), epoch, lane, workers: clients, cuts: 0 };
        (0..workers).for_each(|rank| job.connect(rank));
        job
    }

    fn size(&self) -> u32 {
        self.workers.len() as u32
    }

    /// The first worker shares its process with the lane.
    fn connect(&mut self, rank: u32) {
        let peer = peer(rank, self.size(), self.epoch);
        let (client, conn) = &mut self.workers[rank as usize];
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
        for rank in 0..self.size() {
            let size = self.size();
            let client = &mut self.workers[rank as usize].0;
            client.suspend();
            client.resume(settings(rank, size, self.epoch), 1);
            client.lay_out(TensorId(0), Tier::Root, layout(codec, size));
            self.connect(rank);
        }
    }

    /// The job that goes on without this worker, whose residual goes to the first that stays. Each
    /// takes along what its codec has kept.
    fn without(mut self, leaver: usize, codec: &str) -> Job {
        let kept = |(client, _): &(Client<OwnedMemory>, ConnId)| client.codec_memory(TensorId(0));
        let given = kept(&self.workers.remove(leaver)).unwrap().residual.expect("error feedback");
        let mut next = Job::of(codec, self.size());
        let coding = layout(Some(codec), self.size()).coding.unwrap();
        for (index, (from, to)) in self.workers.iter().zip(&mut next.workers).enumerate() {
            let mut memory = kept(from).unwrap();
            if index == 0 {
                let own = memory.residual.as_mut().expect("error feedback");
                sumpter_sum::reduce(ReduceOp::Sum, Dtype::F32, own, &given);
            }
            to.0.set_codec_memory(TensorId(0), &coding, &memory).unwrap();
        }
        next.cuts = self.cuts;
        next
    }

    /// A round of these contributions, while connections break; its result.
    fn round(&mut self, contributions: &[Vec<f32>], rescale: f32) -> Vec<f32> {
        for ((client, _), x) in self.workers.iter_mut().zip(contributions) {
            let bytes = x.iter().flat_map(|x| x.to_ne_bytes()).collect();
            client.submit(request(rescale), OwnedMemory { separate: None, bytes });
        }
        let mut results = vec![None; self.workers.len()];
        while results.iter().any(Option::is_none) {
            let rank = self.rng.u32(0..self.size());
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
    contributions_of(WORKERS, rng, whole)
}

fn contributions_of(workers: u32, rng: &mut Rng, whole: bool) -> Vec<Vec<f32>> {
    let mut value = || match whole {
        true => rng.i32(-8..9) as f32,
        false => rng.f32() - 0.5,
    };
    (0..workers).map(|_| (0..ELEMENTS).map(|_| value()).collect()).collect()
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
fn workers_that_leave_in_good_order_take_nothing_along() {
    for codec in ["topk:k=0.25", "topk:k=0.25,two_way=false", "randomk:k=0.25,two_way=false"] {
        let (mut job, mut rng) = (Job::new(codec), Rng::with_seed(4));
        let mut missing = vec![0.0; ELEMENTS];
        for round in 0..300 {
            // The last of them, then the first, which carries sums for others.
            match round {
                100 => job = job.without(2, codec),
                200 => job = job.without(0, codec),
                _ => {}
            }
            let all = contributions_of(job.size(), &mut rng, true);
            for x in &all {
                missing.iter_mut().zip(x).for_each(|(sum, x)| *sum += f64::from(*x));
            }
            let result = job.round(&all, 1.0);
            missing.iter_mut().zip(result).for_each(|(sum, x)| *sum -= f64::from(x));
            assert_eq!(job.left_out(), missing, "{codec}, after round {round}");
        }
        assert!(job.cuts > 10, "{} cuts", job.cuts);
    }
}

#[test]
fn what_was_left_out_goes_with_the_next_contribution_when_nothing_is_encoded_any_more() {
    what_was_left_out_goes_with_the_next_contribution(None);
}

#[test]
fn what_one_codec_has_left_out_goes_with_what_another_encodes_that_keeps_nothing() {
    what_was_left_out_goes_with_the_next_contribution(Some("fp16"));
}

#[test]
fn what_one_codec_has_left_out_another_one_goes_on_with() {
    let rest = left_out_in_the_end(Some("topk:k=0.5,two_way=false"));
    assert_ne!(rest, [0.0; ELEMENTS]);
}

fn what_was_left_out_goes_with_the_next_contribution(last: Option<&str>) {
    assert_eq!(left_out_in_the_end(last), [0.0; ELEMENTS]);
}

/// After two epochs with a codec and one with another: of all that was contributed, what is not in
/// the results, which is what the workers keep.
fn left_out_in_the_end(last: Option<&str>) -> [f64; ELEMENTS] {
    let (mut job, mut rng) = (Job::new("topk:k=0.25"), Rng::with_seed(2));
    let mut left = [0.0; ELEMENTS];
    for codec in [Some("topk:k=0.25"), Some("topk:k=0.25"), last] {
        job.change(codec);
        let all = contributions(&mut rng, true);
        for x in &all {
            left.iter_mut().zip(x).for_each(|(left, x)| *left += f64::from(*x));
        }
        let result = job.round(&all, 1.0);
        left.iter_mut().zip(&result).for_each(|(left, x)| *left -= f64::from(*x));
        assert_eq!(job.left_out(), left);
    }
    left
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

#[test]
fn a_job_that_takes_over_what_codecs_keep_goes_on_as_if_it_had_not_ended() {
    for codec in ["int8", "onebit:momentum=0.5", "topk:k=0.25,momentum=0.25", "int8:sum_ef=true"] {
        let mut rng = Rng::with_seed(3);
        let all: Vec<_> = (0..6).map(|_| contributions(&mut rng, false)).collect();
        let mut whole = Job::new(codec);
        let expected: Vec<_> = all.iter().map(|all| whole.round(all, 1.0)).collect();
        let mut first = Job::new(codec);
        let mut results: Vec<_> = all[..3].iter().map(|all| first.round(all, 1.0)).collect();
        let mut second = Job::new(codec);
        let coding = layout(Some(codec), WORKERS).coding.unwrap();
        for ((from, _), (to, _)) in first.workers.iter().zip(&mut second.workers) {
            let memory = from.codec_memory(TensorId(0)).unwrap();
            assert_eq!(memory.velocity.is_some(), codec.contains("momentum"));
            to.set_codec_memory(TensorId(0), &coding, &memory).unwrap();
            assert_eq!(to.codec_memory(TensorId(0)).unwrap(), memory);
        }
        results.extend(all[3..].iter().map(|all| second.round(all, 1.0)));
        assert!(results == expected, "{codec}");
        let without = Job::new(codec).round(&all[3], 1.0);
        assert!(without != expected[3], "{codec}: nothing was taken over");
    }
}

#[test]
fn what_codecs_keep_is_read_and_set_between_rounds_and_of_its_own_length() {
    let mut job = Job::new("onebit");
    let coding = layout(Some("onebit"), WORKERS).coding.unwrap();
    let (client, _) = &mut job.workers[1];
    assert_eq!(client.codec_memory(TensorId(0)), Ok(CodecMemory::default()));
    let short = CodecMemory { residual: Some(vec![0; 4 * ELEMENTS - 4]), velocity: None };
    let error = client.set_codec_memory(TensorId(0), &coding, &short).unwrap_err();
    let text = "its codec keeps a residual of 10000 bytes (float32), and 9996 were given";
    assert_eq!(error.to_string(), text);
    // A codec without momentum has no use for it.
    let momentum = CodecMemory { residual: None, velocity: Some(vec![0; 4]) };
    client.set_codec_memory(TensorId(0), &coding, &momentum).unwrap();
    let bytes = vec![0; 4 * ELEMENTS];
    client.submit(request(1.0), OwnedMemory { separate: None, bytes });
    assert_eq!(client.codec_memory(TensorId(0)), Err(CodecMemoryError::UnderWay));
    let none = CodecMemory::default();
    let refused = client.set_codec_memory(TensorId(0), &coding, &none);
    assert_eq!(refused, Err(CodecMemoryError::UnderWay));
}
