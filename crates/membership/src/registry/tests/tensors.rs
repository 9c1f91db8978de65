//! What the ranks of a run must agree on, seen from the members.

use super::*;

fn waits(tag: &str, name: &str) -> Message {
    let pending = vec![PendingOp {
        name: name.into(),
        tag: tag.into(),
        since_ms: 1500,
        ..PendingOp::default()
    }];
    Message::Heartbeat(Some(Stats { pending, ..Stats::default() }))
}

fn errors(told: Vec<MemberEvent>) -> Vec<(String, String)> {
    let error = |event| match event {
        MemberEvent::TensorError { name, message } => Some((name, message)),
        _ => None,
    };
    told.into_iter().filter_map(error).collect()
}

#[test]
fn every_worker_is_told_of_every_tensor_once_and_in_the_order_of_ids() {
    let mut world = World::new();
    let workers = world.started(2);
    world.say(workers[1], Message::Declare(vec![spec("b", &[2])]));
    world.say(workers[0], Message::Declare(vec![spec("a", &[1])]));
    world.say(workers[0], Message::Declare(vec![spec("b", &[2])]));
    let told = world.told(workers[0]);
    assert_eq!(told, world.told(workers[1]));
    let names: Vec<(u32, &str)> = told
        .iter()
        .map(|event| match event {
            MemberEvent::Tensors { first, specs } => (first.0, specs[0].name.as_str()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, [(0, "b"), (1, "a")]);
}

#[test]
fn a_list_of_tensors_is_judged_with_one_answer_after_all_that_is_wrong_with_it() {
    let mut world = World::new();
    let workers = world.started(2);
    let list = || ["a", "b", "c"].map(|name| spec(name, &[2])).to_vec();
    let declared = |world: &mut World, member, list| {
        world.say(member, Message::Declare(list));
        let told = world.told.remove(&member).unwrap_or_default();
        let (last, before) = told.split_last().expect("an answer");
        assert_eq!(*last, Event::Declared);
        before.to_vec()
    };
    let new = declared(&mut world, workers[0], list());
    let tensors = MemberEvent::Tensors { first: TensorId(0), specs: list() };
    assert_eq!(new, [Event::Tell(tensors.clone())]);
    assert_eq!(world.told_one(workers[1]), tensors);
    assert_eq!(declared(&mut world, workers[1], list()), [], "an equal list is no news");
    let mut other = list();
    other[1].shape = vec![3];
    let [Event::Tell(MemberEvent::TensorError { name, message })] =
        &declared(&mut world, workers[1], other)[..]
    else {
        panic!("one error")
    };
    assert!(name == "b" && message.contains("rank 0") && message.contains("rank 1"), "{message}");
    assert_eq!(errors(world.told(workers[0])).len(), 1);
}

#[test]
fn a_conflict_reaches_all_and_a_later_declaration_only_its_author() {
    let mut world = World::new();
    let workers = world.started(3);
    world.say(workers[0], Message::Declare(vec![spec("t", &[10])]));
    world.say(workers[2], Message::Declare(vec![spec("t", &[12])]));
    for member in &workers {
        let errors = errors(world.told(*member));
        assert_eq!(errors.len(), 1);
        assert!(errors[0].1.contains("rank 0 declared shape [10]"), "{errors:?}");
        assert!(errors[0].1.contains("rank 2 declared shape [12]"), "{errors:?}");
    }
    world.say(workers[1], Message::Declare(vec![spec("t", &[10])]));
    assert_eq!(errors(world.told(workers[1])).len(), 1);
    assert_eq!(world.told(workers[0]), []);
    world.say(workers[1], Message::Declare(vec![spec("other", &[10])]));
    assert!(matches!(world.told_one(workers[0]), MemberEvent::Tensors { .. }));
}

#[test]
fn a_declaration_before_the_start_is_an_error() {
    let mut world = World::new();
    let zero = world.join(worker(0, 2));
    world.say(zero, Message::Declare(vec![spec("t", &[1])]));
    let errors = errors(world.told(zero));
    assert_eq!(errors[0].1, "tensor 't' was declared before the start");
}

#[test]
fn a_server_that_declares_a_tensor_is_dismissed() {
    let mut world = World::new();
    let helper = world.join(server("a"));
    world.say(helper, Message::Declare(vec![spec("t", &[1])]));
    assert_eq!(world.told[&helper].last(), Some(&Event::Close));
}

#[test]
fn ranks_that_wait_for_different_collectives_are_told_once() {
    let mut world = World::new();
    let workers = world.started(2);
    world.say(workers[0], waits("world#12|all_reduce(float32 [10])", "a"));
    world.say(workers[1], waits("world#12|all_reduce(float32 [12])", "b"));
    world.say(workers[1], waits("world#12|all_reduce(float32 [12])", "b"));
    for member in &workers {
        world.told.get_mut(member).unwrap().retain(|event| *event != Event::HeartbeatSeen);
        let errors = errors(world.told(*member));
        let names: Vec<&str> = errors.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let text = &errors[0].1;
        assert!(text.contains("collective #12 of group 'world'"), "{text}");
    }
    world.say(workers[0], Message::Declare(vec![spec("a", &[10])]));
    assert_eq!(errors(world.told(workers[0])).len(), 1, "the name stays refused");
}
