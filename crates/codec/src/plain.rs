//! What is not encoded beside what is: sums as elements of a tensor, and residuals that go with a
//! contribution as it is.

use sumpter_types::Dtype;

/// Writes sums of `f32` as elements of a floating-point type; 16-bit ones are rounded to nearest.
/// Bytes are in the machine's order, `out` has as many elements as `sums`.
pub fn store_sums(dtype: Dtype, sums: &[u8], out: &mut [u8]) {
    match dtype {
        Dtype::F16 | Dtype::Bf16 => sumpter_sum::narrow(dtype, out, sums),
        Dtype::F64 => {
            for (out, sum) in out.as_chunks_mut().0.iter_mut().zip(sums.as_chunks().0) {
                *out = f64::from(f32::from_ne_bytes(*sum)).to_ne_bytes();
            }
        }
        _ => out.copy_from_slice(sums),
    }
}

/// Adds a residual to elements of a floating-point type that are sent as they are: `y = x + r e`
/// in `f32` (of `f64`, in `f64`), and `e' = y - out`, which is zero but for 16-bit floats. All
/// slices have the same number of elements; residuals are `f32`. A residual that would not be
/// finite is 0.
pub fn add_residual(
    (dtype, x): (Dtype, &[u8]),
    (residual, rescale): (&[u8], f32),
    next: &mut [u8],
    out: &mut [u8],
) {
    if dtype == Dtype::F64 {
        let pairs = x.as_chunks().0.iter().zip(residual.as_chunks().0);
        for (out, (x, e)) in out.as_chunks_mut().0.iter_mut().zip(pairs) {
            let residual = f64::from(rescale * f32::from_ne_bytes(*e));
            *out = (f64::from_ne_bytes(*x) + residual).to_ne_bytes();
        }
        return next.fill(0);
    }
    let narrows = dtype != Dtype::F32;
    if narrows {
        sumpter_sum::widen(dtype, next, x);
    } else {
        next.copy_from_slice(x);
    }
    for (y, e) in next.as_chunks_mut().0.iter_mut().zip(residual.as_chunks().0) {
        *y = (f32::from_ne_bytes(*y) + rescale * f32::from_ne_bytes(*e)).to_ne_bytes();
    }
    if !narrows {
        out.copy_from_slice(next);
        return next.fill(0);
    }
    sumpter_sum::narrow(dtype, out, next);
    // One element at a time: it happens once when a worker stops encoding a stretch.
    let mut sent = [0; 4];
    for (y, out) in next.as_chunks_mut::<4>().0.iter_mut().zip(out.as_chunks::<2>().0) {
        sumpter_sum::widen(dtype, &mut sent, out);
        let left = f32::from_ne_bytes(*y) - f32::from_ne_bytes(sent);
        *y = if left.is_finite() { left } else { 0.0 }.to_ne_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(x: &[f32]) -> Vec<u8> {
        x.iter().flat_map(|x| x.to_ne_bytes()).collect()
    }

    fn floats(bytes: &[u8]) -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|x| f32::from_ne_bytes(*x)).collect()
    }

    #[test]
    fn what_is_sent_and_what_is_left_are_the_element_and_its_residual() {
        let (x, e) = ([1.0, -2.0, 1000.0, f32::INFINITY], [0.5, 0.001, 0.0, 1.0]);
        let mut next = vec![9; 16];
        let mut out = vec![0; 16];
        add_residual((Dtype::F32, &bytes(&x)), (&bytes(&e), 2.0), &mut next, &mut out);
        assert_eq!(floats(&out), [2.0, -1.998, 1000.0, f32::INFINITY]);
        assert_eq!(floats(&next), [0.0; 4]);
        let mut half = vec![0; 8];
        sumpter_sum::narrow(Dtype::Bf16, &mut half, &bytes(&x));
        let mut out = vec![0; 8];
        add_residual((Dtype::Bf16, &half), (&bytes(&e), 1.0), &mut next, &mut out);
        let mut sent = vec![0; 16];
        sumpter_sum::widen(Dtype::Bf16, &mut sent, &out);
        for (i, (sent, left)) in floats(&sent).into_iter().zip(floats(&next)).enumerate().take(3) {
            assert_eq!(sent + left, x[i] + e[i]);
        }
        assert_eq!(floats(&next)[3], 0.0);
        let wide: Vec<u8> = x.iter().flat_map(|x| f64::from(*x).to_ne_bytes()).collect();
        let mut out = vec![0; 32];
        add_residual((Dtype::F64, &wide), (&bytes(&e), 1.0), &mut next, &mut out);
        let first = f64::from_ne_bytes(*out.first_chunk().unwrap());
        assert_eq!((first, floats(&next)), (1.5, vec![0.0; 4]));
    }

    #[test]
    fn sums_are_rounded_once() {
        let sums = bytes(&[1.0, 1.004, -3.5]);
        let mut half = vec![0; 6];
        store_sums(Dtype::Bf16, &sums, &mut half);
        let mut back = vec![0; 12];
        sumpter_sum::widen(Dtype::Bf16, &mut back, &half);
        assert_eq!(floats(&back), [1.0, 1.007_812_5, -3.5]);
        let mut wide = vec![0; 24];
        store_sums(Dtype::F64, &sums, &mut wide);
        assert_eq!(f64::from_ne_bytes(*wide.last_chunk().unwrap()), -3.5);
    }
}
