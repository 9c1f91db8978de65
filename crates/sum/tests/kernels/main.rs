//! Every kernel at every level this processor has, against the scalar reference.

mod elements;
mod halfs;
mod reference;
mod updates;

use proptest::prelude::*;
use sumpter_sum::{InstructionSet, Kernel, instruction_set};
use sumpter_types::{Dtype, ReduceOp};

use elements::{Placed, assert_same, case, levels};

const HALFS: [Dtype; 2] = [Dtype::F16, Dtype::Bf16];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn accumulate_equals_the_reference(case in case(&Dtype::ALL)) {
        let (dtype, acc, x) = (case.dtype, &case.acc, &case.x);
        for op in ReduceOp::ALL {
            let expected = reference::accumulate(op, dtype, acc, x);
            for level in levels() {
                let mut placed = Placed::new(acc, case.acc_offset);
                let x = Placed::new(x, case.x_offset);
                level.accumulate(op, dtype, placed.bytes(), x.as_bytes());
                assert_same(dtype.accumulator(), placed.unguarded(), &expected, level);
            }
        }
    }

    #[test]
    fn reduce_equals_the_reference(case in case(&Dtype::ALL)) {
        let (dtype, x) = (case.dtype, &case.x);
        let to = reference::narrow(dtype, &case.acc);
        for op in ReduceOp::ALL {
            let exact = reference::accumulate(op, dtype, &reference::widen(dtype, &to), x);
            let expected = reference::narrow(dtype, &exact);
            for level in levels() {
                let mut placed = Placed::new(&to, case.acc_offset);
                let x = Placed::new(x, case.x_offset);
                level.reduce(op, dtype, placed.bytes(), x.as_bytes());
                assert_same(dtype, placed.unguarded(), &expected, level);
            }
        }
    }

    #[test]
    fn the_first_and_the_last_sum_equal_the_reference(case in case(&HALFS)) {
        let (dtype, acc, x) = (case.dtype, &case.acc, &case.x);
        let y = reference::narrow(dtype, acc);
        for op in ReduceOp::ALL {
            let first = reference::accumulate(op, dtype, &reference::widen(dtype, &y), x);
            let last = reference::narrow(dtype, &reference::accumulate(op, dtype, acc, x));
            for level in levels() {
                let acc = Placed::new(acc, case.acc_offset);
                let (x, y) = (Placed::new(x, case.x_offset), Placed::new(&y, case.acc_offset));
                let mut sum = Placed::new(acc.as_bytes(), case.x_offset);
                level.accumulate_pair(op, dtype, sum.bytes(), y.as_bytes(), x.as_bytes());
                assert_same(Dtype::F32, sum.unguarded(), &first, level);
                let mut out = Placed::new(x.as_bytes(), case.acc_offset);
                level.accumulate_last(op, dtype, out.bytes(), acc.as_bytes(), x.as_bytes());
                assert_same(dtype, out.unguarded(), &last, level);
            }
        }
    }

    #[test]
    fn divide_equals_the_reference(
        case in case(&[Dtype::F32, Dtype::F64, Dtype::F16, Dtype::Bf16]),
        divisor in prop_oneof![1_u32..100, any::<u32>()],
    ) {
        let expected = reference::divide(case.dtype, &case.x, divisor);
        for level in levels() {
            let mut x = Placed::new(&case.x, case.x_offset);
            level.divide(case.dtype, x.bytes(), divisor);
            assert_same(case.dtype, x.unguarded(), &expected, level);
        }
    }

    #[test]
    fn min_and_max_do_not_depend_on_the_order(case in case(&Dtype::ALL)) {
        let dtype = case.dtype.accumulator();
        let x = reference::widen(case.dtype, &case.x);
        for op in [ReduceOp::Min, ReduceOp::Max] {
            for level in levels() {
                let (mut one, mut other) = (case.acc.clone(), x.clone());
                level.accumulate(op, dtype, &mut one, &x);
                level.accumulate(op, dtype, &mut other, &case.acc);
                assert_same(dtype, &one, &other, level);
            }
        }
    }
}

/// Property tests draw lengths; this one leaves none out on either side of a whole tile.
#[test]
fn every_length_up_to_several_tiles_is_summed_whole() {
    for dtype in Dtype::ALL {
        for count in 0..=300 {
            let x: Vec<u8> = (0..count * dtype.size()).map(|i| (i * 37 % 64) as u8).collect();
            let acc = vec![1; count * dtype.accumulator().size()];
            let expected = reference::accumulate(ReduceOp::Sum, dtype, &acc, &x);
            for level in levels() {
                let mut placed = Placed::new(&acc, 3);
                let x = Placed::new(&x, 1);
                level.accumulate(ReduceOp::Sum, dtype, placed.bytes(), x.as_bytes());
                assert_same(dtype.accumulator(), placed.unguarded(), &expected, level);
            }
        }
    }
}

