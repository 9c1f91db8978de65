//! How much of the model each machine sums, for interfaces of any bandwidth.
//!
//! In units of the model (`M = 1`), machine shares solve
//!
//! ```text
//! minimize T   with   1 + (n-2) x_i <= T b_i    GPU machine i
//!                             n y_j <= T c_j    CPU machine j
//!                     x, y >= 0,   sum x + sum y = 1
//! ```
//!
//! A link's load grows with its machine's share, so the most that fits into a time `T` is
//! `f(T) = sum max(0, T b_i - 1)/(n-2) + sum T c_j/n`: piecewise linear and increasing, with a
//! corner where each GPU machine joins, at `T = 1/b_i`. The level `f(T) = 1` is found by walking
//! the corners, fastest machine first: with the `a` fastest in, `T = (1 + a/(n-2)) /
//! (sum b/(n-2) + sum c/n)`, and the walk ends where the next machine would not join yet.
//!
//! A GPU machine too slow to join sums nothing, but still has to send its own gradient. If that
//! is the slowest thing of all (`1/b_min` above the level), it sets the time and the others need
//! not reach it: keeping them at the level stays optimal and leaves their links the freest.

use crate::{Cluster, Machine, PlanError, Role};

/// The optimal share of each machine, as fractions of the model in the order of
/// [`Cluster::machines`]. They sum to one.
///
/// Edges: with one GPU machine its own servers sum everything. With two, a GPU machine's load
/// does not depend on its share, so the CPU machines take what they can in the time of the
/// faster GPU machine and the rest is split in proportion to bandwidth. All of it equals
/// [`Uniform`](crate::Uniform) where the bandwidths are equal.
///
/// ```
/// use sumpter_plan::{Cluster, Machine, Role, shares};
///
/// let gpu = |bandwidth_gbps| Machine { role: Role::Gpu, bandwidth_gbps, servers: 1 };
/// // The machine with the slow interface sums nothing: sending its gradient fills its link.
/// let cluster = Cluster::new(vec![gpu(100.0), gpu(100.0), gpu(100.0), gpu(25.0)])?;
/// let shares = shares(&cluster);
/// assert_eq!(shares[3], 0.0);
/// assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-12);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
#[must_use]
pub fn shares(cluster: &Cluster) -> Vec<f64> {
    let raw = match cluster.workers() {
        1 => alone(cluster),
        2 => pair(cluster),
        _ => level(cluster),
    };
    // Rounding leaves the sum a few ulps off one.
    let total: f64 = raw.iter().sum();
    raw.iter().map(|share| share / total).collect()
}

/// The weight of every server: its machine's share, split evenly over the machine's servers.
/// Servers are numbered machine by machine, in the order given. The weights sum to one.
///
/// ```
/// use sumpter_plan::{Machine, Role, server_weights};
///
/// let machines = [
///     Machine { role: Role::Gpu, bandwidth_gbps: 25.0, servers: 2 },
///     Machine { role: Role::Cpu, bandwidth_gbps: 25.0, servers: 1 },
/// ];
/// assert_eq!(server_weights(&machines)?, [0.5, 0.5, 0.0]);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// As [`Cluster::new`].
pub fn server_weights(machines: &[Machine]) -> Result<Vec<f64>, PlanError> {
    let cluster = Cluster::new(machines.to_vec())?;
    let per_machine = shares(&cluster).into_iter().zip(machines);
    let per_server = per_machine.flat_map(|(share, machine)| {
        let weight = share / f64::from(machine.servers.max(1));
        (0..machine.servers).map(move |_| weight)
    });
    Ok(per_server.collect())
}

/// What each machine's link carries, each way, as fractions of the model, if machine `i` sums the
/// fraction `shares[i]`: `1 + (n-2)x` for a GPU machine (it sends what it does not sum itself and
/// the sums of its share, and receives as much), `n y` for a CPU machine.
///
/// ```
/// use sumpter_plan::{Cluster, link_loads, shares};
///
/// let cluster = Cluster::uniform(4, 2, 100.0)?;
/// let loads = link_loads(&cluster, &shares(&cluster));
/// assert!(loads.iter().all(|load| (load - 1.2).abs() < 1e-12)); // Every link equally busy.
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
#[must_use]
pub fn link_loads(cluster: &Cluster, shares: &[f64]) -> Vec<f64> {
    let workers = f64::from(cluster.workers());
    let load = |role, share: f64| match role {
        Role::Gpu => 1.0 + (workers - 2.0) * share,
        Role::Cpu => workers * share,
    };
    let machines = cluster.machines().iter();
    machines.zip(shares).map(|(machine, &share)| load(machine.role, share)).collect()
}

/// Share of a machine that runs a server, by role; zero for one that does not.
fn by_role(cluster: &Cluster, gpu: impl Fn(f64) -> f64, cpu: impl Fn(f64) -> f64) -> Vec<f64> {
    let share = |machine: &Machine| match (machine.servers, machine.role) {
        (0, _) => 0.0,
        (_, Role::Gpu) => gpu(machine.bandwidth_gbps),
        (_, Role::Cpu) => cpu(machine.bandwidth_gbps),
    };
    cluster.machines().iter().map(share).collect()
}

/// `n = 1`: at home if it can, else on the CPU machines by bandwidth.
fn alone(cluster: &Cluster) -> Vec<f64> {
    if cluster.summing(Role::Gpu).next().is_some() {
        by_role(cluster, |_| 1.0, |_| 0.0)
    } else {
        by_role(cluster, |_| 0.0, |bandwidth| bandwidth)
    }
}

/// `n = 2`: the coefficient of `x` is zero, so the level has no corner to walk.
fn pair(cluster: &Cluster) -> Vec<f64> {
    let gpu_total = cluster.summing_total(Role::Gpu);
    let cpu_total = cluster.summing_total(Role::Cpu);
    if gpu_total == 0.0 {
        return by_role(cluster, |_| 0.0, |bandwidth| bandwidth);
    }
    let time = 1.0 / cluster.summing(Role::Gpu).fold(0.0, f64::max);
    let cpu_part = (time * cpu_total / 2.0).min(1.0);
    let gpu_scale = (1.0 - cpu_part) / gpu_total;
    let cpu_scale = if cpu_total > 0.0 { cpu_part / cpu_total } else { 0.0 };
    by_role(cluster, |bandwidth| bandwidth * gpu_scale, |bandwidth| bandwidth * cpu_scale)
}

/// `n >= 3`: the water level, by the walk described above.
fn level(cluster: &Cluster) -> Vec<f64> {
    let workers = f64::from(cluster.workers());
    let passing = workers - 2.0;
    let mut joining: Vec<f64> = cluster.summing(Role::Gpu).collect();
    joining.sort_by(|a, b| b.total_cmp(a));

    let mut joined = 0.0;
    let mut rate = cluster.summing_total(Role::Cpu) / workers;
    let mut time = 1.0 / rate; // Infinite without CPU machines: the first machine then joins.
    for bandwidth in joining {
        if time <= 1.0 / bandwidth {
            break;
        }
        joined += 1.0;
        rate += bandwidth / passing;
        time = (1.0 + joined / passing) / rate;
    }
    by_role(
        cluster,
        |bandwidth| ((time * bandwidth - 1.0) / passing).max(0.0),
        |bandwidth| time * bandwidth / workers,
    )
}
