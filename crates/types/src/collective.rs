//! What the ranks do with a tensor.

use crate::ids::Rank;

/// What a round does with the contributions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Collective {
    /// Every member contributes, every member receives the result.
    AllReduce = 0,
    /// The root contributes, every other member receives its bytes.
    Broadcast = 1,
    /// Every member contributes, the root receives the result.
    Reduce = 2,
    /// No member goes on before every member has come. It has no code on the wire: it is carried
    /// as an all-reduce of one byte.
    Barrier = 3,
    /// One member's share of a reduce-scatter: every member contributes, the root receives the
    /// result. It has no code on the wire: it is carried as a reduce in a lane of the root's, since
    /// each member is the root of one share, and has its own contribution there.
    ReduceScatter = 4,
    /// Every member contributes a gradient, the sum changes a variable by its update rule, and
    /// every member receives the variable's new value.
    Update = 5,
}

impl Collective {
    /// Every collective.
    pub const ALL: [Collective; 6] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::Barrier,
        Collective::ReduceScatter,
        Collective::Update,
    ];

    /// The collective's name: `all_reduce`, `broadcast`, `reduce`, `barrier`, `reduce_scatter`,
    /// `update`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::Barrier => "barrier",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::Update => "update",
        }
    }

    /// The collective of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Collective> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// The collective of a code on the wire.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Collective> {
        use Collective::{AllReduce, Broadcast, Reduce, Update};
        [AllReduce, Broadcast, Reduce, Update].into_iter().find(|c| *c as u8 == code)
    }

    /// What carries it on the wire.
    #[must_use]
    pub fn on_wire(self) -> Collective {
        match self {
            Collective::Barrier => Collective::AllReduce,
            Collective::ReduceScatter => Collective::Reduce,
            other => other,
        }
    }

    /// Whether `rank` sends data, when `root` is the root.
    #[must_use]
    pub fn contributes(self, rank: Rank, root: Rank) -> bool {
        self != Collective::Broadcast || rank == root
    }

    /// Whether `rank` receives data, when `root` is the root.
    #[must_use]
    pub fn receives(self, rank: Rank, root: Rank) -> bool {
        match self {
            Collective::AllReduce | Collective::Barrier | Collective::Update => true,
            Collective::Broadcast => rank != root,
            Collective::Reduce | Collective::ReduceScatter => rank == root,
        }
    }

    /// Whether one rank differs from the others.
    #[must_use]
    pub fn has_root(self) -> bool {
        matches!(self.on_wire(), Collective::Broadcast | Collective::Reduce)
    }

    /// Whether contributions are combined.
    #[must_use]
    pub fn has_op(self) -> bool {
        matches!(self, Collective::AllReduce | Collective::Reduce | Collective::ReduceScatter)
    }
}
