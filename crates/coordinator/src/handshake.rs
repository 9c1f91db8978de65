//! How two ends of a session show each other that they hold the token.
//!
//! Both proofs cover both nonces, the member's protocol version and the bytes of what the member
//! wants; their labels differ, so neither can be replayed or sent back as the other.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::OnceLock;

use sumpter_wire::{NONCE_BYTES, Nonce, Proof, ProofRole, Token};

/// A number used once.
pub(crate) fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; NONCE_BYTES];
    getrandom::fill(&mut nonce).map_err(io::Error::other)?;
    Ok(nonce)
}

/// This process's number: random, and the same as long as the process lives. It shows the
/// coordinator which worker shares its process.
pub(crate) fn process_number() -> u64 {
    static NUMBER: OnceLock<u64> = OnceLock::new();
    *NUMBER.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}

/// Everything both ends said before the first proof.
pub(crate) struct Transcript<'a> {
    pub coordinator_nonce: &'a [u8],
    pub member_nonce: &'a [u8],
    pub member_version: u32,
    pub purpose: &'a [u8],
}

impl Transcript<'_> {
    /// The proof of one end.
    pub fn prove(&self, token: &Token, role: ProofRole) -> Proof {
        self.with_parts(|parts| token.prove(role, parts))
    }

    /// Whether `proof` is that of the other end.
    pub fn verify(&self, token: &Token, role: ProofRole, proof: &[u8]) -> bool {
        // A nonce of another length is no nonce of ours, whatever was proved over it.
        let whole = |nonce: &[u8]| nonce.len() == NONCE_BYTES;
        whole(self.coordinator_nonce)
            && whole(self.member_nonce)
            && self.with_parts(|parts| token.verify(role, parts, proof))
    }

    fn with_parts<T>(&self, use_parts: impl FnOnce(&[&[u8]]) -> T) -> T {
        let version = self.member_version.to_le_bytes();
        use_parts(&[self.coordinator_nonce, self.member_nonce, &version, self.purpose])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_nonces_version_purpose_and_role_only() {
        let token = Token::new("a token of some length").unwrap();
        let (ours, theirs, other) = (nonce().unwrap(), nonce().unwrap(), nonce().unwrap());
        let said = |coordinator_nonce, member_nonce, member_version, purpose| Transcript {
            coordinator_nonce,
            member_nonce,
            member_version,
            purpose,
        };
        let transcript = said(&ours, &theirs, 1, &[1, 2]);
        let proof = transcript.prove(&token, ProofRole::Member);
        assert!(transcript.verify(&token, ProofRole::Member, &proof));
        assert!(!transcript.verify(&token, ProofRole::Coordinator, &proof));
        assert!(!said(&other, &theirs, 1, &[1, 2]).verify(&token, ProofRole::Member, &proof));
        assert!(!said(&ours, &other, 1, &[1, 2]).verify(&token, ProofRole::Member, &proof));
        assert!(!said(&ours, &theirs, 2, &[1, 2]).verify(&token, ProofRole::Member, &proof));
        assert!(!said(&ours, &theirs, 1, &[1, 3]).verify(&token, ProofRole::Member, &proof));
    }

    #[test]
    fn an_empty_nonce_proves_nothing() {
        let token = Token::new("a token of some length").unwrap();
        let ours = nonce().unwrap();
        let transcript = Transcript {
            coordinator_nonce: &ours,
            member_nonce: &[],
            member_version: 1,
            purpose: &[],
        };
        let proof = transcript.prove(&token, ProofRole::Member);
        assert!(!transcript.verify(&token, ProofRole::Member, &proof));
    }

    #[test]
    fn a_process_keeps_its_number() {
        assert_eq!(process_number(), process_number());
    }
}
