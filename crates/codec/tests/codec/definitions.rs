//! What each codec makes of a block: from its definition, one element at a time, however slowly.
//! Those of `onebit`, `topk`, `randomk` and `dithering` are BytePS' definitions in NumPy, applied
//! to a block, with the order of additions and the random numbers that are ours.

use sumpter_codec::{BLOCK, Count, Fp8Format, Key, Norm, Partition, Scheme, Spec};
use sumpter_types::Dtype;

/// What elements decode to after they have been encoded, block by block.
pub fn decoded(spec: &Spec, tensor: usize, key: Key, first: u64, x: &[f32]) -> Vec<f32> {
    let blocks = x.chunks(BLOCK).zip(first..);
    blocks.flat_map(|(x, number)| block(&spec.scheme, tensor, key, number, x)).collect()
}

fn block(scheme: &Scheme, tensor: usize, key: Key, number: u64, x: &[f32]) -> Vec<f32> {
    let is_finite = x.iter().all(|x| x.is_finite());
    let all_or_nan = |of: Vec<f32>| if is_finite { of } else { vec![f32::NAN; x.len()] };
    match *scheme {
        Scheme::Fp16 => half(Dtype::F16, x),
        Scheme::Bf16 => half(Dtype::Bf16, x),
        Scheme::Int8 { .. } => all_or_nan(int8(x)),
        Scheme::Fp8 { format } => all_or_nan(fp8(format, x)),
        Scheme::Onebit { scaling } => all_or_nan(onebit(x, scaling)),
        Scheme::Topk { k } => topk(x, kept(k, tensor, x.len())),
        Scheme::Randomk { k, scaling, seed } => {
            let words = words(seed, key, u32::MAX, number);
            let places = places(&words, kept(k, tensor, x.len()), x.len());
            let mut y = vec![0.0; x.len()];
            for (at, length) in places {
                let factor = if scaling { length as f32 } else { 1.0 };
                y[at] = if is_finite { x[at] * factor } else { f32::NAN };
            }
            y
        }
        Scheme::Dithering { levels, partition, norm, seed } => {
            let words = words(seed, key, key.rank.0, number);
            all_or_nan(dithering(x, levels, partition, norm, &words))
        }
        Scheme::PowerSgd { .. } | Scheme::Custom { .. } => panic!("no codec of blocks"),
    }
}

fn half(dtype: Dtype, x: &[f32]) -> Vec<f32> {
    let x = crate::inputs::bytes(x);
    let (mut narrow, mut wide) = (vec![0; x.len() / 2], vec![0; x.len()]);
    sumpter_sum::narrow(dtype, &mut narrow, &x);
    sumpter_sum::widen(dtype, &mut wide, &narrow);
    crate::inputs::floats(&wide)
}

pub fn int8_scale(x: &[f32]) -> f32 {
    let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let most = f32::MAX / 127.0;
    (largest / 127.0).clamp(f32::MIN_POSITIVE, most.next_down())
}

fn int8(x: &[f32]) -> Vec<f32> {
    let scale = int8_scale(x);
    let code = |x: f32| (x * (1.0 / scale)).round_ties_even().clamp(-127.0, 127.0);
    // Without a sign where the integer is 0.
    x.iter().map(|x| (code(*x) + 0.0) * scale).collect()
}

/// The values of magnitudes, in their order, of a format without its NaNs and infinities.
fn fp8_values(format: Fp8Format) -> Vec<f64> {
    let (mantissa_bits, bias, count) = match format {
        Fp8Format::E4m3 => (3, 7, 0x7f),
        Fp8Format::E5m2 => (2, 15, 0x7c),
    };
    let steps = 1 << mantissa_bits;
    let value = |code: i32| {
        let (exponent, mantissa) = (code / steps, code % steps);
        let (hidden, exponent) = if exponent == 0 { (0, 1) } else { (steps, exponent) };
        f64::from(hidden + mantissa) * 2_f64.powi(exponent - bias - mantissa_bits)
    };
    (0..count).map(value).collect()
}

/// The least power of two, but at least the smallest normal one, times which the largest value
/// reaches the largest magnitude; but not one that makes it infinite.
pub fn fp8_scale(format: Fp8Format, x: &[f32]) -> f32 {
    let largest = x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs()));
    let highest = *fp8_values(format).last().unwrap();
    let reaches = |exponent: &i32| highest * 2_f64.powi(*exponent) >= f64::from(largest);
    let top = if format == Fp8Format::E4m3 { 119 } else { 112 };
    2_f32.powi((-126..top).find(reaches).unwrap_or(top))
}

