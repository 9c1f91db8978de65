//! A run that outlives its coordinator: its members come back to one that knows nothing.

use super::*;
use crate::rejoin::{Idle, KnownRun, Rejoin};
use crate::tenants::Tenants;

const SERVER: MemberId = MemberId(7);

/// A run as its first coordinator left it: two workers, one server, two tensors, epoch 3.
fn known() -> KnownRun {
    let mut scene = World::new();
    let helper = scene.join(server("a"));
    let workers = [0, 1].map(|rank| scene.join(worker(rank, 2)));
    let job = scene.view(helper).job;
    scene.say(helper, Message::JobReady(job, Epoch(1)));
    let mut view = scene.view(workers[0]);
    view.epoch = Epoch(3);
    view.servers[0].member = SERVER;
    let table = vec![spec("t0", &[1]), spec("t1", &[2])];
    KnownRun { view, table, ..KnownRun::default() }
}

fn worker_back(rank: u32, run: KnownRun) -> Join {
    let rejoin = Rejoin { run: Some(run), ..Rejoin::default() };
    Join { rejoin: Some(Box::new(rejoin)), ..worker(rank, 2) }
}

fn server_back(run: &KnownRun, epoch: u32) -> Join {
    let served = BTreeMap::from([(run.view.job, Epoch(epoch))]);
    let rejoin = Rejoin { member: SERVER, served, ..Rejoin::default() };
    Join { rejoin: Some(Box::new(rejoin)), ..server("a") }
}

fn suspend(epoch: u32, reason: &str) -> MemberEvent {
    MemberEvent::Suspend { epoch: Epoch(epoch), reason: reason.to_owned() }
}

impl World {
    /// The server takes the number it had, as the service sees to.
    fn join_server(&mut self, join: Join) -> MemberId {
        let next = std::mem::replace(&mut self.last_member, SERVER.0 - 1);
        let member = self.join(join);
        self.last_member = next.max(SERVER.0);
        member
    }

    fn state(&self) -> String {
        self.registry.status(self.now, None).jobs[0].state.clone()
    }

    fn untold(&mut self, members: &[MemberId]) {
        members.iter().for_each(|member| assert_eq!(self.told(*member), []));
    }

    /// Two workers and the server of the run are back.
    fn all_back(&mut self, run: &KnownRun) -> [MemberId; 3] {
        let helper = self.join_server(server_back(run, 3));
        let zero = self.join(worker_back(0, run.clone()));
        [zero, self.join(worker_back(1, run.clone())), helper]
    }
}

#[test]
fn a_run_comes_back_to_a_coordinator_that_has_become_full() {
    let (mut world, run) = (World::new(), known());
    let tenants = Tenants { listed: None, max_jobs: Some(1) };
    world.registry.options.tenants = Arc::new(tenants);
    // In its place, before the run was back.
    world.join(worker_of("hasty", 0, 2));
    let memory = ServerMemory { max_bytes: Some(1 << 20), max_job_bytes: 1 << 20 };
    world.join(Join { memory, ..server("small") });
    for rank in [0, 1] {
        world.join(worker_back(rank, run.clone()));
    }
    let refusal = world.refused(worker_of("late", 0, 2));
    assert!(refusal.message.contains("coordinator is full"), "{}", refusal.message);
}

#[test]
fn a_run_goes_on_as_it_was_once_all_are_back() {
    let (mut world, run) = (World::new(), known());
    let zero = world.join(worker_back(0, run.clone()));
    assert_eq!(world.state(), "returning");
    let report = world.registry.status(world.now, None);
    assert_eq!(report.jobs[0].missing, ["rank 1"]);
    world.say(zero, Message::Declare(vec![spec("t2", &[3])]));
    let helper = world.join_server(server_back(&run, 3));
    world.untold(&[zero, helper]);
    let one = world.join(worker_back(1, run.clone()));
    assert_eq!(world.state(), "running");
    for member in [zero, one] {
        let tensor = MemberEvent::Tensors { first: TensorId(2), specs: vec![spec("t2", &[3])] };
        assert_eq!(world.told_one(member), tensor);
    }
    // Nothing of it is forgotten.
    world.say(one, Message::Declare(vec![spec("t1", &[2])]));
    world.pass(Duration::from_secs(60));
    world.untold(&[zero, one, helper]);
    let job = &world.registry.status(world.now, None).jobs[0];
    assert_eq!((job.epoch, job.tensors, &job.servers), (3, 3, &vec![SERVER.0]));
    world.say(one, Message::Declare(vec![spec("t1", &[5])]));
    let MemberEvent::TensorError { message, .. } = world.told_one(zero) else { panic!("an error") };
    // Who declared it first is not known any more.
    assert!(message.contains("it was declared") && !message.contains("rank 0"), "{message}");
    world.told(one);
    // It ends as any other.
    world.leave(zero);
    assert_eq!(world.told_one(one), MemberEvent::WorkerLeft { rank: Rank(0) });
    world.leave(one);
    assert_eq!(world.told_one(helper), MemberEvent::JobEnded { job: run.view.job });
}

