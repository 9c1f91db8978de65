//! What many members get: encoded and compressed once, and the answers of workers that are equal
//! held once.

use std::collections::HashMap;

use prost::Message as _;
use prost::bytes::Bytes;
use sumpter_types::Rank;

use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;

/// The largest message of a coordinator: a plan with the answers of all workers of a large job.
pub(crate) const MESSAGE_LIMIT: usize = 64 << 20;

/// From here on, a message that many members get is compressed: plans and answers of thousands of
/// workers are mostly alike, and the coordinator holds the bytes for each member until they are
/// sent.
const COMPRESSED_FROM: usize = 16 << 10;

/// What is larger travels in pieces, each a sign of life. All members get theirs at once, so that
/// none would have another before the end, when some have given the coordinator up.
const PIECE: usize = 256 << 10;

/// A message to many in pieces, of which each is a message, in order.
pub(crate) fn pieces(body: ToMember) -> impl Iterator<Item = ToMember> {
    let (mut rest, mut whole) = match body {
        ToMember::Compressed(bytes) => (Some(bytes), None),
        body => (None, Some(body)),
    };
    std::iter::from_fn(move || {
        let Some(bytes) = rest.as_mut() else { return whole.take() };
        if bytes.len() > PIECE {
            return Some(ToMember::Piece(bytes.split_to(PIECE)));
        }
        rest.take().map(ToMember::Compressed)
    })
}

/// Puts the pieces of one message after another together.
#[derive(Debug, Default)]
pub(crate) struct Assembly {
    bytes: Vec<u8>,
}

impl Assembly {
    /// Takes a message; the whole one if it is the last of its pieces, or is none.
    ///
    /// # Errors
    /// In words, if the pieces are more than a message has.
    pub fn take(&mut self, body: ToMember) -> Result<Option<ToMember>, String> {
        let (more, is_last) = match body {
            ToMember::Piece(bytes) => (bytes, false),
            ToMember::Compressed(bytes) if !self.bytes.is_empty() => (bytes, true),
            body => return Ok(Some(body)),
        };
        let bytes = self.bytes.len() + more.len();
        // What cannot be compressed becomes a little larger.
        if bytes > MESSAGE_LIMIT + MESSAGE_LIMIT / 64 {
            return Err(format!("a message in pieces of {bytes} bytes, above {MESSAGE_LIMIT}"));
        }
        self.bytes.extend_from_slice(&more);
        Ok(is_last.then(|| ToMember::Compressed(std::mem::take(&mut self.bytes).into())))
    }
}

/// A message that many members get, encoded once: what a copy costs is a reference. A message that
/// is too large for them becomes the error that says so.
pub(crate) fn shared(body: ToMember) -> ToMember {
    let message = proto::CoordinatorMessage { body: Some(body) };
    let bytes = message.encoded_len();
    // Room for what the message is wrapped in.
    if bytes > MESSAGE_LIMIT - 64 {
        let message = format!(
            "a plan with the answers of all workers takes {bytes} bytes, at most {MESSAGE_LIMIT} \
             are possible: use fewer workers, or declare fewer and larger tensors"
        );
        tracing::error!("{message}");
        let kind = proto::FatalKind::Start.into();
        return ToMember::Fatal(proto::Fatal { kind, message });
    }
    let encoded = message.encode_to_vec();
    if encoded.len() < COMPRESSED_FROM {
        return ToMember::Shared(encoded.into());
    }
    ToMember::Compressed(lz4_flex::compress_prepend_size(&encoded).into())
}

/// The encoded message of a compressed one.
///
/// # Errors
/// In words, if there is none.
pub(super) fn decompress(compressed: &[u8]) -> Result<Bytes, String> {
    let unreadable = |error| format!("a compressed message that cannot be read: {error}");
    let (bytes, _) = lz4_flex::block::uncompressed_size(compressed).map_err(unreadable)?;
    // Before that much memory is taken.
    if bytes > MESSAGE_LIMIT {
        return Err(format!("a compressed message of {bytes} bytes, above {MESSAGE_LIMIT}"));
    }
    lz4_flex::decompress_size_prepended(compressed).map(Bytes::from).map_err(unreadable)
}

/// What workers answered, by rank.
type Answers = Vec<(Rank, Bytes)>;

/// What workers answered, equal answers once.
pub(super) fn answers_to_proto(progress: Answers) -> Vec<proto::WorkerProgress> {
    let mut answers: Vec<proto::WorkerProgress> = Vec::new();
    let mut known: HashMap<Bytes, usize> = HashMap::new();
    for (rank, payload) in progress {
        match known.get(&payload) {
            Some(at) => answers[*at].also.push(rank.0),
            None => {
                known.insert(payload.clone(), answers.len());
                answers.push(proto::WorkerProgress { rank: rank.0, payload, also: Vec::new() });
            }
        }
    }
    answers
}

