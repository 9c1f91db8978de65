//! The table of settings: what exists, what it accepts, what it means.
//!
//! A row's default is a text that goes through the same check as a given value, so that a default
//! outside its own range cannot exist.

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::PathBuf;

use crate::config::Config;
use crate::parse::{GIB, KIB, MIB, PIB, TIB, boolean, host_port, number, size_in, word};

/// The word for a value that Sumpter decides by itself.
pub(crate) const AUTO: &str = "auto";

/// The tuners of partition, chunk and credit while a job runs; the first leaves them as they are.
pub const TUNERS: [&str; 4] = ["fixed", "grid", "bayes", "autobyte"];

/// One setting.
pub struct Setting {
    /// Its name: of the argument and of the field in [`Config`].
    pub name: &'static str,
    /// Its environment variable.
    pub env: &'static str,
    /// The unit of its value, or "".
    pub unit: &'static str,
    /// Its default as a text; "" where there is none.
    pub default: &'static str,
    /// What it accepts.
    pub range: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// Checks a text and puts it into its field; `None` if the text is not accepted.
    pub(crate) put: fn(&mut Config, &str) -> Option<()>,
}

/// Bytes of a name such as a job's.
const NAME_LIMIT: usize = 128;
/// Bytes of a codec with its arguments.
const CODEC_LIMIT: usize = 256;
/// Network interfaces of one process: beyond any machine.
const INTERFACE_LIMIT: usize = 64;
/// Ranks of one job: beyond any cluster this is for, and small enough to hold a list of.
const RANK_LIMIT: u32 = 65_536;

