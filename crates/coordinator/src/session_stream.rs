//! The messages of a session on its stream of gRPC: those that wait to be sent become one.
//!
//! Each message of a stream costs a frame, and mostly a system call and a wake-up at either end.
//! Nothing waits for others to come: what is sent as one is what was queued when the stream could
//! take more.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use prost::bytes::Bytes;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use crate::codec::{Batch, Opened, pack, unpack};

/// From here on a batch takes no further message: well below what either end accepts.
const BATCH_BYTES: usize = 64 << 10;

/// What is sent: the messages of a queue, packed.
pub(crate) struct Packed<Q, M> {
    queue: Q,
    /// A message that was too much for the batch before it.
    held: Option<M>,
}

impl<Q, M> Packed<Q, M> {
    pub fn new(queue: Q) -> Self {
        Self { queue, held: None }
    }
}

impl<Q: Stream<Item = M> + Unpin, M: Batch + Unpin> Stream for Packed<Q, M> {
    type Item = M;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<M>> {
        let this = self.get_mut();
        let first = match this.held.take() {
            Some(held) => held,
            None => match ready!(Pin::new(&mut this.queue).poll_next(context)) {
                Some(first) => first,
                None => return Poll::Ready(None),
            },
        };
        let mut bytes = first.encoded_len();
        let mut messages = vec![first];
        while bytes < BATCH_BYTES && messages[0].joins() {
            let Poll::Ready(Some(next)) = Pin::new(&mut this.queue).poll_next(context) else {
                break;
            };
            bytes += next.encoded_len();
            if bytes > BATCH_BYTES || !next.joins() {
                this.held = Some(next);
                break;
            }
            messages.push(next);
        }
        Poll::Ready(Some(pack(messages)))
    }
}

/// What is received: the messages of a stream, unpacked.
pub(crate) struct Unpacked<M> {
    stream: Streaming<M>,
    batch: Bytes,
}

impl<M: Batch> Unpacked<M> {
    pub fn new(stream: Streaming<M>) -> Self {
        Self { stream, batch: Bytes::new() }
    }

    /// The next message, or `None` after the last. No message is lost if the future is dropped.
    ///
    /// # Errors
    /// That of the stream, or one for a batch that is none.
    pub async fn message(&mut self) -> Result<Option<M>, Status> {
        loop {
            if !self.batch.is_empty() {
                let message = unpack(&mut self.batch);
                if message.is_err() {
                    self.batch.clear();
                }
                return message.map(Some).map_err(Status::invalid_argument);
            }
            let Some(message) = self.stream.message().await? else { return Ok(None) };
            match message.open().map_err(Status::invalid_argument)? {
                Opened::Batch(batch) => self.batch = batch,
                Opened::One(message) => return Ok(Some(message)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::proto::member_message::Body;
    use crate::proto::{MemberMessage, Progress};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::UnboundedReceiverStream;

    fn progress(bytes: usize) -> MemberMessage {
        let payload = vec![0; bytes];
        MemberMessage { body: Some(Body::Progress(Progress { epoch: 1, payload })) }
    }

    /// How many messages each of those sent holds, and whether the stream has ended.
    fn sent(sizes: &[usize]) -> (Vec<usize>, bool) {
        let (queue, queued) = mpsc::unbounded_channel();
        let mut packed = Packed::new(UnboundedReceiverStream::new(queued));
        sizes.iter().for_each(|bytes| queue.send(progress(*bytes)).unwrap());
        let mut context = Context::from_waker(Waker::noop());
        let mut counts = Vec::new();
        while let Poll::Ready(Some(message)) = Pin::new(&mut packed).poll_next(&mut context) {
            let Ok(Opened::Batch(mut batch)) = message.open() else {
                counts.push(1);
                continue;
            };
            let mut count = 0;
            while !batch.is_empty() {
                unpack::<MemberMessage>(&mut batch).unwrap();
                count += 1;
            }
            counts.push(count);
        }
        drop(queue);
        let over = Pin::new(&mut packed).poll_next(&mut context);
        (counts, matches!(over, Poll::Ready(None)))
    }

    #[test]
    fn what_is_queued_travels_as_one_up_to_a_size() {
        assert_eq!(sent(&[]), (vec![], true));
        assert_eq!(sent(&[10]), (vec![1], true));
        assert_eq!(sent(&[10; 100]), (vec![100], true));
        let third = BATCH_BYTES / 3;
        assert_eq!(sent(&[third; 5]), (vec![2, 2, 1], true));
        // What is too large for a batch goes alone, in its place.
        assert_eq!(sent(&[10, 2 * BATCH_BYTES, 10, 10]), (vec![1, 1, 2], true));
    }
}
