//! What `auto` chooses for a tensor: the codec that pays, or none. A function of the plan, and of
//! what the members have measured as the plan has it, so that all ranks choose alike.

use std::collections::HashMap;
use std::fmt;

use sumpter_codec::{Spec, Traffic};
use sumpter_membership::{ClusterView, RunSpeeds};
use sumpter_plan::{
    Candidate, Choice, CodedTensor, Compression, Cores, Machine, PlanError, Role, Why,
};
use sumpter_types::{Rank, Speeds};

use crate::codecs::codecs;
use crate::speeds::speeds_of;

/// What is known of links and members.
#[derive(Debug)]
pub(super) struct Knowledge {
    /// Whether the link of any machine is.
    links: bool,
    speeds: RunSpeeds,
    /// The least of all members.
    least: Speeds,
    /// By the ranks of a plan.
    models: HashMap<Vec<Rank>, Model>,
}

/// How long rounds take under one plan.
#[derive(Debug)]
struct Model {
    /// None where there is no such plan.
    times: Option<Compression>,
    /// Whether racks add what their machines contribute.
    has_racks: bool,
}

/// A machine in a plan, and its event loops.
type Threads = (Machine, usize);

/// Sizes that the settings give.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub chunk_bytes: u64,
    /// Smaller tensors are left alone.
    pub least_coded_bytes: u64,
}

/// What a tensor gets, and why: its text is a line for people.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// By the time of a round.
    Timed(Choice),
    /// Not compressed, since that says nothing.
    Left(Reason),
}

/// Why nothing is compressed, whatever the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No link's speed is known.
    UnknownLinks,
    /// Racks add contributions as they are.
    Racks,
    /// No member has measured the codecs.
    Unmeasured,
    /// No plan has all these ranks.
    NoPlan,
}

impl Knowledge {
    pub(super) fn of(view: &ClusterView) -> Knowledge {
        let speeds = RunSpeeds::clone(&view.speeds);
        let least = speeds.workers.clone().least(&speeds.servers);
        let links = view.likely_gbps().is_some();
        Knowledge { links, speeds, least, models: HashMap::new() }
    }

    /// Whether it knows a plan.
    pub(super) fn has(&self, ranks: &[Rank]) -> bool {
        self.models.contains_key(ranks)
    }

    /// A plan, for some ranks or for all: its machines.
    pub(super) fn add(
        &mut self,
        ranks: &[Rank],
        sizes: Sizes,
        (machines, has_racks): (&[Threads], bool),
    ) {
        let times = self.times(sizes, machines).ok();
        self.models.insert(ranks.to_vec(), Model { times, has_racks });
    }

    fn times(&self, sizes: Sizes, machines: &[Threads]) -> Result<Compression, PlanError> {
        let RunSpeeds { workers, servers, .. } = &self.speeds;
        let cores = |role: Role, speeds: &Speeds| {
            let own = machines.iter().filter(|(machine, _)| machine.role == role);
            let busy = own.map(|(_, threads)| (*threads).max(1)).min().unwrap_or(1);
            // Event loops take no more than the cores there are.
            f64::from(if speeds.cores == 0 { busy as u32 } else { speeds.cores.min(busy as u32) })
        };
        let rate = |known: u64| if known == 0 { f64::INFINITY } else { known as f64 };
        let cores = Cores {
            worker: cores(Role::Gpu, workers),
            server: cores(Role::Cpu, servers),
            add: rate(self.least.add),
            transport: rate(self.least.transport),
        };
        let machines = machines.iter().map(|(machine, _)| *machine).collect();
        let cluster = sumpter_plan::Cluster::new(machines)?;
        let times = Compression::new(&cluster, cores, sizes.chunk_bytes)?;
        Ok(times.with_least_bytes(sizes.least_coded_bytes))
    }

