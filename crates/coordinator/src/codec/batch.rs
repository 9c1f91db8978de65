//! Messages that travel as one: the `batch` of either direction.
//!
//! A batch is the encodings of its messages, each after its length, so that many members can share
//! the bytes of a message that is encoded once, and a receiver takes out one message at a time.

use prost::Message;
use prost::bytes::Bytes;

use crate::proto;
use crate::proto::coordinator_message::Body as ToMember;
use crate::proto::member_message::Body as FromMember;

/// The largest message of a coordinator: a plan with the answers of all workers of a large job.
pub(crate) const MESSAGE_LIMIT: usize = 64 << 20;

/// From here on, a message that many members get is compressed: plans and answers of thousands of
/// workers are mostly alike, and the coordinator holds the bytes for each member until they are
/// sent.
const COMPRESSED_FROM: usize = 16 << 10;

/// A message of one direction, which may be a batch of such messages.
pub(crate) trait Batch: Message + Default {
    fn from_batch(batch: Bytes) -> Self;

    /// The batch, if it is one and not compressed.
    fn as_batch(&self) -> Option<&Bytes>;

    /// Whether it can be one of a batch: all but one that is compressed.
    fn joins(&self) -> bool;

    /// The message itself, or what a batch holds.
    ///
    /// # Errors
    /// In words, if it was compressed and cannot be read.
    fn open(self) -> Result<Opened<Self>, String>;
}

/// A message, or several.
pub(crate) enum Opened<M> {
    One(M),
    Batch(Bytes),
}

impl Batch for proto::CoordinatorMessage {
    fn from_batch(batch: Bytes) -> Self {
        Self { body: Some(ToMember::Batch(batch)) }
    }