/// The same by rank.
pub(super) fn answers_from_proto(answers: Vec<proto::WorkerProgress>) -> Result<Answers, String> {
    let mut progress = Vec::new();
    for proto::WorkerProgress { rank, payload, also } in answers {
        let ranks = [rank].into_iter().chain(also);
        progress.extend(ranks.map(|rank| (Rank(rank), payload.clone())));
    }
    progress.sort_by_key(|(rank, _)| *rank);
    if progress.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("two answers of one rank".to_owned());
    }
    Ok(progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_for_members_is_an_error_that_says_so() {
        let tensor = proto::TensorError { name: "x".repeat(MESSAGE_LIMIT), ..Default::default() };
        let ToMember::Fatal(fatal) = shared(ToMember::TensorError(tensor)) else {
            panic!("it was sent")
        };
        assert!(fatal.message.contains("at most 67108864 are possible"), "{}", fatal.message);
    }

    #[test]
    fn what_is_large_is_compressed() {
        let name = "a name ".repeat(COMPRESSED_FROM);
        let body = ToMember::TensorError(proto::TensorError { name, ..Default::default() });
        let message = proto::CoordinatorMessage { body: Some(body.clone()) };
        let ToMember::Compressed(compressed) = shared(body) else { panic!("it is not compressed") };
        assert!(compressed.len() < message.encoded_len() / 50);
        assert_eq!(decompress(&compressed), Ok(message.encode_to_vec().into()));
    }

    #[test]
    fn what_is_still_large_travels_in_pieces_between_others() {
        let noise: Vec<u8> = (0..3 * PIECE as u64 + 5)
            .scan(1u64, |state, _| {
                *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                Some((*state >> 56) as u8)
            })
            .collect();
        let payload = Bytes::from(noise);
        let resume = proto::Resume {
            progress: vec![proto::WorkerProgress { rank: 1, payload, also: Vec::new() }],
            ..proto::Resume::default()
        };
        let message = shared(ToMember::Resume(resume));
        let sent: Vec<ToMember> = pieces(message.clone()).collect();
        assert_eq!(sent.len(), 4);
        let mut assembly = Assembly::default();
        let mut taken = Vec::new();
        for body in sent {
            let seen = ToMember::HeartbeatSeen(proto::HeartbeatSeen::default());
            assert_eq!(assembly.take(seen.clone()), Ok(Some(seen)), "it is no piece");
            taken.extend(assembly.take(body).unwrap());
        }
        assert_eq!(taken, [message]);
        let small = shared(ToMember::GivenUp(proto::GivenUp { message: "why".to_owned() }));
        assert!(pieces(small.clone()).eq([small.clone()]));
        assert_eq!(assembly.take(small.clone()), Ok(Some(small)), "nothing is left of the last");
        let most =
            (0..).find_map(|_| assembly.take(ToMember::Piece(vec![0; 1 << 20].into())).err());
        assert!(most.unwrap().contains("above 67108864"));
    }

    #[test]
    fn what_decompresses_to_too_much_or_nothing_is_refused() {
        let mut bomb = lz4_flex::compress_prepend_size(&[0; 100]);
        bomb[..4].copy_from_slice(&(MESSAGE_LIMIT as u32 + 1).to_le_bytes());
        assert!(decompress(&bomb).is_err_and(|what| what.contains("above 67108864")));
        // Fewer bytes than announced, and no length at all.
        bomb[..4].copy_from_slice(&50u32.to_le_bytes());
        for broken in [&bomb[..], &[1, 2]] {
            assert!(decompress(broken).is_err_and(|what| what.contains("cannot be read")));
        }
    }

    #[test]
    fn equal_answers_are_sent_once() {
        let same = Bytes::from(vec![7; 1000]);
        let other = Bytes::from(vec![8]);
        let mut progress: Vec<_> = (0..100).map(|rank| (Rank(rank), same.clone())).collect();
        progress[50].1 = other;
        let answers = answers_to_proto(progress.clone());
        assert_eq!((answers.len(), answers[0].also.len()), (2, 98));
        assert_eq!(answers_from_proto(answers), Ok(progress));
        let twice = |rank| proto::WorkerProgress { rank, payload: vec![1].into(), also: vec![3] };
        assert!(answers_from_proto(vec![twice(1), twice(2)]).is_err());
    }
}
