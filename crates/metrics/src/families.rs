//! The table of metrics: names, types, labels, meanings.

/// How a metric behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// It only grows, until its process ends.
    Counter,
    /// It goes up and down.
    Gauge,
}

/// Which process has a metric; a coordinator exports those of its members as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// The coordinator.
    Coordinator,
    /// Workers and servers.
    Member,
    /// Workers.
    Worker,
}

/// A metric and what is said of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name without unit and suffix.
    pub(crate) base: &'static str,
    /// Its unit, or "".
    pub(crate) unit: &'static str,
    /// How it behaves.
    pub metric: Metric,
    /// Who has it.
    pub of: Counts,
    /// The labels beside those that say which job or member it is.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

impl Family {
    /// The name of its series.
    #[must_use]
    pub fn name(&self) -> String {
        let unit = if self.unit.is_empty() { "" } else { "_" };
        let total = if self.metric == Metric::Counter { "_total" } else { "" };
        format!("{}{unit}{}{total}", self.base, self.unit)
    }

    const fn labelled(self, labels: &'static [&'static str]) -> Family {
        Family { labels, ..self }
    }
}

const fn counter(of: Counts, base: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { base, unit, metric: Metric::Counter, of, labels: &[], help }
}

const fn gauge(of: Counts, base: &'static str, unit: &'static str, help: &'static str) -> Family {
    Family { base, unit, metric: Metric::Gauge, of, labels: &[], help }
}

/// Declares each metric under a name, and the table of them all.
macro_rules! families {
    ($($name:ident = $family:expr;)*) => {
        $(pub(crate) static $name: Family = $family;)*

        /// Every metric, in the order of output.
        pub static FAMILIES: &[&Family] = &[$(&$name),*];
    };
}

use Counts::{Coordinator, Member, Worker};

