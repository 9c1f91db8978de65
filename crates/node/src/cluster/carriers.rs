//! Which worker keeps what the codes of sums leave out: a function of the tensor and its workers
//! alone, so that neither partitions nor servers change what a worker has.

use std::ops::Range;

use sumpter_engine::Coding;
use sumpter_types::{Dtype, Rank};

use crate::cluster::lanes::PlacedPartition;

/// Stretches of what is served of a tensor, in bytes, and who keeps what the codes of their sums
/// leave out: each worker an equal share of the blocks. None if nothing is kept.
pub(crate) fn carriers(
    coding: &Coding,
    dtype: Dtype,
    members: &[Rank],
) -> Vec<(Range<usize>, Rank)> {
    if !coding.codec().feeds_back_sums() || members.is_empty() {
        return Vec::new();
    }
    let (served, granularity) = (coding.served(), Coding::granularity(dtype) as u64);
    let size = dtype.size() as u64;
    let blocks = (coding.elements() * size).div_ceil(granularity);
    let start = |index: usize| blocks * index as u64 / members.len() as u64 * granularity;
    let local =
        |at: u64| (at.clamp(served.start * size, served.end * size) - served.start * size) as usize;
    let share =
        |(index, rank): (usize, &Rank)| (local(start(index))..local(start(index + 1)), *rank);
    members.iter().enumerate().map(share).filter(|(stretch, _)| !stretch.is_empty()).collect()
}

/// Partitions cut where another worker keeps what the codes of sums leave out.
pub(crate) fn among_carriers(
    partitions: Vec<PlacedPartition>,
    carriers: &[(Range<usize>, Rank)],
) -> Vec<PlacedPartition> {
    if carriers.is_empty() {
        return partitions;
    }
    let mut out = Vec::with_capacity(partitions.len() + carriers.len());
    for partition in partitions {
        for (stretch, rank) in carriers {
            let start = partition.offset.max(stretch.start);
            let end = (partition.offset + partition.bytes).min(stretch.end);
            if start < end {
                let (bytes, carrier) = (end - start, Some(*rank));
                out.push(PlacedPartition { offset: start, bytes, carrier, ..partition });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use sumpter_codec::Registry;
    use sumpter_endpoint::ConnId;

    use super::*;

    fn coding(text: &str, elements: u64, served: Range<u64>) -> Coding {
        Coding::new(&Registry::new(), &text.parse().unwrap(), elements, served).unwrap()
    }

    #[test]
    fn each_worker_keeps_an_equal_share_of_the_blocks_whatever_serves_them() {
        let members = [Rank(0), Rank(2), Rank(5)];
        let elements = 7 * 1024 + 10;
        let whole = carriers(&coding("onebit", elements, 0..elements), Dtype::Bf16, &members);
        let block = 2048;
        let ends = [(0..2 * block, 0), (2 * block..5 * block, 2), (5 * block..7 * block + 20, 5)];
        assert_eq!(whole, ends.map(|(stretch, rank)| (stretch, Rank(rank))));
        // Two event loops.
        let parts = [0..4096, 4096..elements].map(|served| {
            let start = 2 * served.start as usize;
            let local = carriers(&coding("onebit", elements, served), Dtype::Bf16, &members);
            let at =
                move |(of, rank): (Range<usize>, Rank)| (start + of.start..start + of.end, rank);
            local.into_iter().map(at).collect::<Vec<_>>()
        });
        let joined: Vec<_> = parts.into_iter().flatten().collect();
        let rank_at = |all: &[(Range<usize>, Rank)], byte| {
            all.iter().find(|(stretch, _)| stretch.contains(&byte)).map(|(_, rank)| *rank)
        };
        for byte in (0..2 * elements as usize).step_by(2) {
            assert_eq!(rank_at(&joined, byte), rank_at(&whole, byte), "{byte}");
        }
        assert_eq!(carriers(&coding("int8", 10, 0..10), Dtype::F32, &members), []);
        let one_block = carriers(&coding("topk:k=0.1", 10, 0..10), Dtype::F32, &members);
        assert_eq!(one_block, [(0..40, Rank(5))]);
    }

    #[test]
    fn partitions_are_cut_where_the_carrier_changes() {
        let root = ConnId(3);
        let partition = |offset, bytes| {
            let (tree, variable, carrier) = (0, None, None);
            PlacedPartition { root, offset, bytes, tree, variable, carrier }
        };
        let carriers = [(0..100, Rank(1)), (100..300, Rank(2))];
        let cut = among_carriers(vec![partition(0, 200), partition(200, 100)], &carriers);
        let found: Vec<_> = cut.iter().map(|p| (p.offset, p.bytes, p.carrier)).collect();
        let (one, two) = (Some(Rank(1)), Some(Rank(2)));
        assert_eq!(found, [(0, 100, one), (100, 100, two), (200, 100, two)]);
        assert_eq!(among_carriers(vec![partition(0, 200)], &[]), [partition(0, 200)]);
    }
}
