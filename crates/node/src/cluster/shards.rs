//! The device groups of a job's ranks, and who contributes which bytes of a tensor: of one that
//! they have reduced on their devices, each holder the shard that it has of its group's sum.

use std::ops::Range;

use sumpter_membership::ClusterView;
use sumpter_plan::{Shard, shard_cut, shard_turn, shards};
use sumpter_types::{Rank, TensorSpec};

/// The ranks of a device group, ascending, and whether each holds shards.
type Group = Vec<(Rank, bool)>;

/// The device groups of a job's ranks; they do not change while it runs.
#[derive(Clone, Debug)]
pub(crate) struct DeviceGroups {
    /// In the order of their lowest ranks. A rank without a group is one.
    groups: Vec<Group>,
}

/// Bytes of a tensor to which the same ranks contribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub bytes: Range<usize>,
    /// Whose plan places its partitions: of these ranks, or of all if there are none.
    pub planned: Vec<Rank>,
    /// Who contributes and receives, ascending.
    pub members: Vec<Rank>,
}

/// A rank, and the bytes of a tensor that it holds; no bytes if it holds nothing.
pub(crate) type Held = (Rank, Range<usize>);

impl DeviceGroups {
    pub(crate) fn of(view: &ClusterView) -> DeviceGroups {
        let mut groups: Vec<(Option<&str>, Group)> = Vec::new();
        for worker in &view.workers {
            let group = worker.device_group.as_ref();
            let name = group.map(|group| group.name.as_str());
            let member = (worker.rank, group.is_none_or(|group| group.holds));
            match groups.iter_mut().find(|(known, _)| name.is_some() && *known == name) {
                Some((_, members)) => members.push(member),
                None => groups.push((name, vec![member])),
            }
        }
        DeviceGroups { groups: groups.into_iter().map(|(_, members)| members).collect() }
    }

    /// The ranks of a rank's group, ascending, and whether each holds shards.
    pub(crate) fn of_rank(&self, rank: Rank) -> &[(Rank, bool)] {
        let has = |group: &&Group| group.iter().any(|(member, _)| *member == rank);
        self.groups.iter().find(has).map_or(&[], Vec::as_slice)
    }

    /// Who contributes which bytes of a tensor with these members, one stretch after the other.
    pub(crate) fn stretches(&self, spec: &TensorSpec, members: &[Rank]) -> Vec<Stretch> {
        let (elements, size) = (spec.elements().unwrap_or(0), spec.dtype.size() as u64);
        if !spec.sharded {
            let (bytes, members) = (0..(elements * size) as usize, members.to_vec());
            return vec![Stretch { bytes, planned: spec.ranks.clone(), members }];
        }
        let groups = self.groups.iter().map(|group| holders(group, members));
        let groups: Vec<Vec<Rank>> = groups.filter(|group| !group.is_empty()).collect();
        let shards = shards(elements, size, &groups, shard_turn(&spec.name));
        let stretch = |Shard { bytes, holders: members_here }: Shard| {
            // Those of all members are placed with the other tensors of these.
            let are_all = members_here == members;
            let planned = if are_all { spec.ranks.clone() } else { members_here.clone() };
            let bytes = bytes.start as usize..bytes.end as usize;
            Stretch { bytes, planned, members: members_here }
        };
        shards.into_iter().map(stretch).collect()
    }

    /// What each rank of a rank's group holds of a sharded tensor with these members, of those
    /// that take part.
    pub(crate) fn held(&self, spec: &TensorSpec, members: &[Rank], rank: Rank) -> Vec<Held> {
        let group = self.of_rank(rank);
        let holders = holders(group, members);
        let (elements, size) = (spec.elements().unwrap_or(0), spec.dtype.size() as u64);
        let cut = shard_cut(elements, size, holders.len() as u64, shard_turn(&spec.name));
        let held = |(member, _): &(Rank, bool)| {
            let at = holders.iter().position(|holder| holder == member);
            let bytes = at.map_or(0..0, |at| cut[at].start as usize..cut[at].end as usize);
            (*member, bytes)
        };
        group.iter().filter(|(member, _)| members.contains(member)).map(held).collect()
    }

    /// The bytes of a tensor with these members that are in a rank's memory.
    pub(crate) fn own(&self, spec: &TensorSpec, members: &[Rank], rank: Rank) -> Range<usize> {
        if !spec.sharded {
            return 0..(spec.elements().unwrap_or(0) * spec.dtype.size() as u64) as usize;
        }
        let held = self.held(spec, members, rank);
        held.into_iter().find(|(member, _)| *member == rank).map_or(0..0, |(_, bytes)| bytes)
    }
}