    /// Chooses from some codecs for a tensor of these ranks.
    pub(super) fn choose(&self, ranks: &[Rank], tensor: CodedTensor, from: &[Spec]) -> Verdict {
        let model = self.models.get(ranks);
        let Some(Model { times: Some(times), has_racks }) = model else {
            return Verdict::Left(Reason::NoPlan);
        };
        let candidates: Vec<Candidate> =
            from.iter().filter_map(|spec| self.candidate(spec, tensor)).collect();
        let choice = times.choose(tensor, &candidates);
        let measured = || from.iter().any(|spec| speeds_of(&self.least, spec).is_some());
        match choice.why {
            Why::NoFloats(_) | Why::Small { .. } | Why::NothingTravels => Verdict::Timed(choice),
            _ if !self.links => Verdict::Left(Reason::UnknownLinks),
            _ if *has_racks => Verdict::Left(Reason::Racks),
            Why::NoCandidate if !measured() => Verdict::Left(Reason::Unmeasured),
            _ => Verdict::Timed(choice),
        }
    }

    /// A codec, if it fits the tensor and is known.
    fn candidate(&self, spec: &Spec, tensor: CodedTensor) -> Option<Candidate> {
        let elements = tensor.bytes / tensor.dtype.size() as u64;
        let traffic = Traffic::of(&codecs(), spec, tensor.dtype, elements).ok()?;
        Some(Candidate {
            codec: spec.to_string(),
            contribution_bytes: traffic.contribution,
            answer_bytes: traffic.answer,
            encodes_sums: traffic.encodes_sums,
            decodes_sums: traffic.decodes_sums,
            rates: speeds_of(&self.least, spec)?.into(),
        })
    }
}

impl Verdict {
    /// Whether it would be another one if the links were known.
    pub(crate) fn awaits_link(&self) -> bool {
        *self == Verdict::Left(Reason::UnknownLinks)
    }

    /// The codec, if one pays.
    pub(crate) fn codec(&self) -> Option<&str> {
        match self {
            Verdict::Timed(choice) => choice.codec.as_deref(),
            Verdict::Left(_) => None,
        }
    }

    /// Equal for tensors that have the same codec for the same reason.
    pub(crate) fn kind(&self) -> (Option<&str>, u8) {
        let why = match self {
            Verdict::Left(reason) => *reason as u8,
            Verdict::Timed(choice) => {
                10 + match choice.why {
                    Why::Pays => 0,
                    Why::Small { .. } => 1,
                    Why::NoFloats(_) => 2,
                    Why::NothingTravels => 3,
                    Why::NoCandidate => 4,
                    Why::NoFewerBytes => 5,
                    Why::Cores => 6,
                    Why::Link => 7,
                }
            }
        };
        (self.codec(), why)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self {
            Verdict::Timed(choice) => return choice.fmt(f),
            Verdict::Left(reason) => reason,
        };
        f.write_str("not compressed: ")?;
        f.write_str(match reason {
            Reason::UnknownLinks => {
                "no link's speed is known until enough was sent to measure it; or set \
                 bandwidth_gbps on every machine"
            }
            Reason::Racks => {
                "racks add what their machines contribute, which they can only as it is"
            }
            Reason::Unmeasured => {
                "no member has measured these codecs; list them in the setting compression"
            }
            Reason::NoPlan => "there is no plan for these ranks",
        })
    }
}

#[cfg(test)]
mod tests {
    use sumpter_membership::{LaneView, ServerView, WorkerView};
    use sumpter_plan::{Architecture, Dealing};
    use sumpter_types::{CodecSpeeds, Dtype, MemberId, Rack};

    use super::*;
    use crate::cluster::{Cluster, Policy};

    const LARGE: CodedTensor = CodedTensor { bytes: 64 << 20, dtype: Dtype::F32 };

    /// What a member measures that encodes so many bytes a second, and all else ten times as fast.
    fn speeds(encode: u64) -> Speeds {
        let codec = CodecSpeeds { encode, decode: 10 * encode, add: 10 * encode };
        let codecs = [("bf16".to_owned(), codec), ("int8".to_owned(), codec)].into();
        Speeds { cores: 64, add: 10_000_000_000, transport: 0, codecs }
    }

