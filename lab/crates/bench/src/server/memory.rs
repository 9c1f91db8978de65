//! A tensor of the benchmark: what is contributed and what comes back, apart, so that every round
//! can be checked against the same contributions.

use sumpter_endpoint::Memory;
use sumpter_sum::AlignedBuf;

use crate::pattern::{Pattern, patterned};

/// What no result is: every `f32` a NaN.
const POISON: u8 = 0xff;

#[derive(Debug)]
pub(crate) struct Pages {
    contribution: AlignedBuf,
    result: AlignedBuf,
}

impl Pages {
    /// A tensor whose contribution is the pattern of `scale`.
    pub(crate) fn new(bytes: usize, scale: u32) -> Pages {
        let mut result = AlignedBuf::new(bytes);
        result.fill(POISON);
        Pages { contribution: patterned(bytes, scale), result }
    }

    /// Where the result is not what it must be; then spoils it, so that the next round cannot
    /// pass by leaving it alone.
    pub(crate) fn check(&mut self, expected: &Pattern) -> Option<usize> {
        let differs = expected.differs_at(&self.result);
        self.result.fill(POISON);
        differs
    }
}

impl Memory for Pages {
    fn contribution(&self, offset: usize, len: usize) -> &[u8] {
        &self.contribution[offset..offset + len]
    }

    fn result(&mut self, offset: usize, len: usize) -> &mut [u8] {
        &mut self.result[offset..offset + len]
    }
}