#[test]
fn a_worker_that_missed_something_is_told() {
    let (mut world, run) = (World::new(), known());
    world.join_server(server_back(&run, 3));
    let idle = Idle { times: 1, last: Rank(1), ranks: vec![Rank(0)] };
    let refused = BTreeMap::from([("t0".to_owned(), "why".to_owned())]);
    let zero = world.join(worker_back(0, KnownRun { idle, refused, ..run.clone() }));
    let one = world.join(worker_back(1, KnownRun { table: run.table[..1].to_vec(), ..run }));
    let error = MemberEvent::TensorError { name: "t0".to_owned(), message: "why".to_owned() };
    let out = MemberEvent::OutOfData { rank: Rank(0) };
    assert_eq!(world.told(zero), [error.clone(), out.clone()]);
    let tensor = MemberEvent::Tensors { first: TensorId(1), specs: vec![spec("t1", &[2])] };
    let all_out = MemberEvent::AllOutOfData { last: Rank(1) };
    assert_eq!(world.told(one), [tensor, error, all_out, out]);
    world.say(one, Message::OutOfData);
    assert_eq!(world.told_one(zero), MemberEvent::AllOutOfData { last: Rank(1) });
}

#[test]
fn a_server_that_does_not_come_back_is_lost() {
    let (mut world, run) = (World::new(), known());
    // Its number has become another's.
    world.last_member = SERVER.0 - 1;
    let other = world.join(Join { lanes: vec![([10, 0, 0, 9], 9).into()], ..server("b") });
    assert_eq!(other, SERVER);
    let workers = [0, 1].map(|rank| world.join(worker_back(rank, run.clone())));
    world.pass(Duration::from_millis(1750));
    world.untold(&workers);
    world.pass(Duration::from_millis(250));
    let event = suspend(4, "the server on a did not come back to the coordinator");
    workers.iter().for_each(|worker| assert_eq!(world.told_one(*worker), event));
    let view = world.view(other);
    assert_eq!((view.epoch, view.servers.len(), view.servers[0].member), (Epoch(4), 1, other));
    world.say(other, Message::JobReady(run.view.job, Epoch(4)));
    workers.iter().for_each(|worker| world.say(*worker, Message::Progress(Epoch(4), vec![])));
    for worker in workers {
        assert!(matches!(world.told_one(worker), MemberEvent::Resume { .. }));
    }
    // When it comes after all, it is used like a new one.
    world.last_member += 1;
    let late = world.join(server_back(&run, 3));
    world.pass(Duration::from_millis(250));
    assert_eq!(world.view(late).epoch, Epoch(5));
}

#[test]
fn a_change_that_the_coordinator_did_not_finish_begins_anew() {
    let run = known();
    let newer = |epoch| {
        let mut run = run.clone();
        run.view.epoch = Epoch(epoch);
        run
    };
    let suspended = |epoch| KnownRun { suspended: Some(Epoch(epoch)), ..run.clone() };
    // Of each: rank 0, rank 1, the server's epoch.
    let cases = [
        (suspended(4), suspended(4), 4),
        (suspended(4), run.clone(), 3),
        (newer(4), suspended(4), 4),
        (run.clone(), run.clone(), 4),
    ];
    for (zero, one, at_server) in cases {
        let mut world = World::new();
        let workers = [worker_back(0, zero), worker_back(1, one)].map(|join| world.join(join));
        world.untold(&workers);
        let helper = world.join_server(server_back(&run, at_server));
        let event = suspend(5, "the coordinator was lost during a change of servers");
        workers.iter().for_each(|worker| assert_eq!(world.told_one(*worker), event));
        assert_eq!(world.view(helper).epoch, Epoch(5));
        // What was said for an older epoch counts for nothing.
        world.say(workers[0], Message::Progress(Epoch(4), vec![4]));
        workers.iter().for_each(|worker| world.say(*worker, Message::Progress(Epoch(5), vec![5])));
        world.say(helper, Message::JobReady(run.view.job, Epoch(5)));
        for worker in workers {
            let MemberEvent::Resume { view, progress } = world.told_one(worker) else { panic!() };
            assert_eq!((view.epoch, view.servers[0].member), (Epoch(5), SERVER));
            assert_eq!(progress, [(Rank(0), vec![5].into()), (Rank(1), vec![5].into())]);
        }
    }
}

