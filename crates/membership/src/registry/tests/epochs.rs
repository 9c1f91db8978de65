//! A running job whose servers change: they die, join, are drained, cannot be reached.

use super::*;

/// A run of `n` workers under `hosts`, started and with nothing left to read.
pub(super) struct Scene {
    pub world: World,
    pub servers: Vec<MemberId>,
    pub workers: Vec<MemberId>,
    job: JobId,
}

impl Scene {
    pub(super) fn new(hosts: &[&str], n: u32) -> Self {
        Self::with(hosts, n, |join| join)
    }

    fn with(hosts: &[&str], n: u32, change: impl Fn(Join) -> Join) -> Self {
        let mut world = World::new();
        let servers: Vec<_> = hosts.iter().map(|host| world.join(server(host))).collect();
        let workers: Vec<_> = (0..n).map(|rank| world.join(change(worker(rank, n)))).collect();
        for server in &servers {
            let view = world.view(*server);
            world.say(*server, Message::JobReady(view.job, view.epoch));
        }
        let views: Vec<ClusterView> = workers.iter().map(|w| world.view(*w)).collect();
        Self { world, servers, workers, job: views[0].job }
    }

    /// Every worker has been notified of the epoch, once, for this reason.
    pub(super) fn suspended(&mut self, epoch: u32, reason: &str) {
        let event = MemberEvent::Suspend { epoch: Epoch(epoch), reason: reason.to_owned() };
        for worker in self.workers.clone() {
            assert_eq!(self.world.told_one(worker), event);
        }
    }

    pub(super) fn answer(&mut self, worker: usize, epoch: u32) {
        let payload = vec![worker as u8, epoch as u8];
        self.world.say(self.workers[worker], Message::Progress(Epoch(epoch), payload));
    }

    pub(super) fn ready(&mut self, server: MemberId, epoch: u32) {
        self.world.say(server, Message::JobReady(self.job, Epoch(epoch)));
    }

    pub(super) fn servers_told(&mut self, servers: &[MemberId], epoch: u32) {
        for server in servers {
            let view = self.world.view(*server);
            assert_eq!((view.epoch, view.job), (Epoch(epoch), self.job));
            self.ready(*server, epoch);
        }
    }

    /// The workers that are here go on in this epoch under these servers.
    pub(super) fn resumed(&mut self, epoch: u32, servers: &[MemberId]) {
        for worker in self.workers.clone() {
            let (view, progress) = match self.world.told_one(worker) {
                MemberEvent::Resume { view, progress } => (view, progress),
                other => panic!("unexpected {other:?}"),
            };
            assert_eq!((view.job, view.epoch), (self.job, Epoch(epoch)));
            let planned: Vec<MemberId> = view.servers.iter().map(|s| s.member).collect();
            assert_eq!(planned, servers);
            for (rank, payload) in &progress {
                assert_eq!(**payload, [rank.0 as u8, epoch as u8]);
            }
            assert_eq!(progress.len(), self.workers.len());
        }
    }

    fn settle(&mut self, epoch: u32, servers: &[MemberId]) {
        self.servers_told(servers, epoch);
        (0..self.workers.len()).for_each(|worker| self.answer(worker, epoch));
        self.resumed(epoch, servers);
    }

    pub(super) fn untold(&mut self) {
        for member in [&self.workers[..], &self.servers[..]].concat() {
            assert_eq!(self.world.told(member), []);
        }
    }

    fn state(&self) -> String {
        self.world.registry.status(self.world.now, None).jobs[0].state.clone()
    }
}

#[test]
fn a_run_goes_on_without_a_server_that_dies_once_all_are_ready() {
    let mut scene = Scene::new(&["a", "b"], 2);
    let [a, b] = [scene.servers[0], scene.servers[1]];
    scene.world.close(a);
    scene.suspended(2, "the server on a was lost: connection closed");
    assert_eq!(scene.state(), "changing");
    scene.answer(0, 2);
    scene.answer(0, 2);
    scene.servers_told(&[b], 2);
    scene.untold();
    scene.answer(1, 2);
    scene.resumed(2, &[b]);
    let report = scene.world.registry.status(scene.world.now, None);
    let job = &report.jobs[0];
    assert_eq!((job.state.as_str(), job.epoch, &job.servers), ("running", 2, &vec![b.0]));
    assert_eq!(job.last_change, "the server on a was lost: connection closed");
    assert_eq!(job.machines.cpu, 1);
    // Answers that come late change nothing.
    scene.answer(1, 2);
    scene.ready(b, 2);
    scene.untold();
}

