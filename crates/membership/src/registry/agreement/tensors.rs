//! A run's tensor table: names to ids, and the comparison of what the ranks declare.
//!
//! The first declaration of a name fixes it. Ids are dense and never reused. A name on which
//! ranks have disagreed stays refused: some rank may already have sent under its own spec.

use std::collections::HashMap;

use sumpter_types::{Collective, Rank, ReduceOp, Staleness, TensorId, TensorSpec};
use sumpter_wire::MAX_GROUP_RANKS;

use crate::limits::{MAX_TENSORS, check_compression, check_tensor_name};

/// Dimensions of a tensor; NumPy and torch stop at 64.
const MAX_DIMENSIONS: usize = 64;

/// Tensors of a message: far below what one may hold.
const LISTED_AT_ONCE: usize = 1024;

/// The tensors of one run.
#[derive(Debug, Default)]
pub(crate) struct TensorTable {
    entries: Vec<Entry>,
    ids: HashMap<String, usize>,
    refused: HashMap<String, String>,
}

#[derive(Debug)]
struct Entry {
    spec: TensorSpec,
    /// Unknown for what was declared to an earlier coordinator.
    declared_by: Option<Rank>,
}

/// What becomes of a declaration.
#[derive(Debug, PartialEq)]
pub(crate) enum Declared {
    /// A new entry, for all workers.
    New(TensorId, TensorSpec),
    /// Equal to the entry that all workers have already.
    Known,
    /// The ranks disagree, of which all workers must be notified.
    Conflict { name: String, message: String },
    /// A declaration that only its author must be notified of.
    Refused { name: String, message: String },
}

impl TensorTable {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// The tensors' names, by number.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.spec.name.as_str())
    }

    /// A tensor's number and spec.
    pub fn find(&self, name: &str) -> Option<(usize, &TensorSpec)> {
        let index = *self.ids.get(name)?;
        Some((index, &self.entries[index].spec))
    }

    /// Takes `rank`'s declaration.
    pub fn declare(&mut self, rank: Rank, spec: TensorSpec, world_size: u32) -> Declared {
        if let Some(message) = self.refused.get(&spec.name) {
            return Declared::Refused { message: message.clone(), name: spec.name };
        }
        let known = self.ids.get(&spec.name).map(|index| &self.entries[*index]);
        // What all but the first declare: thousands of workers, each of its tensors.
        if known.is_some_and(|entry| entry.spec == spec) && takes_part(&spec, rank) {
            return Declared::Known;
        }
        let name = spec.name.clone();
        let spec = match normal_form(rank, spec, world_size) {
            Ok(spec) => spec,
            Err(message) => return Declared::Refused { name, message },
        };
        if let Some(entry) = known {
            if entry.spec == spec {
                return Declared::Known;
            }
            let message = conflict(entry, rank, &spec);
            self.refuse(&name, &message);
            return Declared::Conflict { name, message };
        }
        if self.entries.len() >= MAX_TENSORS {
            let message = format!(
                "tensor '{name}': the job has {MAX_TENSORS} tensors already, which is the limit; \
                 use the same names in every step"
            );
            return Declared::Refused { name, message };
        }
        let index = self.entries.len();
        self.ids.insert(name, index);
        self.entries.push(Entry { spec: spec.clone(), declared_by: Some(rank) });
        Declared::New(TensorId(index as u32), spec)
    }

    /// Whether the table of a worker that has come back is of the same run: of two, one begins
    /// with the other.
    pub fn agrees_with(&self, specs: &[TensorSpec]) -> Result<(), String> {
        match self.entries.iter().zip(specs).find(|(entry, spec)| entry.spec != **spec) {
            None => Ok(()),
            Some((entry, spec)) => {
                let (ours, theirs) = (&entry.spec.name, &spec.name);
                Err(format!("its tensor table has '{theirs}' where others have '{ours}'"))
            }
        }
    }

    /// Takes what a table that [agrees](Self::agrees_with) has more than this one.
    ///
    /// # Errors
    /// In words, if no table can have that.
    pub fn restore(&mut self, specs: &[TensorSpec], world_size: u32) -> Result<(), String> {
        for spec in specs.iter().skip(self.entries.len()) {
            let author = spec.ranks.first().copied().unwrap_or_default();
            match self.declare(author, spec.clone(), world_size) {
                Declared::New(TensorId(index), normal) if normal == *spec => {
                    self.entries[index as usize].declared_by = None;
                }
                _ => return Err(format!("a tensor table cannot have '{}'", spec.name)),
            }
        }
        Ok(())
    }

    /// The entries from a number on, in lists that each begin with a number.
    pub fn since(&self, first: usize) -> impl Iterator<Item = (TensorId, Vec<TensorSpec>)> + '_ {
        let lists = self.entries.get(first..).unwrap_or_default().chunks(LISTED_AT_ONCE);
        (first..).step_by(LISTED_AT_ONCE).zip(lists).map(|(first, entries)| {
            let specs = entries.iter().map(|entry| entry.spec.clone()).collect();
            (TensorId(first as u32), specs)
        })
    }

    /// Why declarations of `name` are refused, if they are.
    pub fn refusal(&self, name: &str) -> Option<&str> {
        self.refused.get(name).map(String::as_str)
    }

    /// Refuses every later declaration of `name`.
    pub fn refuse(&mut self, name: &str, message: &str) {
        if self.refused.len() < MAX_TENSORS {
            self.refused.insert(name.to_owned(), message.to_owned());
        }
    }
}

