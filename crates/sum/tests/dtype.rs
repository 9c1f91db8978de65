//! The codes and names that other programs see.

use sumpter_types::{Dtype, ReduceOp};

#[test]
fn dtype_codes_and_names_lead_back_to_the_dtype() {
    for (code, dtype) in (0..).zip(Dtype::ALL) {
        assert_eq!(dtype.code(), code);
        assert_eq!(Dtype::from_code(code), Some(dtype));
        assert_eq!(Dtype::from_name(dtype.name()), Some(dtype));
    }
}

#[test]
fn operator_codes_and_names_lead_back_to_the_operator() {
    for (code, op) in (0..).zip(ReduceOp::ALL) {
        assert_eq!(op.code(), code);
        assert_eq!(ReduceOp::from_code(code), Some(op));
        assert_eq!(ReduceOp::from_name(op.name()), Some(op));
    }
}

#[test]
fn what_is_no_code_or_name_is_refused() {
    for code in 8..=u8::MAX {
        assert_eq!(Dtype::from_code(code), None);
    }
    for code in 4..=u8::MAX {
        assert_eq!(ReduceOp::from_code(code), None);
    }
    for name in ["", "float", "Float32", "float8"] {
        assert_eq!(Dtype::from_name(name), None);
        assert_eq!(ReduceOp::from_name(name), None);
    }
}

#[test]
fn only_the_sixteen_bit_floats_have_another_accumulator() {
    for dtype in Dtype::ALL {
        let other = dtype.is_float() && dtype.size() == 2;
        assert_eq!(dtype.accumulator() != dtype, other);
        assert!(dtype.accumulator().size() >= dtype.size());
    }
}