#[test]
fn a_silent_server_is_given_up_sooner_than_a_worker_and_told_that_it_may_come_back() {
    let mut scene = Scene::new(&["a"], 1);
    let a = scene.servers[0];
    scene.world.alive.retain(|m| *m != a);
    scene.world.pass(Duration::from_secs(2));
    scene.untold();
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(2, "the server on a was lost: no heartbeat for 2.2 s");
    let told = scene.world.told.remove(&a).unwrap();
    assert!(
        matches!(&told[..], [Event::Tell(MemberEvent::GivenUp { .. }), Event::Close]),
        "{told:?}"
    );
    scene.answer(0, 2);
    scene.resumed(2, &[]);
}

#[test]
fn servers_that_join_together_cost_one_epoch() {
    let mut scene = Scene::new(&[], 2);
    let b = scene.world.join(server("b"));
    let c = scene.world.join(server("c"));
    scene.untold();
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(2, "servers joined on b, c");
    scene.settle(2, &[b, c]);
    scene.world.pass(Duration::from_secs(1));
    scene.untold();
}

#[test]
fn a_server_leaves_when_all_runs_have_gone_on_without_it() {
    let mut scene = Scene::new(&["a", "b"], 1);
    let [a, b] = [scene.servers[0], scene.servers[1]];
    let other = scene.world.join(worker_of("other", 0, 1));
    for server in [a, b] {
        let job = scene.world.view(server).job;
        scene.world.say(server, Message::JobReady(job, Epoch(1)));
    }
    let job = scene.world.view(other).job;
    scene.world.say(a, Message::Drain);
    scene.world.say(a, Message::Drain);
    scene.suspended(2, "the server on a is drained");
    let views: Vec<MemberEvent> = scene.world.told(b);
    assert_eq!(views.len(), 2, "{views:?}");
    scene.ready(b, 2);
    scene.world.say(b, Message::JobReady(job, Epoch(2)));
    scene.answer(0, 2);
    scene.resumed(2, &[b]);
    assert_eq!(scene.world.told(a), [MemberEvent::JobEnded { job: scene.job }]);
    assert!(matches!(scene.world.told_one(other), MemberEvent::Suspend { .. }));
    scene.world.say(other, Message::Progress(Epoch(2), Vec::new()));
    assert_eq!(scene.world.told(a), [MemberEvent::JobEnded { job }, MemberEvent::Drained]);
    scene.world.told(other);
    scene.world.leave(a);
    scene.world.pass(Duration::from_secs(1));
    scene.untold();
}

#[test]
fn a_server_that_no_run_uses_is_drained_at_once_and_takes_part_in_nothing_more() {
    let mut world = World::new();
    let a = world.join(server("a"));
    world.step(Input::Drain(a));
    assert_eq!(world.told(a), [MemberEvent::Draining, MemberEvent::Drained]);
    let zero = world.join(Join { expected_servers: 1, ..worker(0, 1) });
    assert_eq!((world.told(a), world.told(zero)), (vec![], vec![]));
    world.step(Input::Drain(zero));
    assert_eq!(world.told(zero), [], "only servers are drained");
}

#[test]
fn a_server_drained_while_the_run_starts_is_left_right_after_the_start() {
    let mut world = World::new();
    let a = world.join(server("a"));
    let zero = world.join(worker(0, 1));
    let job = world.view(a).job;
    world.say(a, Message::Drain);
    assert_eq!(world.told(a), []);
    world.say(a, Message::JobReady(job, Epoch(1)));
    let told = world.told(zero);
    assert!(
        matches!(
            &told[..],
            [MemberEvent::Started(_), MemberEvent::Suspend { epoch: Epoch(2), .. }]
        ),
        "{told:?}"
    );
    world.say(zero, Message::Progress(Epoch(2), Vec::new()));
    assert!(matches!(world.told_one(zero), MemberEvent::Resume { .. }));
    assert_eq!(world.told(a), [MemberEvent::JobEnded { job }, MemberEvent::Drained]);
}