families! {
    UPTIME = gauge(Coordinator, "sumpter_coordinator_uptime", "seconds",
        "Time since the coordinator's start.");
    MEMBERS_LOST = counter(Coordinator, "sumpter_members_lost", "",
        "Workers and servers that died or timed out.").labelled(&["role"]);
    REFUSED = counter(Coordinator, "sumpter_members_refused", "",
        "Processes that were refused, usually because of a wrong token.");
    PLAN_CHANGES = counter(Coordinator, "sumpter_plan_changes", "",
        "Changes of the plan of running jobs: a server came or went, or a worker died.");
    JOBS_OVER = counter(Coordinator, "sumpter_jobs_over", "",
        "Jobs that have ended, by outcome: ended or failed.").labelled(&["outcome"]);
    JOBS = gauge(Coordinator, "sumpter_jobs", "",
        "Jobs of the coordinator, by state.").labelled(&["state"]);
    JOB_WORKERS = gauge(Coordinator, "sumpter_job_workers", "",
        "Workers that have joined the job.").labelled(&["job_name"]);
    JOB_WORKERS_WANTED = gauge(Coordinator, "sumpter_job_workers_wanted", "",
        "Workers of the job when it is complete.").labelled(&["job_name"]);
    JOB_SERVERS = gauge(Coordinator, "sumpter_job_servers", "",
        "Servers in the job's plan.").labelled(&["job_name"]);
    JOB_MACHINES = gauge(Coordinator, "sumpter_job_machines", "",
        "Machines of the job: n of kind gpu, with workers, and k of kind cpu, with servers only.")
        .labelled(&["job_name", "kind"]);
    JOB_EPOCH = gauge(Coordinator, "sumpter_job_epoch", "",
        "The number of the job's plan.").labelled(&["job_name"]);
    JOB_TENSORS = gauge(Coordinator, "sumpter_job_tensors", "",
        "Tensors that the job has declared.").labelled(&["job_name"]);
    JOB_STALL = gauge(Coordinator, "sumpter_job_stall", "seconds",
        "Age of the oldest operation if it has waited longer than stall_warning_s, else 0.")
        .labelled(&["job_name"]);
    JOB_OPTIMUM = gauge(Coordinator, "sumpter_job_optimum_goodput", "bytes_per_second",
        "Goodput that the links could carry under the optimal plan; absent unless the bandwidth \
         of every machine is known.").labelled(&["job_name"]);
    RANK_LAST = counter(Coordinator, "sumpter_rank_last_partitions", "",
        "Partitions to which this rank contributed last (straggler).")
        .labelled(&["job_name", "rank"]);
    RANK_WAITED = counter(Coordinator, "sumpter_rank_waited_for", "seconds",
        "Time for which partitions waited for this rank alone.")
        .labelled(&["job_name", "rank"]);
    RUN_MEMORY = gauge(Coordinator, "sumpter_run_memory", "bytes",
        "Memory of the job's accumulators on the server.").labelled(&["job_name"]);
    RUN_MEMORY_LIMIT = gauge(Coordinator, "sumpter_run_memory_limit", "bytes",
        "Limit of that memory: the job's quota or max_job_bytes.").labelled(&["job_name"]);
    SILENCE = gauge(Coordinator, "sumpter_member_silence", "seconds",
        "Time since the member's last heartbeat.");
    RACK = gauge(Coordinator, "sumpter_member_rack", "",
        "1 for each member whose machine's rack is known, with the rack as a label.")
        .labelled(&["rack"]);
    MEMBER_UPTIME = gauge(Member, "sumpter_member_uptime", "seconds",
        "Time since the member's start.");
    TRANSFERRED = counter(Member, "sumpter_transferred", "bytes",
        "Bytes over connections, by direction (sent, received) and link: network between \
         machines, machine between processes of one.").labelled(&["direction", "link"]);
    COLOCATED = counter(Worker, "sumpter_colocated", "bytes",
        "Bytes between a worker and the lane in its own process.");
    ROUNDS = counter(Worker, "sumpter_rounds", "",
        "Completed operations on tensors.");
    TENSOR_BYTES = counter(Worker, "sumpter_tensor", "bytes",
        "Tensor bytes of completed operations; divided by the busy time this is the goodput.");
    STEP = gauge(Worker, "sumpter_step", "",
        "The training step: operations on the tensor that has had the most.");
    SAMPLES = counter(Worker, "sumpter_samples", "",
        "Samples trained on, as reported by sumpter.record_samples.");
    BUSY = counter(Worker, "sumpter_busy", "seconds",
        "Time with an operation under way.");
    WAITING = counter(Worker, "sumpter_waiting", "seconds",
        "Busy time by cause: send (contributions are queued), results (all are sent), plan (a \
         change of servers), coordinator (the declaration of a new tensor).")
        .labelled(&["cause"]);
    DRAINED = counter(Worker, "sumpter_drained", "bytes",
        "Bytes that left the machine while contributions were queued; divided by the waiting time \
         of cause send this is the achievable bandwidth.");
    PAUSES = counter(Worker, "sumpter_pauses", "",
        "Pauses of the worker for a new plan.");
    SKIPPED_BLOCKS = counter(Worker, "sumpter_skipped_blocks", "",
        "Blocks of compressed gradients that were encoded as zeros because of a NaN or an infinity \
         (nan=skip).");
    RACK_HUBS = gauge(Worker, "sumpter_rack_hubs", "",
        "Whether each rack sums its machines' contributions before they leave it, 1 or 0; absent \
         where no rack is known.");
    COMPRESSED = gauge(Worker, "sumpter_compressed_tensors", "",
        "Tensors that a codec encodes on their way, chosen by auto or given.");
    EVENT_LOOPS = gauge(Worker, "sumpter_event_loops", "",
        "Event loops of the worker (io_threads).");
    PLACED = counter(Member, "sumpter_placed_connections", "",
        "Connections made so far whose bytes are placed in the peer's memory by libfabric.");
    PLACED_BYTES = counter(Member, "sumpter_placed", "bytes",
        "Bytes placed in peers' memory by libfabric, which do not go over TCP.");
    REGISTRATIONS = counter(Member, "sumpter_registered_regions", "",
        "Regions of memory registered with libfabric so far: two for each connection, none later.");
    OPERATIONS = gauge(Worker, "sumpter_operations", "",
        "Operations under way.");
    QUEUED_PARTITIONS = gauge(Worker, "sumpter_queued_partitions", "",
        "Partitions whose contributions are not fully sent.");
    QUEUED = gauge(Worker, "sumpter_queued", "bytes",
        "Bytes of contributions that are not sent yet.");
    CREDIT = gauge(Worker, "sumpter_credit_used", "bytes",
        "Bytes of partitions that have been started and not sent: bounded by credit_bytes.");
    LANE_ROUNDS = counter(Member, "sumpter_lane_partitions", "",
        "Partitions that the member's lanes have reduced.");
    SUMMED = counter(Member, "sumpter_lane_summed", "bytes",
        "Bytes of contributions that the member's lanes have reduced.");
    RACK_BYTES = counter(Member, "sumpter_rack_aggregates", "bytes",
        "Bytes of sums that the member has passed on for its rack; 0 where it is no rack's hub.");
    LANE_WAITING = gauge(Member, "sumpter_lane_waiting_partitions", "",
        "Partitions in the member's lanes that wait for a rank's contribution.");
    LANE_MEMORY = gauge(Member, "sumpter_lane_memory", "bytes",
        "Bytes of the lanes' buffers.");
    FAULTS = counter(Member, "sumpter_faults", "",
        "Recovered faults by kind: corrupt_frame, duplicate_chunk (sent again after a broken \
         connection), broken_connection, refused_connection.").labelled(&["kind"]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn names_follow_the_conventions_and_are_unique() {
        let names: BTreeSet<String> = FAMILIES.iter().map(|family| family.name()).collect();
        assert_eq!(names.len(), FAMILIES.len());
        let fine = |c: char| c.is_ascii_lowercase() || c == '_';
        assert!(names.iter().all(|name| name.starts_with("sumpter_") && name.chars().all(fine)));
        assert!(FAMILIES.iter().all(|family| family.help.ends_with('.')));
        let counters = FAMILIES.iter().filter(|family| family.metric == Metric::Counter);
        assert!(counters.into_iter().all(|family| family.name().ends_with("_total")));
    }

    #[test]
    fn no_label_is_called_as_prometheus_calls_its_own() {
        let labels = FAMILIES.iter().flat_map(|family| family.labels);
        assert!(labels.into_iter().all(|label| !["job", "instance", "le"].contains(label)));
    }
}
