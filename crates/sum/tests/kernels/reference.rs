//! What the kernels must compute: one element at a time, from the definitions, however slowly.

use sumpter_types::{Dtype, ReduceOp};

/// A binary floating-point format of 16 bits.
#[derive(Clone, Copy)]
pub struct Format {
    exponent_bits: u32,
    mantissa_bits: u32,
}

pub const F16: Format = Format { exponent_bits: 5, mantissa_bits: 10 };
pub const BF16: Format = Format { exponent_bits: 8, mantissa_bits: 7 };

impl Format {
    pub fn of(dtype: Dtype) -> Format {
        if dtype == Dtype::F16 { F16 } else { BF16 }
    }

    /// The bits of infinity; whatever is larger, sign aside, is a NaN.
    pub fn infinity(self) -> u16 {
        ((1 << self.exponent_bits) - 1) << self.mantissa_bits
    }

    /// The value of `bits`.
    pub fn decode(self, bits: u16) -> f64 {
        let magnitude = bits & 0x7fff;
        let value = if magnitude > self.infinity() {
            f64::NAN
        } else if magnitude == self.infinity() {
            f64::INFINITY
        } else {
            self.decode_finite(magnitude)
        };
        if bits == magnitude { value } else { -value }
    }

    /// The value of `magnitude` as if the largest exponent were one like the others.
    pub fn decode_finite(self, magnitude: u16) -> f64 {
        let bias = (1 << (self.exponent_bits - 1)) - 1;
        let exponent = i32::from(magnitude >> self.mantissa_bits);
        let mantissa = f64::from(magnitude & ((1 << self.mantissa_bits) - 1));
        let fraction = mantissa / 2_f64.powi(self.mantissa_bits as i32);
        if exponent == 0 {
            fraction * 2_f64.powi(1 - bias)
        } else {
            (1.0 + fraction) * 2_f64.powi(exponent - bias)
        }
    }

    /// The bits nearest to `value`, of two equally near ones the even.
    pub fn encode(self, value: f64) -> u16 {
        let sign = if value.is_sign_negative() { 0x8000 } else { 0 };
        if value.is_nan() {
            return sign | 0x7fff;
        }
        let magnitude = value.abs();
        // Values grow with their bits: find the last one that is not above.
        let (mut below, mut above) = (0, self.infinity());
        while above - below > 1 {
            let middle = below + (above - below) / 2;
            if self.decode_finite(middle) <= magnitude { below = middle } else { above = middle }
        }
        let to_below = magnitude - self.decode_finite(below);
        let to_above = self.decode_finite(above) - magnitude;
        let nearest = if to_below < to_above || (to_below == to_above && below % 2 == 0) {
            below
        } else {
            above
        };
        sign | nearest
    }
}

macro_rules! combine_integers {
    ($type:ty, $op:expr, $acc:expr, $x:expr) => {{
        let acc = <$type>::from_ne_bytes($acc.try_into().unwrap());
        let x = <$type>::from_ne_bytes($x.try_into().unwrap());
        let result = match $op {
            ReduceOp::Sum => acc.wrapping_add(x),
            ReduceOp::Min => acc.min(x),
            ReduceOp::Max => acc.max(x),
            ReduceOp::Product => acc.wrapping_mul(x),
        };
        result.to_ne_bytes().to_vec()
    }};
}

macro_rules! combine_floats {
    ($type:ty, $op:expr, $acc:expr, $x:expr) => {{
        let acc = <$type>::from_ne_bytes($acc.try_into().unwrap());
        let x: $type = $x;
        let result = match $op {
            ReduceOp::Sum => acc + x,
            ReduceOp::Product => acc * x,
            _ if acc.is_nan() || x.is_nan() => <$type>::NAN,
            ReduceOp::Min => match acc.total_cmp(&x) {
                std::cmp::Ordering::Greater => x,
                _ => acc,
            },
            ReduceOp::Max => match acc.total_cmp(&x) {
                std::cmp::Ordering::Less => x,
                _ => acc,
            },
        };
        result.to_ne_bytes().to_vec()
    }};
}

/// The accumulators after `x` has been added.
pub fn accumulate(op: ReduceOp, dtype: Dtype, acc: &[u8], x: &[u8]) -> Vec<u8> {
    let pairs = acc.chunks(dtype.accumulator().size()).zip(x.chunks(dtype.size()));
    let combine = |(acc, x): (&[u8], &[u8])| match dtype {
        Dtype::F32 => combine_floats!(f32, op, acc, f32::from_ne_bytes(x.try_into().unwrap())),
        Dtype::F64 => combine_floats!(f64, op, acc, f64::from_ne_bytes(x.try_into().unwrap())),
        Dtype::F16 | Dtype::Bf16 => combine_floats!(f32, op, acc, widen_one(dtype, x)),
        Dtype::I8 => combine_integers!(i8, op, acc, x),
        Dtype::U8 => combine_integers!(u8, op, acc, x),
        Dtype::I32 => combine_integers!(i32, op, acc, x),
        Dtype::I64 => combine_integers!(i64, op, acc, x),
    };
    pairs.flat_map(combine).collect()
}

/// `x` as accumulators.
pub fn widen(dtype: Dtype, x: &[u8]) -> Vec<u8> {
    if dtype.accumulator() == dtype {
        return x.to_vec();
    }
    x.chunks(2).flat_map(|x| widen_one(dtype, x).to_ne_bytes()).collect()
}

/// Accumulators as elements of `dtype`.
pub fn narrow(dtype: Dtype, acc: &[u8]) -> Vec<u8> {
    if dtype.accumulator() == dtype {
        return acc.to_vec();
    }
    let values = acc.chunks(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap()));
    values.flat_map(|x| Format::of(dtype).encode(f64::from(x)).to_ne_bytes()).collect()
}

/// `x` divided, for floating-point types.
pub fn divide(dtype: Dtype, x: &[u8], divisor: u32) -> Vec<u8> {
    if dtype == Dtype::F64 {
        let values = x.chunks(8).map(|x| f64::from_ne_bytes(x.try_into().unwrap()));
        return values.flat_map(|x| (x / f64::from(divisor)).to_ne_bytes()).collect();
    }
    let values = widen(dtype, x);
    let values = values.chunks(4).map(|x| f32::from_ne_bytes(x.try_into().unwrap()));
    let quotients: Vec<u8> = values.flat_map(|x| (x / divisor as f32).to_ne_bytes()).collect();
    narrow(dtype, &quotients)
}

fn widen_one(dtype: Dtype, x: &[u8]) -> f32 {
    let bits = u16::from_ne_bytes(x.try_into().unwrap());
    Format::of(dtype).decode(bits) as f32
}

/// Whether the element of `dtype` in `bytes` is a NaN.
pub fn is_nan(dtype: Dtype, bytes: &[u8]) -> bool {
    match dtype {
        Dtype::F32 => f32::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::F64 => f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan(),
        Dtype::F16 | Dtype::Bf16 => {
            let bits = u16::from_ne_bytes(bytes.try_into().unwrap());
            Format::of(dtype).decode(bits).is_nan()
        }
        _ => false,
    }
}