#[test]
fn what_comes_during_a_change_makes_a_newer_epoch_and_answers_for_the_older_are_void() {
    let mut scene = Scene::new(&["a", "b", "c"], 2);
    let [a, b, c] = [scene.servers[0], scene.servers[1], scene.servers[2]];
    scene.world.close(a);
    scene.suspended(2, "the server on a was lost: connection closed");
    scene.servers_told(&[b, c], 2);
    scene.answer(0, 2);
    // A drain, a join and another death, before the last worker has answered.
    scene.world.say(b, Message::Drain);
    scene.suspended(3, "the server on b is drained");
    let d = scene.world.join(server("d"));
    scene.world.view(c);
    scene.answer(1, 2);
    scene.ready(c, 2);
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(4, "a server joined on d");
    scene.world.view(c);
    scene.world.view(d);
    scene.world.close(c);
    scene.suspended(5, "the server on c was lost: connection closed");
    scene.ready(d, 4);
    (0..2).for_each(|worker| scene.answer(worker, 4));
    assert_eq!(scene.world.told(b), [], "the workers have not gone on");
    scene.untold();
    scene.settle(5, &[d]);
    let ended = MemberEvent::JobEnded { job: scene.job };
    assert_eq!(scene.world.told(b), [ended, MemberEvent::Drained]);
}

#[test]
fn a_server_that_a_worker_cannot_reach_is_out_of_that_run_for_good() {
    let mut scene = Scene::new(&["a", "b"], 2);
    let [a, b] = [scene.servers[0], scene.servers[1]];
    let job = scene.job;
    let suspect = |server, epoch| Message::Suspect {
        server,
        reason: "no route".to_owned(),
        plan: (job, Epoch(epoch)),
    };
    scene.world.say(scene.workers[1], suspect(a, 1));
    scene.suspended(2, "rank 1 on host1 cannot reach the server on a: no route");
    // It speaks of the plan that is void already: that tells nothing.
    scene.world.say(scene.workers[0], suspect(b, 1));
    scene.settle(2, &[b]);
    assert_eq!(scene.world.told(a), [MemberEvent::JobEnded { job: scene.job }]);
    scene.world.say(scene.workers[0], suspect(a, 2));
    scene.world.pass(Duration::from_secs(1));
    scene.untold();
    scene.world.leave(a);
    scene.untold();
}

#[test]
fn a_server_that_cannot_reach_its_peers_names_one_or_itself() {
    let mut scene = Scene::new(&["a", "b", "c"], 2);
    let [a, b, c] = [scene.servers[0], scene.servers[1], scene.servers[2]];
    let job = scene.job;
    let suspect = |server, reason: &str, epoch| Message::Suspect {
        server,
        reason: reason.to_owned(),
        plan: (job, Epoch(epoch)),
    };
    scene.world.say(a, suspect(b, "no route", 1));
    scene.suspended(2, "the server on a cannot reach the server on b: no route");
    scene.settle(2, &[a, c]);
    assert_eq!(scene.world.told(b), [MemberEvent::JobEnded { job }]);
    // It takes no part any more, and what it says of others is nothing.
    scene.world.say(b, suspect(c, "no route", 2));
    scene.world.pass(Duration::from_secs(1));
    scene.untold();
    scene.world.say(c, suspect(c, "lane 0 of rank 1 on host1: no route", 2));
    scene.suspended(3, "the server on c cannot reach lane 0 of rank 1 on host1: no route");
    scene.settle(3, &[a]);
}

