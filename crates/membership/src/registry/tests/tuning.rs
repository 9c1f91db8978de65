//! Settings of a running job that change.

use super::epochs::Scene;
use super::*;
use crate::registry::io::TuneRequest;

fn asks(settings: &[(&str, &str)]) -> TuneRequest {
    let text = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    TuneRequest { settings: settings.iter().map(text).collect(), ..TuneRequest::default() }
}

impl World {
    /// What a session does with a request.
    fn tune(&mut self, request: &TuneRequest) -> Result<u32, String> {
        let (name, changes) = self.registry.changed(request)?;
        self.step(Input::Tune(name.clone(), changes));
        Ok(self.registry.tune_report(&name).epoch)
    }
}

const WIDER: [(&str, &str); 2] = [("partition", "2MiB"), ("credit", "4MiB")];

#[test]
fn a_change_of_settings_is_a_change_of_epoch_with_the_same_servers() {
    let mut scene = Scene::new(&["a"], 2);
    let servers = scene.servers.clone();
    assert_eq!(scene.world.tune(&asks(&WIDER)), Ok(2));
    scene.suspended(2, "");
    scene.servers_told(&servers, 2);
    (0..2).for_each(|worker| scene.answer(worker, 2));
    for worker in scene.workers.clone() {
        let MemberEvent::Resume { view, .. } = scene.world.told_one(worker) else { panic!() };
        assert_eq!(view.changes["partition_bytes"], "2097152");
        assert_eq!(view.changes["credit_bytes"], "4194304");
        assert_eq!(view.changes.len(), 2);
    }
    let report = scene.world.registry.status(scene.world.now, None);
    assert_eq!(report.jobs[0].settings["chunk_bytes"], "262144");
    assert_eq!(report.jobs[0].settings["partition_bytes"], "2097152");
    // The same once more is no change, and the next one does not forget this one.
    assert_eq!(scene.world.tune(&asks(&WIDER)), Ok(2));
    scene.untold();
    assert_eq!(scene.world.tune(&asks(&[("tuner", "grid")])), Ok(3));
    assert_eq!(scene.world.registry.tune_report("default").settings.len(), 4);
    let reset = TuneRequest { reset: true, ..TuneRequest::default() };
    assert_eq!(scene.world.tune(&reset), Ok(4));
    assert_eq!(scene.world.registry.tune_report("default").settings.len(), 1);
}

#[test]
fn a_change_meets_a_server_that_dies() {
    let mut scene = Scene::new(&["a", "b"], 2);
    let [a, b] = [scene.servers[0], scene.servers[1]];
    assert_eq!(scene.world.tune(&asks(&WIDER)), Ok(2));
    scene.suspended(2, "");
    scene.world.close(a);
    scene.suspended(3, "the server on a was lost: connection closed");
    scene.world.told(b);
    scene.ready(b, 3);
    (0..2).for_each(|worker| scene.answer(worker, 3));
    scene.resumed(3, &[b]);
    assert_eq!(scene.world.registry.tune_report("default").settings["credit_bytes"], "4194304");
}

#[test]
fn what_cannot_be_changes_nothing() {
    let mut scene = Scene::new(&["a"], 2);
    let refusals = [
        (asks(&[("partition", "0")]), "multiple of 4KiB"),
        (asks(&[("credit", "64KiB")]), "a credit under a partition"),
        (asks(&[("job", "x")]), "cannot be changed while a job runs"),
        (TuneRequest { job: "other".to_owned(), ..asks(&WIDER) }, "jobs there are: default"),
        (TuneRequest { epoch: 7, ..asks(&WIDER) }, "the plan of epoch 7 is over; it is 1 now"),
    ];
    for (request, words) in refusals {
        let refusal = scene.world.tune(&request).unwrap_err();
        assert!(refusal.contains(words), "{refusal}");
    }
    scene.untold();
    let mut world = World::new();
    assert_eq!(world.tune(&asks(&WIDER)), Err("there is no job".to_owned()));
    world.join(worker(0, 2));
    let refusal = world.tune(&asks(&WIDER)).unwrap_err();
    assert_eq!(refusal, "job 'default' is waiting: settings change while it runs");
}

#[test]
fn one_of_several_jobs_is_named() {
    let mut world = World::new();
    world.join(worker_of("red", 0, 1));
    world.join(worker_of("blue@3", 0, 1));
    let refusal = world.tune(&asks(&WIDER)).unwrap_err();
    assert!(refusal.contains("several jobs (blue@3, red)"), "{refusal}");
    // A generation of an elastic job goes by the job's name.
    let blue = TuneRequest { job: "blue".to_owned(), ..asks(&WIDER) };
    assert_eq!(world.tune(&blue), Ok(2));
    // The latest one, by number.
    world.join(worker_of("blue@10", 0, 2));
    let refusal = world.tune(&blue).unwrap_err();
    assert!(refusal.contains("blue@10"), "{refusal}");
}
