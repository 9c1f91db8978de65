//! The levels of x86-64: how each converts 16-bit floats, and the kernels compiled for it.

pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod avx512fp16;

/// The kernels' entry points for one level, which converts 16-bit floats by its `halves`.
macro_rules! kernels {
    ($features:literal) => {
        #[target_feature(enable = $features)]
        pub(crate) fn run<K: Kernel>(kernel: K) -> K::Output {
            generic::run(halves(), kernel)
        }

        #[target_feature(enable = $features)]
        pub(crate) fn accumulate(op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
            generic::accumulate(halves(), op, dtype, acc, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn reduce(op: ReduceOp, dtype: Dtype, to: &mut [u8], x: &[u8]) {
            generic::reduce(halves(), op, dtype, to, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn accumulate_pair(
            op: ReduceOp,
            dtype: Dtype,
            acc: &mut [u8],
            x: &[u8],
            y: &[u8],
        ) {
            generic::accumulate_pair(halves(), op, dtype, acc, x, y);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn accumulate_last(
            op: ReduceOp,
            dtype: Dtype,
            out: &mut [u8],
            acc: &[u8],
            x: &[u8],
        ) {
            generic::accumulate_last(halves(), op, dtype, out, acc, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn divide(dtype: Dtype, x: &mut [u8], divisor: u32) {
            generic::divide(halves(), dtype, x, divisor);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn widen(dtype: Dtype, out: &mut [u8], x: &[u8]) {
            rules::widen(halves(), dtype, out, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn narrow(dtype: Dtype, out: &mut [u8], x: &[u8]) {
            rules::narrow(halves(), dtype, out, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn update(
            update: &Update,
            master: Dtype,
            parts: &mut [&mut [u8]],
            gradient: (Dtype, &[u8]),
            weights: Option<(Dtype, &mut [u8])>,
        ) {
            rules::update(halves(), update, master, parts, gradient, weights);
        }
    };
}
use kernels;