/// Every setting, in the order in which they are documented.
pub const SETTINGS: &[Setting] = &[
    Setting {
        name: "coordinator",
        env: "SUMPTER_COORDINATOR",
        unit: "",
        default: "",
        range: "HOST:PORT with a port from 1 to 65535",
        doc: "Where the coordinator listens.",
        put: |c, v| host_port(v).map(|x| c.coordinator = Some(x)),
    },
    Setting {
        name: "token",
        env: "SUMPTER_TOKEN",
        unit: "",
        default: "",
        range: "a secret of at least 16 characters",
        doc: "The job's secret: every connection proves that both ends hold it.",
        put: |c, v| {
            c.token = Some(sumpter_wire::Token::new(v).ok()?);
            Some(())
        },
    },
    Setting {
        name: "token_file",
        env: "SUMPTER_TOKEN_FILE",
        unit: "",
        default: "",
        range: "the path of a file that holds the token",
        doc: "A file with the token, instead of the token itself.",
        put: |c, v| (!v.is_empty()).then(|| c.token_file = Some(PathBuf::from(v))),
    },
    Setting {
        name: "job",
        env: "SUMPTER_JOB",
        unit: "",
        default: "default",
        range: "a name of at most 128 bytes without white space",
        doc: "The job's name; a coordinator keeps jobs of different names apart.",
        put: |c, v| word(v, NAME_LIMIT).map(|x| c.job = x),
    },
    Setting {
        name: "machine",
        env: "SUMPTER_MACHINE",
        unit: "",
        default: "",
        range: "a name of at most 128 bytes without white space",
        doc: "The machine's identity, if not its boot id and network namespace: equal for the \
              processes that share a network interface.",
        put: |c, v| word(v, NAME_LIMIT).map(|x| c.machine = Some(x)),
    },
    Setting {
        name: "rank",
        env: "RANK",
        unit: "",
        default: "0",
        range: "a number from 0 to world_size - 1",
        doc: "This worker's number in its job; launchers set it.",
        put: |c, v| number(v, 0..=RANK_LIMIT - 1).map(|x| c.rank = x),
    },
    Setting {
        name: "world_size",
        env: "WORLD_SIZE",
        unit: "workers",
        default: "1",
        range: "a number from 1 to 65536",
        doc: "The workers of the job; launchers set it.",
        put: |c, v| number(v, 1..=RANK_LIMIT).map(|x| c.world_size = x),
    },
    Setting {
        name: "local_rank",
        env: "LOCAL_RANK",
        unit: "",
        default: "",
        range: "a number from 0 to local_size - 1",
        doc: "This worker's number on its machine; launchers set it.",
        put: |c, v| number(v, 0..=RANK_LIMIT - 1).map(|x| c.local_rank = Some(x)),
    },
    Setting {
        name: "local_size",
        env: "LOCAL_WORLD_SIZE",
        unit: "workers",
        default: "",
        range: "a number from 1 to 65536",
        doc: "The workers on this machine; launchers set it.",
        put: |c, v| number(v, 1..=RANK_LIMIT).map(|x| c.local_size = Some(x)),
    },
    Setting {
        name: "servers",
        env: "SUMPTER_SERVERS",
        unit: "servers",
        default: "0",
        range: "a number from 0 to 4096",
        doc: "How many servers (`sumpter serve`) must have joined before the job starts.",
        put: |c, v| number(v, 0..=4096).map(|x| c.servers = x),
    },
    Setting {
        name: "start_timeout_s",
        env: "SUMPTER_START_TIMEOUT_S",
        unit: "s",
        default: "30",
        range: "seconds from 0.05 to 86400",
        doc: "How long to wait for the coordinator and for the other members before giving up.",
        put: |c, v| number(v, 0.05..=86_400.0).map(|x| c.start_timeout_s = x),
    },
    Setting {
        name: "peer_timeout_s",
        env: "SUMPTER_PEER_TIMEOUT_S",
        unit: "s",
        default: "4",
        range: "seconds from 0.05 to 3600",
        doc: "Silence after which a process counts as dead.",
        put: |c, v| number(v, 0.05..=3_600.0).map(|x| c.peer_timeout_s = x),
    },
    Setting {
        name: "server_timeout_s",
        env: "SUMPTER_SERVER_TIMEOUT_S",
        unit: "s",
        default: "2",
        range: "seconds from 0.05 to 3600",
        doc: "Silence after which a running job fails over from a server, and a connection from a \
              network interface to another; peer_timeout_s counts if it is shorter.",
        put: |c, v| number(v, 0.05..=3_600.0).map(|x| c.server_timeout_s = x),
    },
    Setting {
        name: "stall_warning_s",
        env: "SUMPTER_STALL_WARNING_S",
        unit: "s",
        default: "10",
        range: "seconds from 0 to 86400",
        doc: "Time after which a warning names the straggler that an operation waits for; 0: \
              never. Rank 0's value counts.",
        put: |c, v| number(v, 0.0..=86_400.0).map(|x| c.stall_warning_s = x),
    },
    Setting {
        name: "stall_shutdown_s",
        env: "SUMPTER_STALL_SHUTDOWN_S",
        unit: "s",
        default: "0",
        range: "seconds from 0 to 86400",
        doc: "Time after which a waiting operation ends the job with an error that names the \
              straggler; 0: never. Rank 0's value counts.",
        put: |c, v| number(v, 0.0..=86_400.0).map(|x| c.stall_shutdown_s = x),
    },
    Setting {
        name: "min_workers",
        env: "SUMPTER_MIN_WORKERS",
        unit: "workers",
        default: "0",
        range: "a number from 0 to 65536",
        doc: "The fewest workers with which an elastic job goes on; 0: not elastic, the loss of a \
              worker ends the job.",
        put: |c, v| number(v, 0..=RANK_LIMIT).map(|x| c.min_workers = x),
    },
    Setting {
        name: "redo",
        env: "SUMPTER_REDO",
        unit: "",
        default: "true",
        range: "true or false",
        doc: "In an elastic job, when a worker dies: the survivors complete the interrupted \
              operations, at the cost of a copy of each result in cache; false: they restore the \
              last commit. Equal on every rank.",
        put: |c, v| boolean(v).map(|x| c.redo = x),
    },
    Setting {
        name: "max_workers",
        env: "SUMPTER_MAX_WORKERS",
        unit: "workers",
        default: "0",
        range: "a number from 0 to 65536",
        doc: "The most workers of an elastic job; further ones wait for a free place. 0: no limit.",
        put: |c, v| number(v, 0..=RANK_LIMIT).map(|x| c.max_workers = x),
    },
    Setting {
        name: "partition_bytes",
        env: "SUMPTER_PARTITION_BYTES",
        unit: "bytes",
        default: "256KiB",
        range: "a size from 4KiB to 1GiB that is a multiple of 4KiB",
        doc: "The largest slice of a tensor that is scheduled and placed as one; a tensor is cut \
              finer so that the credit has room for eight, where link speeds are known to a \
              quarter of that for up to 256 partitions on each server that sums, and down to \
              32KiB for up to eight. Equal on every rank.",
        put: |c, v| size_in(v, 4 * KIB..=GIB, 4 * KIB).map(|x| c.partition_bytes = x),
    },
    Setting {
        name: "chunk_bytes",
        env: "SUMPTER_CHUNK_BYTES",
        unit: "bytes",
        default: "256KiB",
        range: "a size from 4KiB to 16MiB that is a multiple of 64",
        doc: "The unit of streaming inside a partition; equal on every rank.",
        put: |c, v| size_in(v, 4 * KIB..=16 * MIB, 64).map(|x| c.chunk_bytes = x),
    },
    Setting {
        name: "credit_bytes",
        env: "SUMPTER_CREDIT_BYTES",
        unit: "bytes",
        default: "auto",
        range: "auto or a size from 4KiB to 1TiB",
        doc: "Flow control: bytes of partitions that a worker may have started and not yet sent. \
              A small credit keeps queues short and lets an urgent tensor overtake sooner. Less \
              than a partition counts as one. auto: what the slowest machine's link sends in a \
              millisecond (see bandwidth_gbps), from 128KiB to 1MiB; 1MiB if no bandwidth is \
              known; 2MiB on a single machine. Equal on every rank.",
        put: |c, v| match v.trim() {
            AUTO => {
                c.credit_bytes = None;
                Some(())
            }
            size => size_in(size, 4 * KIB..=1024 * GIB, 1).map(|x| c.credit_bytes = Some(x)),
        },
    },
    Setting {
        name: "tuner",
        env: "SUMPTER_TUNER",
        unit: "",
        default: "fixed",
        range: "fixed, grid, bayes or autobyte",
        doc: "The tuner in rank 0 that adapts partition_bytes, chunk_bytes and credit_bytes while \
              the job runs; fixed: none. See tuning.md. Equal on every rank.",
        put: |c, v| TUNERS.contains(&v.trim()).then(|| c.tuner = v.trim().to_owned()),
    },
    Setting {
        name: "deterministic",
        env: "SUMPTER_DETERMINISTIC",
        unit: "",
        default: "false",
        range: "true or false",
        doc: "Add contributions in the order of ranks, for the same bytes in every run; equal on \
              every rank.",
        put: |c, v| boolean(v).map(|x| c.deterministic = x),
    },
    Setting {
        name: "asynchronous",
        env: "SUMPTER_ASYNCHRONOUS",
        unit: "",
        default: "false",
        range: "true or false",
        doc: "DistributedOptimizer trains asynchronously, without a bound: each rank takes its own \
              steps and adds them to parameters that all share. See asynchronous.md. Equal on \
              every rank.",
        put: |c, v| boolean(v).map(|x| c.asynchronous = x),
    },
    Setting {
        name: "record_order",
        env: "SUMPTER_RECORD_ORDER",
        unit: "",
        default: "",
        range: "the path of a directory",
        doc: "Where each rank writes the order log of asynchronous training, rank-N.jsonl. See \
              asynchronous.md. Equal on every rank.",
        put: |c, v| (!v.is_empty()).then(|| c.record_order = Some(PathBuf::from(v))),
    },
    Setting {
        name: "replay_order",
        env: "SUMPTER_REPLAY_ORDER",
        unit: "",
        default: "",
        range: "the path of a directory",
        doc: "The directory of an order log that asynchronous training replays, to the same bytes. \
              See asynchronous.md. Equal on every rank.",
        put: |c, v| (!v.is_empty()).then(|| c.replay_order = Some(PathBuf::from(v))),
    },
    Setting {
        name: "blocking_wait",
        env: "SUMPTER_BLOCKING_WAIT",
        unit: "",
        default: "false",
        range: "true or false",
        doc: "wait() of torch.distributed blocks the calling thread until a CUDA tensor's result \
              has arrived, instead of making the stream wait.",
        put: |c, v| boolean(v).map(|x| c.blocking_wait = x),
    },
    Setting {
        name: "checksum",
        env: "SUMPTER_CHECKSUM",
        unit: "",
        default: "false",
        range: "true or false",
        doc: "Give every frame a CRC-32C; corrupt frames are sent again. Equal on every rank.",
        put: |c, v| boolean(v).map(|x| c.checksum = x),
    },
    Setting {
        name: "compression",
        env: "SUMPTER_COMPRESSION",
        unit: "",
        default: "none",
        range: "none, auto, or a codec with its arguments: bf16, int8, topk:k=0.01,momentum=0.9; \
                or one that a module of codecs registers",
        doc: "The codec by which fronts sum floating-point tensors that say nothing of their own: \
              all-reduces of torch.distributed, push_pull and allreduce, and gradients of two or \
              more dimensions in a DistributedOptimizer. With auto, each has the codec that pays \
              by the speed of links, codecs and cores, or none: of bf16 and int8, or of those \
              listed as in auto:codecs=fp8+topk:k=0.01. See compression.md. Equal on every rank.",
        put: |c, v| word(v, CODEC_LIMIT).map(|x| c.compression = x),
    },
    Setting {
        name: "compression_min_bytes",
        env: "SUMPTER_COMPRESSION_MIN_BYTES",
        unit: "bytes",
        default: "64KiB",
        range: "a size from 0 to 1TiB",
        doc: "Smaller tensors than this are not compressed, unless a call asks for it. Equal on \
              every rank.",
        put: |c, v| size_in(v, 0..=TIB, 1).map(|x| c.compression_min_bytes = x),
    },
    Setting {
        name: "codecs",
        env: "SUMPTER_CODECS",
        unit: "",
        default: "",
        range: "names of Python modules, with commas between",
        doc: "Modules that register codecs of your own, imported before a worker or a server \
              begins. All of them need the same ones; servers without Python have none. See \
              compression.md.",
        put: |c, v| names(v).map(|x| c.codecs = x),
    },
    Setting {
        name: "architecture",
        env: "SUMPTER_ARCHITECTURE",
        unit: "",
        default: "sumpter",
        range: "sumpter, allreduce or ps",
        doc: "Where reduction takes place: on all machines in the optimal shares, on workers only \
              (allreduce), or on CPU machines only (ps); equal on every rank.",
        put: |c, v| v.parse().ok().map(|x| c.architecture = x),
    },
    Setting {
        name: "placement",
        env: "SUMPTER_PLACEMENT",
        unit: "",
        default: "balanced",
        range: "balanced or hashed",
        doc: "How partitions are assigned to lanes: every stretch of the stream in proportion to \
              bandwidth, or by hash as in the BytePS paper; equal on every rank.",
        put: |c, v| v.parse().ok().map(|x| c.placement = x),
    },
    Setting {
        name: "colocated",
        env: "SUMPTER_COLOCATED",
        unit: "",
        default: "in-process",
        range: "in-process or linked",
        doc: "How a worker reaches the lane in its own process: directly, or through a link like \
              other processes of its machine (for comparison).",
        put: |c, v| v.parse().ok().map(|x| c.colocated = x),
    },
    Setting {
        name: "local_link",
        env: "SUMPTER_LOCAL_LINK",
        unit: "",
        default: "shm",
        range: "shm or tcp",
        doc: "How processes of one machine reach each other: through shared memory, or over TCP.",
        put: |c, v| v.parse().ok().map(|x| c.local_link = x),
    },
    Setting {
        name: "fabric",
        env: "SUMPTER_FABRIC",
        unit: "",
        default: "auto",
        range: "auto, tcp or libfabric",
        doc: "How the bytes of tensors go between machines: over TCP, or placed in the peer's \
              registered memory (RDMA) by libfabric, which must be installed. auto: placed where \
              both ends name a provider or a device (fabric_provider, fabric_device) and have \
              it, else TCP. libfabric: an error where that cannot be had. Placed bytes are not \
              encrypted.",
        put: |c, v| v.parse().ok().map(|x| c.fabric = x),
    },
    Setting {
        name: "fabric_provider",
        env: "SUMPTER_FABRIC_PROVIDER",
        unit: "",
        default: "",
        range: "the name of a provider of libfabric",
        doc: "The provider of libfabric to use, such as verbs, efa or tcp; `sumpter doctor` lists \
              them. Default: the best one.",
        put: |c, v| word(v, NAME_LIMIT).map(|x| c.fabric_provider = Some(x)),
    },
    Setting {
        name: "fabric_device",
        env: "SUMPTER_FABRIC_DEVICE",
        unit: "",
        default: "",
        range: "the name of a device",
        doc: "The device of libfabric to use, such as mlx5_0. Default: the one with the address \
              of the connection.",
        put: |c, v| word(v, NAME_LIMIT).map(|x| c.fabric_device = Some(x)),
    },
    Setting {
        name: "bandwidth_gbps",
        env: "SUMPTER_BANDWIDTH_GBPS",
        unit: "Gb/s",
        default: "",
        range: "a number from 0.001 to 10000",
        doc: "Bandwidth of this machine's interfaces together, each way; the plan follows it. \
              Default: the speeds that the system reports for them (hardware only). An interface \
              or machine of unknown bandwidth counts as the slowest known one; if none is known, \
              all count as equal.",
        put: |c, v| number(v, 0.001..=10_000.0).map(|x| c.bandwidth_gbps = Some(x)),
    },
    Setting {
        name: "rack",
        env: "SUMPTER_RACK",
        unit: "",
        default: "",
        range: "a name of at most 128 bytes without white space",
        doc: "The rack of this machine: equal for the machines below one switch, which share its \
              uplink. Where uplinks are narrower than the machines below them (see trunk_gbps), \
              each rack's contributions are summed there before they leave it.",
        put: |c, v| word(v, NAME_LIMIT).map(|x| c.rack = Some(x)),
    },
    Setting {
        name: "trunk_gbps",
        env: "SUMPTER_TRUNK_GBPS",
        unit: "Gb/s",
        default: "",
        range: "a number from 0.001 to 10000",
        doc: "Bandwidth of the uplink of this machine's rack, each way; if the machines of a rack \
              differ, the lowest counts. Default: what all machines of the rack can send.",
        put: |c, v| number(v, 0.001..=10_000.0).map(|x| c.trunk_gbps = Some(x)),
    },
    Setting {
        name: "device_group",
        env: "SUMPTER_DEVICE_GROUP",
        unit: "",
        default: "",
        range: "a name of at most 128 bytes without white space",
        doc: "The device group of this rank: equal for ranks of one machine whose devices reduce \
              among themselves before anything leaves the machine, in a PCIe switch or an NVLink \
              island. Each then sends and receives a shard of the sum. With \"auto\" \
              the front takes it from the machine's topology. Default: none.",
        put: |c, v| word(v, NAME_LIMIT).map(|x| c.device_group = Some(x)),
    },
    Setting {
        name: "device_shards",
        env: "SUMPTER_DEVICE_SHARDS",
        unit: "",
        default: "true",
        range: "true or false",
        doc: "Whether this rank of a device group holds shards of the group's sums; false where \
              its device shares a PCIe switch with the network interface, and others of an NVLink \
              island do not.",
        put: |c, v| boolean(v).map(|x| c.device_shards = x),
    },
    Setting {
        name: "interfaces",
        env: "SUMPTER_INTERFACES",
        unit: "",
        default: "",
        range: "names of network interfaces or addresses of this machine, with commas between",
        doc: "The network interfaces that carry data, for listening and for connecting. With \
              several, each lane belongs to one, and connections move to another when one goes \
              down; see interfaces.md. Default: the one that leads to the coordinator.",
        put: |c, v| names(v).map(|x| c.interfaces = x),
    },
    Setting {
        name: "pin_lanes",
        env: "SUMPTER_PIN_LANES",
        unit: "",
        default: "true",
        range: "true or false",
        doc: "On machines with several NUMA nodes: run each lane of a server on a core of its \
              interface's node, and a worker's on any core of it. See interfaces.md.",
        put: |c, v| boolean(v).map(|x| c.pin_lanes = x),
    },
    Setting {
        name: "io_threads",
        env: "SUMPTER_IO_THREADS",
        unit: "threads",
        default: "1",
        range: "a number from 1 to 64",
        doc: "Event loops of a worker, for links that are faster than one core: each serves its \
              part of every large tensor, with a lane and connections of its own. See tuning.md. \
              Equal on every rank.",
        put: |c, v| number(v, 1..=64).map(|x| c.io_threads = x),
    },
    Setting {
        name: "lanes",
        env: "SUMPTER_LANES",
        unit: "lanes",
        default: "0",
        range: "a number from 0 to 1024",
        doc: "Lanes of a server; 0: one per core.",
        put: |c, v| number(v, 0..=1024).map(|x| c.lanes = x),
    },
    Setting {
        name: "port",
        env: "SUMPTER_PORT",
        unit: "",
        default: "0",
        range: "a number from 0 to 65535",
        doc: "The first lane's port, the next lane's is one higher; 0 takes free ports.",
        put: |c, v| number(v, 0..=u16::MAX).map(|x| c.port = x),
    },
    Setting {
        name: "max_job_bytes",
        env: "SUMPTER_MAX_JOB_BYTES",
        unit: "bytes",
        default: "64GiB",
        range: "a size from 1MiB to 1PiB",
        doc: "Memory quota of a job on one server; beyond it the server refuses the job's next \
              tensor.",
        put: |c, v| size_in(v, MIB..=PIB, 1).map(|x| c.max_job_bytes = x),
    },
    Setting {
        name: "max_bytes",
        env: "SUMPTER_MAX_BYTES",
        unit: "bytes",
        default: "",
        range: "a size from 1MiB to 1PiB",
        doc: "Memory quota of all jobs together on one server; a job that would exceed it is not \
              admitted. Default: no limit.",
        put: |c, v| size_in(v, MIB..=PIB, 1).map(|x| c.max_bytes = Some(x)),
    },
    Setting {
        name: "tenants",
        env: "SUMPTER_TENANTS",
        unit: "",
        default: "",
        range: "the path of a TOML file",
        doc: "The jobs a coordinator admits, each with a token and a quota of its own; see \
              tenants.md. Without it every job is admitted that holds the coordinator's token.",
        put: |c, v| (!v.is_empty()).then(|| c.tenants = Some(PathBuf::from(v))),
    },
    Setting {
        name: "max_jobs",
        env: "SUMPTER_MAX_JOBS",
        unit: "jobs",
        default: "0",
        range: "a number from 0 to 65536",
        doc: "The jobs a coordinator admits at once; 0 is any number.",
        put: |c, v| number(v, 0..=65_536).map(|x| c.max_jobs = x),
    },
    Setting {
        name: "tls_cert",
        env: "SUMPTER_TLS_CERT",
        unit: "",
        default: "",
        range: "the path of a PEM file",
        doc: "This process's certificate in PEM, for all connections, of which the coordinator's \
              must name the host that others give as its address; with tls_key and tls_ca, or not \
              at all. See tenants.md.",
        put: |c, v| (!v.is_empty()).then(|| c.tls_cert = Some(PathBuf::from(v))),
    },
    Setting {
        name: "tls_key",
        env: "SUMPTER_TLS_KEY",
        unit: "",
        default: "",
        range: "the path of a PEM file",
        doc: "The private key of tls_cert in PEM.",
        put: |c, v| (!v.is_empty()).then(|| c.tls_key = Some(PathBuf::from(v))),
    },
    Setting {
        name: "tls_ca",
        env: "SUMPTER_TLS_CA",
        unit: "",
        default: "",
        range: "the path of a PEM file",
        doc: "The certificates in PEM of which one must have signed the other end's.",
        put: |c, v| (!v.is_empty()).then(|| c.tls_ca = Some(PathBuf::from(v))),
    },
    Setting {
        name: "tls_data",
        env: "SUMPTER_TLS_DATA",
        unit: "",
        default: "true",
        range: "true or false",
        doc: "With tls_cert, tls_key and tls_ca: encrypt the connections that carry tensors, too, \
              which takes processor time. Equal on every rank and server.",
        put: |c, v| boolean(v).map(|x| c.tls_data = x),
    },
    Setting {
        name: "log",
        env: "SUMPTER_LOG",
        unit: "",
        default: "warn,notice=info",
        range: "off, error, warn, info, debug, trace, or target=level pairs with commas between",
        doc: "Log level of standard error.",
        put: |c, v| log_filter(v).map(|x| c.log = x),
    },
    Setting {
        name: "timeline",
        env: "SUMPTER_TIMELINE",
        unit: "",
        default: "",
        range: "a path",
        doc: "A file for rank 0 to write its operations to, for Chrome's tracing or Perfetto.",
        put: |c, v| (!v.is_empty()).then(|| c.timeline = Some(PathBuf::from(v))),
    },
    Setting {
        name: "metrics_port",
        env: "SUMPTER_METRICS_PORT",
        unit: "",
        default: "0",
        range: "a number from 0 to 65535",
        doc: "The port of the Prometheus endpoint of a coordinator, a server or a worker (plus its \
              local rank); 0: none. See metrics.md.",
        put: |c, v| number(v, 0..=u16::MAX).map(|x| c.metrics_port = x),
    },
    Setting {
        name: "metrics_address",
        env: "SUMPTER_METRICS_ADDRESS",
        unit: "",
        default: "127.0.0.1",
        range: "an IP address of this machine",
        doc: "The address of metrics_port. There is no authentication: 0.0.0.0 and [::] show \
              metrics, and the names of jobs and hosts, to the whole network.",
        put: |c, v| ip_address(v).map(|x| c.metrics_address = Some(x)),
    },
    Setting {
        name: "trace_events",
        env: "SUMPTER_TRACE_EVENTS",
        unit: "events",
        default: "65536",
        range: "0 to 16777216",
        doc: "Capacity of the event ring of each client and each lane for `sumpter trace`, at 48 \
              bytes an event; 0 records nothing.",
        put: |c, v| number(v, 0..=1 << 24).map(|x| c.trace_events = x),
    },
];