#[test]
fn a_worker_that_does_not_come_back_is_lost() {
    let (mut world, run) = (World::new(), known());
    let helper = world.join_server(server_back(&run, 3));
    let zero = world.join(worker_back(0, run.clone()));
    // One that comes and goes again has not come back.
    let one = world.join(worker_back(1, KnownRun { table: vec![], ..run.clone() }));
    world.untold(&[zero, helper]);
    let specs = run.table.clone();
    assert_eq!(world.told_one(one), MemberEvent::Tensors { first: TensorId(0), specs });
    drop(world);

    let mut world = World::new();
    let zero = world.join(worker_back(0, run.clone()));
    let one = world.join(worker_back(1, run.clone()));
    world.close(one);
    assert_eq!(world.state(), "returning");
    world.pass(Duration::from_millis(29_750));
    world.untold(&[zero]);
    world.pass(Duration::from_millis(250));
    let reason = "it did not come back to the coordinator within 30 s".to_owned();
    let event = MemberEvent::WorkerLost { rank: Rank(1), host: "host1".to_owned(), reason };
    assert_eq!(world.told_one(zero), event);
    assert_eq!(world.state(), "failed");
}

#[test]
fn workers_that_have_left_are_not_waited_for() {
    let (mut world, run) = (World::new(), known());
    let left = KnownRun { left: [Rank(1)].into(), ..run.clone() };
    let helper = world.join_server(server_back(&run, 3));
    let zero = world.join(worker_back(0, left));
    assert_eq!(world.state(), "running");
    assert_eq!(world.told_one(zero), MemberEvent::WorkerLeft { rank: Rank(1) });
    world.untold(&[helper]);

    // One that comes back only to leave.
    let mut world = World::new();
    let helper = world.join_server(server_back(&run, 3));
    let zero = world.join(worker_back(0, run.clone()));
    world.leave(zero);
    assert_eq!(world.state(), "returning");
    let one = world.join(worker_back(1, run));
    assert_eq!(world.told_one(one), MemberEvent::WorkerLeft { rank: Rank(0) });
    assert_eq!(world.state(), "running");
    world.leave(one);
    assert!(matches!(world.told_one(helper), MemberEvent::JobEnded { .. }));
}

#[test]
fn only_members_of_the_run_come_back_to_it() {
    let (mut world, run) = (World::new(), known());
    let other = |change: &dyn Fn(&mut KnownRun)| {
        let mut run = run.clone();
        change(&mut run);
        worker_back(1, run)
    };
    world.join(worker_back(0, run.clone()));
    let refusal = world.refused(worker(1, 2));
    assert!(refusal.retry && refusal.message.contains("coming back"), "{refusal:?}");
    assert!(world.refused(worker_back(0, run.clone())).retry);
    let another_run = other(&|run| run.view.job = JobId(1));
    let another_table = other(&|run| run.table[1] = spec("else", &[1]));
    let another_job = other(&|run| run.view.name = "else".to_owned());
    for (join, why) in [
        (another_run, "another run of that name"),
        (another_table, "'else' where others have 't1'"),
        (another_job, "another job's run"),
    ] {
        let refusal = world.refused(join);
        assert!(!refusal.retry && refusal.message.contains(why), "{refusal:?}");
    }
    let mut world = World::new();
    let [zero, one, _] = world.all_back(&run);
    world.close(one);
    assert!(matches!(world.told_one(zero), MemberEvent::WorkerLost { .. }));
    assert!(world.refused(worker_back(1, run.clone())).message.contains("has failed"));
    world.close(zero);
    assert!(world.refused(worker_back(1, run)).message.contains("is over"));
}

#[test]
fn a_server_forgets_a_run_to_which_no_worker_comes_back() {
    let (mut world, run) = (World::new(), known());
    let helper = world.join_server(server_back(&run, 3));
    // It may not go while workers may come who count on it.
    world.say(helper, Message::Drain);
    world.pass(Duration::from_millis(29_750));
    world.untold(&[helper]);
    world.pass(Duration::from_millis(250));
    let ended = MemberEvent::JobEnded { job: run.view.job };
    assert_eq!(world.told(helper), [ended, MemberEvent::Drained]);
}
