//! The levels of x86-64: how each converts `binary16`, and the kernels compiled for its features.

pub(crate) mod avx2;
pub(crate) mod avx512;

/// The kernels' entry points for one level. `$convert` is how the level converts `binary16`.
macro_rules! kernels {
    ($features:literal, $convert:ident) => {
        #[target_feature(enable = $features)]
        pub(crate) fn accumulate(op: ReduceOp, dtype: Dtype, acc: &mut [u8], x: &[u8]) {
            generic::accumulate($convert::new(), op, dtype, acc, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn reduce(op: ReduceOp, dtype: Dtype, to: &mut [u8], x: &[u8]) {
            generic::reduce($convert::new(), op, dtype, to, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn accumulate_pair(
            op: ReduceOp,
            dtype: Dtype,
            acc: &mut [u8],
            x: &[u8],
            y: &[u8],
        ) {
            generic::accumulate_pair($convert::new(), op, dtype, acc, x, y);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn accumulate_last(
            op: ReduceOp,
            dtype: Dtype,
            out: &mut [u8],
            acc: &[u8],
            x: &[u8],
        ) {
            generic::accumulate_last($convert::new(), op, dtype, out, acc, x);
        }

        #[target_feature(enable = $features)]
        pub(crate) fn divide(dtype: Dtype, x: &mut [u8], divisor: u32) {
            generic::divide($convert::new(), dtype, x, divisor);
        }
    };
}
use kernels;