    fn as_batch(&self) -> Option<&Bytes> {
        match &self.body {
            Some(ToMember::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    fn joins(&self) -> bool {
        !matches!(self.body, Some(ToMember::Compressed(_)))
    }

    fn open(self) -> Result<Opened<Self>, String> {
        match self.body {
            Some(ToMember::Batch(batch)) => Ok(Opened::Batch(batch)),
            Some(ToMember::Compressed(compressed)) => decompress(&compressed).map(Opened::Batch),
            _ => Ok(Opened::One(self)),
        }
    }
}

impl Batch for proto::MemberMessage {
    fn from_batch(batch: Bytes) -> Self {
        Self { body: Some(FromMember::Batch(batch)) }
    }

    fn as_batch(&self) -> Option<&Bytes> {
        match &self.body {
            Some(FromMember::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    fn joins(&self) -> bool {
        true
    }

    fn open(self) -> Result<Opened<Self>, String> {
        match self.body {
            Some(FromMember::Batch(batch)) => Ok(Opened::Batch(batch)),
            _ => Ok(Opened::One(self)),
        }
    }
}

/// Several messages that join as one, in their order. One alone is left as it is.
///
/// # Panics
/// If there are none.
pub(crate) fn pack<M: Batch>(mut messages: Vec<M>) -> M {
    if messages.len() == 1 {
        return messages.remove(0);
    }
    let mut batch = Vec::new();
    for message in &messages {
        match message.as_batch() {
            Some(inner) => batch.extend_from_slice(inner),
            None => batch.extend_from_slice(&message.encode_length_delimited_to_vec()),
        }
    }
    M::from_batch(batch.into())
}

/// Takes the first message out of a batch that is not empty.
///
/// # Errors
/// In words, if there is none, or it is a batch itself.
pub(crate) fn unpack<M: Batch>(batch: &mut Bytes) -> Result<M, String> {
    let message = M::decode_length_delimited(batch);
    let message = message.map_err(|error| format!("a batch that cannot be read: {error}"))?;
    if message.as_batch().is_some() || !message.joins() {
        return Err("a batch within a batch".to_owned());
    }
    Ok(message)
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
    let batch = message.encode_length_delimited_to_vec();
    if batch.len() < COMPRESSED_FROM {
        return ToMember::Batch(batch.into());
    }
    ToMember::Compressed(lz4_flex::compress_prepend_size(&batch).into())
}

fn decompress(compressed: &[u8]) -> Result<Bytes, String> {
    let (bytes, _) = lz4_flex::block::uncompressed_size(compressed)
        .map_err(|error| format!("a compressed message that cannot be read: {error}"))?;
    // Before that much memory is taken.
    if bytes > MESSAGE_LIMIT {
        return Err(format!("a compressed message of {bytes} bytes, above {MESSAGE_LIMIT}"));
    }
    let batch = lz4_flex::decompress_size_prepended(compressed)
        .map_err(|error| format!("a compressed message that cannot be read: {error}"))?;
    Ok(batch.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::CoordinatorMessage;

    fn error(name: &str) -> CoordinatorMessage {
        let (name, message) = (name.to_owned(), String::new());
        CoordinatorMessage {
            body: Some(ToMember::TensorError(proto::TensorError { name, message })),
        }
    }

    fn batch_of(message: CoordinatorMessage) -> Bytes {
        match message.open() {
            Ok(Opened::Batch(batch)) => batch,
            Ok(Opened::One(message)) => panic!("{message:?} is no batch"),
            Err(what) => panic!("{what}"),
        }
    }

    fn messages(mut batch: Bytes) -> Result<Vec<CoordinatorMessage>, String> {
        let mut found = Vec::new();
        while !batch.is_empty() {
            found.push(unpack(&mut batch)?);
        }
        Ok(found)
    }

    #[test]
    fn what_is_too_large_for_members_is_an_error_that_says_so() {
        let tensor = proto::TensorError { name: "x".repeat(MESSAGE_LIMIT), ..Default::default() };
        let ToMember::Fatal(fatal) = shared(ToMember::TensorError(tensor)) else {
            panic!("it was sent")
        };
        assert!(fatal.message.contains("at most 67108864 are possible"), "{}", fatal.message);
    }

    #[test]
    fn messages_come_out_in_their_order_and_shared_ones_among_them() {
        let announced = CoordinatorMessage { body: Some(shared(error("b").body.unwrap())) };
        let packed = pack(vec![error("a"), announced.clone(), error("")]);
        let bytes = packed.encode_to_vec();
        let sent = CoordinatorMessage::decode(&bytes[..]).unwrap();
        let found = messages(batch_of(sent)).unwrap();
        assert_eq!(found, [error("a"), error("b"), error("")]);
        assert_eq!(pack(vec![error("alone")]), error("alone"));
        assert_eq!(pack(vec![announced.clone()]), announced);
    }

    #[test]
    fn what_is_large_and_for_many_is_compressed() {
        let large = error(&"a name ".repeat(COMPRESSED_FROM));
        let sent = CoordinatorMessage { body: Some(shared(large.body.clone().unwrap())) };
        assert!(sent.encoded_len() < large.encoded_len() / 50 && !sent.joins());
        assert_eq!(messages(batch_of(sent)), Ok(vec![large]));
    }

    #[test]
    fn what_decompresses_to_too_much_or_nothing_is_refused() {
        let opened = |compressed: Vec<u8>| {
            CoordinatorMessage { body: Some(ToMember::Compressed(compressed.into())) }.open()
        };
        let mut bomb = lz4_flex::compress_prepend_size(&[0; 100]);
        bomb[..4].copy_from_slice(&(MESSAGE_LIMIT as u32 + 1).to_le_bytes());
        assert!(opened(bomb.clone()).is_err_and(|what| what.contains("above 67108864")));
        // Fewer bytes than announced, and no length at all.
        bomb[..4].copy_from_slice(&50u32.to_le_bytes());
        for broken in [bomb, vec![1, 2]] {
            assert!(opened(broken).is_err_and(|what| what.contains("cannot be read")));
        }
    }

    #[test]
    fn a_batch_that_is_none_is_refused() {
        for body in [ToMember::Batch(vec![0].into()), ToMember::Compressed(vec![0].into())] {
            let nested = CoordinatorMessage { body: Some(body) }.encode_length_delimited_to_vec();
            assert!(messages(nested.into()).is_err_and(|what| what.contains("within a batch")));
        }
        // Cut short, and a length that no message has.
        let whole = error("a tensor").encode_length_delimited_to_vec();
        for broken in [whole[..whole.len() - 1].to_vec(), vec![0xff; 9], vec![0x80]] {
            let refused = messages(broken.into());
            assert!(refused.is_err_and(|what| what.contains("cannot be read")));
        }
    }
}
