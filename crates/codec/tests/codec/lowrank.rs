//! PowerSGD.

use std::slice;

use proptest::prelude::*;
use sumpter_codec::{Key, LowRank};
use sumpter_sum::InstructionSet;
use sumpter_types::{Rank, Round, TensorId};

fn key(round: u32) -> Key {
    Key { tensor: TensorId(4), round: Round(round), rank: Rank(0) }
}

/// Elements that look random, and are the same in every run.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mix = |i: u32| (i ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    let mix = |i: u32| (mix(i) ^ mix(i) >> 13).wrapping_mul(0xc2b2_ae35) >> 8;
    (0..count as u32).map(|i| mix(i) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// A matrix of such a rank.
fn of_rank(rows: usize, columns: usize, rank: usize, seed: u32) -> Vec<f32> {
    let (left, right) = (noise(rows * rank, seed), noise(columns * rank, seed + 1));
    let element = |i: usize, j: usize| {
        (0..rank).map(|r| left[i * rank + r] * right[j * rank + r]).sum::<f32>()
    };
    (0..rows * columns).map(|at| element(at / columns, at % columns)).collect()
}

fn norm(x: &[f32]) -> f64 {
    x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

fn minus(x: &[f32], y: &[f32]) -> Vec<f32> {
    x.iter().zip(y).map(|(x, y)| x - y).collect()
}

fn add(sum: &mut [f32], x: &[f32]) {
    sum.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
}

/// A round of several ranks: the sum of their matrices as decoded, and what each is left with.
fn round(
    shape: &LowRank,
    number: u32,
    matrices: &[Vec<f32>],
    right: &mut [f32],
) -> (Vec<f32>, Vec<Vec<f32>>) {
    shape.refresh(key(number), right).unwrap();
    let mut left = vec![0.0; shape.left_len()];
    for matrix in matrices {
        let mut own = vec![f32::NAN; shape.left_len()];
        shape.left(matrix, right, &mut own).unwrap();
        add(&mut left, &own);
    }
    shape.orthonormalize(&mut left).unwrap();
    right.fill(0.0);
    let mut residuals = Vec::new();
    for matrix in matrices {
        let mut own = vec![f32::NAN; shape.right_len()];
        shape.right(matrix, &left, &mut own).unwrap();
        let mut residual = vec![f32::NAN; matrix.len()];
        shape.residual(matrix, &left, &own, &mut residual).unwrap();
        residuals.push(residual);
        add(right, &own);
    }
    let mut decoded = vec![f32::NAN; shape.elements()];
    shape.product(&left, right, &mut decoded).unwrap();
    (decoded, residuals)
}

#[test]
fn a_matrix_of_the_rank_is_had_exactly_in_one_round() {
    for (rows, columns, rank) in [(1, 1, 1), (5, 7, 1), (40, 30, 4), (64, 2000, 3), (300, 17, 2)] {
        let shape = LowRank::new(rank as u32, 3, (rows, columns)).unwrap();
        let matrix = of_rank(rows, columns, rank, 9);
        let mut right = vec![0.0; shape.right_len()];
        let (decoded, residuals) = round(&shape, 0, slice::from_ref(&matrix), &mut right);
        let off = norm(&minus(&decoded, &matrix)) / norm(&matrix);
        assert!(off < 1e-5, "{rows} by {columns}: {off}");
        assert!(norm(&residuals[0]) < 1e-5 * norm(&matrix));
    }
}

#[test]
fn rounds_with_the_factor_before_approach_the_best_of_that_rank() {
    // Rank 2 with noise: what is left must approach the noise, of which rank 2 takes a part.
    let (rows, columns) = (60, 50);
    let shape = LowRank::new(2, 0, (rows, columns)).unwrap();
    let mut matrix = of_rank(rows, columns, 2, 5);
    let noise: Vec<f32> = noise(matrix.len(), 77).iter().map(|x| 0.05 * x).collect();
    add(&mut matrix, &noise);
    let mut right = vec![0.0; shape.right_len()];
    let mut left = Vec::new();
    for number in 0..6 {
        let (decoded, _) = round(&shape, number, slice::from_ref(&matrix), &mut right);
        left.push(norm(&minus(&matrix, &decoded)));
    }
    assert!(left[5] <= left[0] && left[5] < norm(&noise), "{left:?} of {}", norm(&noise));
}

#[test]
fn decoded_sums_and_residuals_are_what_the_ranks_had() {
    let (rows, columns) = (33, 65);
    let shape = LowRank::new(2, 1, (rows, columns)).unwrap();
    let mut right = vec![0.0; shape.right_len()];
    let mut residuals = vec![vec![0.0; rows * columns]; 3];
    let (mut given, mut got) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
    for number in 0..50 {
        let gradients: Vec<_> =
            (0..3).map(|rank| noise(rows * columns, 3 * number + rank)).collect();
        gradients.iter().for_each(|gradient| add(&mut given, gradient));
        for (residual, gradient) in residuals.iter_mut().zip(&gradients) {
            add(residual, gradient);
        }
        let (decoded, left) = round(&shape, number, &residuals, &mut right);
        add(&mut got, &decoded);
        residuals = left;
    }
    residuals.iter().for_each(|residual| add(&mut got, residual));
    let off = norm(&minus(&given, &got));
    assert!(off < 1e-4 * norm(&given), "{off} of {}", norm(&given));
}

/// Gradient descent to a matrix of full rank, two directions a round.
#[test]
fn error_feedback_converges_to_a_matrix_of_any_rank() {
    let (rows, columns) = (24, 20);
    let shape = LowRank::new(2, 1, (rows, columns)).unwrap();
    let target = noise(rows * columns, 4);
    let run = |feedback: bool| {
        let (mut w, mut residual) = (vec![0.0; target.len()], vec![0.0; target.len()]);
        let mut right = vec![0.0; shape.right_len()];
        for number in 0..600 {
            let mut step: Vec<f32> = w.iter().zip(&target).map(|(w, t)| 0.05 * (w - t)).collect();
            if feedback {
                add(&mut step, &residual);
            }
            let (decoded, left) = round(&shape, number, &[step], &mut right);
            w.iter_mut().zip(decoded).for_each(|(w, x)| *w -= x);
            residual.clone_from(&left[0]);
        }
        norm(&minus(&w, &target)) / norm(&target)
    };
    assert!(run(true) < 0.02, "{} of the target is missing", run(true));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn columns_become_orthonormal_or_zero(
        rows in 1..200_usize, rank in 1..9_u32, scale in -30..30_i32, seed in any::<u32>(),
        repeated in any::<bool>(),
    ) {
        let rank = rank.min(rows as u32);
        let shape = LowRank::new(rank, 0, (rows, 1000)).unwrap();
        let mut left: Vec<f32> = noise(shape.left_len(), seed);
        left.iter_mut().for_each(|x| *x *= 2_f32.powi(scale));
        if repeated && rank > 1 {
            let (first, second) = left.split_at_mut(rows);
            second[..rows].copy_from_slice(first);
        }
        let before = left.clone();
        let mut first = None;
        for set in InstructionSet::supported() {
            left.clone_from(&before);
            shape.clone().with_instruction_set(set).orthonormalize(&mut left).unwrap();
            prop_assert_eq!(first.get_or_insert_with(|| left.clone()), &left);
        }
        for (i, x) in left.chunks(rows).enumerate() {
            let is_zero = x.iter().all(|x| *x == 0.0);
            prop_assert_eq!(is_zero, repeated && rank > 1 && i == 1);
            for (j, y) in left.chunks(rows).enumerate().take(i + 1) {
                let dot: f64 = x.iter().zip(y).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                let expected = if i == j && !is_zero { 1.0 } else { 0.0 };
                prop_assert!((dot - expected).abs() < 1e-6, "{i} and {j}: {dot}");
            }
        }
    }

    #[test]
    fn factors_are_the_same_at_every_level(
        rows in 1..40_usize, columns in 1..70_usize, seed in any::<u32>(),
    ) {
        let rank = 3.min(rows.min(columns)) as u32;
        let shape = LowRank::new(rank, 0, (rows, columns)).unwrap();
        let matrices = [noise(rows * columns, seed), noise(rows * columns, seed ^ 1)];
        let mut first = None;
        for set in InstructionSet::supported() {
            let shape = shape.clone().with_instruction_set(set);
            let mut right = vec![0.0; shape.right_len()];
            let result = (round(&shape, 7, &matrices, &mut right), right);
            prop_assert_eq!(first.get_or_insert_with(|| result.clone()), &result);
        }
    }
}

#[test]
fn what_is_no_number_shows_and_is_forgotten() {
    let shape = LowRank::new(2, 0, (10, 12)).unwrap();
    let mut matrix = of_rank(10, 12, 2, 3);
    let sound = matrix.clone();
    matrix[5] = f32::NAN;
    let mut right = vec![0.0; shape.right_len()];
    let (decoded, residuals) = round(&shape, 0, &[matrix], &mut right);
    assert!(decoded.iter().all(|x| x.is_nan()));
    assert!(residuals[0].iter().all(|x| *x == 0.0));
    let (decoded, _) = round(&shape, 1, slice::from_ref(&sound), &mut right);
    assert!(norm(&minus(&decoded, &sound)) < 1e-5 * norm(&sound));
}

#[test]
fn a_column_that_died_is_drawn_anew_alike_in_all_ranks() {
    let shape = LowRank::new(3, 5, (50, 1500)).unwrap();
    let fresh = |round| {
        let mut right = vec![0.0; shape.right_len()];
        right[1500..3000].fill(0.5);
        right[3000] = f32::INFINITY;
        shape.refresh(key(round), &mut right).unwrap();
        right
    };
    let right = fresh(0);
    assert_eq!(right, fresh(0));
    assert_ne!(right[..1500], fresh(1)[..1500]);
    assert_eq!(right[1500..3000], [0.5; 1500]);
    assert_ne!(right[..1500], right[3000..]);
    assert_ne!(right[..400], right[1024..1424]);
    assert!(right.iter().all(|x| x.is_finite() && x.abs() <= 1.0));
}

#[test]
fn lengths_that_do_not_fit_the_shape_are_refused() {
    let shape = LowRank::new(1, 0, (3, 4)).unwrap();
    let error = shape.left(&[0.0; 12], &[0.0; 4], &mut [0.0; 4]).unwrap_err().to_string();
    assert_eq!(error, "codec powersgd: 16 bytes of the left factor instead of 12");
    assert!(shape.right(&[0.0; 11], &[0.0; 3], &mut [0.0; 4]).is_err());
    assert!(shape.product(&[0.0; 3], &[0.0; 3], &mut [0.0; 12]).is_err());
    assert!(shape.residual(&[0.0; 12], &[0.0; 3], &[0.0; 4], &mut [0.0; 11]).is_err());
    assert!(shape.orthonormalize(&mut [0.0; 4]).is_err());
    assert!(shape.refresh(key(0), &mut [0.0; 3]).is_err());
}
