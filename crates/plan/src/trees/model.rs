//! The linear program that chooses reduction trees in a cluster with racks.
//!
//! In units of the model, with `n` GPU machines, `r` racks that have some and `n_c` of them in a
//! rack of class `c`. A machine of type `t` there is, for a fraction of the model,
//!
//! ```text
//! f  the root of flat trees                 d  its rack's hub in a ring of hubs
//! a  its rack's hub, the root elsewhere     b  its rack's hub and the root (sharded exchange)
//! ```
//!
//! and `F`, `H` and `R` are the fractions of the model with flat trees, with a sharded exchange and
//! with a ring. `F + H + R = 1`; over all machines `f` adds up to `F` and `b` to `H`; in each rack
//! with GPU machines `a + b` adds up to `H` and `d` to `R`. With `s = 2(r-1)/r`, each way,
//!
//! | link | carries |
//! |---|---|
//! | GPU machine | `F + (n-2) f + H + (n_c-1) a + (n_c+r-3) b + R + (n_c-2+s) d` |
//! | CPU machine | `n f + (n_c+1) a + (n_c+r-1) b + (n_c+s) d`; `r b` for `b` where `n_c = 0` |
//! | the same, where only GPU machines are hubs | `n f + r b` |
//! | trunk of a rack with `f`, `b` the sums in it | `n_c F + (n-2n_c) f + H + (r-2) b + s R` |
//! | trunk of a rack without GPU machines | `n f + r b` |
//! | core | all trunks together |
//!
//! Where only GPU machines are hubs ([`Hubs::Workers`]), a CPU machine is the root beside its
//! rack's hub: `b` of CPU machines does not count in `a + b = H` then, and the trunk carries the
//! same.
//!
//! The longest time over all links is minimized. Of the solutions that take it, one that moves the
//! least over trunks is taken, and of these one that moves little over machines' links: bytes are
//! the second objective.
//!
//! **Symmetry.** Machines of equal role and bandwidth in equal racks form a class. Averaging a
//! solution over a class gives one that is as good, since all rows are linear, so a class has one
//! set of variables: 1,000 machines in 32 racks may be as few as eight variables.
//!
//! **Bandwidths** are scaled by the time in which every worker, and every rack for its workers, can
//! have sent once. No link carries more than `2n` of the model, so larger capacities are cut; a
//! CPU machine of less than a millionth is left out. That keeps coefficients in the solver's range.

use std::collections::BTreeMap;

use microlp::{ComparisonOp, OptimizationDirection, Problem, Variable};

use crate::{Machine, PlanError, Role, Topology};

/// Below this part of the slowest worker's bandwidth a CPU machine sums nothing.
const LEAST_CAPACITY: f64 = 1e-6;

/// What the second objective may give away of the first, relatively: the solver's own tolerance.
const SLACK: f64 = 1e-7;

/// Bytes on machines' links count this much against bytes on trunks in the second objective.
const MACHINE_WEIGHT: f64 = 1e-3;

/// The candidate shapes of reduction trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shape {
    Flat,
    Sharded,
    Ring,
}

pub(super) const SHAPES: [Shape; 3] = [Shape::Flat, Shape::Sharded, Shape::Ring];

/// Fractions of the model for which a machine has each role, for all shapes together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parts {
    pub flat: f64,
    pub hub: f64,
    pub root: f64,
    pub ring: f64,
}

/// A solution: the fraction of the model with each shape, and the parts of each machine.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Solution {
    pub shapes: [f64; 3],
    pub machines: Vec<Parts>,
}

/// Machines of one kind in racks of one kind.
struct Type {
    role: Role,
    capacity: f64,
    sums: bool,
    in_each_rack: f64,
    machines: Vec<usize>,
}

/// Racks of one kind.
struct Class {
    trunk: f64,
    racks: f64,
    workers: f64,
    types: Vec<Type>,
}

/// A cluster by classes, with capacities such that a time of one is a lower bound.
pub(super) struct Model {
    /// The time that counts as one, for a gigabit in seconds.
    unit: f64,
    workers: f64,
    /// Racks with workers.
    sources: f64,
    classes: Vec<Class>,
    core: Option<f64>,
    machines: usize,
    hubs: Hubs,
}