/// The spec with what its kind does not use at its default and its ranks in order, so that equal
/// meanings are equal values.
fn normal_form(rank: Rank, mut spec: TensorSpec, world_size: u32) -> Result<TensorSpec, String> {
    check_tensor_name(&spec.name)?;
    let name = &spec.name;
    if spec.shape.len() > MAX_DIMENSIONS {
        let dimensions = spec.shape.len();
        return Err(format!(
            "tensor '{name}' has {dimensions} dimensions; at most {MAX_DIMENSIONS} are possible"
        ));
    }
    if spec.elements().is_none() {
        return Err(format!("tensor '{name}': {spec} is larger than any memory"));
    }
    spec.ranks.sort_unstable();
    if spec.ranks.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("tensor '{name}': a rank is listed twice in {spec}"));
    }
    if spec.ranks.last().is_some_and(|last| last.0 >= world_size) {
        return Err(format!(
            "tensor '{name}': {spec} lists a rank outside the job's {world_size} workers"
        ));
    }
    if spec.ranks.len() == world_size as usize {
        spec.ranks.clear();
    }
    if spec.ranks.len() > MAX_GROUP_RANKS {
        let ranks = spec.ranks.len();
        return Err(format!(
            "tensor '{name}' is for {ranks} of {world_size} ranks; it may be for all of them, or \
             for at most {MAX_GROUP_RANKS}"
        ));
    }
    if !takes_part(&spec, rank) {
        return Err(format!("tensor '{name}': rank {rank} is not one of its ranks: {spec}"));
    }
    if spec.collective.has_root() && (spec.root.0 >= world_size || !takes_part(&spec, spec.root)) {
        return Err(format!("tensor '{name}': the root takes no part: {spec}"));
    }
    if !spec.collective.has_root() {
        spec.root = Rank(0);
    }
    if !spec.collective.has_op() {
        spec.op = ReduceOp::Sum;
    }
    let updates = spec.collective == Collective::Update;
    if updates && (spec.rule.is_none() || !spec.dtype.is_float()) {
        return Err(format!("tensor '{name}': an update needs a rule, and floats: {spec}"));
    }
    if spec.sharded && spec.collective != Collective::AllReduce {
        return Err(format!("tensor '{name}': only an all_reduce can be sharded: {spec}"));
    }
    if !spec.compression.is_empty() {
        check_compression(&spec.compression).map_err(|why| format!("tensor '{name}': {why}"))?;
        let is_sum = spec.collective == Collective::AllReduce && spec.op == ReduceOp::Sum;
        if !is_sum || !spec.dtype.is_float() || spec.sharded {
            return Err(format!(
                "tensor '{name}': only floats that an all_reduce sums can be compressed, and none \
                 that device groups reduce first: {spec}"
            ));
        }
    }
    spec.rule = spec.rule.filter(|_| updates);
    if !updates {
        spec.staleness = Staleness::SYNCHRONOUS;
    }
    Ok(spec)
}

