//! Element types and reduction operators, with the codes that travel on the wire.

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// IEEE 754 binary32.
    F32 = 0,
    /// IEEE 754 binary64.
    F64 = 1,
    /// IEEE 754 binary16; accumulated in `F32`, rounded once at the end.
    F16 = 2,
    /// bfloat16; accumulated in `F32`, rounded once at the end.
    Bf16 = 3,
    /// Signed 8-bit; sums wrap.
    I8 = 4,
    /// Unsigned 8-bit; sums wrap.
    U8 = 5,
    /// Signed 32-bit; sums wrap.
    I32 = 6,
    /// Signed 64-bit; sums wrap.
    I64 = 7,
}

impl Dtype {
    /// Every element type, in the order of their codes.
    pub const ALL: [Dtype; 8] = [
        Dtype::F32,
        Dtype::F64,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I8,
        Dtype::U8,
        Dtype::I32,
        Dtype::I64,
    ];

    /// The code on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The element type of a wire code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Dtype> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The element type of a name as NumPy and torch spell it: `float32`, `bfloat16`, ...
    #[must_use]
    pub fn from_name(name: &str) -> Option<Dtype> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Bytes of one element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 => 1,
            Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::F32 | Dtype::I32 => 4,
            Dtype::F64 | Dtype::I64 => 8,
        }
    }

    /// The type sums are kept in until the last contribution is in.
    #[must_use]
    pub fn accumulator(self) -> Dtype {
        match self {
            Dtype::F16 | Dtype::Bf16 => Dtype::F32,
            other => other,
        }
    }

    /// Whether the type is a floating-point type.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::Bf16)
    }

    /// The name NumPy and torch use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Dtype::F32 => "float32",
            Dtype::F64 => "float64",
            Dtype::F16 => "float16",
            Dtype::Bf16 => "bfloat16",
            Dtype::I8 => "int8",
            Dtype::U8 => "uint8",
            Dtype::I32 => "int32",
            Dtype::I64 => "int64",
        }
    }
}

/// How two contributions become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ReduceOp {
    /// `acc + x`; integers wrap.
    Sum = 0,
    /// The smaller; a NaN on either side gives NaN.
    Min = 1,
    /// The larger; a NaN on either side gives NaN.
    Max = 2,
    /// `acc * x`; integers wrap.
    Product = 3,
}

impl ReduceOp {
    /// Every operator, in the order of their codes.
    pub const ALL: [ReduceOp; 4] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

    /// The code on the wire.
    #[must_use]
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The operator of a wire code, if there is one.
    #[must_use]
    pub fn from_code(code: u8) -> Option<ReduceOp> {
        Self::ALL.get(usize::from(code)).copied()
    }

    /// The operator of a name: `sum`, `min`, `max`, `product`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<ReduceOp> {
        Self::ALL.into_iter().find(|o| o.name() == name)
    }

    /// The operator's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Min => "min",
            ReduceOp::Max => "max",
            ReduceOp::Product => "product",
        }
    }
}
