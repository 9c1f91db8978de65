//! PowerSGD: a matrix as the product of two narrow ones, in two sums over the ranks.
//!
//! With `M` a rank's gradient and residual, `Q` the right factor of the round before, the same in
//! all ranks: `P = M Q` is summed and made orthonormal, then `Q = transpose(M) P` is summed, and
//! `P transpose(Q)` is the sum of what the ranks' matrices have in `P`'s directions. What a rank's
//! own matrix has in others is its next residual. (Vogels, Karimireddy, Jaggi: "PowerSGD", 2019.)
//!
//! Pure functions. Matrices are row after row; factors are column after column, so that every loop
//! is over elements beside each other, in an order that is the same at every level.

use sumpter_sum::{InstructionSet, Kernel};

use crate::block::{BLOCK, lane_sum};
use crate::error::CodecError;
use crate::random::{Key, Stream};

/// A part of a column's length below which what is left of it, once the columns before have been
/// taken off, is rounding.
const NOISE: f64 = 1e-6;

/// How matrices of a shape are factored.
#[derive(Clone, Debug, PartialEq)]
pub struct LowRank {
    rows: usize,
    columns: usize,
    rank: usize,
    seed: u64,
    set: InstructionSet,
}

impl LowRank {
    /// For a matrix of so many rows and columns.
    ///
    /// # Errors
    /// If the rank is 0 or exceeds either.
    pub fn new(
        rank: u32,
        seed: u64,
        (rows, columns): (usize, usize),
    ) -> Result<LowRank, CodecError> {
        let most = rows.min(columns);
        if rank == 0 || rank as usize > most {
            return Err(CodecError::Argument {
                codec: "powersgd".to_owned(),
                key: "rank".to_owned(),
                value: rank.to_string(),
                expected: format!(
                    "1 to {most} to a matrix of {rows} by {columns}, or leave it uncompressed"
                ),
            });
        }
        let set = InstructionSet::preferred();
        Ok(LowRank { rows, columns, rank: rank as usize, seed, set })
    }

    /// The same at a level of processor features, to compare them.
    #[must_use]
    pub fn with_instruction_set(self, set: InstructionSet) -> LowRank {
        LowRank { set, ..self }
    }

    /// Elements of the matrix.
    #[must_use]
    pub fn elements(&self) -> usize {
        self.rows * self.columns
    }

    /// Elements of the left factor, `P`.
    #[must_use]
    pub fn left_len(&self) -> usize {
        self.rows * self.rank
    }

    /// Elements of the right factor, `Q`.
    #[must_use]
    pub fn right_len(&self) -> usize {
        self.columns * self.rank
    }

    /// Makes the right factor of the round before, or zeros in the first, fit to begin with: a
    /// column that is zero or has a NaN or an infinity, and so would stay as it is, is drawn anew.
    /// All ranks must have the same factor, and get the same.
    ///
    /// # Errors
    /// If the length is not [`right_len`](LowRank::right_len).
    pub fn refresh(&self, key: Key, right: &mut [f32]) -> Result<(), CodecError> {
        self.check("the right factor", right.len(), self.right_len())?;
        let stream = Stream::of_all(self.seed, key);
        let blocks = self.columns.div_ceil(BLOCK);
        for (number, column) in right.chunks_mut(self.columns).enumerate() {
            let sum: f32 = column.iter().map(|x| x.abs()).sum();
            if sum > 0.0 && sum.is_finite() {
                continue;
            }
            for (i, part) in column.chunks_mut(BLOCK).enumerate() {
                let mut words = [0; BLOCK];
                stream.fill((number * blocks + i) as u64, part.len(), &mut words);
                for (x, word) in part.iter_mut().zip(words) {
                    // Uniform between -1 and 1.
                    *x = (word >> 8) as f32 / (1 << 23) as f32 - 1.0;
                }
            }
        }
        Ok(())
    }

    /// `left = matrix * right`: what is summed first.
    ///
    /// # Errors
    /// If lengths do not fit the shape.
    pub fn left(&self, matrix: &[f32], right: &[f32], left: &mut [f32]) -> Result<(), CodecError> {
        self.check_all(matrix.len(), left.len(), right.len())?;
        self.set.run(Left { shape: self, matrix, right, left });
        Ok(())
    }

    /// Makes the columns of the summed left factor orthogonal and of length 1, one after the other.
    /// One in which nothing is left but rounding becomes zero. A NaN or an infinity makes all NaN.
    ///
    /// # Errors
    /// If the length is not [`left_len`](LowRank::left_len).
    pub fn orthonormalize(&self, left: &mut [f32]) -> Result<(), CodecError> {
        self.check("the left factor", left.len(), self.left_len())?;
        self.set.run(Orthonormalize { rows: self.rows, left });
        Ok(())
    }

    /// `right = transpose(matrix) * left`: what is summed next.
    ///
    /// # Errors
    /// If lengths do not fit the shape.
    pub fn right(&self, matrix: &[f32], left: &[f32], right: &mut [f32]) -> Result<(), CodecError> {
        self.check_all(matrix.len(), left.len(), right.len())?;
        self.set.run(Right { shape: self, matrix, left, right });
        Ok(())
    }

