//! Tokens, the keys of runs, and the proofs made from them.
//!
//! Both ends of every connection, control or data, prove that they hold the token without
//! sending it: each sends a fresh nonce, and answers with an HMAC-SHA256 over a label that names
//! its role and over everything said so far. A recorded proof is worthless because the other
//! side's nonce is in it, and a proof cannot be reflected because the label differs by role.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;

use sumpter_types::JobId;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;
/// Bytes of a proof (an HMAC-SHA256 tag).
pub const PROOF_BYTES: usize = 32;
/// A token shorter than this is refused: it could be guessed.
pub const MIN_TOKEN_CHARS: usize = 16;

/// A number used once, from the operating system's random source.
pub type Nonce = [u8; NONCE_BYTES];
/// What shows that its maker holds the token.
pub type Proof = [u8; PROOF_BYTES];

/// A shared secret: a token that people give out, or the key of one run. It is never printed, not
/// even by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Vec<u8>);

/// Why a text is not a token.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The text is empty or too short to be a secret.
    #[error(
        "the job token has {0} characters; it needs at least {MIN_TOKEN_CHARS} \
         (make one with: python3 -c 'import secrets; print(secrets.token_hex(16))')"
    )]
    TooShort(usize),
}

impl Token {
    /// Takes the token from its text; white space around it is dropped, so that a file may end
    /// in a newline.
    ///
    /// # Errors
    /// [`TokenError::TooShort`] under [`MIN_TOKEN_CHARS`] characters.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim();
        match text.chars().count() {
            n if n < MIN_TOKEN_CHARS => Err(TokenError::TooShort(n)),
            _ => Ok(Self(text.as_bytes().to_vec())),
        }
    }

    /// The key of one run, which its members prove to each other on the data plane. Whoever holds
    /// it learns nothing of this token nor of another run's key. The same token gives the same key
    /// again, so that a run outlives its coordinator.
    #[must_use]
    pub fn run_key(&self, run: JobId) -> Token {
        let mut mac = self.keyed();
        mac.update(RUN_KEY_LABEL);
        mac.update(&run.0.to_le_bytes());
        Token(mac.finalize().into_bytes().to_vec())
    }

    /// This secret for one connection only, whose two ends are these. Who passes a proof on from
    /// one connection to another cannot use it there.
    #[must_use]
    pub fn bound_to(&self, ends: [&[u8]; 2]) -> Token {
        let mut mac = self.keyed();
        mac.update(ENDS_LABEL);
        update(&mut mac, &ends);
        Token(mac.finalize().into_bytes().to_vec())
    }

    /// The secret itself, to be handed over within a session whose ends have proved themselves.
    #[must_use]
    pub fn reveal(&self) -> &[u8] {
        &self.0
    }

    /// Takes a secret that was handed over; `None` if it is too short to be one.
    #[must_use]
    pub fn received(bytes: &[u8]) -> Option<Token> {
        (bytes.len() >= MIN_TOKEN_CHARS).then(|| Token(bytes.to_vec()))
    }

    /// The proof of `role` over the transcript so far.
    #[must_use]
    pub fn prove(&self, role: ProofRole, transcript: &[&[u8]]) -> Proof {
        self.mac(role, transcript).finalize().into_bytes().into()
    }

    /// Whether `proof` is `role`'s proof over the transcript, compared in constant time.
    #[must_use]
    pub fn verify(&self, role: ProofRole, transcript: &[&[u8]], proof: &[u8]) -> bool {
        self.prove(role, transcript).ct_eq(proof).into()
    }

    fn mac(&self, role: ProofRole, transcript: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = self.keyed();
        mac.update(role.label());
        update(&mut mac, transcript);
        mac
    }

    fn keyed(&self) -> Hmac<Sha256> {
        Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes any key length")
    }
}

/// Takes parts, each length-prefixed, so that no two lists of them give the same bytes.
fn update(mac: &mut Hmac<Sha256>, parts: &[&[u8]]) {
    for part in parts {
        mac.update(&(part.len() as u64).to_le_bytes());
        mac.update(part);
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// What a run's key is made of besides the token; differs from every role's label.
const RUN_KEY_LABEL: &[u8] = b"sumpter/1 run key";
/// As above, for a key of one connection.
const ENDS_LABEL: &[u8] = b"sumpter/1 ends";

/// Who makes a proof, and on which plane: the label that keeps proofs from being reflected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofRole {
    /// The end that opened a data connection (a communication service).
    DataClient,
    /// The end that accepted a data connection (a summation service's lane).
    DataServer,
    /// A worker or server that joins the coordinator.
    Member,
    /// The coordinator.
    Coordinator,
}

impl ProofRole {
    fn label(self) -> &'static [u8] {
        match self {
            ProofRole::DataClient => b"sumpter/1 data client",
            ProofRole::DataServer => b"sumpter/1 data server",
            ProofRole::Member => b"sumpter/1 member",
            ProofRole::Coordinator => b"sumpter/1 coordinator",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token::new("correct horse battery staple\n").unwrap()
    }

    #[test]
    fn a_proof_verifies_only_for_its_role_transcript_and_token() {
        let proof = token().prove(ProofRole::Member, &[b"a", b"bc"]);
        assert!(token().verify(ProofRole::Member, &[b"a", b"bc"], &proof));
        assert!(!token().verify(ProofRole::Coordinator, &[b"a", b"bc"], &proof));
        assert!(!token().verify(ProofRole::Member, &[b"ab", b"c"], &proof));
        assert!(!token().verify(ProofRole::Member, &[b"a", b"bc"], &proof[..31]));
        let other = Token::new("another token of some length").unwrap();
        assert!(!other.verify(ProofRole::Member, &[b"a", b"bc"], &proof));
    }

    #[test]
    fn each_run_has_a_key_of_its_own_that_is_no_proof() {
        let key = token().run_key(JobId(1));
        assert_eq!(key, token().run_key(JobId(1)));
        assert_ne!(key, token().run_key(JobId(2)));
        let other = Token::new("another token of some length").unwrap();
        assert_ne!(key, other.run_key(JobId(1)));
        assert_eq!(Token::received(key.reveal()), Some(key));
        assert_eq!(Token::received(b"too short"), None);
    }

    #[test]
    fn short_tokens_are_refused_and_tokens_are_not_printed() {
        assert_eq!(Token::new("  short \n"), Err(TokenError::TooShort(5)));
        assert_eq!(format!("{:?}", token()), "Token(..)");
    }
}
