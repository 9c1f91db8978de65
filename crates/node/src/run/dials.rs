//! A worker's connections to lanes elsewhere: which are there, and when to dial the others again.

use std::time::{Duration, Instant};

use sumpter_endpoint::ConnId;

/// The first pause before a lane is dialed again; doubled up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// The state of all connections, by lane.
#[derive(Debug, Default)]
pub(crate) struct Dials(Vec<Dial>);

#[derive(Debug, Default)]
struct Dial {
    socket: Option<usize>,
    retry_at: Option<Instant>,
    failing_since: Option<Instant>,
    pause: Option<Duration>,
}

impl Dials {
    /// Of so many lanes, none of which is connected.
    pub(crate) fn new(lanes: usize) -> Dials {
        Dials((0..lanes).map(|_| Dial::default()).collect())
    }

    /// Forgets all connections, and dials none again.
    pub(crate) fn clear(&mut self) {
        self.0.iter_mut().for_each(|dial| *dial = Dial::default());
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = ConnId> + use<> {
        (0..self.0.len()).map(ConnId)
    }

    /// The socket of a lane, from dialing on.
    pub(crate) fn socket(&self, lane: ConnId) -> Option<usize> {
        self.0[lane.0].socket
    }

    /// Since when a lane could not be connected to.
    pub(crate) fn failing_since(&self, lane: ConnId) -> Option<Instant> {
        self.0[lane.0].failing_since
    }

    /// Whether a lane will be dialed again.
    pub(crate) fn is_postponed(&self, lane: ConnId) -> bool {
        self.0[lane.0].retry_at.is_some()
    }

    /// A lane is being dialed.
    pub(crate) fn begin(&mut self, lane: ConnId) {
        self.0[lane.0].retry_at = None;
    }

    /// A lane is dialed on this socket.
    pub(crate) fn opened(&mut self, lane: ConnId, socket: usize) {
        self.0[lane.0].socket = Some(socket);
    }

    /// A lane has accepted the connection.
    pub(crate) fn succeeded(&mut self, lane: ConnId) {
        let dial = &mut self.0[lane.0];
        *dial = Dial { socket: dial.socket, ..Dial::default() };
    }

    /// The connection could not be made or broke: dial again after a pause.
    pub(crate) fn postpone(&mut self, lane: ConnId, now: Instant) {
        let dial = &mut self.0[lane.0];
        dial.socket = None;
        dial.failing_since.get_or_insert(now);
        let pause = dial.pause.map_or(FIRST_PAUSE, |p| (p * 2).min(LAST_PAUSE));
        dial.pause = Some(pause);
        dial.retry_at = Some(now + pause);
    }

    /// The connection is gone, and not needed again.
    pub(crate) fn end(&mut self, lane: ConnId) {
        self.0[lane.0] = Dial::default();
    }

    /// Lanes that are due to be dialed.
    pub(crate) fn due(&self, now: Instant) -> Vec<ConnId> {
        let due = |lane: &ConnId| self.0[lane.0].retry_at.is_some_and(|at| at <= now);
        self.lanes().filter(due).collect()
    }

    /// The earliest time a lane is due.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.0.iter().filter_map(|dial| dial.retry_at).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_until_a_connection_succeeds() {
        let (lane, start) = (ConnId(1), Instant::now());
        let mut dials = Dials::new(2);
        dials.postpone(lane, start);
        assert_eq!(dials.next_deadline(), Some(start + FIRST_PAUSE));
        assert!(dials.due(start).is_empty());
        assert_eq!(dials.due(start + FIRST_PAUSE), [lane]);
        dials.begin(lane);
        dials.postpone(lane, start + FIRST_PAUSE);
        assert_eq!(dials.next_deadline(), Some(start + 3 * FIRST_PAUSE));
        assert_eq!(dials.failing_since(lane), Some(start));
        dials.begin(lane);
        dials.opened(lane, 7);
        dials.succeeded(lane);
        assert_eq!((dials.socket(lane), dials.failing_since(lane)), (Some(7), None));
        dials.postpone(lane, start);
        assert_eq!(dials.next_deadline(), Some(start + FIRST_PAUSE));
    }
}
