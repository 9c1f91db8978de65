//! The handshake of a data connection, as two state machines without I/O.
//!
//! ```text
//! client                                   lane
//!   Hello (magic, version, job, rank, nonce) ->
//!                          <- Challenge (nonce, the lane's proof)
//!   Proof (the client's) ->
//!                          <- Accepted, or Refused with a reason
//! ```
//! Neither side acts on anything else before the other's proof has been checked. Each machine
//! asks for exactly the bytes it needs next, so that none of the first frame is swallowed.

use std::mem;

use crate::PROTOCOL_VERSION;
use crate::auth::{NONCE_BYTES, Nonce, PROOF_BYTES, ProofRole, Token};
use sumpter_types::{Epoch, JobId, Rank};

const MAGIC: [u8; 8] = *b"SUMPTER\n";
const HELLO_BYTES: usize = 72;
const REPLY_HEADER_BYTES: usize = 4;
const CHALLENGE_BYTES: usize = NONCE_BYTES + PROOF_BYTES;
const MAX_REASON_BYTES: usize = 512;

const REPLY_CHALLENGE: u16 = 1;
const REPLY_ACCEPTED: u16 = 2;
const REPLY_REFUSED: u16 = 3;
/// As accepted; and both ends tell next what memory of theirs may be written to.
const REPLY_PLACED: u16 = 4;

/// Who a client says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The job's run.
    pub job: JobId,
    /// The worker's rank, or that of a server which passes aggregates on, behind the workers'.
    pub rank: Rank,
    /// Workers in the job.
    pub world_size: u32,
    /// The epoch of the client's plan.
    pub epoch: Epoch,
    /// The lane the client means to reach, as a check against a mixed-up address.
    pub lane: u32,
    /// Whether the client keeps results until the lane says that everyone has them.
    pub keeps: bool,
    /// Whether frames carry checksums, both ways.
    pub checksum: bool,
    /// Whether the client would place bytes in the lane's memory (RDMA).
    pub placed: bool,
}

/// Bits of the hello's last word.
const FLAG_KEEPS: u32 = 1;
const FLAG_CHECKSUM: u32 = 2;
const FLAG_PLACED: u32 = 4;

/// Why a connection was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The other end is not Sumpter.
    #[error("the peer does not speak Sumpter's protocol, or uses TLS (tls_data) and we do not")]
    NotSumpter,
    /// The other end speaks another version.
    #[error("the peer speaks protocol version {theirs}, this end version {ours}")]
    Version {
        /// The peer's version.
        theirs: u16,
        /// This end's version.
        ours: u16,
    },
    /// The other end does not hold the run's key.
    #[error("the peer does not hold the run's key")]
    Token,
    /// The client names a run that is not known here; it may be a moment later.
    #[error("the job is not known here (yet)")]
    UnknownJob,
    /// The other end refused, with its reason.
    #[error("refused by the peer: {0}")]
    Refused(String),
    /// The other end sent something out of order.
    #[error("the peer broke the handshake: {0}")]
    Broken(&'static str),
}

/// Bytes in and out, common to both sides.
#[derive(Debug)]
struct Exchange {
    output: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    have: usize,
}

impl Exchange {
    fn new(output: Vec<u8>, expect: usize) -> Exchange {
        Exchange { output, sent: 0, input: vec![0; expect], have: 0 }
    }

    fn say(&mut self, bytes: &[u8]) {
        self.output.drain(..mem::take(&mut self.sent));
        self.output.extend_from_slice(bytes);
    }

    fn expect(&mut self, bytes: usize) {
        self.input = vec![0; bytes];
        self.have = 0;
    }

    /// The message just completed, if the last bytes completed one.
    fn filled(&mut self, n: usize) -> Option<Vec<u8>> {
        self.have += n;
        assert!(self.have <= self.input.len(), "filled more than there was space for");
        let complete = self.have == self.input.len();
        complete.then(|| {
            self.have = 0;
            mem::take(&mut self.input)
        })
    }
}

macro_rules! exchange_methods {
    () => {
        /// Bytes to send next; empty when there are none.
        #[must_use]
        pub fn pending(&self) -> &[u8] {
            &self.exchange.output[self.exchange.sent..]
        }

        /// Says that the first `n` pending bytes were sent.
        pub fn sent(&mut self, n: usize) {
            self.exchange.sent += n;
            assert!(self.exchange.sent <= self.exchange.output.len());
        }

        /// Where to put the next received bytes: exactly as many as may be read.
        pub fn space(&mut self) -> &mut [u8] {
            let have = self.exchange.have;
            &mut self.exchange.input[have..]
        }
    };
}

