//! What can be wrong with a question put to this crate. Every message names the field, the value
//! and what would have been accepted.

/// Why no plan could be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// One value is of the wrong type or out of its range: change it.
    #[error("{field} is {value}; expected {expected}")]
    Field {
        /// The field, with its place (`machine 2 ("cpu-b"): role`).
        field: String,
        /// The value as it was given, or `missing`.
        value: String,
        /// What is accepted instead.
        expected: String,
    },
    /// The request is not the JSON object that [`report_json`](crate::report_json) reads.
    #[error("the plan request is not valid JSON: {0}")]
    Request(String),
    /// The machine list is not the TOML that [`parse_machines`](crate::parse_machines) reads.
    #[error("the machine list is not valid TOML: {0}")]
    MachineList(String),
    /// The price list is not the TOML that [`parse_prices`](crate::parse_prices) reads.
    #[error("the price list is not valid TOML: {0}")]
    PriceList(String),
    /// A count was given beside a machine list that says otherwise: leave one of them out.
    #[error(
        "{field} is {given}, but the machine list has {listed} with role \"{role}\"; \
         leave {field} out or make the two agree"
    )]
    Disagree {
        /// `workers` or `servers`.
        field: &'static str,
        /// The count that was given.
        given: u32,
        /// The count in the list.
        listed: u32,
        /// The role that was counted.
        role: &'static str,
    },
    /// No machine runs a worker: there is nothing to plan for.
    #[error("none of the {machines} machines has role \"gpu\"; expected at least one, for workers")]
    NoWorker {
        /// How many machines there are.
        machines: usize,
    },
    /// No machine that could take a share runs a server: start one.
    #[error("none of the {machines} machines runs a server; expected at least one, to sum")]
    NoServer {
        /// How many machines there are.
        machines: usize,
    },
    /// The linear program of reduction trees has no numerical answer.
    #[error(
        "the linear program of the reduction trees was not solved: {0}; look for bandwidths that \
         are many orders of magnitude apart"
    )]
    Solver(String),
}

impl PlanError {
    pub(crate) fn field(
        field: impl Into<String>,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> Self {
        Self::Field { field: field.into(), value: value.to_string(), expected: expected.into() }
    }
}
