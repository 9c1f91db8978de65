//! What a worker reports between two epochs, as bytes: a Protocol Buffers message of its own, which
//! the coordinator passes on without looking into it.

use prost::Message;
use sumpter_engine::{Progress, Spans, Standing};
use sumpter_types::{Round, TensorId};

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

/// Reads a worker's progress.
///
/// # Errors
/// A text if the bytes are none.
pub(crate) fn decode(bytes: &[u8]) -> Result<Progress, String> {
    let message = ProgressMessage::decode(bytes).map_err(|error| error.to_string())?;
    let standing = |message: StandingMessage| Standing {
        round: Round(message.round),
        begun: message.begun.then(|| spans(&message.done)),
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
            Standing { round: Round(7), begun },
            Standing { round: Round(8), begun: None },
            Standing { round: Round(0), begun: Some(Spans::default()) },
        ];
        let held = [((TensorId(2), Round(6), 4), Spans::whole(1 << 40))].into_iter().collect();
        let mirrored =
            [(TensorId(1), Spans::default()), (TensorId(2), [3..5, 7..9].into_iter().collect())];
        let progress = Progress { standings, held, mirrored: mirrored.into() };
        assert_eq!(decode(&encode(&progress)), Ok(progress));
    }

    #[test]
    fn other_bytes_are_refused() {
        assert!(decode(&[0xff; 9]).is_err());
    }
}