/// Which machines may add the contributions of a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hubs {
    /// All that have servers.
    #[default]
    Any,
    /// GPU machines with servers; CPU machines may be roots.
    Workers,
}

/// `(role, bandwidth, sums)`, to order and compare machines by.
type Key = (bool, u64, bool);

/// What a rack's trunk carries, and how many machines of each key it has.
type RackKey = (u64, Vec<(Key, usize)>);

impl Model {
    /// The model of a cluster with racks.
    pub(super) fn new(topology: &Topology, hubs: Hubs) -> Self {
        let machines = topology.cluster().machines();
        let by_rack = topology.workers_by_rack();
        let racks = by_rack.len();
        let sources = by_rack.iter().filter(|workers| **workers > 0).count() as f64;
        let workers = f64::from(topology.cluster().workers());
        let unit = unit(topology, &by_rack);
        let capacity = |gbps: f64| (gbps * unit).min(2.0 * workers);

        let mut members: Vec<BTreeMap<Key, Vec<usize>>> = vec![BTreeMap::new(); racks];
        for (at, (machine, &rack)) in machines.iter().zip(topology.rack_of()).enumerate() {
            members[rack].entry(key(machine)).or_default().push(at);
        }
        let mut classes: BTreeMap<RackKey, Vec<usize>> = BTreeMap::new();
        for (rack, types) in members.iter().enumerate() {
            let types = types.iter().map(|(key, of)| (*key, of.len())).collect();
            let trunk = topology.trunks_gbps()[rack].to_bits();
            classes.entry((trunk, types)).or_default().push(rack);
        }
        let classes = classes.into_iter().map(|((trunk, types), of)| Class {
            trunk: capacity(f64::from_bits(trunk)),
            racks: of.len() as f64,
            workers: f64::from(by_rack[of[0]]),
            types: types
                .into_iter()
                .map(|(key, count)| {
                    let all = of.iter().flat_map(|&rack| members[rack][&key].iter().copied());
                    let all: Vec<usize> = all.collect();
                    let Machine { role, bandwidth_gbps, servers } = machines[all[0]];
                    let capacity = capacity(bandwidth_gbps);
                    let sums = servers > 0 && (role == Role::Gpu || capacity > LEAST_CAPACITY);
                    Type { role, capacity, sums, in_each_rack: count as f64, machines: all }
                })
                .collect(),
        });
        let core = topology.core_gbps().map(|core| (core * unit).min(2.0 * workers * sources));
        let (classes, machines) = (classes.collect(), machines.len());
        Self { unit, workers, sources, classes, core, machines, hubs }
    }

    /// The least time for a gigabit with the shapes that are allowed, in seconds; none if they
    /// cannot do it, as racks without a server have no hub.
    ///
    /// # Errors
    /// What the solver could not handle.
    pub(super) fn fastest(&self, allowed: &[Shape]) -> Result<Option<f64>, PlanError> {
        let Some(allowed) = self.possible(allowed) else { return Ok(None) };
        Ok(Some(self.unit * self.optimize(&allowed, None)?.0))
    }

    /// The best use of the shapes that are allowed, if they can do it. `known` is what
    /// [`fastest`](Self::fastest) says of them, if that was asked.
    ///
    /// # Errors
    /// What the solver could not handle.
    pub(super) fn solve(
        &self,
        allowed: &[Shape],
        known: Option<f64>,
    ) -> Result<Option<Solution>, PlanError> {
        let Some(allowed) = self.possible(allowed) else { return Ok(None) };
        let fastest = match known {
            Some(seconds) => seconds / self.unit,
            None => self.optimize(&allowed, None)?.0,
        };
        let (_, solution) = self.optimize(&allowed, Some(fastest * (1.0 + SLACK)))?;
        Ok(Some(solution))
    }

    /// Those of the shapes that this cluster can have, if any.
    fn possible(&self, allowed: &[Shape]) -> Option<Vec<Shape>> {
        let mut racks = self.classes.iter().filter(|class| class.workers > 0.0);
        let is_hub = |kind: &Type| kind.sums && self.may_be_hub(kind.role);
        let has_hubs = racks.all(|class| class.types.iter().any(is_hub));
        let roots = self.classes.iter().any(|class| class.types.iter().any(|kind| kind.sums));
        let possible = |shape: &&Shape| match shape {
            Shape::Flat => roots,
            Shape::Sharded | Shape::Ring => has_hubs && self.sources > 1.0,
        };
        let allowed: Vec<Shape> = allowed.iter().filter(possible).copied().collect();
        (!allowed.is_empty()).then_some(allowed)
    }

