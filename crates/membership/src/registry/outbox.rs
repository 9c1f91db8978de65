//! What the sessions of members are to do, in the order in which it was decided.

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
        ids.into_iter().for_each(|id| self.notify(id, event.clone()));
    }

    /// Takes everything out.
    pub fn take(&mut self) -> Vec<(MemberId, Event)> {
        std::mem::take(&mut self.0)
    }
}