#[test]
fn a_nan_on_either_side_gives_a_nan() {
    for (acc, x) in [(f32::NAN, 1.0), (1.0, f32::NAN), (-f32::NAN, -0.0), (f32::NAN, f32::NAN)] {
        for op in ReduceOp::ALL {
            for level in levels() {
                let mut result = acc.to_ne_bytes();
                level.accumulate(op, Dtype::F32, &mut result, &x.to_ne_bytes());
                assert!(f32::from_ne_bytes(result).is_nan(), "{op:?}({acc}, {x}) at {level:?}");
            }
        }
    }
}

#[test]
fn the_free_functions_use_the_preferred_level() {
    let preferred = InstructionSet::supported().next().unwrap();
    assert_eq!(InstructionSet::preferred(), preferred);
    assert_eq!(instruction_set(), preferred.name());
    let one = 0x3c00_u16.to_ne_bytes();
    let (mut acc, mut sum) = ([0; 4], [0; 2]);
    sumpter_sum::accumulate_pair(ReduceOp::Sum, Dtype::F16, &mut acc, &one, &one);
    assert_eq!(acc, 2_f32.to_ne_bytes());
    sumpter_sum::accumulate(ReduceOp::Sum, Dtype::F16, &mut acc, &one);
    assert_eq!(acc, 3_f32.to_ne_bytes());
    sumpter_sum::accumulate_last(ReduceOp::Sum, Dtype::F16, &mut sum, &acc, &one);
    sumpter_sum::divide(Dtype::F16, &mut sum, 2);
    assert_eq!(sum, 0x4000_u16.to_ne_bytes());
    sumpter_sum::reduce(ReduceOp::Sum, Dtype::F16, &mut sum, &one);
    assert_eq!(sum, 0x4200_u16.to_ne_bytes());
}

/// Adds a number to all others, and returns the last.
struct Shifted<'a> {
    numbers: &'a mut [f32],
    by: f32,
}

impl Kernel for Shifted<'_> {
    type Output = Option<f32>;

    #[inline(always)]
    fn run(self) -> Option<f32> {
        self.numbers.iter_mut().for_each(|x| *x += self.by);
        self.numbers.last().copied()
    }
}

#[test]
fn kernels_of_other_crates_run_at_every_level() {
    for level in levels() {
        let mut numbers: Vec<f32> = (0..1000_u16).map(f32::from).collect();
        let last = level.run(Shifted { numbers: &mut numbers, by: 0.5 });
        assert_eq!(last, Some(999.5), "{level:?}");
        assert!(numbers.iter().enumerate().all(|(i, x)| *x == i as f32 + 0.5), "{level:?}");
    }
}

#[test]
fn avx2_does_what_it_can_where_avx512_has_no_fp16() {
    let preferred = InstructionSet::preferred().name();
    for (op, dtype) in ReduceOp::ALL.iter().flat_map(|op| Dtype::ALL.map(|dtype| (*op, dtype))) {
        let chosen = InstructionSet::preferred_for(op, dtype).name();
        if preferred != "avx512" || matches!(dtype, Dtype::F16 | Dtype::Bf16) {
            assert_eq!(chosen, preferred, "{op:?} of {}", dtype.name());
        } else if op == ReduceOp::Sum {
            assert_eq!(chosen, "avx2+f16c", "the sum of {}", dtype.name());
        }
    }
}

#[test]
fn the_portable_level_is_always_there() {
    assert_eq!(InstructionSet::supported().last().unwrap().name(), "portable");
}

#[test]
#[should_panic(expected = "3 elements of float16 do not fit 2 accumulators")]
fn different_counts_are_refused() {
    sumpter_sum::accumulate(ReduceOp::Sum, Dtype::F16, &mut [0; 8], &[0; 6]);
}

#[test]
#[should_panic(expected = "7 bytes are no whole number of float32 (4)")]
fn parts_of_elements_are_refused() {
    sumpter_sum::reduce(ReduceOp::Sum, Dtype::F32, &mut [0; 7], &[0; 7]);
}

#[test]
#[should_panic(expected = "float32 is its own accumulator")]
fn what_does_not_widen_has_no_pair() {
    sumpter_sum::accumulate_pair(ReduceOp::Sum, Dtype::F32, &mut [0; 4], &[0; 4], &[0; 4]);
}

#[test]
#[should_panic(expected = "int32 has no division")]
fn integers_are_not_divided() {
    sumpter_sum::divide(Dtype::I32, &mut [0; 4], 2);
}