/// The side that opened the connection.
#[derive(Debug)]
pub struct ClientHandshake {
    exchange: Exchange,
    token: Token,
    hello: Vec<u8>,
    stage: ClientStage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientStage {
    ReplyHeader { proven: bool },
    Challenge,
    Reason,
    Finished { placed: bool },
}

impl ClientHandshake {
    /// Starts a handshake; `nonce` must be fresh and random.
    #[must_use]
    pub fn new(hello: Hello, nonce: Nonce, token: Token) -> ClientHandshake {
        let hello = encode_hello(&hello, &nonce);
        ClientHandshake {
            exchange: Exchange::new(hello.clone(), REPLY_HEADER_BYTES),
            token,
            hello,
            stage: ClientStage::ReplyHeader { proven: false },
        }
    }

    exchange_methods!();

    /// Takes another key to prove and to ask for, such as one bound to the connection. It must
    /// not have received anything yet.
    pub fn rekey(&mut self, rekeyed: impl FnOnce(Token) -> Token) {
        self.token = rekeyed(self.token.clone());
    }

    /// Whether this end would place bytes in the lane's memory.
    #[must_use]
    pub fn would_place(&self) -> bool {
        decode_hello(&self.hello).placed
    }

    /// Whether the lane has accepted, and both ends tell next what memory of theirs may be
    /// written to.
    #[must_use]
    pub fn places(&self) -> bool {
        self.stage == ClientStage::Finished { placed: true }
    }

    /// Takes `n` bytes received into [`space`](Self::space); true once the lane has accepted.
    ///
    /// # Errors
    /// Any [`HandshakeError`]; the connection must then be closed.
    pub fn filled(&mut self, n: usize) -> Result<bool, HandshakeError> {
        let Some(message) = self.exchange.filled(n) else { return Ok(false) };
        match self.stage {
            ClientStage::ReplyHeader { proven } => self.reply_header(&message, proven),
            ClientStage::Challenge => self.challenge(&message),
            ClientStage::Reason => {
                Err(HandshakeError::Refused(String::from_utf8_lossy(&message).into_owned()))
            }
            ClientStage::Finished { .. } => Err(HandshakeError::Broken("bytes after the verdict")),
        }
    }

    fn reply_header(&mut self, message: &[u8], proven: bool) -> Result<bool, HandshakeError> {
        let status = u16::from_le_bytes([message[0], message[1]]);
        let length = usize::from(u16::from_le_bytes([message[2], message[3]]));
        match status {
            REPLY_CHALLENGE if !proven && length == CHALLENGE_BYTES => {
                self.stage = ClientStage::Challenge;
                self.exchange.expect(CHALLENGE_BYTES);
                Ok(false)
            }
            REPLY_ACCEPTED | REPLY_PLACED if proven && length == 0 => {
                self.stage = ClientStage::Finished { placed: status == REPLY_PLACED };
                Ok(true)
            }
            REPLY_REFUSED if (1..=MAX_REASON_BYTES).contains(&length) => {
                self.stage = ClientStage::Reason;
                self.exchange.expect(length);
                Ok(false)
            }
            REPLY_CHALLENGE | REPLY_ACCEPTED | REPLY_REFUSED | REPLY_PLACED => {
                Err(HandshakeError::Broken("a reply out of order or of the wrong length"))
            }
            _ => Err(HandshakeError::NotSumpter),
        }
    }

    fn challenge(&mut self, message: &[u8]) -> Result<bool, HandshakeError> {
        let (nonce, proof) = message.split_at(NONCE_BYTES);
        if !self.token.verify(ProofRole::DataServer, &[&self.hello, nonce], proof) {
            return Err(HandshakeError::Token);
        }
        let proof = self.token.prove(ProofRole::DataClient, &[&self.hello, nonce]);
        self.exchange.say(&proof);
        self.stage = ClientStage::ReplyHeader { proven: true };
        self.exchange.expect(REPLY_HEADER_BYTES);
        Ok(false)
    }
}

/// The side that accepted the connection.
#[derive(Debug)]
pub struct ServerHandshake {
    exchange: Exchange,
    nonce: Nonce,
    /// What the client said first, and the key of the run it named.
    hello: Option<(Vec<u8>, Hello, Token)>,
}

impl ServerHandshake {
    /// Waits for a client's hello; `nonce` must be fresh and random.
    #[must_use]
    pub fn new(nonce: Nonce) -> ServerHandshake {
        ServerHandshake { exchange: Exchange::new(Vec::new(), HELLO_BYTES), nonce, hello: None }
    }

