//! Which worker mirrors which part of a variable: a function of the tensor and its workers alone,
//! so that no mirror moves when the plan changes.

use sumpter_engine::{MirroredSpan, Share, VariablePlace};
use sumpter_types::{Rank, Staleness, TensorId, TensorSpec};

use crate::cluster::lanes::PlacedPartition;

/// A variable with no more bytes for each of its workers is mirrored by one of them as a whole.
const SMALL_BYTES: u64 = 64 << 10;

/// The shares of a variable with these workers, of which some live: one after the other each of
/// them is the first to mirror an equal share, or of a small variable one of them all. Where it is
/// dead, or a share is to have another mirror, the next ones after it are preferred.
pub(crate) fn shares(
    id: TensorId,
    spec: &TensorSpec,
    members: &[Rank],
    lives: impl Fn(Rank) -> bool,
) -> Vec<Share> {
    let (elements, size) = (spec.elements().unwrap_or(0), spec.dtype.size() as u64);
    let workers = members.len() as u64;
    if workers == 0 || elements == 0 {
        return Vec::new();
    }
    let candidates = |first: usize| {
        let ring = members[first..].iter().chain(&members[..first]);
        ring.copied().filter(|rank| lives(*rank)).collect()
    };
    if elements * size <= SMALL_BYTES * workers {
        let candidates = candidates(id.0 as usize % members.len());
        return vec![Share { span: 0..(elements * size) as usize, candidates }];
    }
    let start =
        |index: u64| (u128::from(elements) * u128::from(index) / u128::from(workers)) as u64;
    let share = |index: u64| {
        let span = (start(index) * size) as usize..(start(index + 1) * size) as usize;
        Share { span, candidates: candidates(index as usize) }
    };
    (0..workers).map(share).collect()
}

/// Partitions cut where the mirrors change.
pub(crate) fn among_mirrors(
    partitions: &[PlacedPartition],
    mirrors: &[MirroredSpan],
    staleness: Staleness,
) -> Vec<PlacedPartition> {
    let mut out = Vec::new();
    for partition in partitions {
        for MirroredSpan { span, mirrors, lacks, .. } in mirrors {
            let start = partition.offset.max(span.start);
            let end = (partition.offset + partition.bytes).min(span.end);
            if start < end {
                let home = out.len() as u32;
                let (offset, mirrors, lacks) = (0, *mirrors, *lacks);
                let variable = VariablePlace { mirrors, home, offset, staleness, lacks };
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
            sharded: false,
            compression: String::new(),
        }
    }

    #[test]
    fn a_large_variable_has_equal_shares_and_small_ones_have_mirrors_by_number() {
        let members = [Rank(0), Rank(2), Rank(3)];
        let elements = 1_000_000;
        let all = shares(TensorId(5), &spec(elements), &members, |rank| rank != Rank(2));
        let candidates: Vec<_> = all.iter().map(|share| share.candidates.clone()).collect();
        assert_eq!(
            candidates,
            [vec![Rank(0), Rank(3)], vec![Rank(3), Rank(0)], vec![Rank(3), Rank(0)]]
        );
        let ends: Vec<_> = all.iter().flat_map(|of| [of.span.start, of.span.end]).collect();
        assert_eq!(ends, [0, 666_666, 666_666, 1_333_332, 1_333_332, 2_000_000]);
        for (id, rank) in [(0, 0), (1, 2), (2, 3), (3, 0)] {
            let all = shares(TensorId(id), &spec(10), &members, |_| true);
            let firsts: Vec<_> = all.into_iter().map(|of| (of.span, of.candidates[0])).collect();
            assert_eq!(firsts, [(0..20, Rank(rank))]);
        }
        assert_eq!(shares(TensorId(0), &spec(0), &members, |_| true), []);
    }

    #[test]
    fn partitions_are_cut_where_the_mirror_changes_and_stay_on_their_lanes() {
        let partition = |lane, offset, bytes| PlacedPartition {
            root: ConnId(lane),
            offset,
            bytes,
            tree: 0,
            variable: None,
            carrier: None,
        };
        let of = |span: std::ops::Range<usize>, rank| MirroredSpan {
            share: span.clone(),
            span,
            mirrors: [Some(Rank(rank)), None],
            lacks: false,
            applied: None,
        };
        let mirrors = [of(0..50, 0), of(50..100, 1)];
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
