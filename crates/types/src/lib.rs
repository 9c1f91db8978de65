//! The words that every crate shares: ids, element types, operators, collectives, tensors,
//! members and what they report.
//!
//! Plain values without behaviour beyond their own meaning. Nothing here depends on another crate.
#![forbid(unsafe_code)]

mod call;
mod codec;
mod collective;
mod dtype;
mod exact;
mod ids;
mod member;
mod rule;
mod speeds;
mod staleness;
mod stats;
mod status;
mod tensor;

pub use call::{CallNumber, Tag};
pub use codec::CodecRates;
pub use collective::Collective;
pub use dtype::{Dtype, ReduceOp};
pub use exact::{EXACT_WORDS, ExactSum};
pub use ids::{Epoch, GroupId, JobId, Rank, Round, TensorId};
pub use member::{MemberId, Role};
pub use rule::{Action, MAX_SLOTS, Rule, Update};
pub use speeds::{CodecSpeeds, Speeds};
pub use staleness::Staleness;
pub use stats::{CodecChoice, Late, PendingOp, RefusedOp, Stats, Suspicion};
pub use status::{
    Bandwidth, BandwidthSource, DeviceGroup, JobStatus, MachineCount, MemberStatus, Quota,
    RUN_MEMORY, Rack, StallStatus, StatusReport, run_memory_counter, run_text,
};
pub use tensor::TensorSpec;