    exchange_methods!();

    /// Takes `n` bytes received into [`space`](Self::space). Once the client has proven itself,
    /// returns who it is; the caller then calls [`accept`](Self::accept) or
    /// [`refuse`](Self::refuse), and sends what is pending. `key_of` gives the key of a run.
    ///
    /// # Errors
    /// Any [`HandshakeError`]; what is pending should be sent, then the connection closed.
    pub fn filled(
        &mut self,
        n: usize,
        key_of: impl FnOnce(JobId) -> Option<Token>,
    ) -> Result<Option<Hello>, HandshakeError> {
        let Some(message) = self.exchange.filled(n) else { return Ok(None) };
        match self.hello.take() {
            None => self.first(message, key_of).map(|()| None),
            Some((bytes, hello, key)) => {
                let transcript: [&[u8]; 2] = [&bytes, &self.nonce];
                if key.verify(ProofRole::DataClient, &transcript, &message) {
                    return Ok(Some(hello));
                }
                self.refuse("the key is not this run's");
                Err(HandshakeError::Token)
            }
        }
    }

    fn first(
        &mut self,
        message: Vec<u8>,
        key_of: impl FnOnce(JobId) -> Option<Token>,
    ) -> Result<(), HandshakeError> {
        if message[..8] != MAGIC {
            return Err(HandshakeError::NotSumpter);
        }
        let theirs = u16::from_le_bytes([message[8], message[9]]);
        if theirs != PROTOCOL_VERSION {
            let ours = PROTOCOL_VERSION;
            self.refuse(&format!("this server speaks version {ours}, the client {theirs}"));
            return Err(HandshakeError::Version { theirs, ours });
        }
        let hello = decode_hello(&message);
        let Some(key) = key_of(hello.job) else {
            self.refuse(&HandshakeError::UnknownJob.to_string());
            return Err(HandshakeError::UnknownJob);
        };
        let proof = key.prove(ProofRole::DataServer, &[&message, &self.nonce]);
        self.exchange.say(&reply_header(REPLY_CHALLENGE, CHALLENGE_BYTES));
        let nonce = self.nonce;
        self.exchange.say(&nonce);
        self.exchange.say(&proof);
        self.exchange.expect(PROOF_BYTES);
        self.hello = Some((message, hello, key));
        Ok(())
    }

    /// Tells the client that it is in, and whether both ends place bytes.
    pub fn accept(&mut self, placed: bool) {
        let reply = if placed { REPLY_PLACED } else { REPLY_ACCEPTED };
        self.exchange.say(&reply_header(reply, 0));
    }

    /// Tells the client why it is not; the reason is cut to what fits.
    pub fn refuse(&mut self, reason: &str) {
        let mut end = reason.len().min(MAX_REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        let reason = if end == 0 { "refused" } else { &reason[..end] };
        self.exchange.say(&reply_header(REPLY_REFUSED, reason.len()));
        self.exchange.say(reason.as_bytes());
    }
}

fn reply_header(status: u16, length: usize) -> [u8; REPLY_HEADER_BYTES] {
    let [a, b] = status.to_le_bytes();
    let [c, d] = (length as u16).to_le_bytes();
    [a, b, c, d]
}

fn encode_hello(hello: &Hello, nonce: &Nonce) -> Vec<u8> {
    let mut out = Vec::with_capacity(HELLO_BYTES);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    out.extend_from_slice(&[0; 2]);
    out.extend_from_slice(&hello.lane.to_le_bytes());
    out.extend_from_slice(&hello.job.0.to_le_bytes());
    out.extend_from_slice(&hello.rank.0.to_le_bytes());
    out.extend_from_slice(&hello.world_size.to_le_bytes());
    out.extend_from_slice(&hello.epoch.0.to_le_bytes());
    let flags =
        [(hello.keeps, FLAG_KEEPS), (hello.checksum, FLAG_CHECKSUM), (hello.placed, FLAG_PLACED)];
    let flags: u32 = flags.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum();
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(nonce);
    debug_assert_eq!(out.len(), HELLO_BYTES);
    out
}

fn decode_hello(bytes: &[u8]) -> Hello {
    let word =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Hello {
        lane: word(12),
        job: JobId(u64::from(word(16)) | u64::from(word(20)) << 32),
        rank: Rank(word(24)),
        world_size: word(28),
        epoch: Epoch(word(32)),
        keeps: word(36) & FLAG_KEEPS != 0,
        checksum: word(36) & FLAG_CHECKSUM != 0,
        placed: word(36) & FLAG_PLACED != 0,
    }
}