    fn may_be_hub(&self, role: Role) -> bool {
        role == Role::Gpu || self.hubs == Hubs::Any
    }

    /// Minimizes the time or, within `limit`, the bytes.
    fn optimize(
        &self,
        allowed: &[Shape],
        limit: Option<f64>,
    ) -> Result<(f64, Solution), PlanError> {
        let mut problem = Problem::new(OptimizationDirection::Minimize);
        let time = match limit {
            None => problem.add_var(1.0, (0.0, f64::INFINITY)),
            Some(limit) => problem.add_var(0.0, (0.0, limit)),
        };
        let rows = self.rows();
        let mut costs = vec![0.0; self.variables()];
        if limit.is_some() {
            for row in &rows {
                for (variable, coefficient) in &row.terms {
                    costs[*variable] += row.weight * coefficient;
                }
            }
        }
        // What has to be zero is left out.
        let variables: Vec<Option<Variable>> = costs
            .iter()
            .zip(self.bounds(allowed))
            .map(|(cost, most)| (most > 0.0).then(|| problem.add_var(*cost, (0.0, most))))
            .collect();
        let known = |terms: &[(usize, f64)]| -> Vec<(Variable, f64)> {
            terms.iter().filter_map(|&(at, of)| Some((variables[at]?, of))).collect()
        };
        for Row { terms, capacity, .. } in &rows {
            let load = known(terms).into_iter().chain([(time, -capacity)]);
            problem.add_constraint(load, ComparisonOp::Le, 0.0);
        }
        for (terms, right) in self.balances() {
            let terms = known(&terms);
            if !terms.is_empty() {
                problem.add_constraint(terms, ComparisonOp::Eq, right);
            }
        }
        let failed = |error: String| PlanError::Solver(error);
        let outcome = problem.solve().map_err(|error| failed(error.to_string()))?;
        let solved = outcome
            .into_solution()
            .map_err(|_| failed("the solver stopped before it had an answer".to_owned()))?;
        let value = |variable: &Option<Variable>| {
            variable.map_or(0.0, |variable| solved.var_value(variable).max(0.0))
        };
        let values = variables.iter().map(value);
        Ok((solved.var_value(time), self.solution(&values.collect::<Vec<_>>())))
    }

    /// The fractions `F`, `H`, `R`, then for each type of each class `f`, `a`, `b`, `d`.
    fn variables(&self) -> usize {
        3 + 4 * self.classes.iter().map(|class| class.types.len()).sum::<usize>()
    }

    /// Each class with its types and the number of their first variable.
    fn numbered(&self) -> impl Iterator<Item = (&Class, Vec<(&Type, usize)>)> {
        let mut next = 3;
        self.classes.iter().map(move |class| {
            let first = next;
            next += 4 * class.types.len();
            (class, class.types.iter().zip((first..).step_by(4)).collect())
        })
    }

    /// How large each variable may be: what is not allowed is zero.
    fn bounds(&self, allowed: &[Shape]) -> Vec<f64> {
        let most = |shape: Shape| f64::from(u8::from(allowed.contains(&shape)));
        let mut bounds = SHAPES.map(most).to_vec();
        for (class, types) in self.numbered() {
            for (kind, _) in types {
                let sums = f64::from(u8::from(kind.sums));
                let hub = class.workers > 0.0 && self.may_be_hub(kind.role);
                let hub = if hub { sums } else { 0.0 };
                let [flat, sharded, ring] = SHAPES.map(most);
                bounds.extend([sums * flat, hub * sharded, sums * sharded, hub * ring]);
            }
        }
        bounds
    }

