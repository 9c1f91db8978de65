//! What many members get: encoded once, and the answers of workers that are equal held once.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message as _;
use prost::bytes::Bytes;
use sumpter_membership::{FatalKind, MemberEvent};
use sumpter_types::Rank;

use super::{Malformed, event_to_proto};
use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;

/// The largest message of a coordinator: a plan with the answers of all workers of a large job.
pub(crate) const MESSAGE_LIMIT: usize = 64 << 20;

/// An event that many members get, encoded once: what a copy costs is a reference. An event that
/// is too large for them becomes the error that says so.
pub(crate) fn shared_to_proto(event: MemberEvent) -> ToMember {
    let message = proto::CoordinatorMessage { body: Some(event_to_proto(event)) };
    let bytes = message.encoded_len();
    // Room for what the message is wrapped in.
    if bytes > MESSAGE_LIMIT - 64 {
        let message = format!(
            "a plan with the answers of all workers takes {bytes} bytes, at most {MESSAGE_LIMIT} \
             are possible: use fewer workers, or declare fewer and larger tensors"
        );
        tracing::error!("{message}");
        return event_to_proto(MemberEvent::Fatal { kind: FatalKind::Start, message });
    }
    ToMember::Shared(Bytes::from(message.encode_to_vec()))
}

/// What workers answered, equal answers once.
pub(super) fn answers_to_proto(progress: Vec<(Rank, Arc<[u8]>)>) -> Vec<proto::WorkerProgress> {
    let mut answers: Vec<proto::WorkerProgress> = Vec::new();
    let mut known: HashMap<Arc<[u8]>, usize> = HashMap::new();
    for (rank, payload) in progress {
        match known.get(&payload) {
            Some(at) => answers[*at].also.push(rank.0),
            None => {
                let (rank, bytes, also) = (rank.0, payload.to_vec(), Vec::new());
                known.insert(payload, answers.len());
                answers.push(proto::WorkerProgress { rank, payload: bytes, also });
            }
        }
    }
    answers
}

/// The same by rank.
pub(super) fn answers_from_proto(
    answers: Vec<proto::WorkerProgress>,
) -> Result<Vec<(Rank, Arc<[u8]>)>, Malformed> {
    let mut progress = Vec::new();
    for proto::WorkerProgress { rank, payload, also } in answers {
        let payload: Arc<[u8]> = payload.into();
        let ranks = [rank].into_iter().chain(also);
        progress.extend(ranks.map(|rank| (Rank(rank), payload.clone())));
    }
    progress.sort_by_key(|(rank, _)| *rank);
    if progress.windows(2).any(|pair| pair[0].0 == pair[1].0) {
        return Err("two answers of one rank".to_owned());
    }
    Ok(progress)
}

/// The bytes that an event takes on the way to a member.
#[must_use]
pub fn message_bytes(event: MemberEvent) -> usize {
    proto::CoordinatorMessage { body: Some(event_to_proto(event)) }.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::event_from_proto;
    use crate::codec::tests::{every_event, view};

    #[test]
    fn a_message_for_many_arrives_as_it_was_sent_and_holds_no_other() {
        for event in every_event() {
            let shared = shared_to_proto(event.clone());
            assert_eq!(event_from_proto(shared), Ok(Some(event)));
        }
        let inner = shared_to_proto(MemberEvent::Finished);
        let inner = proto::CoordinatorMessage { body: Some(inner) }.encode_to_vec();
        let refused = event_from_proto(ToMember::Shared(inner.into()));
        assert!(refused.is_err_and(|what| what.contains("within a message")));
        assert!(event_from_proto(ToMember::Shared(vec![0xff; 9].into())).is_err());
    }

    #[test]
    fn what_is_too_large_for_members_is_an_error_that_says_so() {
        let progress = vec![(Rank(0), vec![0; MESSAGE_LIMIT].into())];
        let event = MemberEvent::Resume { view: view(), progress };
        let Ok(Some(MemberEvent::Fatal { message, .. })) = event_from_proto(shared_to_proto(event))
        else {
            panic!("it was sent")
        };
        assert!(message.contains("at most 67108864 are possible"), "{message}");
    }

    #[test]
    fn equal_answers_are_sent_once() {
        let same: Arc<[u8]> = vec![7; 1000].into();
        let progress: Vec<_> = (0..100).map(|rank| (Rank(rank), same.clone())).collect();
        let bytes = message_bytes(MemberEvent::Resume { view: view(), progress });
        assert!((1000..2000).contains(&bytes), "{bytes}");
        let twice = |rank| proto::WorkerProgress { rank, payload: vec![1], also: vec![3] };
        assert!(answers_from_proto(vec![twice(1), twice(2)]).is_err());
    }
}
