//! Which worker mirrors which part of a variable: a function of the tensor and its workers alone,
//! so that no mirror moves when the plan changes.

use sumpter_engine::{MirroredSpan, VariablePlace};
use sumpter_types::{Rank, Staleness, TensorId, TensorSpec};

use crate::cluster::lanes::PlacedPartition;

/// A variable with no more bytes for each of its workers is mirrored by one of them as a whole.
const SMALL_BYTES: u64 = 64 << 10;

/// Who mirrors which bytes of a variable with these workers: one after the other an equal share, or
/// of a small one all.
pub(crate) fn mirrors(id: TensorId, spec: &TensorSpec, members: &[Rank]) -> Vec<MirroredSpan> {
    let (elements, size) = (spec.elements().unwrap_or(0), spec.dtype.size() as u64);
    let workers = members.len() as u64;
    if workers == 0 || elements == 0 {
        return Vec::new();
    }
    if elements * size <= SMALL_BYTES * workers {
        let mirror = members[id.0 as usize % members.len()];
        return vec![(0..(elements * size) as usize, [Some(mirror), None])];
    }
    let start =
        |index: u64| (u128::from(elements) * u128::from(index) / u128::from(workers)) as u64;
    let span = |(index, mirror): (u64, &Rank)| {
        let bytes = (start(index) * size) as usize..(start(index + 1) * size) as usize;
        (bytes, [Some(*mirror), None])
    };
    (0..).zip(members).map(span).collect()
}

/// Partitions cut where the mirrors change.
pub(crate) fn among_mirrors(
    partitions: &[PlacedPartition],
    mirrors: &[MirroredSpan],
    staleness: Staleness,
) -> Vec<PlacedPartition> {
    let mut out = Vec::new();
    for partition in partitions {
        for (span, mirrors) in mirrors {
            let start = partition.offset.max(span.start);
            let end = (partition.offset + partition.bytes).min(span.end);
            if start < end {
                let home = out.len() as u32;
                let offset = 0;
                let variable = VariablePlace { mirrors: *mirrors, home, offset, staleness };
                let variable = Some(variable);
                let (offset, bytes) = (start, end - start);
                out.push(PlacedPartition { offset, bytes, variable, ..*partition });
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use sumpter_endpoint::ConnId;
    use sumpter_types::{Collective, Dtype, ReduceOp, Rule};

    use super::*;

    fn spec(elements: u64) -> TensorSpec {
        TensorSpec {
            name: "w".to_owned(),
            dtype: Dtype::Bf16,
            shape: vec![elements],
            collective: Collective::Update,
            op: ReduceOp::Sum,
            root: Rank(0),
            ranks: Vec::new(),
            rule: Some(Rule::Lion),
            staleness: Staleness::default(),
        }
    }

    #[test]
    fn a_large_variable_is_mirrored_in_equal_shares_and_small_ones_in_turns() {
        let members = [Rank(0), Rank(2), Rank(3)];
        let elements = 1_000_000;
        let all = mirrors(TensorId(5), &spec(elements), &members);
        let (spans, ranks): (Vec<_>, Vec<_>) = all.into_iter().unzip();
        assert_eq!(ranks, members.map(|rank| [Some(rank), None]));
        let ends: Vec<_> = spans.iter().flat_map(|span| [span.start, span.end]).collect();
        assert_eq!(ends, [0, 666_666, 666_666, 1_333_332, 1_333_332, 2_000_000]);
        for (id, rank) in [(0, 0), (1, 2), (2, 3), (3, 0)] {
            let all = mirrors(TensorId(id), &spec(10), &members);
            assert_eq!(all, [(0..20, [Some(Rank(rank)), None])]);
        }
        assert_eq!(mirrors(TensorId(0), &spec(0), &members), []);
    }

    #[test]
    fn partitions_are_cut_where_the_mirror_changes_and_stay_on_their_lanes() {
        let partition = |lane, offset, bytes| PlacedPartition {
            root: ConnId(lane),
            offset,
            bytes,
            variable: None,
        };
        let mirrors = [(0..50, [Some(Rank(0)), None]), (50..100, [Some(Rank(1)), None])];
        let cut =
            among_mirrors(&[partition(7, 0, 40), partition(8, 40, 60)], &mirrors, Staleness(3));
        let found: Vec<_> = cut.iter().map(|p| (p.root.0, p.offset, p.bytes)).collect();
        assert_eq!(found, [(7, 0, 40), (8, 40, 10), (8, 50, 50)]);
        let homes: Vec<_> = cut.iter().map(|p| p.variable.unwrap().home).collect();
        assert_eq!(homes, [0, 1, 2]);
        assert!(cut.iter().all(|p| p.variable.unwrap().staleness == Staleness(3)));
        assert_eq!(cut[2].variable.unwrap().mirrors, [Some(Rank(1)), None]);
    }
}
