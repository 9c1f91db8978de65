//! Opens a session: connects, proves, and waits to be welcomed.

use std::time::Duration;

use prost::Message as _;
use sumpter_membership::FatalKind;
use sumpter_wire::{PROTOCOL_VERSION, ProofRole, Token};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};
use tracing::warn;

use crate::codec::{Assembly, MESSAGE_LIMIT, kind_from_proto};
use crate::error::{JoinError, root_cause};
use crate::handshake::{Transcript, nonce};
use crate::proto;
use crate::proto::control_client::ControlClient;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;
use crate::proto::{CoordinatorMessage, MemberMessage};
use crate::tls::Tls;

/// One attempt. A coordinator that is there answers in milliseconds; the shortest leaves room for
/// that on a busy machine, the longest for lost packets.
const SHORTEST_ATTEMPT: Duration = Duration::from_millis(250);
const LONGEST_ATTEMPT: Duration = Duration::from_secs(5);
/// Back-off between attempts, initial and maximal. No event announces that a port is open.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The interval of the message that says what is waited for.
const NOTICE_EVERY: Duration = Duration::from_secs(3);

/// A session whose coordinator has proved itself.
pub(super) struct Greeted {
    pub outbound: mpsc::UnboundedSender<MemberMessage>,
    pub inbound: Streaming<CoordinatorMessage>,
    /// Of a large message on this stream: what a coordinator left unfinished ends with it.
    pub pieces: Assembly,
    pub welcome: proto::Welcome,
}

/// The peer of a greeting, and its purpose.
pub(super) struct Greeting<'a> {
    pub coordinator: &'a str,
    pub token: &'a Token,
    pub tls: Option<&'a Tls>,
    pub purpose: proto::purpose::Body,
}

/// Why an attempt failed.
pub(super) enum Failed {
    /// There is no listener, or not yet: worth another attempt.
    ForNow(String),
    /// The coordinator refused, but may welcome us soon.
    RefusedForNow { kind: FatalKind, message: String },
    /// Another attempt would end the same way.
    ForGood(JoinError),
}

