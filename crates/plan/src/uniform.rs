//! The closed form for a cluster in which every interface has the same bandwidth `B`.
//!
//! With `n` GPU machines, `k` CPU machines and `D = n^2 + kn - 2k`, for `n >= 2` and `k <= n`
//! (BytePS, OSDI'20, section 4 and Theorem 1):
//!
//! | quantity | value |
//! |---|---|
//! | share of a CPU machine | `2(n-1)/D` |
//! | share of a GPU machine | `(n-k)/D` |
//! | bytes on a GPU machine's link, each way | `M + (n-2) M_gpu` |
//! | bytes on a CPU machine's link, each way | `n M_cpu` |
//! | time | `2n(n-1)M / (D B)` (the paper's Eq. 4 with the factor `n` that balances its sides) |
//!
//! The rest are edges of it: `n = 1` sums at home and needs no network; `k > n` leaves the GPU
//! machines nothing to sum and meets the floor `M/B` that every worker pays to send its gradient.

use crate::machine::check_count;
use crate::predict::{Prediction, check_bytes, seconds};
use crate::{BANDWIDTH_GBPS, PlanError, machine};

/// `n` GPU machines and `k` CPU machines with equal interfaces.
///
/// ```
/// use sumpter_plan::Uniform;
///
/// let cluster = Uniform::new(32, 16)?;
/// let prediction = cluster.predict(1 << 30, 100.0)?;
/// assert_eq!(prediction.gain_over_allreduce, Some(1.46875));
/// assert!((prediction.gain_over_ps.unwrap() - 1.5161).abs() < 1e-4);
/// assert!((32.0 * cluster.gpu_share() + 16.0 * cluster.cpu_share() - 1.0).abs() < 1e-12);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uniform {
    workers: u32,
    servers: u32,
}

impl Uniform {
    /// `workers` GPU machines (n) and `servers` CPU machines (k).
    ///
    /// # Errors
    /// No workers, or more machines than [`MAX_MACHINES`](crate::MAX_MACHINES).
    pub fn new(workers: u32, servers: u32) -> Result<Self, PlanError> {
        check_count("workers", u64::from(workers), 1)?;
        check_count("servers", u64::from(servers), 0)?;
        Ok(Self { workers, servers })
    }

    /// Fraction of the model that each GPU machine sums: `(n-k)/D`; none of it once `k > n`.
    #[must_use]
    pub fn gpu_share(&self) -> f64 {
        match self.regime() {
            Regime::Alone => 1.0,
            Regime::Balanced => (self.n() - self.k()) / self.d(),
            Regime::Floor => 0.0,
        }
    }

    /// Fraction of the model that each CPU machine sums: `2(n-1)/D`, or `1/k` once `k > n`; zero
    /// where there is no CPU machine or only one GPU machine.
    #[must_use]
    pub fn cpu_share(&self) -> f64 {
        match self.regime() {
            Regime::Balanced if self.servers > 0 => 2.0 * (self.n() - 1.0) / self.d(),
            Regime::Floor => 1.0 / self.k(),
            Regime::Alone | Regime::Balanced => 0.0,
        }
    }

    /// What a GPU machine's link carries each way, as a fraction of the model: `1 + (n-2)x`.
    #[must_use]
    pub fn gpu_link(&self) -> f64 {
        1.0 + (self.n() - 2.0) * self.gpu_share()
    }

    /// What a CPU machine's link carries each way, as a fraction of the model: `n y`.
    #[must_use]
    pub fn cpu_link(&self) -> f64 {
        self.n() * self.cpu_share()
    }

    /// Times and gains for a model of `bytes` over links of `bandwidth_gbps`: the optimum above,
    /// all-reduce `2(n-1)M/(nB)`, non-colocated parameter server `max(M/B, nM/(kB))`, and the
    /// gains `D/n^2` and `D/(2k(n-1))`.
    ///
    /// # Errors
    /// No bytes, or a bandwidth out of range.
    pub fn predict(&self, bytes: u64, bandwidth_gbps: f64) -> Result<Prediction, PlanError> {
        check_bytes(bytes)?;
        if !BANDWIDTH_GBPS.contains(&bandwidth_gbps) {
            let expected = machine::bandwidth_expected();
            return Err(PlanError::field("bandwidth_gbps", bandwidth_gbps, expected));
        }
        let (n, k, d) = (self.n(), self.k(), self.d());
        let (time, gain_over_allreduce, gain_over_ps) = match self.regime() {
            Regime::Alone => (0.0, None, None),
            Regime::Balanced => {
                (2.0 * n * (n - 1.0) / d, Some(d / (n * n)), Some(d / (2.0 * k * (n - 1.0))))
            }
            Regime::Floor => (1.0, Some(2.0 * (n - 1.0) / n), Some(1.0)),
        };
        let has_ps = self.servers > 0;
        let in_seconds = |fraction| seconds(bytes, fraction, bandwidth_gbps);
        Ok(Prediction {
            time_s: in_seconds(time),
            allreduce_time_s: in_seconds(2.0 * (n - 1.0) / n),
            ps_time_s: has_ps.then(|| in_seconds((n / k).max(1.0))),
            gain_over_allreduce,
            gain_over_ps: gain_over_ps.filter(|_| has_ps),
        })
    }

    fn regime(&self) -> Regime {
        match (self.workers, self.servers) {
            (1, _) => Regime::Alone,
            (n, k) if k > n => Regime::Floor,
            _ => Regime::Balanced,
        }
    }

    fn n(&self) -> f64 {
        f64::from(self.workers)
    }

    fn k(&self) -> f64 {
        f64::from(self.servers)
    }

    /// `D = n^2 + kn - 2k`, exact in floating point for every count that is accepted.
    fn d(&self) -> f64 {
        self.n() * self.n() + self.k() * self.n() - 2.0 * self.k()
    }
}

enum Regime {
    /// One GPU machine: the sum never leaves it.
    Alone,
    /// `k <= n`: every link is busy for the same time.
    Balanced,
    /// `k > n`: the workers' own links are the limit.
    Floor,
}
