//! What a tensor that is encoded puts on the network.

use sumpter_types::Dtype;

use crate::block::blocks;
use crate::error::CodecError;
use crate::lowrank::LowRank;
use crate::registry::Registry;
use crate::shared::SHARED_SUM_BYTES;
use crate::spec::{Scheme, Spec};

/// Bytes of a whole tensor on the network, and who has work with them beside the workers that
/// encode and the servers that decode and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Traffic {
    /// A worker's contribution.
    pub contribution: u64,
    /// The answer to each worker.
    pub answer: u64,
    /// Whether the server encodes the sum: not where codes are added as they are.
    pub encodes_sums: bool,
    /// Whether workers decode it.
    pub decodes_sums: bool,
}

impl Traffic {
    /// Of a tensor of so many elements. `powersgd` depends on the shape of a matrix: it is taken to
    /// be as near to a square as whole numbers allow.
    ///
    /// # Errors
    /// As [`Registry::codec`]; if the type is none of floats, or the rank of `powersgd` exceeds the
    /// shorter side.
    pub fn of(
        registry: &Registry,
        spec: &Spec,
        dtype: Dtype,
        elements: u64,
    ) -> Result<Traffic, CodecError> {
        let name = || spec.scheme.name().to_owned();
        if !dtype.is_float() {
            return Err(CodecError::Dtype { codec: name(), dtype: dtype.name() });
        }
        let count = usize::try_from(elements).map_err(|_| CodecError::Argument {
            codec: name(),
            key: "elements".to_owned(),
            value: elements.to_string(),
            expected: "as many as this machine can address".to_owned(),
        })?;
        let plain = elements * dtype.size() as u64;
        if let Scheme::PowerSgd { rank, seed, .. } = spec.scheme {
            let rows = count.isqrt().max(1);
            let shape = LowRank::new(rank, seed, (rows, count.div_ceil(rows)))?;
            let factors = 4 * (shape.left_len() + shape.right_len()) as u64;
            return Ok(Traffic::added(factors, factors));
        }
        let codec = registry.codec(spec, elements)?;
        let contribution = codec.encoded_len(count) as u64;
        if spec.scheme == (Scheme::Int8 { shared: true }) {
            // A round before takes the largest magnitude of each block, both ways.
            let maxima = 4 * blocks(count) as u64;
            let sums = SHARED_SUM_BYTES as u64 * contribution;
            return Ok(Traffic::added(maxima + contribution, maxima + sums));
        }
        if !spec.two_way {
            let (encodes_sums, decodes_sums) = (false, false);
            return Ok(Traffic { contribution, answer: plain, encodes_sums, decodes_sums });
        }
        let (encodes_sums, decodes_sums) = (!codec.sums_encoded(), true);
        Ok(Traffic { contribution, answer: contribution, encodes_sums, decodes_sums })
    }

    /// Of codes that are added as they are.
    fn added(contribution: u64, answer: u64) -> Traffic {
        Traffic { contribution, answer, encodes_sums: false, decodes_sums: true }
    }
}