    /// What every link carries: one row for each type of machine, each class of racks, the core.
    fn rows(&self) -> Vec<Row> {
        let (n, r) = (self.workers, self.sources);
        let around = 2.0 * (r - 1.0) / r;
        let mut rows = Vec::new();
        let mut core = vec![0.0; self.variables()];
        for (class, types) in self.numbered() {
            let own = class.workers;
            let mut trunk = vec![0.0; self.variables()];
            if own > 0.0 {
                trunk[..3].copy_from_slice(&[own, 1.0, around]);
            }
            for (kind, first) in types {
                let (base, parts) = match kind.role {
                    Role::Gpu => (1.0, [n - 2.0, own - 1.0, own + r - 3.0, own - 2.0 + around]),
                    Role::Cpu if own > 0.0 && self.hubs == Hubs::Any => {
                        (0.0, [n, own + 1.0, own + r - 1.0, own + around])
                    }
                    Role::Cpu => (0.0, [n, 0.0, r, 0.0]),
                };
                let mut row = vec![0.0; self.variables()];
                row[..3].fill(base);
                row[first..first + 4].copy_from_slice(&parts);
                let weight = MACHINE_WEIGHT * kind.machines.len() as f64;
                rows.push(Row::new(&row, kind.capacity, weight));
                trunk[first] = kind.in_each_rack * (n - 2.0 * own);
                trunk[first + 2] = kind.in_each_rack * if own > 0.0 { r - 2.0 } else { r };
            }
            for (all, one) in core.iter_mut().zip(&trunk) {
                *all += class.racks * one;
            }
            rows.push(Row::new(&trunk, class.trunk, class.racks));
        }
        rows.extend(self.core.map(|capacity| Row::new(&core, capacity, 0.0)));
        rows
    }

    /// What adds up to what.
    fn balances(&self) -> Vec<(Vec<(usize, f64)>, f64)> {
        let mut flat = vec![(0, -1.0)];
        let mut roots = vec![(1, -1.0)];
        let mut balances = vec![(vec![(0, 1.0), (1, 1.0), (2, 1.0)], 1.0)];
        for (class, types) in self.numbered() {
            let (mut hubs, mut ring) = (vec![(1, -1.0)], vec![(2, -1.0)]);
            for (kind, first) in types {
                flat.push((first, kind.machines.len() as f64));
                roots.push((first + 2, kind.machines.len() as f64));
                if self.may_be_hub(kind.role) {
                    hubs.extend([(first + 1, kind.in_each_rack), (first + 2, kind.in_each_rack)]);
                    ring.push((first + 3, kind.in_each_rack));
                }
            }
            if class.workers > 0.0 {
                balances.extend([(hubs, 0.0), (ring, 0.0)]);
            }
        }
        balances.extend([(flat, 0.0), (roots, 0.0)]);
        balances
    }

    fn solution(&self, values: &[f64]) -> Solution {
        let mut machines = vec![Parts::default(); self.machines];
        for (_, types) in self.numbered() {
            for (kind, first) in types {
                let [flat, hub, root, ring] = [0, 1, 2, 3].map(|at| values[first + at]);
                for &machine in &kind.machines {
                    machines[machine] = Parts { flat, hub, root, ring };
                }
            }
        }
        Solution { shapes: [values[0], values[1], values[2]], machines }
    }
}

/// A link: what it carries is the sum of the terms.
struct Row {
    terms: Vec<(usize, f64)>,
    capacity: f64,
    /// In the second objective.
    weight: f64,
}

impl Row {
    fn new(coefficients: &[f64], capacity: f64, weight: f64) -> Self {
        let terms = coefficients.iter().copied().enumerate();
        Self { terms: terms.filter(|(_, c)| *c != 0.0).collect(), capacity, weight }
    }
}

fn key(machine: &Machine) -> Key {
    (machine.role == Role::Gpu, machine.bandwidth_gbps.to_bits(), machine.servers > 0)
}

/// The time in which every worker can have sent once, and every rack for its workers.
fn unit(topology: &Topology, by_rack: &[u32]) -> f64 {
    let slowest = topology.cluster().slowest_worker_gbps();
    let sources = by_rack.iter().zip(topology.trunks_gbps()).filter(|(workers, _)| **workers > 0);
    let several = sources.clone().count() > 1;
    let trunks = sources.filter(|_| several).map(|(_, trunk)| *trunk);
    1.0 / trunks.fold(slowest, f64::min)
}
