//! The answers of workers to a change of plan: those that are equal are held and sent once.

use std::collections::HashMap;
use std::sync::Arc;

use sumpter_types::Rank;

use crate::proto;

/// What workers answered, by rank.
type Answers = Vec<(Rank, Arc<[u8]>)>;

/// What workers answered, equal answers once.
pub(super) fn answers_to_proto(progress: Answers) -> Vec<proto::WorkerProgress> {
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
pub(super) fn answers_from_proto(answers: Vec<proto::WorkerProgress>) -> Result<Answers, String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_answers_are_sent_once() {
        let same: Arc<[u8]> = vec![7; 1000].into();
        let other: Arc<[u8]> = vec![8].into();
        let mut progress: Vec<_> = (0..100).map(|rank| (Rank(rank), same.clone())).collect();
        progress[50].1 = other;
        let answers = answers_to_proto(progress.clone());
        assert_eq!((answers.len(), answers[0].also.len()), (2, 98));
        assert_eq!(answers_from_proto(answers), Ok(progress));
        let twice = |rank| proto::WorkerProgress { rank, payload: vec![1], also: vec![3] };
        assert!(answers_from_proto(vec![twice(1), twice(2)]).is_err());
    }
}