#[test]
fn without_any_server_a_run_goes_on_unless_its_architecture_needs_one() {
    let mut scene = Scene::new(&["a"], 2);
    scene.world.close(scene.servers[0]);
    scene.suspended(2, "the server on a was lost: connection closed");
    scene.settle(2, &[]);

    let mut scene = Scene::with(&["a"], 2, |mut join| {
        join.settings.insert("architecture".to_owned(), "ps".to_owned());
        join
    });
    let a = scene.servers[0];
    scene.world.say(a, Message::Drain);
    scene.untold();
    let b = scene.world.join(server("b"));
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(2, "a server joined on b");
    scene.settle(2, &[b]);
    let ended = MemberEvent::JobEnded { job: scene.job };
    assert_eq!(scene.world.told(a), [ended, MemberEvent::Drained]);
    scene.world.close(b);
    for worker in scene.workers.clone() {
        let (kind, message) = scene.world.fatal(worker);
        assert_eq!(kind, FatalKind::PeerLost);
        assert!(message.contains("the server on b was lost: connection closed"), "{message}");
    }
}

#[test]
fn a_server_that_is_to_leave_stays_if_its_successor_dies_and_a_server_is_needed() {
    let mut scene = Scene::with(&["a"], 2, |mut join| {
        join.settings.insert("architecture".to_owned(), "ps".to_owned());
        join
    });
    let a = scene.servers[0];
    scene.world.say(a, Message::Drain);
    let b = scene.world.join(server("b"));
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(2, "a server joined on b");
    scene.world.close(b);
    scene.suspended(3, "the server on b was lost: connection closed");
    scene.settle(3, &[a]);
    // It leaves with the next successor.
    let c = scene.world.join(server("c"));
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(4, "a server joined on c");
    scene.settle(4, &[c]);
    let ended = MemberEvent::JobEnded { job: scene.job };
    assert_eq!(scene.world.told(a), [ended, MemberEvent::Drained]);
}

#[test]
fn a_worker_that_leaves_during_a_change_is_not_waited_for() {
    let mut scene = Scene::new(&["a"], 3);
    scene.world.close(scene.servers[0]);
    scene.suspended(2, "the server on a was lost: connection closed");
    scene.answer(0, 2);
    scene.answer(1, 2);
    // One that has answered, and one that has not.
    for (rank, worker) in [(2, 2), (1, 1)] {
        let leaver = scene.workers.remove(worker);
        scene.world.told(leaver);
        scene.world.leave(leaver);
        let told = scene.world.told(scene.workers[0]);
        assert_eq!(told[0], MemberEvent::WorkerLeft { rank: Rank(rank) });
        if rank == 2 {
            let MemberEvent::Resume { view, progress } = &told[1] else { panic!("{told:?}") };
            assert_eq!((view.workers.len(), progress.len()), (3, 2));
        }
    }
}

#[test]
fn a_worker_that_dies_during_a_change_ends_the_run() {
    let mut scene = Scene::new(&["a", "b"], 2);
    let b = scene.servers[1];
    scene.world.close(scene.servers[0]);
    scene.suspended(2, "the server on a was lost: connection closed");
    scene.servers_told(&[b], 2);
    scene.world.say(b, Message::Drain);
    scene.suspended(3, "the server on b is drained");
    scene.answer(0, 3);
    scene.world.close(scene.workers[1]);
    let event = scene.world.told_one(scene.workers[0]);
    assert!(matches!(event, MemberEvent::WorkerLost { rank: Rank(1), .. }), "{event:?}");
    assert_eq!(scene.world.told(b), [MemberEvent::Drained], "a failed run keeps no server");
    scene.answer(0, 3);
    scene.world.pass(Duration::from_secs(1));
    scene.untold();
}

#[test]
fn who_keeps_a_change_from_being_complete_is_not_waited_for_without_end() {
    let mut scene = Scene::new(&["a"], 2);
    let slow = scene.world.join(server("slow"));
    scene.world.pass(Duration::from_millis(250));
    scene.suspended(2, "a server joined on slow");
    let a = scene.servers[0];
    scene.servers_told(&[a], 2);
    scene.world.view(slow);
    (0..2).for_each(|worker| scene.answer(worker, 2));
    scene.world.pass(Duration::from_secs(30));
    scene.suspended(3, "the server on slow did not get ready within 30 s");
    scene.servers_told(&[a], 3);
    scene.answer(0, 3);
    scene.world.pass(Duration::from_secs(31));
    for worker in scene.workers.clone() {
        let (kind, message) = scene.world.fatal(worker);
        assert_eq!(kind, FatalKind::PeerLost);
        assert_eq!(message, "rank 1 did not stop for a change of plan within 30 s");
    }
}
