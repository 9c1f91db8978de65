//! What PHub's paper (Luo et al., "Parameter Hub", SoCC'18) computes of a cluster, to compare with:
//! when a hub in each rack pays (section 3.4), and the bandwidth that hides communication (its
//! Table 2).

use crate::PlanError;
use crate::predict::check_bytes;

/// One rack of PHub's model: all racks are alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackModel {
    /// `N`: workers in a rack.
    pub workers: f64,
    /// `r`: racks.
    pub racks: f64,
    /// `BWkr`: bandwidth of a worker, in Gb/s.
    pub worker_gbps: f64,
    /// `BPBox`: bandwidth of a rack's hub, in Gb/s.
    pub hub_gbps: f64,
    /// `BCore`: what a rack can send to the others, in Gb/s.
    pub core_gbps: f64,
}

/// Both sides of PHub's inequality: the time without hubs and with them, for a model of one
/// gigabit, in seconds. Hubs pay if the first is larger.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RackTimes {
    /// `max((N-1)/Bbn, 1/(N BWkr))`.
    pub flat_s: f64,
    /// The hub's time and that of the exchange between racks.
    pub hubs_s: f64,
}

impl RackTimes {
    /// Whether hubs pay.
    #[must_use]
    pub fn hubs_pay(&self) -> bool {
        self.flat_s > self.hubs_s
    }
}

/// How the rack's term of the inequality is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// As the paper prints it: `max(1/BPBox, N/BWkr)`.
    Printed,
    /// With `N` where the hub's work is: `max(N/BPBox, 1/BWkr)`. A hub receives `N` gradients, a
    /// worker sends one.
    Exchanged,
}

impl RackModel {
    /// `Bbn = min((r-1) BPBox, BCore)`.
    #[must_use]
    pub fn bottleneck_gbps(&self) -> f64 {
        ((self.racks - 1.0) * self.hub_gbps).min(self.core_gbps)
    }

    /// `max((N-1)/Bbn, 1/(N BWkr)) > max(1/BPBox, N/BWkr) + C` with `C = (N-1)/(N Bbn)` for a
    /// sharded exchange between racks and `(r-1)/(r Bbn)` for a ring (PHub, section 3.4).
    ///
    /// ```
    /// use sumpter_plan::{RackModel, Reading};
    ///
    /// let racks = RackModel {
    ///     workers: 8.0,
    ///     racks: 4.0,
    ///     worker_gbps: 10.0,
    ///     hub_gbps: 80.0,
    ///     core_gbps: 20.0,
    /// };
    /// let times = racks.times(Reading::Exchanged, true);
    /// assert!((times.flat_s - 7.0 / 20.0).abs() < 1e-12);
    /// assert!((times.hubs_s - (8.0 / 80.0 + 3.0 / 4.0 / 20.0)).abs() < 1e-12);
    /// assert!(times.hubs_pay());
    /// // As printed a worker would have to send N gradients, and no rack would pay for itself.
    /// assert!(!racks.times(Reading::Printed, true).hubs_pay());
    /// ```
    #[must_use]
    pub fn times(&self, reading: Reading, ring: bool) -> RackTimes {
        let Self { workers: n, racks: r, worker_gbps, hub_gbps, .. } = *self;
        let between = self.bottleneck_gbps();
        let exchange = match ring {
            true => (r - 1.0) / (r * between),
            false => (n - 1.0) / (n * between),
        };
        let rack = match reading {
            Reading::Printed => (1.0 / hub_gbps).max(n / worker_gbps),
            Reading::Exchanged => (n / hub_gbps).max(1.0 / worker_gbps),
        };
        RackTimes {
            flat_s: ((n - 1.0) / between).max(1.0 / (n * worker_gbps)),
            hubs_s: rack + exchange,
        }
    }
}

/// The bandwidth below which communication cannot be hidden behind computation, in Gb/s, of the
/// busiest machine (PHub, Table 2). As in the paper, both directions are added; a full-duplex link
/// needs half of it each way.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct MinimumBandwidth {
    /// One server in the process of a worker (CC): `2(N-1)M/T`.
    pub colocated_central_gbps: f64,
    /// A server in every worker (CS), as all-reduce: `4(N-1)/N M/T`.
    pub colocated_sharded_gbps: f64,
    /// One server on a machine of its own (NCC): `2NM/T`.
    pub noncolocated_central_gbps: f64,
    /// As many server machines as workers (NCS): `2M/T`.
    pub noncolocated_sharded_gbps: f64,
}

impl MinimumBandwidth {
    /// For `workers` (N) that compute for `compute_s` (T) between two exchanges of a model of
    /// `bytes` (M).
    ///
    /// ```
    /// use sumpter_plan::MinimumBandwidth;
    ///
    /// // AlexNet with eight workers. The paper's figures have one M/T in common, 88 Gb/s.
    /// let least = MinimumBandwidth::new(8, 11_000_000_000, 1.0)?;
    /// assert_eq!(least.colocated_central_gbps, 1232.0);
    /// assert_eq!(least.colocated_sharded_gbps, 308.0);
    /// assert_eq!(least.noncolocated_central_gbps, 1408.0);
    /// assert_eq!(least.noncolocated_sharded_gbps, 176.0);
    /// # Ok::<(), sumpter_plan::PlanError>(())
    /// ```
    ///
    /// # Errors
    /// No bytes or too many, or a time that is not positive and finite.
    pub fn new(workers: u32, bytes: u64, compute_s: f64) -> Result<Self, PlanError> {
        check_bytes(bytes)?;
        let rate = bytes as f64 * 8e-9 / check_compute_s(compute_s)?;
        let n = f64::from(workers);
        Ok(Self {
            colocated_central_gbps: 2.0 * (n - 1.0) * rate,
            colocated_sharded_gbps: 4.0 * (n - 1.0) / n * rate,
            noncolocated_central_gbps: 2.0 * n * rate,
            noncolocated_sharded_gbps: 2.0 * rate,
        })
    }
}

/// Checks the time that a worker computes for between two exchanges.
pub(crate) fn check_compute_s(compute_s: f64) -> Result<f64, PlanError> {
    if (1e-9..=1e9).contains(&compute_s) {
        return Ok(compute_s);
    }
    Err(PlanError::field("compute_s", compute_s, "a number of seconds from 1e-9 to 1e9"))
}