/// Whether a rank is one of a tensor's.
fn takes_part(spec: &TensorSpec, rank: Rank) -> bool {
    spec.ranks.is_empty() || spec.ranks.contains(&rank)
}

fn conflict(entry: &Entry, rank: Rank, spec: &TensorSpec) -> String {
    let Entry { spec: first, declared_by } = entry;
    let name = &first.name;
    if *declared_by == Some(rank) {
        return format!(
            "tensor '{name}': rank {rank} declared {first} before and {spec} now; a name keeps \
             its meaning for the whole run"
        );
    }
    let devices = match first.sharded == spec.sharded {
        true => "",
        false => {
            ": device groups reduce what is in device memory, so put it there on all ranks or none"
        }
    };
    let earlier = match declared_by {
        Some(earlier) => format!("rank {earlier} declared {first}"),
        None => format!("it was declared {first} before"),
    };
    format!(
        "tensor '{name}': {earlier}, rank {rank} declared {spec}; they \
         must be equal on every rank{devices}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::MAX_CODEC_BYTES;
    use crate::registry::tests::spec;
    use sumpter_types::{Dtype, Rule};

    fn refusal(declared: Declared) -> String {
        match declared {
            Declared::Refused { message, .. } => message,
            other => panic!("not refused: {other:?}"),
        }
    }

    #[test]
    fn the_first_declaration_takes_the_next_id_and_an_equal_one_is_known() {
        let mut table = TensorTable::default();
        let (a, b) = (spec("a", &[10]), spec("b", &[]));
        assert_eq!(table.declare(Rank(1), a.clone(), 2), Declared::New(TensorId(0), a.clone()));
        assert_eq!(table.declare(Rank(0), b.clone(), 2), Declared::New(TensorId(1), b));
        assert_eq!(table.declare(Rank(0), a, 2), Declared::Known);
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_group_that_lanes_would_not_take_is_refused() {
        let mut table = TensorTable::default();
        let most = MAX_GROUP_RANKS as u32;
        let of =
            |name, ranks| TensorSpec { ranks: (0..ranks).map(Rank).collect(), ..spec(name, &[1]) };
        let declared = table.declare(Rank(0), of("a", most), 65_536);
        assert!(matches!(declared, Declared::New(..)), "{declared:?}");
        let message = refusal(table.declare(Rank(0), of("b", most + 1), 65_536));
        assert!(message.contains("'b' is for 16385 of 65536 ranks"), "{message}");
        let declared = table.declare(Rank(0), of("c", most + 1), most + 1);
        assert!(matches!(declared, Declared::New(..)), "{declared:?}");
    }

    #[test]
    fn a_conflict_names_both_ranks_and_specs_and_refuses_the_name_from_then_on() {
        let mut table = TensorTable::default();
        table.declare(Rank(0), spec("grad/fc.weight", &[10, 3]), 4);
        let message = match table.declare(Rank(2), spec("grad/fc.weight", &[12, 3]), 4) {
            Declared::Conflict { message, .. } => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            message,
            "tensor 'grad/fc.weight': rank 0 declared shape [10, 3] float32 all_reduce sum, \
             rank 2 declared shape [12, 3] float32 all_reduce sum; they must be equal on every \
             rank"
        );
        assert_eq!(refusal(table.declare(Rank(0), spec("grad/fc.weight", &[10, 3]), 4)), message);
        assert!(matches!(table.declare(Rank(0), spec("other", &[1]), 4), Declared::New(..)));
    }

    #[test]
    fn dtype_kind_op_root_and_ranks_must_be_equal_too() {
        let base = TensorSpec { collective: Collective::Reduce, ..spec("t", &[4]) };
        let others = [
            TensorSpec { dtype: Dtype::F64, ..base.clone() },
            TensorSpec { collective: Collective::AllReduce, ..base.clone() },
            TensorSpec { op: ReduceOp::Max, ..base.clone() },
            TensorSpec { root: Rank(1), ..base.clone() },
            TensorSpec { ranks: vec![Rank(0), Rank(1)], ..base.clone() },
        ];
        for other in others {
            let mut table = TensorTable::default();
            table.declare(Rank(0), base.clone(), 4);
            let declared = table.declare(Rank(1), other.clone(), 4);
            assert!(matches!(declared, Declared::Conflict { .. }), "{other:?}: {declared:?}");
        }
    }

    #[test]
    fn only_an_all_reduce_is_sharded_and_all_ranks_must_say_so() {
        let mut table = TensorTable::default();
        let sharded = |name: &str| TensorSpec { sharded: true, ..spec(name, &[4]) };
        let reduce = TensorSpec { collective: Collective::Reduce, ..sharded("r") };
        assert!(refusal(table.declare(Rank(0), reduce, 2)).contains("only an all_reduce"));
        assert!(matches!(table.declare(Rank(0), sharded("t"), 2), Declared::New(..)));
        let Declared::Conflict { message: text, .. } = table.declare(Rank(1), spec("t", &[4]), 2)
        else {
            panic!("they agree")
        };
        assert!(
            text.contains(
                "rank 0 declared shape [4] float32 all_reduce sum (reduced in device groups \
                 first), rank 1 declared shape [4] float32 all_reduce sum;"
            ) && text.contains("put it there on all ranks or none"),
            "{text}"
        );
    }

    #[test]
    fn ranks_that_compress_a_tensor_differently_are_shown_both_codecs() {
        let mut table = TensorTable::default();
        let by = |codec: &str| TensorSpec { compression: codec.to_owned(), ..spec("g", &[4]) };
        let declared = table.declare(Rank(0), by("topk:k=0.01"), 2);
        assert_eq!(declared, Declared::New(TensorId(0), by("topk:k=0.01")));
        assert_eq!(table.declare(Rank(1), by("topk:k=0.01"), 2), Declared::Known);
        for other in ["int8", ""] {
            let mut table = TensorTable::default();
            table.declare(Rank(0), by("topk:k=0.01"), 2);
            let Declared::Conflict { message, .. } = table.declare(Rank(1), by(other), 2) else {
                panic!("they agree")
            };
            let own = if other.is_empty() { ";" } else { " compressed by int8;" };
            let both = format!(
                "rank 0 declared shape [4] float32 all_reduce sum compressed by topk:k=0.01, rank \
                 1 declared shape [4] float32 all_reduce sum{own}"
            );
            assert!(message.contains(&both), "{message}");
        }
    }

    #[test]
    fn only_sums_of_floats_by_an_all_reduce_are_compressed() {
        let fits = TensorSpec { compression: "int8".to_owned(), ..spec("g", &[4]) };
        for wrong in [
            TensorSpec { dtype: Dtype::I32, ..fits.clone() },
            TensorSpec { op: ReduceOp::Max, ..fits.clone() },
            TensorSpec { collective: Collective::ReduceScatter, ..fits.clone() },
            TensorSpec { collective: Collective::Broadcast, ..fits.clone() },
            TensorSpec { sharded: true, ..fits.clone() },
        ] {
            let text = refusal(TensorTable::default().declare(Rank(0), wrong, 2));
            assert!(text.contains("'g': only floats that an all_reduce sums"), "{text}");
            assert!(text.contains("compressed by int8"), "{text}");
        }
        let long = TensorSpec { compression: "x".repeat(MAX_CODEC_BYTES + 1), ..fits };
        let text = refusal(TensorTable::default().declare(Rank(0), long, 2));
        assert!(text.contains("'g': a codec with its arguments has 257 bytes"), "{text}");
    }

    #[test]
    fn what_a_kind_does_not_use_makes_no_difference() {
        let mut table = TensorTable::default();
        let broadcast = TensorSpec { collective: Collective::Broadcast, ..spec("b", &[4]) };
        table.declare(Rank(0), broadcast.clone(), 2);
        let other_op = TensorSpec { op: ReduceOp::Max, ..broadcast };
        assert_eq!(table.declare(Rank(1), other_op, 2), Declared::Known);

        table.declare(Rank(0), spec("s", &[4]), 2);
        let other_root = TensorSpec { root: Rank(9), ..spec("s", &[4]) };
        assert_eq!(table.declare(Rank(1), other_root, 2), Declared::Known);
        let all = TensorSpec { ranks: vec![Rank(1), Rank(0)], ..spec("s", &[4]) };
        assert_eq!(table.declare(Rank(1), all, 2), Declared::Known);
    }

    #[test]
    fn an_update_has_a_rule_and_floats_and_nothing_else_has() {
        let update = TensorSpec { collective: Collective::Update, ..spec("w", &[4]) };
        let adam = Some(Rule::Adam { amsgrad: false });
        let integers = TensorSpec { dtype: Dtype::I32, rule: adam, ..update.clone() };
        for wrong in [update.clone(), integers] {
            let text = refusal(TensorTable::default().declare(Rank(0), wrong, 2));
            assert!(text.contains("needs a rule, and floats"), "{text}");
        }
        let mut table = TensorTable::default();
        let declared = table.declare(Rank(0), TensorSpec { rule: adam, ..update.clone() }, 2);
        assert!(matches!(declared, Declared::New(..)));
        let lion = TensorSpec { rule: Some(Rule::Lion), ..update };
        let Declared::Conflict { message: text, .. } = table.declare(Rank(1), lion, 2) else {
            panic!("they agree")
        };
        assert!(text.contains("update by adam") && text.contains("update by lion"), "{text}");
        table.declare(Rank(0), spec("s", &[4]), 2);
        let sum = TensorSpec { rule: adam, ..spec("s", &[4]) };
        assert_eq!(table.declare(Rank(1), sum, 2), Declared::Known);
    }

    #[test]
    fn only_the_listed_ranks_may_declare() {
        let mut table = TensorTable::default();
        let some = TensorSpec { ranks: vec![Rank(2), Rank(0)], ..spec("g", &[4]) };
        assert!(matches!(table.declare(Rank(2), some.clone(), 4), Declared::New(..)));
        assert_eq!(table.declare(Rank(0), some.clone(), 4), Declared::Known);
        // As it is in the table.
        let sorted = TensorSpec { ranks: vec![Rank(0), Rank(2)], ..some.clone() };
        assert_eq!(table.declare(Rank(2), sorted.clone(), 4), Declared::Known);
        let text = refusal(table.declare(Rank(1), sorted, 4));
        assert!(text.contains("rank 1 is not one of its ranks"), "{text}");
        let text = refusal(table.declare(Rank(1), some, 4));
        assert!(text.contains("rank 1 is not one of its ranks"), "{text}");
    }

    #[test]
    fn declarations_that_make_no_sense_are_refused() {
        let senseless = [
            spec("", &[1]),
            spec(&"x".repeat(2000), &[1]),
            spec("deep", &[1; 65]),
            spec("huge", &[u64::MAX, 2]),
            spec("large", &[1 << 62]),
            TensorSpec { ranks: vec![Rank(0), Rank(0)], ..spec("twice", &[1]) },
            TensorSpec { ranks: vec![Rank(0), Rank(4)], ..spec("outside", &[1]) },
            TensorSpec {
                collective: Collective::Broadcast,
                root: Rank(4),
                ..spec("rootless", &[1])
            },
            TensorSpec {
                collective: Collective::Reduce,
                root: Rank(1),
                ranks: vec![Rank(0), Rank(2)],
                ..spec("root apart", &[1])
            },
        ];
        for spec in senseless {
            refusal(TensorTable::default().declare(Rank(0), spec, 4));
        }
    }

    #[test]
    fn the_entries_from_a_number_on_come_in_lists_that_begin_with_a_number() {
        let mut table = TensorTable::default();
        for index in 0..2 * LISTED_AT_ONCE {
            table.declare(Rank(0), spec(&format!("t{index}"), &[1]), 2);
        }
        let lists: Vec<_> = table.since(3).collect();
        let starts = [3, 3 + LISTED_AT_ONCE].map(|first| TensorId(first as u32));
        assert_eq!(lists.iter().map(|(first, _)| *first).collect::<Vec<_>>(), starts);
        let names = lists.iter().flat_map(|(_, specs)| specs).map(|spec| spec.name.as_str());
        assert!(names.eq(table.names().skip(3)));
        assert_eq!(table.since(table.len()).count() + table.since(table.len() + 1).count(), 0);
    }

    #[test]
    fn empty_and_scalar_tensors_are_fine() {
        let mut table = TensorTable::default();
        assert!(matches!(table.declare(Rank(0), spec("empty", &[0, 5]), 2), Declared::New(..)));
        assert!(matches!(table.declare(Rank(0), spec("scalar", &[]), 2), Declared::New(..)));
    }
}
