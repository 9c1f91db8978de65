//! Codecs that draw: their expectation, over many rounds with fixed seeds.

use sumpter_codec::{At, BLOCK, Codec, Key, Next, Previous};
use sumpter_types::{Dtype, Rank, Round, TensorId};

use crate::inputs::{bytes, codec, floats};

const LEN: usize = 1100;
const ROUNDS: u32 = 4000;

fn round(codec: &Codec, key: Key, x: &[f32]) -> Vec<f32> {
    let at = At { key, block: 0, maxima: &[] };
    let mut code = vec![0; codec.encoded_len(x.len())];
    let mut out = vec![0; 4 * x.len()];
    let (previous, next) = (Previous::default(), Next::default());
    codec.encode(at, (Dtype::F32, &bytes(x)), previous, next, &mut code).unwrap();
    codec.decode(at, &code, (Dtype::F32, &mut out)).unwrap();
    floats(&out)
}

fn key(round: u32, rank: u32) -> Key {
    Key { tensor: TensorId(1), round: Round(round), rank: Rank(rank) }
}

/// The mean of every element is the element, within five standard errors. Where few draws gave
/// more than zero, or none, the error is that of draws between zero and the least that was drawn.
#[test]
fn what_is_drawn_is_unbiased() {
    let x: Vec<f32> = (0..LEN).map(|i| ((i * 61 % 199) as f32 / 100.0 - 1.0).powi(3)).collect();
    for spec in [
        "randomk:k=0.1,scaling=true",
        "randomk:k=300,scaling=true,seed=1",
        "dithering:bits=2",
        "dithering:bits=4",
        "dithering:k=5,normalize=l2",
        "dithering:bits=4,partition=natural",
        "dithering:k=3,partition=natural,normalize=l2,seed=8",
    ] {
        let codec = codec(spec, LEN);
        let (mut sums, mut squares) = (vec![0.0_f64; LEN], vec![0.0_f64; LEN]);
        let mut least = [f64::INFINITY; 2];
        for number in 0..ROUNDS {
            for (i, y) in round(&codec, key(number, 0), &x).into_iter().enumerate() {
                let off = f64::from(y) - f64::from(x[i]);
                sums[i] += off;
                squares[i] += off * off;
                let least = &mut least[i / BLOCK];
                *least = if y == 0.0 { *least } else { least.min(f64::from(y.abs())) };
            }
        }
        for i in 0..LEN {
            let least = least[i / BLOCK];
            let rare = f64::from(ROUNDS) * f64::from(x[i].abs()) * least;
            let error = 5.0 * squares[i].max(rare).sqrt() + 4.0 * least;
            assert!(sums[i].abs() < error, "{spec}: element {i} is off by {}", sums[i]);
        }
        let total: f64 = sums.iter().map(|sum| sum * x[0].signum() as f64).sum();
        let error = squares.iter().sum::<f64>().sqrt();
        assert!(total.abs() < 5.0 * error, "{spec}: all together by {total}, not {error}");
    }
}

#[test]
fn every_element_is_drawn_as_often_as_any_other_of_its_stretch() {
    let codec = codec("randomk:k=0.25", 1024);
    let mut times = vec![0_u32; 1024];
    for number in 0..ROUNDS {
        let y = round(&codec, key(number, 0), &[1.0; 1024]);
        y.iter().zip(&mut times).for_each(|(y, times)| *times += *y as u32);
    }
    let expected = ROUNDS / 4;
    let spread = 5.0 * (f64::from(ROUNDS) * 0.25 * 0.75).sqrt();
    for times in times {
        assert!((f64::from(times) - f64::from(expected)).abs() < spread, "{times} times");
    }
}

#[test]
fn all_ranks_draw_the_same_elements_and_their_codes_add_up() {
    let codec = codec("randomk:k=0.1", 1024);
    assert!(codec.sums_encoded() && !self::codec("topk:k=0.1", 1024).sums_encoded());
    let ranks: Vec<Vec<f32>> =
        (0..3).map(|rank| (0..1024).map(|i| (i + rank * 5000) as f32).collect()).collect();
    let mut sums = vec![0; codec.encoded_len(1024)];
    let mut expected = vec![0.0; 1024];
    for (rank, x) in ranks.iter().enumerate() {
        let at = At { key: key(9, rank as u32), block: 3, maxima: &[] };
        let mut code = vec![0; sums.len()];
        let (previous, next) = (Previous::default(), Next::default());
        codec.encode(at, (Dtype::F32, &bytes(x)), previous, next, &mut code).unwrap();
        sumpter_sum::accumulate(sumpter_types::ReduceOp::Sum, Dtype::F32, &mut sums, &code);
        let mut acc = bytes(&expected);
        codec.decode_add(at, &code, &mut acc).unwrap();
        expected = floats(&acc);
    }
    let at = At { key: key(9, 77), block: 3, maxima: &[] };
    let mut sum = vec![0; 4096];
    codec.decode(at, &sums, (Dtype::F32, &mut sum)).unwrap();
    assert_eq!(floats(&sum), expected);
    assert_eq!(expected.iter().filter(|x| **x != 0.0).count(), 103);
}

#[test]
fn what_goes_on_from_an_earlier_job_draws_as_if_that_had_not_ended() {
    let x: Vec<f32> = (0..LEN).map(|i| (i as f32 / 100.0).sin()).collect();
    for text in ["randomk:k=0.1", "dithering:bits=2,seed=5"] {
        let of = |text: &str, key| round(&codec(text, LEN).without_memory(), key, &x);
        let at = |tensor, round| Key { tensor: TensorId(tensor), ..key(round, 1) };
        let through = of(text, at(7, 120));
        let resumed = format!("{text},from=7.117");
        assert_eq!(of(&resumed, at(2, 3)), through, "{text}");
        assert_ne!(of(&resumed, at(2, 2)), through, "{text}");
        assert_ne!(of(text, at(2, 120)), through, "{text}");
    }
}

#[test]
fn draws_differ_by_round_rank_and_seed() {
    let x: Vec<f32> = (0..1024).map(|i| (i as f32).cos()).collect();
    let (codec, seeded) = (codec("dithering", 1024), codec("dithering:seed=1", 1024));
    let first = round(&codec, key(0, 0), &x);
    assert_eq!(round(&codec, key(0, 0), &x), first);
    assert_ne!(round(&codec, key(1, 0), &x), first);
    assert_ne!(round(&codec, key(0, 1), &x), first);
    assert_ne!(round(&seeded, key(0, 0), &x), first);
}
