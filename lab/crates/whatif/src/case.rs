//! One cluster to be tried: machines, links, and how gradients travel.

use std::ops::RangeInclusive;

use sumpter_plan::{
    Architecture, BANDWIDTH_GBPS, MAX_MACHINES, PARTITION_ALIGN_BYTES, default_credit,
};

use crate::WhatifError;
use crate::error::within;

/// Compression ratios that are believed.
const COMPRESSION: RangeInclusive<f64> = 1.0..=1e6;

/// A cluster of equal machines. The defaults are those of the runtime's settings and, for
/// all-reduce, of NetAI'20.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// GPU machines (n), each with one contribution.
    pub workers: u32,
    /// CPU machines that help (k).
    pub servers: u32,
    /// Who sums.
    pub architecture: Architecture,
    /// Each machine's link, each way.
    pub bandwidth_gbps: f64,
    /// The part of the bandwidth that the transport can use, up to 1.
    pub transport_efficiency: f64,
    /// What divides the bytes on the links; compressing itself takes no time.
    pub compression: f64,
    /// All-reduce: a fusion buffer of this size is full.
    pub fusion_bytes: u64,
    /// All-reduce: a fusion buffer of this age is sent.
    pub fusion_timeout_s: f64,
    /// All-reduce: what each of the 2(N-1) steps of a ring takes beside its bytes.
    pub hop_latency_s: f64,
    /// Largest size of a partition; a multiple of [`PARTITION_ALIGN_BYTES`].
    pub partition_bytes: u64,
    /// How far ahead of what it has sent a worker may begin with partitions.
    pub credit_bytes: u64,
    /// Bytes that count as sent on each connection although they still travel.
    pub window_bytes: u64,
    /// How many bytes of gradients a server's optimizer handles in a second, once they are added;
    /// `None` where workers update parameters themselves. An all-reduce has no servers.
    pub update_bytes_per_s: Option<f64>,
    /// Whether a layer of the next forward pass begins as soon as its own gradients are there.
    pub overlap_forward: bool,
    /// In which order partitions begin; `None` for what a job does by itself.
    pub order: Option<Order>,
}

/// Which of the partitions that are ready begins first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Of the gradient that was ready first: what a job does where the next forward pass waits for
    /// all gradients. The planner dealt partitions out in this order, which loads links evenly.
    Readiness,
    /// Of the layer that the next forward pass needs first: what a job does with
    /// `overlap_forward`.
    Forward,
}

impl Order {
    /// The words for it.
    pub const WORDS: [(&str, Order); 2] =
        [("readiness", Order::Readiness), ("forward", Order::Forward)];
}

impl Default for Case {
    fn default() -> Self {
        Self {
            workers: 1,
            servers: 0,
            architecture: Architecture::Allreduce,
            bandwidth_gbps: 100.0,
            transport_efficiency: 1.0,
            compression: 1.0,
            fusion_bytes: 64 << 20,
            fusion_timeout_s: 0.005,
            hop_latency_s: 0.0,
            partition_bytes: 256 << 10,
            credit_bytes: default_credit(Some(100.0)),
            window_bytes: 128 << 10,
            update_bytes_per_s: None,
            overlap_forward: false,
            order: None,
        }
    }
}

impl Case {
    /// The order in which partitions begin.
    #[must_use]
    pub fn order(&self) -> Order {
        let default = if self.overlap_forward { Order::Forward } else { Order::Readiness };
        self.order.unwrap_or(default)
    }

    /// Bytes per second of a link, each way.
    #[must_use]
    pub fn link_rate(&self) -> f64 {
        self.bandwidth_gbps * 1e9 / 8.0 * self.transport_efficiency
    }

    /// Checks every value.
    ///
    /// # Errors
    /// A value out of its range, or servers that do not go with the architecture.
    pub fn check(&self) -> Result<(), WhatifError> {
        count("workers", self.workers, 1)?;
        count("servers", self.servers, 0)?;
        self.check_servers()?;
        let (least, most) = (BANDWIDTH_GBPS.start(), BANDWIDTH_GBPS.end());
        let expected = format!("a number of Gb/s from {least} to {most}");
        within("bandwidth_gbps", self.bandwidth_gbps, BANDWIDTH_GBPS, &expected)?;
        let expected = "a number above 0 and up to 1";
        let efficiency = f64::MIN_POSITIVE..=1.0;
        within("transport_efficiency", self.transport_efficiency, efficiency, expected)?;
        let (least, most) = (COMPRESSION.start(), COMPRESSION.end());
        let expected = format!("a ratio from {least} (none) to {most}");
        within("compression", self.compression, COMPRESSION, &expected)?;
        let expected = "a finite time that is not negative";
        within("fusion_timeout_s", self.fusion_timeout_s, 0.0..=f64::MAX, expected)?;
        within("hop_latency_s", self.hop_latency_s, 0.0..=f64::MAX, expected)?;
        if let Some(rate) = self.update_bytes_per_s {
            let expected = "a finite number of bytes per second above 0";
            within("update_bytes_per_s", rate, f64::MIN_POSITIVE..=f64::MAX, expected)?;
        }
        let expected = "a size of one byte or more";
        for (field, bytes) in
            [("fusion_bytes", self.fusion_bytes), ("credit_bytes", self.credit_bytes)]
        {
            if bytes == 0 {
                return Err(WhatifError::field(field, bytes, expected));
            }
        }
        let partition = self.partition_bytes;
        if partition == 0 || !partition.is_multiple_of(PARTITION_ALIGN_BYTES) {
            let expected = format!("a positive multiple of {PARTITION_ALIGN_BYTES} bytes");
            return Err(WhatifError::field("partition_bytes", partition, expected));
        }
        Ok(())
    }

    fn check_servers(&self) -> Result<(), WhatifError> {
        match (self.architecture, self.servers) {
            (Architecture::Allreduce, 1..) => Err(WhatifError::field(
                "servers",
                self.servers,
                "0 with architecture allreduce, which uses no servers; \
                 use architecture sumpter or ps",
            )),
            (Architecture::Ps, 0) => Err(WhatifError::field(
                "servers",
                0,
                "1 or more with architecture ps, where only they sum",
            )),
            _ => Ok(()),
        }
    }
}

fn count(field: &str, count: u32, least: u32) -> Result<(), WhatifError> {
    if (least..=MAX_MACHINES).contains(&count) {
        return Ok(());
    }
    let expected = format!("a whole number from {least} to {MAX_MACHINES}");
    Err(WhatifError::field(field, count, expected))
}
