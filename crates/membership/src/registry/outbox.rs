//! What the sessions of members are to do, in the order in which it was decided.

use std::sync::Arc;

use sumpter_types::MemberId;

use super::io::Event;
use crate::event::MemberEvent;

#[derive(Debug, Default)]
pub(crate) struct Outbox(Vec<(MemberId, Event)>);

impl Outbox {
    pub fn push(&mut self, id: MemberId, event: Event) {
        self.0.push((id, event));
    }

    pub fn notify(&mut self, id: MemberId, event: MemberEvent) {
        self.push(id, Event::Tell(event));
    }

    pub fn notify_all(&mut self, ids: impl IntoIterator<Item = MemberId>, event: &MemberEvent) {
        let mut ids = ids.into_iter().peekable();
        let Some(first) = ids.next() else { return };
        if ids.peek().is_none() {
            return self.notify(first, event.clone());
        }
        // A plan names every worker: a copy for each would be quadratic in their number.
        let event = Arc::new(event.clone());
        for id in [first].into_iter().chain(ids) {
            self.push(id, Event::Announce(event.clone()));
        }
    }

    /// Takes everything out.
    pub fn take(&mut self) -> Vec<(MemberId, Event)> {
        std::mem::take(&mut self.0)
    }
}
