//! Reads the question of `sumpter plan`: a JSON request and, in it, the texts of a TOML machine
//! list and of a price list.

mod loose;
mod machines;
mod prices;

use serde::Deserialize;
use sumpter_types::Rule;

use crate::PlanError;
use crate::machine::{bandwidth_expected, count_expected};
use crate::predict::bytes_expected;
use crate::request::loose::Loose;

pub use machines::{MachineList, NamedMachine, NamedRack, Nic, parse_machines};
pub use prices::parse_prices;

const DEFAULT_BYTES: u64 = 1 << 30;
const DEFAULT_BANDWIDTH_GBPS: f64 = 100.0;

/// A question: how would a model of `bytes` travel in this cluster?
///
/// In JSON every field is optional but `workers`, and that too beside `machines`. Unknown fields
/// are refused.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawRequest")]
pub struct PlanRequest {
    /// GPU machines (n). With a machine list: absent, or what the list says.
    pub workers: Option<u32>,
    /// CPU machines (k); absent means none. With a machine list: absent, or what the list says.
    pub servers: Option<u32>,
    /// Size of the model; one GiB if absent.
    pub bytes: u64,
    /// Bandwidth of every interface, each way; 100 if absent. A machine list has its own.
    pub bandwidth_gbps: f64,
    /// A machine list as [`parse_machines`] reads it.
    pub machines: Option<String>,
    /// An update rule by its name: the optimizer's memory is part of the answer.
    pub rule: Option<Rule>,
    /// Seconds that a worker computes for between two rounds: the bandwidth that hides
    /// communication is part of the answer.
    pub compute_s: Option<f64>,
    /// A price list as [`parse_prices`] reads it: what other machines and links would bring for
    /// their price is part of the answer. Needs `compute_s`.
    pub prices: Option<String>,
}

impl PlanRequest {
    /// Reads a request from JSON.
    ///
    /// # Errors
    /// What is not JSON, or a field of the wrong type; ranges are checked by
    /// [`report`](PlanRequest::report).
    pub fn from_json(json: &str) -> Result<Self, PlanError> {
        let raw: RawRequest =
            serde_json::from_str(json).map_err(|error| PlanError::Request(error.to_string()))?;
        raw.try_into()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRequest {
    workers: Option<Loose>,
    servers: Option<Loose>,
    bytes: Option<Loose>,
    bandwidth_gbps: Option<Loose>,
    machines: Option<Loose>,
    rule: Option<Loose>,
    compute_s: Option<Loose>,
    prices: Option<Loose>,
}

impl TryFrom<RawRequest> for PlanRequest {
    type Error = PlanError;

    fn try_from(raw: RawRequest) -> Result<Self, PlanError> {
        let count = |field, least, value: Option<Loose>| {
            value.map(|value| value.count(field, &count_expected(least))).transpose()
        };
        Ok(Self {
            workers: count("workers", 1, raw.workers)?,
            servers: count("servers", 0, raw.servers)?,
            bytes: match raw.bytes {
                Some(value) => value.count("bytes", &bytes_expected())?,
                None => DEFAULT_BYTES,
            },
            bandwidth_gbps: match raw.bandwidth_gbps {
                Some(value) => value.number("bandwidth_gbps", &bandwidth_expected())?,
                None => DEFAULT_BANDWIDTH_GBPS,
            },
            machines: match raw.machines {
                Some(value) => Some(value.text("machines", "the text of a TOML machine list")?),
                None => None,
            },
            rule: raw.rule.map(rule).transpose()?,
            compute_s: match raw.compute_s {
                Some(value) => Some(value.number("compute_s", "a number of seconds")?),
                None => None,
            },
            prices: match raw.prices {
                Some(value) => Some(value.text("prices", "the text of a TOML price list")?),
                None => None,
            },
        })
    }
}

fn rule(value: Loose) -> Result<Rule, PlanError> {
    let names = Rule::ALL.map(Rule::name).join(", ");
    let name = value.text("rule", &format!("one of {names}"))?;
    Rule::from_name(&name).ok_or_else(|| PlanError::field("rule", name, format!("one of {names}")))
}