    /// `matrix = left * transpose(right)`.
    ///
    /// # Errors
    /// If lengths do not fit the shape.
    pub fn product(
        &self,
        left: &[f32],
        right: &[f32],
        matrix: &mut [f32],
    ) -> Result<(), CodecError> {
        self.check_all(matrix.len(), left.len(), right.len())?;
        self.set.run(Product { shape: self, left, right, of: None, matrix });
        Ok(())
    }

    /// `residual = matrix - left * transpose(right)`, with a rank's own right factor; 0 where that
    /// is not finite.
    ///
    /// # Errors
    /// If lengths do not fit the shape.
    pub fn residual(
        &self,
        matrix: &[f32],
        left: &[f32],
        right: &[f32],
        residual: &mut [f32],
    ) -> Result<(), CodecError> {
        self.check_all(matrix.len(), left.len(), right.len())?;
        self.check("the residual", residual.len(), self.elements())?;
        self.set.run(Product { shape: self, left, right, of: Some(matrix), matrix: residual });
        Ok(())
    }

    fn check_all(&self, matrix: usize, left: usize, right: usize) -> Result<(), CodecError> {
        self.check("the matrix", matrix, self.elements())?;
        self.check("the left factor", left, self.left_len())?;
        self.check("the right factor", right, self.right_len())
    }

    fn check(&self, what: &'static str, len: usize, expected: usize) -> Result<(), CodecError> {
        if len == expected {
            return Ok(());
        }
        let (bytes, expected) = (size_of::<f32>() * len, size_of::<f32>() * expected);
        Err(CodecError::Length { codec: "powersgd".to_owned(), what, bytes, expected })
    }
}

struct Left<'a> {
    shape: &'a LowRank,
    matrix: &'a [f32],
    right: &'a [f32],
    left: &'a mut [f32],
}

impl Kernel for Left<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let LowRank { rows, columns, .. } = *self.shape;
        for (i, row) in self.matrix.chunks(columns).enumerate() {
            for (number, column) in self.right.chunks(columns).enumerate() {
                self.left[number * rows + i] = lane_sum(row, column, |x, y| x * y);
            }
        }
    }
}

struct Right<'a> {
    shape: &'a LowRank,
    matrix: &'a [f32],
    left: &'a [f32],
    right: &'a mut [f32],
}

impl Kernel for Right<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let LowRank { rows, columns, .. } = *self.shape;
        self.right.fill(0.0);
        for (i, row) in self.matrix.chunks(columns).enumerate() {
            for (number, column) in self.right.chunks_mut(columns).enumerate() {
                let factor = self.left[number * rows + i];
                for (sum, x) in column.iter_mut().zip(row) {
                    *sum += factor * x;
                }
            }
        }
    }
}

struct Product<'a> {
    shape: &'a LowRank,
    left: &'a [f32],
    right: &'a [f32],
    /// What the product is taken off, if anything.
    of: Option<&'a [f32]>,
    matrix: &'a mut [f32],
}

impl Kernel for Product<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let LowRank { rows, columns, .. } = *self.shape;
        for (i, row) in self.matrix.chunks_mut(columns).enumerate() {
            row.fill(0.0);
            for (number, column) in self.right.chunks(columns).enumerate() {
                let factor = self.left[number * rows + i];
                for (sum, x) in row.iter_mut().zip(column) {
                    *sum += factor * x;
                }
            }
            let Some(of) = self.of else { continue };
            for (sum, x) in row.iter_mut().zip(&of[i * columns..]) {
                let left = x - *sum;
                *sum = if left.abs() < f32::INFINITY { left } else { 0.0 };
            }
        }
    }
}

struct Orthonormalize<'a> {
    rows: usize,
    left: &'a mut [f32],
}

/// In `f64`, in which the products are exact.
#[inline(always)]
fn exact_dot(x: &[f32], y: &[f32]) -> f64 {
    lane_sum(x, y, |x, y| f64::from(x) * f64::from(y))
}

impl Kernel for Orthonormalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let rows = self.rows;
        if !self.left.iter().all(|x| x.is_finite()) {
            self.left.fill(f32::NAN);
            return;
        }
        for number in 0..self.left.len() / rows {
            let (before, column) = self.left.split_at_mut(number * rows);
            let column = &mut column[..rows];
            let length = exact_dot(column, column).sqrt();
            // Twice is enough (Kahan and Parlett): the second time takes off what rounding left.
            for _ in 0..2 {
                for other in before.chunks(rows) {
                    let part = exact_dot(column, other);
                    for (x, other) in column.iter_mut().zip(other) {
                        *x = (f64::from(*x) - part * f64::from(*other)) as f32;
                    }
                }
            }
            let left = exact_dot(column, column).sqrt();
            let factor = if left > NOISE * length { 1.0 / left } else { 0.0 };
            for x in column.iter_mut() {
                *x = (f64::from(*x) * factor) as f32;
            }
        }
    }
}
