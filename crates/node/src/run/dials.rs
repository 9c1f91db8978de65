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
    /// Since when there is a connection.
    connected_at: Option<Instant>,
    pause: Option<Duration>,
    /// Paths that carried nothing since the last connection.
    silent: usize,
    /// Whether the last attempt or connection ended so.
    moved: bool,
    /// Which of its paths a lane is dialed on.
    path: usize,
    /// How many paths there are, once it was dialed.
    paths: usize,
    /// The connection is gone, and not needed again.
    ended: bool,
    /// Bytes could not be placed there.
    plain: bool,
    /// The last attempt was by shared memory, and failed.
    apart: bool,
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
        let Dial { failing_since, connected_at, .. } = self.0[lane.0];
        failing_since.filter(|_| connected_at.is_none())
    }

    /// Whether a lane is neither connected nor about to be, and may be.
    pub(crate) fn is_idle(&self, lane: ConnId) -> bool {
        let Dial { socket, retry_at, ended, .. } = self.0[lane.0];
        socket.is_none() && retry_at.is_none() && !ended
    }

    /// Whether a lane will be dialed again.
    pub(crate) fn is_postponed(&self, lane: ConnId) -> bool {
        self.0[lane.0].retry_at.is_some()
    }

    /// A lane is being dialed, to which there are so many paths; which of them to take.
    pub(crate) fn begin(&mut self, lane: ConnId, paths: usize) -> usize {
        let dial = &mut self.0[lane.0];
        (dial.retry_at, dial.paths, dial.moved) = (None, paths, false);
        dial.path % paths.max(1)
    }

    /// The path to a lane carries nothing any more: the next attempt takes another, if there is
    /// one.
    pub(crate) fn avoid_path(&mut self, lane: ConnId) -> bool {
        let dial = &mut self.0[lane.0];
        (dial.path, dial.silent, dial.moved) = (dial.path + 1, dial.silent + 1, true);
        dial.paths > 1
    }

    /// Whether the last failure was that of a path, and another is about to be tried.
    pub(crate) fn has_another_path(&self, lane: ConnId) -> bool {
        let dial = &self.0[lane.0];
        dial.moved && dial.silent < dial.paths
    }

    /// Bytes could not be placed in a lane's memory: further connections do without.
    pub(crate) fn avoid_placing(&mut self, lane: ConnId) {
        self.0[lane.0].plain = true;
    }

    /// Whether bytes may be placed there.
    pub(crate) fn may_place(&self, lane: ConnId) -> bool {
        !self.0[lane.0].plain
    }

    /// An attempt failed that was `by_memory`, or over the network: the next one is not. Any
    /// process of a machine may listen where a lane's neighbours look for it.
    pub(crate) fn avoid_sharing(&mut self, lane: ConnId, by_memory: bool) {
        self.0[lane.0].apart = by_memory;
    }

    /// Whether the next attempt may be by shared memory.
    pub(crate) fn may_share(&self, lane: ConnId) -> bool {
        !self.0[lane.0].apart
    }

    /// A lane is dialed on this socket.
    pub(crate) fn opened(&mut self, lane: ConnId, socket: usize) {
        self.0[lane.0].socket = Some(socket);
    }

    /// A lane has accepted the connection.
    pub(crate) fn succeeded(&mut self, lane: ConnId, now: Instant) {
        let dial = &mut self.0[lane.0];
        (dial.retry_at, dial.connected_at) = (None, Some(now));
        (dial.silent, dial.moved) = (0, false);
    }

    /// The connection could not be made or broke: dial again after a pause. One that breaks as soon
    /// as it is made has failed, too.
    pub(crate) fn postpone(&mut self, lane: ConnId, now: Instant) {
        let dial = &mut self.0[lane.0];
        let connected_at = dial.connected_at.take();
        let lasted = |since| now.saturating_duration_since(since) >= LAST_PAUSE;
        if connected_at.is_some_and(lasted) {
            (dial.pause, dial.failing_since) = (None, None);
        }
        dial.socket = None;
        dial.failing_since.get_or_insert(now);
        let pause = dial.pause.map_or(FIRST_PAUSE, |p| (p * 2).min(LAST_PAUSE));
        dial.pause = Some(pause);
        dial.retry_at = Some(now + pause);
    }

    /// The connection is gone, and not needed again.
    pub(crate) fn end(&mut self, lane: ConnId) {
        self.0[lane.0] = Dial { ended: true, ..Dial::default() };
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
        dials.begin(lane, 1);
        dials.postpone(lane, start + FIRST_PAUSE);
        assert_eq!(dials.next_deadline(), Some(start + 3 * FIRST_PAUSE));
        assert_eq!(dials.failing_since(lane), Some(start));
        dials.begin(lane, 1);
        dials.opened(lane, 7);
        dials.succeeded(lane, start);
        assert_eq!((dials.socket(lane), dials.failing_since(lane)), (Some(7), None));
        let later = start + LAST_PAUSE;
        dials.postpone(lane, later);
        assert_eq!(dials.next_deadline(), Some(later + FIRST_PAUSE));
        assert_eq!(dials.failing_since(lane), Some(later));
    }

    #[test]
    fn a_connection_that_breaks_at_once_is_a_failure_like_one_that_cannot_be_made() {
        let (lane, start) = (ConnId(0), Instant::now());
        let mut dials = Dials::new(1);
        let mut now = start;
        for _ in 0..20 {
            dials.postpone(lane, now);
            assert_eq!(dials.failing_since(lane), Some(start));
            now = dials.next_deadline().expect("a pause");
            dials.begin(lane, 1);
            dials.opened(lane, 7);
            dials.succeeded(lane, now);
        }
        assert!(now - start > 10 * LAST_PAUSE, "the pauses grow");
    }

    #[test]
    fn a_lane_is_idle_until_it_is_dialed_and_never_again_once_that_has_ended() {
        let (lane, start) = (ConnId(0), Instant::now());
        let mut dials = Dials::new(1);
        assert!(dials.is_idle(lane));
        dials.begin(lane, 1);
        dials.opened(lane, 7);
        assert!(!dials.is_idle(lane));
        dials.postpone(lane, start);
        assert!(!dials.is_idle(lane) && dials.is_postponed(lane));
        dials.end(lane);
        assert!(!dials.is_idle(lane) && dials.next_deadline().is_none());
        dials.clear();
        assert!(dials.is_idle(lane));
    }

    #[test]
    fn a_lane_stays_on_its_path_until_that_carries_nothing_and_every_path_has_its_turn() {
        let (lane, now) = (ConnId(0), Instant::now());
        let mut dials = Dials::new(1);
        // The connection breaks, but not for its path.
        assert_eq!(dials.begin(lane, 2), 0);
        dials.postpone(lane, now);
        assert!(!dials.has_another_path(lane));
        assert_eq!(dials.begin(lane, 2), 0);
        dials.avoid_path(lane);
        dials.postpone(lane, now);
        assert!(dials.has_another_path(lane));
        // The peer refuses on the other.
        assert_eq!(dials.begin(lane, 2), 1);
        dials.postpone(lane, now);
        assert!(!dials.has_another_path(lane));
        // What has worked is kept.
        assert_eq!(dials.begin(lane, 2), 1);
        dials.opened(lane, 7);
        dials.succeeded(lane, now);
        assert_eq!(dials.begin(lane, 2), 1);
        // Both in a row carry nothing.
        dials.avoid_path(lane);
        assert!(dials.has_another_path(lane));
        assert_eq!(dials.begin(lane, 2), 0);
        dials.avoid_path(lane);
        assert!(!dials.has_another_path(lane));
    }
}