fn fp8(format: Fp8Format, x: &[f32]) -> Vec<f32> {
    let (values, scale) = (fp8_values(format), fp8_scale(format, x));
    let nearest = |x: &f32| {
        let y = f64::from(x.abs()) / f64::from(scale);
        let code = (0..values.len())
            .min_by(|i, j| {
                let (one, other) = ((values[*i] - y).abs(), (values[*j] - y).abs());
                one.total_cmp(&other).then((i % 2).cmp(&(j % 2)))
            })
            .unwrap();
        (values[code] as f32 * scale).copysign(*x)
    };
    x.iter().map(nearest).collect()
}

/// Lane `i % 16` adds elements `i`; then halves are added.
fn sum(x: impl Iterator<Item = f64>) -> f64 {
    let mut lanes = [0.0; 16];
    x.enumerate().for_each(|(i, x)| lanes[i % 16] += x);
    let mut lanes = lanes.to_vec();
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        lanes = (0..half).map(|i| lanes[i] + lanes[i + half]).collect();
    }
    lanes[0]
}

fn onebit(x: &[f32], scaling: bool) -> Vec<f32> {
    let mean = sum(x.iter().map(|x| f64::from(x.abs()))) / x.len() as f64;
    // BytePS makes ones of zeros where it does not scale.
    let one = if mean > 0.0 { 1.0 } else { 0.0 };
    let scale = if scaling { mean as f32 } else { one };
    x.iter().map(|x| if *x < 0.0 { -scale } else { scale }).collect()
}

pub fn kept(k: Count, tensor: usize, elements: usize) -> usize {
    match k {
        Count::Ratio(ratio) => (ratio * elements as f64).ceil() as usize,
        Count::Elements(k) => (k as usize * elements).div_ceil(tensor.max(8)),
    }
}

fn topk(x: &[f32], k: usize) -> Vec<f32> {
    let magnitude = |i: &usize| x[*i].to_bits() & 0x7fff_ffff;
    let mut order: Vec<usize> = (0..x.len()).collect();
    order.sort_by(|i, j| magnitude(j).cmp(&magnitude(i)).then(i.cmp(j)));
    let mut y = vec![0.0; x.len()];
    order[..k].iter().for_each(|i| y[*i] = x[*i]);
    y
}

fn places(words: &[u32], k: usize, elements: usize) -> Vec<(usize, usize)> {
    let border = |i: usize| i * elements / k;
    let place = |i: usize| {
        let length = border(i + 1) - border(i);
        (border(i) + ((words[i] as usize * length) >> 32), length)
    };
    (0..k).map(place).collect()
}

fn dithering(x: &[f32], levels: u8, partition: Partition, norm: Norm, words: &[u32]) -> Vec<f32> {
    let scale = match norm {
        Norm::Max => x.iter().fold(0.0, |largest: f32, x| largest.max(x.abs())),
        Norm::L2 => {
            let squares = sum(x.iter().map(|x| f64::from(*x) * f64::from(*x)));
            (squares.sqrt() as f32).min(f32::MAX)
        }
    };
    if scale == 0.0 {
        return vec![0.0; x.len()];
    }
    let dithered = |(x, word): (&f32, &u32)| {
        let below = |p: f64| f64::from(word >> 8) / f64::from(1 << 24) < p;
        let y = x.abs() / scale;
        let part = match partition {
            Partition::Linear => {
                let y = y * f32::from(levels);
                let up = below(f64::from(y) - f64::from(y.floor()));
                (y.floor() + f32::from(u8::from(up))) / f32::from(levels)
            }
            Partition::Natural => {
                let highest = 2_f32.powi(i32::from(levels) - 1);
                let y = f64::from(y * highest);
                let mut power = 1.0;
                while power < y.ceil() {
                    power *= 2.0;
                }
                let low = if power == 1.0 { 0.0 } else { power / 2.0 };
                let length = if low == 0.0 { 1.0 } else { low };
                let up = f64::from(u8::from(below((y - low) / length)));
                ((low + length * up) / f64::from(highest)) as f32
            }
        };
        (part * scale).copysign(*x)
    };
    x.iter().zip(words).map(dithered).collect()
}

/// The random words of a block: Philox4x32-7, keyed by what it makes of tensor, round and rank.
pub fn words(seed: u64, key: Key, rank: u32, block: u64) -> Vec<u32> {
    let own = philox([key.tensor.0, key.round.0, rank, 0], [seed as u32, (seed >> 32) as u32]);
    let word = |i: u32| {
        let counter = [i % 256, block as u32, (block >> 32) as u32, 0];
        philox(counter, [own[0], own[1]])[i as usize / 256]
    };
    (0..1024).map(word).collect()
}

fn philox(mut c: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..7 {
        let one = u64::from(c[0]) * 0xd251_1f53;
        let other = u64::from(c[2]) * 0xcd9e_8d57;
        let high = |x: u64| (x >> 32) as u32;
        c = [high(other) ^ c[1] ^ key[0], other as u32, high(one) ^ c[3] ^ key[1], one as u32];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    c
}
