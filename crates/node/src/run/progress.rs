//! What a worker reports between two epochs, as bytes: a Protocol Buffers message of its own, which
//! the coordinator passes on without looking into it.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use prost::Message;
use prost::bytes::Bytes;
use sumpter_engine::{Progress, Spans, Standing};
use sumpter_types::{Rank, Round, TensorId};

/// Where a worker stands.
#[derive(Clone, PartialEq, Message)]
struct ProgressMessage {
    #[prost(message, repeated, tag = "1")]
    standings: Vec<StandingMessage>,
    #[prost(message, repeated, tag = "2")]
    held: Vec<HeldMessage>,
    #[prost(message, repeated, tag = "3")]
    mirrored: Vec<MirroredMessage>,
}

/// The progress of each event loop of a worker that has several.
#[derive(Clone, PartialEq, Message)]
struct LoopsMessage {
    #[prost(bytes = "vec", repeated, tag = "1")]
    loops: Vec<Vec<u8>>,
}

/// Where it stands with one tensor.
#[derive(Clone, PartialEq, Message)]
struct StandingMessage {
    #[prost(uint32, tag = "1")]
    round: u32,
    #[prost(bool, tag = "2")]
    begun: bool,
    /// Starts and ends of stretches, by turns.
    #[prost(uint64, repeated, tag = "3")]
    done: Vec<u64>,
    #[prost(bool, tag = "4")]
    has_failed: bool,
}

/// What it holds of one round for others.
#[derive(Clone, PartialEq, Message)]
struct HeldMessage {
    #[prost(uint32, tag = "1")]
    tensor: u32,
    #[prost(uint32, tag = "2")]
    round: u32,
    #[prost(uint64, repeated, tag = "3")]
    stretches: Vec<u64>,
    /// How many workers contributed to it.
    #[prost(uint32, tag = "4")]
    contributors: u32,
}

/// What it mirrors of a variable that has a value.
#[derive(Clone, PartialEq, Message)]
struct MirroredMessage {
    #[prost(uint32, tag = "1")]
    tensor: u32,
    /// Elements.
    #[prost(uint64, repeated, tag = "2")]
    stretches: Vec<u64>,
}

/// The encoded progress of a worker.
pub(crate) fn encode(progress: &Progress) -> Vec<u8> {
    let standing = |standing: &Standing| StandingMessage {
        round: standing.round.0,
        begun: standing.begun.is_some(),
        done: standing.begun.as_ref().map(ends).unwrap_or_default(),
        has_failed: standing.has_failed,
    };
    let held = progress.held.iter().map(|((tensor, round, contributors), spans)| HeldMessage {
        tensor: tensor.0,
        round: round.0,
        stretches: ends(spans),
        contributors: *contributors,
    });
    let standings = progress.standings.iter().map(standing).collect();
    let mirrored = progress.mirrored.iter();
    let mirrored = mirrored
        .map(|(tensor, spans)| MirroredMessage { tensor: tensor.0, stretches: ends(spans) });
    let (held, mirrored) = (held.collect(), mirrored.collect());
    ProgressMessage { standings, held, mirrored }.encode_to_vec()
}

/// What a worker answers, of the encoded progress of all its event loops.
pub(crate) fn join(mut loops: Vec<Vec<u8>>) -> Vec<u8> {
    match loops.len() {
        1 => loops.swap_remove(0),
        _ => LoopsMessage { loops }.encode_to_vec(),
    }
}

/// What all workers have answered for event loop `number` of `count`. Equal answers, which are one
/// in memory, are decoded once.
///
/// # Errors
/// A text that names the rank whose bytes are no answer.
pub(crate) fn decode_all(
    answers: &[(Rank, Bytes)],
    (number, count): (u32, u32),
) -> Result<BTreeMap<Rank, Progress>, String> {
    let mut all: BTreeMap<Rank, Progress> = BTreeMap::new();
    let mut known: HashMap<(*const u8, usize), Rank> = HashMap::new();
    for (rank, bytes) in answers {
        let at = (bytes.as_ptr(), bytes.len());
        let same = known.get(&at).and_then(|first| all.get(first)).cloned();
        let progress = match same {
            Some(progress) => progress,
            None => {
                let decoded = of_loop(bytes, (number, count)).and_then(|own| decode(&own));
                decoded.map_err(|error| format!("rank {rank}: {error}"))?
            }
        };
        known.entry(at).or_insert(*rank);
        all.insert(*rank, progress);
    }
    Ok(all)
}