impl Greeting<'_> {
    /// Tries until it succeeds, fails for good, or `limit` has passed.
    pub async fn until(&self, limit: Duration) -> Result<Greeted, JoinError> {
        let begun = Instant::now();
        let mut pause = FIRST_PAUSE;
        let mut next_notice = NOTICE_EVERY;
        loop {
            let left = limit.saturating_sub(begun.elapsed());
            let failed = match self.once(left.clamp(SHORTEST_ATTEMPT, LONGEST_ATTEMPT)).await {
                Ok(greeted) => return Ok(greeted),
                Err(failed) => failed,
            };
            let waited = begun.elapsed();
            if waited >= next_notice {
                let (coordinator, seconds) = (self.coordinator, waited.as_secs());
                let reason = failed.reason();
                warn!("waiting for the coordinator at {coordinator} for {seconds} s: {reason}");
                next_notice = waited + NOTICE_EVERY;
            }
            if !matches!(failed, Failed::ForGood(_)) {
                sleep(pause.min(limit.saturating_sub(waited))).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            if matches!(failed, Failed::ForGood(_)) || begun.elapsed() >= limit {
                return Err(self.give_up(failed, begun.elapsed()));
            }
        }
    }

    /// Tries once, and no more.
    pub async fn only(&self, limit: Duration) -> Result<Greeted, JoinError> {
        let begun = Instant::now();
        self.once(limit).await.map_err(|failed| self.give_up(failed, begun.elapsed()))
    }

    /// Tries once.
    pub async fn once(&self, limit: Duration) -> Result<Greeted, Failed> {
        match timeout(limit, self.attempt(limit)).await {
            Ok(result) => result,
            Err(_) => Err(Failed::ForNow("no answer".to_owned())),
        }
    }

    /// The error of an attempt that is the last.
    fn give_up(&self, failed: Failed, waited: Duration) -> JoinError {
        let coordinator = self.coordinator.to_owned();
        match failed {
            Failed::ForNow(reason) => JoinError::Unreachable { coordinator, waited, reason },
            Failed::RefusedForNow { kind, message } => {
                JoinError::Refused { coordinator, kind, message }
            }
            Failed::ForGood(error) => error,
        }
    }

    async fn attempt(&self, limit: Duration) -> Result<Greeted, Failed> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{}", self.coordinator));
        let mut endpoint = endpoint.map_err(|e| self.address_error(root_cause(&e)))?;
        if let Some(tls) = self.tls {
            endpoint = endpoint
                .tls_config(tls.of_client())
                .map_err(|error| Failed::ForGood(JoinError::Tls { reason: root_cause(&error) }))?;
        }
        if endpoint.uri().port_u16().is_none_or(|port| port == 0) {
            return Err(self.address_error("it has no port".to_owned()));
        }
        let channel = endpoint.connect_timeout(limit).tcp_nodelay(true).connect().await;
        let channel = channel.map_err(|e| Failed::ForNow(root_cause(&e)))?;
        let (outbound, said) = mpsc::unbounded_channel();
        let said = UnboundedReceiverStream::new(said);
        let mut client = ControlClient::new(channel).max_decoding_message_size(MESSAGE_LIMIT);
        let response = client.session(said).await;
        let mut inbound = response.map_err(|s| self.stranger(&s))?.into_inner();

        let ToMember::Challenge(challenge) = self.next(&mut inbound).await? else {
            return Err(self.not_a_coordinator("it did not greet"));
        };
        self.check_version(&challenge)?;
        let member_nonce = nonce().map_err(|e| Failed::ForGood(e.into()))?;
        let purpose = proto::Purpose { body: Some(self.purpose.clone()) }.encode_to_vec();
        let transcript = Transcript {
            coordinator_nonce: &challenge.nonce,
            member_nonce: &member_nonce,
            member_version: u32::from(PROTOCOL_VERSION),
            purpose: &purpose,
        };
        let hello = proto::Hello {
            protocol_version: u32::from(PROTOCOL_VERSION),
            nonce: member_nonce.to_vec(),
            proof: transcript.prove(self.token, ProofRole::Member).to_vec(),
            purpose: purpose.clone(),
        };
        // A closed queue shows as the end of the stream below.
        let _ = outbound.send(MemberMessage { body: Some(FromMember::Hello(hello)) });
        match self.next(&mut inbound).await? {
            ToMember::Welcome(welcome) => {
                if !transcript.verify(self.token, ProofRole::Coordinator, &welcome.proof) {
                    let coordinator = self.coordinator.to_owned();
                    return Err(Failed::ForGood(JoinError::CoordinatorUnproven { coordinator }));
                }
                Ok(Greeted { outbound, inbound, pieces: Assembly::default(), welcome })
            }
            ToMember::Refused(refused) => Err(self.refused(refused)),
            _ => Err(self.not_a_coordinator("it neither welcomed nor refused")),
        }
    }

    async fn next(&self, inbound: &mut Streaming<CoordinatorMessage>) -> Result<ToMember, Failed> {
        match inbound.message().await {
            Ok(Some(CoordinatorMessage { body: Some(body) })) => Ok(body),
            Ok(Some(_)) => Err(self.not_a_coordinator("it sent an empty message")),
            Ok(None) => Err(Failed::ForNow("it ended the session".to_owned())),
            Err(status) => Err(self.stranger(&status)),
        }
    }

    fn check_version(&self, challenge: &proto::Challenge) -> Result<(), Failed> {
        let (theirs, ours) = (challenge.protocol_version, u32::from(PROTOCOL_VERSION));
        if theirs == ours {
            return Ok(());
        }
        let coordinator = self.coordinator.to_owned();
        Err(Failed::ForGood(JoinError::Version { coordinator, theirs, ours }))
    }

    fn refused(&self, refused: proto::Refused) -> Failed {
        let coordinator = self.coordinator.to_owned();
        let (kind, message) = (kind_from_proto(refused.kind), refused.message);
        match kind {
            _ if refused.retry => Failed::RefusedForNow { kind, message },
            FatalKind::Auth => Failed::ForGood(JoinError::TokenRefused { coordinator }),
            _ => Failed::ForGood(JoinError::Refused { coordinator, kind, message }),
        }
    }

    fn stranger(&self, status: &Status) -> Failed {
        match status.code() {
            Code::Unimplemented => self.not_a_coordinator("it is another gRPC service"),
            _ => Failed::ForNow(root_cause(status)),
        }
    }

    fn not_a_coordinator(&self, reason: &str) -> Failed {
        let (coordinator, reason) = (self.coordinator.to_owned(), reason.to_owned());
        Failed::ForGood(JoinError::NotACoordinator { coordinator, reason })
    }

    fn address_error(&self, reason: String) -> Failed {
        let coordinator = self.coordinator.to_owned();
        Failed::ForGood(JoinError::Address { coordinator, reason })
    }
}

impl Failed {
    fn reason(&self) -> String {
        match self {
            Failed::ForNow(reason) => reason.clone(),
            Failed::RefusedForNow { message, .. } => message.clone(),
            Failed::ForGood(error) => error.to_string(),
        }
    }
}
