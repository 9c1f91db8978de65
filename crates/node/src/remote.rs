//! The way to an event loop from other threads: a queue of commands, and an event that wakes the
//! loop.
//!
//! A sender always wakes the loop after it has queued a command; the loop empties the queue after
//! each time it was woken. So the last of several commands is never left behind. A loop that ends
//! drops what is queued, and with it the promises in it.

use crate::channel::Sender;
use crate::command::Command;
use crate::sync::Arc;
use crate::waker::Waker;

/// Where an event loop takes its commands from, and how it is woken.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub sender: Sender<Command>,
    pub waker: Arc<Waker>,
}

impl Remote {
    /// Hands over a command; false when the loop has ended.
    pub(crate) fn send(&self, command: Command) -> bool {
        let sent = self.sender.send(command).is_ok();
        if let Err(error) = self.waker.wake() {
            tracing::error!(%error, "an event loop could not be woken");
        }
        sent
    }
}