/// The encoded progress of one event loop of a worker.
fn of_loop(bytes: &[u8], (number, count): (u32, u32)) -> Result<Cow<'_, [u8]>, String> {
    if count == 1 {
        return Ok(Cow::Borrowed(bytes));
    }
    let LoopsMessage { mut loops } =
        LoopsMessage::decode(bytes).map_err(|error| error.to_string())?;
    match loops.len() as u32 {
        found if found == count => Ok(Cow::Owned(loops.swap_remove(number as usize))),
        found => Err(format!("it has {found} event loops, not {count}")),
    }
}

/// Reads the progress of an event loop.
///
/// # Errors
/// A text if the bytes are none.
fn decode(bytes: &[u8]) -> Result<Progress, String> {
    let message = ProgressMessage::decode(bytes).map_err(|error| error.to_string())?;
    let standing = |message: StandingMessage| Standing {
        round: Round(message.round),
        begun: message.begun.then(|| spans(&message.done)),
        has_failed: message.has_failed,
    };
    let held = message.held.into_iter().map(|held| {
        let key = (TensorId(held.tensor), Round(held.round), held.contributors);
        (key, spans(&held.stretches))
    });
    let standings = message.standings.into_iter().map(standing).collect();
    let mirrored = message.mirrored.into_iter();
    let mirrored = mirrored.map(|of| (TensorId(of.tensor), spans(&of.stretches))).collect();
    Ok(Progress { standings, held: held.collect(), mirrored })
}

fn ends(spans: &Spans) -> Vec<u64> {
    spans.iter().flat_map(|stretch| [stretch.start as u64, stretch.end as u64]).collect()
}

fn spans(ends: &[u64]) -> Spans {
    ends.chunks_exact(2).map(|pair| pair[0] as usize..pair[1] as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_read() {
        let begun = Some([0..64, 128..256].into_iter().collect());
        let standings = vec![
            Standing { round: Round(7), begun, has_failed: false },
            Standing { round: Round(8), begun: None, has_failed: true },
            Standing { begun: Some(Spans::default()), ..Standing::default() },
        ];
        let held = [((TensorId(2), Round(6), 4), Spans::whole(1 << 40))].into_iter().collect();
        let mirrored =
            [(TensorId(1), Spans::default()), (TensorId(2), [3..5, 7..9].into_iter().collect())];
        let progress = Progress { standings, held, mirrored: mirrored.into() };
        assert_eq!(decode(&encode(&progress)), Ok(progress));
    }

    #[test]
    fn each_loop_reads_what_its_like_have_answered() {
        let progress = |round| Progress {
            standings: vec![Standing { round: Round(round), ..Standing::default() }],
            ..Progress::default()
        };
        let answer = |rounds: &[u32]| -> Bytes {
            join(rounds.iter().map(|round| encode(&progress(*round))).collect()).into()
        };
        let equal = answer(&[3, 4]);
        let all = [(Rank(0), equal.clone()), (Rank(1), equal), (Rank(3), answer(&[5, 6]))];
        for (number, rounds) in [(0, [3, 3, 5]), (1, [4, 4, 6])] {
            let read = decode_all(&all, (number, 2)).unwrap();
            let ranks = [Rank(0), Rank(1), Rank(3)];
            assert_eq!(read, ranks.into_iter().zip(rounds.map(progress)).collect());
        }
        assert_eq!(decode_all(&[(Rank(2), answer(&[7]))], (0, 1)).unwrap()[&Rank(2)], progress(7));
        let error = decode_all(&[(Rank(2), answer(&[7, 8]))], (0, 3)).unwrap_err();
        assert_eq!(error, "rank 2: it has 2 event loops, not 3");
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(decode(&[0xff; 9]).is_err());
    }
}
