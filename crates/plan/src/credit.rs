//! The credit where it is not configured: bytes that a worker may have started and not sent.
//!
//! Less lets all links advance together; more leaves room for larger partitions, which cost less
//! processor time ([`largest_partition`](crate::largest_partition)). What links wait for at the
//! beginning and at the end of a transfer is bytes, so on a slow link it is time: there the credit
//! is small. A fast link is filled by processors, so there it is large.

/// The least: four partitions of the smallest size, one for each of several servers.
const SLOW_BYTES: f64 = (128 << 10) as f64;

/// The most on a network: eight partitions of 128 KiB. Larger ones cost less processor time, but
/// with many servers few of them receive at a time.
const FAST_BYTES: f64 = (1 << 20) as f64;

/// On one machine: eight partitions of 256 KiB, from where on larger ones hardly cost less.
const LOCAL_BYTES: u64 = 2 << 20;

/// Where the links are not known. Those that report no speed are mostly virtual ones, on fast
/// networks.
const UNKNOWN_BYTES: u64 = 1 << 20;

/// Multiples of this.
const GRAIN_BYTES: u64 = 4 << 10;

/// The credit, in bytes, for machines the slowest of which carries `gbps` Gb/s each way: what it
/// sends in a millisecond, from 128 KiB to 1 MiB; 1 MiB if that is not known, and 2 MiB without a
/// link, that is for infinitely many.
///
/// ```
/// use sumpter_plan::default_credit;
///
/// assert_eq!(default_credit(Some(0.2)), 128 << 10);
/// assert_eq!(default_credit(Some(4.0)), 488 << 10);
/// assert_eq!(default_credit(Some(25.0)), 1 << 20);
/// assert_eq!(default_credit(Some(f64::INFINITY)), 2 << 20);
/// assert_eq!(default_credit(None), 1 << 20);
/// ```
#[must_use]
pub fn default_credit(gbps: Option<f64>) -> u64 {
    let Some(gbps) = gbps else { return UNKNOWN_BYTES };
    if gbps.is_infinite() {
        return LOCAL_BYTES;
    }
    let millisecond = (gbps * 1e9 / 8.0 * 1e-3).clamp(SLOW_BYTES, FAST_BYTES);
    // At most 1 MiB, so it is exact.
    millisecond as u64 / GRAIN_BYTES * GRAIN_BYTES
}
