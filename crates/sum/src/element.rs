//! What the kernels need to know about one element: its bytes and how two of them combine.
//!
//! Elements are read from and written to byte arrays, so no kernel cares how its buffers are
//! aligned. Every operator is free of branches once compiled: loops over it vectorize.

/// An element of `N` bytes in the machine's own byte order.
pub(crate) trait Element<const N: usize>: Copy {
    fn load(bytes: [u8; N]) -> Self;
    fn store(self) -> [u8; N];
    fn sum(self, x: Self) -> Self;
    fn product(self, x: Self) -> Self;
    fn min(self, x: Self) -> Self;
    fn max(self, x: Self) -> Self;
}

/// A floating-point element, which alone has an average.
pub(crate) trait Float<const N: usize>: Element<N> {
    fn from_divisor(divisor: u32) -> Self;
    fn divide(self, divisor: Self) -> Self;
}

macro_rules! bytes {
    ($n:literal) => {
        #[inline(always)]
        fn load(bytes: [u8; $n]) -> Self {
            Self::from_ne_bytes(bytes)
        }
        #[inline(always)]
        fn store(self) -> [u8; $n] {
            self.to_ne_bytes()
        }
    };
}

macro_rules! integer {
    ($type:ty, $n:literal) => {
        impl Element<$n> for $type {
            bytes!($n);
            #[inline(always)]
            fn sum(self, x: Self) -> Self {
                self.wrapping_add(x)
            }
            #[inline(always)]
            fn product(self, x: Self) -> Self {
                self.wrapping_mul(x)
            }
            #[inline(always)]
            fn min(self, x: Self) -> Self {
                if self < x { self } else { x }
            }
            #[inline(always)]
            fn max(self, x: Self) -> Self {
                if self > x { self } else { x }
            }
        }
    };
}

/// Each comparison below is one instruction, and false for a NaN. So where the two are ordered both
/// alternatives are the same value, and where they are not one is `self` and the other `x`: a NaN
/// united with anything is a NaN, and united zeros are the negative one. That makes min and max
/// independent of the order of contributions, NaN payloads aside.
macro_rules! float {
    ($type:ty, $n:literal) => {
        impl Element<$n> for $type {
            bytes!($n);
            #[inline(always)]
            fn sum(self, x: Self) -> Self {
                self + x
            }
            #[inline(always)]
            fn product(self, x: Self) -> Self {
                self * x
            }
            #[inline(always)]
            fn min(self, x: Self) -> Self {
                let one = if self < x { self } else { x };
                let other = if x < self { x } else { self };
                Self::from_bits(one.to_bits() | other.to_bits())
            }
            #[inline(always)]
            fn max(self, x: Self) -> Self {
                let one = if self > x { self } else { x };
                let other = if x > self { x } else { self };
                let unordered = self.is_nan() | x.is_nan();
                let (one, other) = (one.to_bits(), other.to_bits());
                Self::from_bits(if unordered { one | other } else { one & other })
            }
        }

        impl Float<$n> for $type {
            #[inline(always)]
            fn from_divisor(divisor: u32) -> Self {
                divisor as $type
            }
            #[inline(always)]
            fn divide(self, divisor: Self) -> Self {
                self / divisor
            }
        }
    };
}

integer!(i8, 1);
integer!(u8, 1);
integer!(i32, 4);
integer!(i64, 8);
float!(f32, 4);
float!(f64, 8);