    /// A machine for each worker and each server, with links of so many Gb/s.
    fn view(workers: u32, servers: u64, gbps: Option<f64>) -> ClusterView {
        let lanes = |n: usize| vec![LaneView::from(([127, 0, 0, 1], 1)); n];
        let worker = |rank| WorkerView {
            rank: Rank(rank),
            host: "h".into(),
            machine: format!("gpu-{rank}"),
            lanes: lanes(2),
            bandwidth_gbps: gbps,
            rack: None,
            device_group: None,
        };
        let server = |id| ServerView {
            member: MemberId(id),
            host: "s".into(),
            machine: format!("cpu-{id}"),
            lanes: lanes(4),
            bandwidth_gbps: gbps,
            rack: None,
        };
        ClusterView {
            workers: (0..workers).map(worker).collect(),
            servers: (0..servers).map(server).collect(),
            speeds: Box::new(RunSpeeds {
                workers: speeds(10_000_000_000),
                servers: Speeds::default(),
                link: 0,
            }),
            ..ClusterView::default()
        }
    }

    fn policy() -> Policy {
        Policy {
            partition_bytes: 1 << 20,
            even_bytes: 1 << 15,
            chunk_bytes: 256 << 10,
            architecture: Architecture::Sumpter,
            dealing: Dealing::Balanced,
            deterministic: false,
            workers_may_fail: false,
            elastic: false,
            loops: 2,
            least_coded_bytes: 64 << 10,
        }
    }

    fn verdict_of(view: &ClusterView, ranks: &[Rank], tensor: CodedTensor) -> Verdict {
        let from = sumpter_codec::Selection::default_candidates();
        Cluster::new(view, policy()).unwrap().choose(ranks, tensor, &from)
    }

    fn codec_of(view: &ClusterView) -> Option<String> {
        verdict_of(view, &[], LARGE).codec().map(str::to_owned)
    }

    #[test]
    fn slow_links_have_a_codec_and_fast_ones_none_on_every_rank_and_event_loop() {
        for (gbps, codec, says) in [
            (1.0, Some("int8"), "int8: "),
            (10.0, Some("int8"), "times as fast"),
            (10_000.0, None, "the cores are the limit"),
        ] {
            let whole = view(4, 2, Some(gbps));
            let verdicts: Vec<Verdict> =
                whole.of_loops().map(|own| verdict_of(&own, &[], LARGE)).collect();
            assert_eq!(verdicts.len(), 2);
            for verdict in verdicts {
                assert_eq!(verdict, verdict_of(&whole, &[], LARGE), "{gbps}");
                assert_eq!(verdict.codec(), codec, "{verdict}");
                assert!(verdict.to_string().contains(says), "{verdict}");
            }
        }
    }

    #[test]
    fn a_codec_that_loses_less_comes_first_where_it_is_as_fast() {
        let view = view(4, 0, Some(10.0));
        let choose = |list: &str| {
            let selection = codecs().select(list).unwrap();
            let mut cluster = Cluster::new(&view, policy()).unwrap();
            let verdict = cluster.choose(&[], LARGE, selection.specs());
            verdict.codec().map(str::to_owned)
        };
        assert_eq!(choose("auto:codecs=bf16+int8").as_deref(), Some("int8"));
        assert_eq!(choose("auto:codecs=bf16").as_deref(), Some("bf16"));
        // Not measured here.
        assert_eq!(choose("auto:codecs=bf16+onebit").as_deref(), Some("bf16"));
        // Both take the same time.
        assert_eq!(choose("auto:codecs=int8:ef=false+int8").as_deref(), Some("int8:ef=false"));
    }