/// The ranks of a group that hold shards of a tensor with these members: if none of those that take
/// part is to hold any, they all do.
fn holders(group: &[(Rank, bool)], members: &[Rank]) -> Vec<Rank> {
    let there = || group.iter().filter(|(rank, _)| members.contains(rank));
    let holders: Vec<Rank> = there().filter(|(_, holds)| *holds).map(|(rank, _)| *rank).collect();
    if holders.is_empty() { there().map(|(rank, _)| *rank).collect() } else { holders }
}

#[cfg(test)]
mod tests {
    use sumpter_membership::{LaneView, WorkerView};
    use sumpter_types::{Collective, DeviceGroup, Dtype, ReduceOp, Staleness};

    use super::*;

    /// Ranks in groups of these names, of which those with a `-` behind hold nothing.
    fn groups(names: &[&str]) -> DeviceGroups {
        let worker = |(rank, name): (u32, &&str)| WorkerView {
            rank: Rank(rank),
            host: "h".into(),
            machine: "m".into(),
            lanes: vec![LaneView::from(([127, 0, 0, 1], 1))],
            bandwidth_gbps: None,
            rack: None,
            device_group: (!name.is_empty()).then(|| DeviceGroup {
                name: name.trim_end_matches('-').to_owned(),
                holds: !name.ends_with('-'),
            }),
        };
        let workers = (0..).zip(names).map(worker).collect();
        DeviceGroups::of(&ClusterView { workers, ..ClusterView::default() })
    }

    fn spec(elements: u64, ranks: &[u32]) -> TensorSpec {
        TensorSpec {
            name: "w".to_owned(),
            dtype: Dtype::F32,
            shape: vec![elements],
            collective: Collective::AllReduce,
            op: ReduceOp::Sum,
            root: Rank(0),
            ranks: ranks.iter().copied().map(Rank).collect(),
            rule: None,
            staleness: Staleness::default(),
            sharded: true,
            compression: String::new(),
        }
    }

    fn ranks(ranks: impl IntoIterator<Item = u32>) -> Vec<Rank> {
        ranks.into_iter().map(Rank).collect()
    }

    const LARGE: u64 = 100_002;

    #[test]
    fn each_shard_has_a_holder_of_each_group() {
        let groups = groups(&["a", "a", "", "b", "b"]);
        assert_eq!(groups.of_rank(Rank(4)), [(Rank(3), true), (Rank(4), true)]);
        assert_eq!(groups.of_rank(Rank(2)), [(Rank(2), true)]);
        let (spec, all) = (spec(LARGE, &[]), ranks(0..5));
        let found = groups.stretches(&spec, &all);
        let half = LARGE as usize * 2;
        let stretch = |bytes, members: [u32; 3]| Stretch {
            bytes,
            planned: ranks(members),
            members: ranks(members),
        };
        assert_eq!(found, [stretch(0..half, [0, 2, 3]), stretch(half..2 * half, [1, 2, 4])]);
        assert_eq!(groups.own(&spec, &all, Rank(4)), half..2 * half);
        assert_eq!(groups.own(&spec, &all, Rank(2)), 0..2 * half);
        let held = groups.held(&spec, &all, Rank(4));
        assert_eq!(held, [(Rank(3), 0..half), (Rank(4), half..2 * half)]);
        let whole = TensorSpec { sharded: false, ..spec };
        let found = groups.stretches(&whole, &all);
        assert_eq!(found, [Stretch { bytes: 0..2 * half, planned: Vec::new(), members: all }]);
    }

    #[test]
    fn a_rank_beside_the_network_interface_holds_nothing_unless_it_is_alone() {
        let groups = groups(&["a-", "a", "a", "b", "b-"]);
        let (of_all, all) = (spec(LARGE, &[]), ranks(0..5));
        assert_eq!(groups.own(&of_all, &all, Rank(0)), 0..0);
        assert_eq!(groups.own(&of_all, &all, Rank(3)), 0..LARGE as usize * 4);
        let held = groups.held(&of_all, &all, Rank(0));
        assert_eq!(held[0], (Rank(0), 0..0));
        assert_eq!(held.iter().map(|(_, bytes)| bytes.len()).sum::<usize>(), LARGE as usize * 4);
        // Of a process set, the ranks of a group that are in it are the group.
        let some = spec(LARGE, &[0, 1, 4]);
        let members = ranks([0, 1, 4]);
        assert_eq!(groups.held(&some, &members, Rank(4)), [(Rank(4), 0..LARGE as usize * 4)]);
        let stretches = groups.stretches(&some, &members);
        assert_eq!(stretches.len(), 1);
        assert_eq!(stretches[0].members, ranks([1, 4]));
    }

    #[test]
    fn what_all_hold_is_placed_with_the_other_tensors_of_all() {
        let groups = groups(&["", "a", "b"]);
        let stretches = groups.stretches(&spec(LARGE, &[]), &ranks(0..3));
        assert_eq!((stretches.len(), &stretches[0].planned), (1, &Vec::new()));
        assert_eq!(groups.stretches(&spec(0, &[]), &ranks(0..3)), []);
    }
}
