//! What the bytes of a data connection mean: identifiers, frames, the handshake, the token.
//!
//! Nothing here touches a socket, a thread, a clock or the environment. `docs/design/wire.md` is
//! the normative description; where it and this crate differ, one of them has a bug.
#![forbid(unsafe_code)]

mod auth;
mod checksum;
mod coding;
mod frame;
mod handshake;
mod order;
mod snapshot;
mod variable;

pub use auth::{
    MIN_TOKEN_CHARS, NONCE_BYTES, Nonce, PROOF_BYTES, Proof, ProofRole, Token, TokenError,
};
pub use checksum::{CHECKED_HEADER_BYTES, checksum};
pub use coding::{CODING_BYTES, CodecId, CodingSpec, MAX_CODEC_BYTES, codec_id};
pub use frame::{
    BEGIN_BYTES, Begin, BeginBytes, FrameError, FrameKind, HEADER_BYTES, Header, MAX_BEGIN_BYTES,
    MAX_CONTROL_BYTES, MAX_GROUP_RANKS, MAX_ORDER_ENTRIES, ORDER_ENTRY_BYTES, PartitionSpec,
    ROUTE_BYTES, Route, Tier, decode_group, encode_group, group_id,
};
pub use handshake::{ClientHandshake, HandshakeError, Hello, ServerHandshake};
pub use order::{OrderEntry, decode_order, encode_order};
pub use snapshot::{Clock, SNAPSHOT_BYTES, Snapshot};
pub use variable::{
    APPLY_BYTES, MAX_MIRRORS, MAX_NORM_BYTES, UPDATE_BYTES, VariableSpec, decode_apply,
    decode_norm, encode_apply, encode_norm,
};

/// The version of the data and control protocols; both ends must speak the same.
pub const PROTOCOL_VERSION: u16 = 6;