    #[test]
    fn what_pays_is_decided_anew_when_members_come_and_go() {
        let mut view = view(4, 0, Some(50.0));
        assert_eq!(codec_of(&view).as_deref(), Some("int8"));
        // A server that encodes slowly has joined.
        let with = self::view(4, 2, Some(50.0));
        view.servers.clone_from(&with.servers);
        view.speeds.servers = speeds(100_000_000);
        assert_eq!(codec_of(&view), None);
        // One that is as fast as the workers.
        view.speeds.servers = view.speeds.workers.clone();
        assert_eq!(codec_of(&view).as_deref(), Some("int8"));
        // Only one worker is left.
        view.servers.clear();
        view.gone = [Rank(0), Rank(1), Rank(2)].into();
        let verdict = verdict_of(&view, &[], LARGE);
        assert_eq!(verdict.to_string(), "not compressed: it does not cross the network");
    }

    #[test]
    fn without_a_known_link_nothing_is_compressed_and_one_stands_for_all() {
        let mut view = view(3, 1, None);
        let verdict = verdict_of(&view, &[], LARGE);
        assert_eq!(verdict, Verdict::Left(Reason::UnknownLinks));
        assert!(verdict.to_string().contains("set bandwidth_gbps"), "{verdict}");
        // What the job has measured, unless something is known.
        view.speeds.link = 125_000_000;
        assert_eq!(codec_of(&view).as_deref(), Some("int8"));
        view.speeds.link = 1_250_000_000_000;
        assert_eq!(codec_of(&view), None);
        view.servers[0].bandwidth_gbps = Some(1.0);
        assert_eq!(codec_of(&view).as_deref(), Some("int8"));
        // On one machine nothing is sent, whatever its link.
        view.servers.clear();
        view.workers.iter_mut().for_each(|worker| worker.machine = "gpu-0".into());
        let verdict = verdict_of(&view, &[], LARGE);
        assert_eq!(verdict.to_string(), "not compressed: it does not cross the network");
    }

    #[test]
    fn a_codec_without_a_measurement_is_not_chosen() {
        let mut view = view(3, 0, Some(1.0));
        *view.speeds = RunSpeeds::default();
        let verdict = verdict_of(&view, &[], LARGE);
        assert_eq!(verdict, Verdict::Left(Reason::Unmeasured));
        // Those that have measured speak for all.
        view.speeds.servers = speeds(1_000_000_000);
        assert_eq!(codec_of(&view).as_deref(), Some("int8"));
    }

    #[test]
    fn racks_that_add_contributions_have_them_plain() {
        let mut view = view(4, 0, Some(10.0));
        for (number, worker) in view.workers.iter_mut().enumerate() {
            let name = if number < 2 { "a" } else { "b" }.to_owned();
            worker.rack = Some(Rack { name, trunk_gbps: Some(1.0) });
        }
        assert_eq!(verdict_of(&view, &[], LARGE), Verdict::Left(Reason::Racks));
        // Of two ranks in one rack nothing crosses a trunk.
        let verdict = verdict_of(&view, &[Rank(0), Rank(1)], LARGE);
        assert_eq!(verdict.codec(), Some("int8"), "{verdict}");
    }

    #[test]
    fn what_is_small_is_left_alone_and_says_so() {
        let view = view(3, 0, Some(1.0));
        let small = CodedTensor { bytes: 4096, ..LARGE };
        let verdict = verdict_of(&view, &[], small);
        assert_eq!(verdict.to_string(), "not compressed: 4096 bytes are fewer than 65536");
        assert_ne!(verdict.kind(), verdict_of(&view, &[], LARGE).kind());
    }

    #[test]
    fn event_loops_work_side_by_side_as_far_as_there_are_cores() {
        // Two loops of each worker, of which a core encodes 10 GB/s: with one core for both, a
        // codec takes longer than the link saves.
        let mut view = view(4, 0, Some(100.0));
        let of = |view: &ClusterView| match verdict_of(view, &[], LARGE) {
            Verdict::Timed(choice) => choice.coded.expect("a codec was considered").1.cores_s,
            left => panic!("{left}"),
        };
        let both = of(&view);
        view.speeds.workers.cores = 1;
        assert!((of(&view) / both - 2.0).abs() < 0.01);
        view.speeds.workers.cores = 2;
        assert_eq!(of(&view), both);
    }
}