/// Different names with commas between them.
fn names(text: &str) -> Option<Vec<String>> {
    let names: Vec<_> =
        text.split(',').map(|name| word(name, NAME_LIMIT)).collect::<Option<_>>()?;
    let different = names.iter().collect::<HashSet<_>>().len() == names.len();
    (different && names.len() <= INTERFACE_LIMIT).then_some(names)
}

/// An IP address, of version 6 with or without brackets.
fn ip_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    match bare {
        Some(bare) => bare.parse().ok().map(IpAddr::V6),
        None => text.parse().ok(),
    }
}

fn log_filter(text: &str) -> Option<String> {
    let known = |level: &str| {
        ["off", "error", "warn", "info", "debug", "trace"]
            .contains(&level.to_ascii_lowercase().as_str())
    };
    let fine = |part: &str| match part.split_once('=') {
        Some((target, level)) => !target.is_empty() && known(level),
        None => known(part),
    };
    word(text, 1024).filter(|filter| filter.split(',').all(fine))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_variables_are_unique_and_described() {
        let names: HashSet<_> = SETTINGS.iter().map(|s| s.name).collect();
        let variables: HashSet<_> = SETTINGS.iter().map(|s| s.env).collect();
        assert_eq!(names.len(), SETTINGS.len());
        assert_eq!(variables.len(), SETTINGS.len());
        assert!(SETTINGS.iter().all(|s| s.doc.ends_with('.') && !s.range.is_empty()));
    }

    #[test]
    fn addresses_are_numbers_and_may_have_brackets() {
        assert_eq!(ip_address(" 10.0.0.1 "), Some(IpAddr::from([10, 0, 0, 1])));
        assert_eq!(ip_address("[::1]"), ip_address("::1"));
        assert!(ip_address("::1").is_some());
        assert_eq!(ip_address("localhost"), None);
        assert_eq!(ip_address("[10.0.0.1]"), None);
    }

    #[test]
    fn interfaces_are_different_names_with_commas_between() {
        assert_eq!(names(" eth0 "), Some(vec!["eth0".to_owned()]));
        assert_eq!(names("eth0, fe80::1").map(|names| names.len()), Some(2));
        for refused in ["", "eth0,", "eth0,eth0", "eth0 eth1"] {
            assert_eq!(names(refused), None, "{refused:?}");
        }
    }

    #[test]
    fn log_filters_are_levels_or_targets_with_levels() {
        assert!(log_filter("warn,sumpter_node=debug").is_some());
        assert!(log_filter("loud").is_none());
        assert!(log_filter("=debug").is_none());
    }
}
