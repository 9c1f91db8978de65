//! Reads the question of `sumpter plan`: a JSON request and, in it, the text of a TOML machine
//! list. Values are read loosely and checked here, so that a message can name the field.

use std::fmt;

use serde::Deserialize;
use serde::de::IgnoredAny;
use sumpter_types::Rule;

use crate::machine::{bandwidth_expected, count_expected};
use crate::predict::bytes_expected;
use crate::{MAX_MACHINES, Machine, PlanError, Role};

const DEFAULT_BYTES: u64 = 1 << 30;
const DEFAULT_BANDWIDTH_GBPS: f64 = 100.0;

/// Entries of a list stand for up to this many machines together: as many as may be of each role.
const MAX_LISTED: usize = 2 * MAX_MACHINES as usize;

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

/// A machine with its name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedMachine {
    /// What the list calls it, numbered where one entry stands for several.
    pub name: String,
    /// The machine; every listed machine has one server.
    pub machine: Machine,
}

/// Reads a machine list. An entry is one machine, or `count` alike; `name` and `count` may be
/// left out.
///
/// ```
/// let machines = sumpter_plan::parse_machines(
///     r#"
///     [[machine]]
///     name = "trainer"
///     role = "gpu"
///     bandwidth_gbps = 100
///     count = 2
///
///     [[machine]]
///     name = "idle"
///     role = "cpu"
///     bandwidth_gbps = 25
///     "#,
/// )?;
/// let names: Vec<&str> = machines.iter().map(|machine| machine.name.as_str()).collect();
/// assert_eq!(names, ["trainer-1", "trainer-2", "idle"]);
/// # Ok::<(), sumpter_plan::PlanError>(())
/// ```
///
/// # Errors
/// What is not TOML, or a field that is missing, unknown, of the wrong type or out of range.
pub fn parse_machines(toml: &str) -> Result<Vec<NamedMachine>, PlanError> {
    let list: RawList = toml::from_str(toml)
        .map_err(|error| PlanError::MachineList(error.to_string().trim_end().to_owned()))?;
    let mut machines = Vec::new();
    for (index, entry) in list.machine.into_iter().enumerate() {
        entry.expand(index + 1, &mut machines)?;
        if machines.len() > MAX_LISTED {
            let expected = format!("at most {MAX_LISTED}");
            return Err(PlanError::field("number of machines", machines.len(), expected));
        }
    }
    Ok(machines)
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
        })
    }
}

fn rule(value: Loose) -> Result<Rule, PlanError> {
    let names = Rule::ALL.map(Rule::name).join(", ");
    let name = value.text("rule", &format!("one of {names}"))?;
    Rule::from_name(&name).ok_or_else(|| PlanError::field("rule", name, format!("one of {names}")))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawList {
    #[serde(default)]
    machine: Vec<RawMachine>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMachine {
    name: Option<Loose>,
    role: Option<Loose>,
    bandwidth_gbps: Option<Loose>,
    count: Option<Loose>,
}

impl RawMachine {
    /// Checks the entry and appends its machines.
    fn expand(self, number: usize, machines: &mut Vec<NamedMachine>) -> Result<(), PlanError> {
        let name = match self.name {
            Some(value) => value.text(&format!("machine {number}: name"), "text")?,
            None => format!("machine-{number}"),
        };
        let field = |key| format!("machine {number} (\"{name}\"): {key}");
        let missing = |key, expected| PlanError::field(field(key), "missing", expected);

        let role_expected = "\"gpu\" (runs workers) or \"cpu\" (runs servers only)";
        let role = self.role.ok_or_else(|| missing("role", role_expected.to_owned()))?;
        let role = match role.to_string().as_str() {
            "\"gpu\"" => Role::Gpu,
            "\"cpu\"" => Role::Cpu,
            other => return Err(PlanError::field(field("role"), other, role_expected)),
        };
        let bandwidth =
            self.bandwidth_gbps.ok_or_else(|| missing("bandwidth_gbps", bandwidth_expected()))?;
        let bandwidth_gbps = bandwidth.number(&field("bandwidth_gbps"), &bandwidth_expected())?;
        if !crate::BANDWIDTH_GBPS.contains(&bandwidth_gbps) {
            let expected = bandwidth_expected();
            return Err(PlanError::field(field("bandwidth_gbps"), bandwidth_gbps, expected));
        }
        let count: u32 = match self.count {
            Some(value) => value.count(&field("count"), &count_expected(1))?,
            None => 1,
        };
        crate::machine::check_count(&field("count"), u64::from(count), 1)?;

        let machine = Machine { role, bandwidth_gbps, servers: 1 };
        machines.extend((1..=count).map(|copy| NamedMachine {
            name: if count == 1 { name.clone() } else { format!("{name}-{copy}") },
            machine,
        }));
        Ok(())
    }
}

/// A scalar of JSON or TOML before its type is checked.
#[derive(Deserialize)]
#[serde(untagged)]
enum Loose {
    Integer(i64),
    Number(f64),
    Text(String),
    Other(IgnoredAny),
}

impl Loose {
    fn count<T: TryFrom<i64>>(&self, field: &str, expected: &str) -> Result<T, PlanError> {
        let whole = match self {
            Self::Integer(value) => Some(*value),
            // 2^53: up to here a float that looks whole is what was written.
            Self::Number(value)
                if value.fract() == 0.0 && value.abs() <= 9_007_199_254_740_992.0 =>
            {
                Some(*value as i64)
            }
            _ => None,
        };
        let count = whole.and_then(|value| T::try_from(value).ok());
        count.ok_or_else(|| PlanError::field(field, self, expected))
    }

    fn number(&self, field: &str, expected: &str) -> Result<f64, PlanError> {
        match self {
            Self::Integer(value) => Ok(*value as f64),
            Self::Number(value) => Ok(*value),
            _ => Err(PlanError::field(field, self, expected)),
        }
    }

    fn text(self, field: &str, expected: &str) -> Result<String, PlanError> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(PlanError::field(field, other, expected)),
        }
    }
}

impl fmt::Display for Loose {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => value.fmt(out),
            Self::Number(value) => value.fmt(out),
            Self::Text(text) => write!(out, "{text:?}"),
            Self::Other(_) => out.write_str("not a single number or text"),
        }
    }
}
