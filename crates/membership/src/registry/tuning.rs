//! Changes of a running job's settings: sizes, credit, and the tuner. They are part of the plan, so
//! they hold from the same moment for everyone: the next epoch.

use sumpter_config::{Texts, change, readable};

use super::Registry;
use super::io::{TuneReport, TuneRequest};
use super::job::{Job, Stage};
use super::words::list;
use crate::tenants::base_name;

impl Registry {
    /// The job a request is about, and its changes since the start once the request is granted.
    ///
    /// # Errors
    /// Why it cannot be granted, in words.
    pub fn changed(&self, request: &TuneRequest) -> Result<(String, Texts), String> {
        let (name, job) = self.meant(&request.job)?;
        let Some(run) = job.run.as_ref().filter(|_| job.stage() == Stage::Running) else {
            let state = job.state();
            return Err(format!("job '{name}' is {state}: settings change while it runs"));
        };
        let epoch = run.view.epoch.0;
        if request.epoch != 0 && request.epoch != epoch {
            return Err(format!("the plan of epoch {} is over; it is {epoch} now", request.epoch));
        }
        let unchanged = Texts::new();
        let before = if request.reset { &unchanged } else { &run.view.changes };
        let changes = change(&job.settings, before, &request.settings);
        Ok((name.clone(), changes.map_err(|error| error.to_string())?))
    }

    /// The job of a name, of whatever generation; the only one if none is given.
    fn meant(&self, name: &str) -> Result<(&String, &Job), String> {
        let fits = |(known, _): &(&String, &Job)| {
            name.is_empty() || *known == name || base_name(known) == name
        };
        let mut found = self.jobs.iter().filter(fits);
        match (found.next(), found.next()) {
            (Some(only), None) => Ok(only),
            // Of two generations the later one has the work.
            (Some(_), Some(_)) if !name.is_empty() => {
                Ok(self.jobs.iter().rfind(fits).expect("two"))
            }
            (Some(_), Some(_)) => {
                let names = list(self.jobs.keys());
                Err(format!("there are several jobs ({names}): say which one is meant"))
            }
            (None, _) if name.is_empty() => Err("there is no job".to_owned()),
            (None, _) => {
                let names = match self.jobs.is_empty() {
                    true => "none".to_owned(),
                    false => list(self.jobs.keys()),
                };
                Err(format!("there is no job '{name}'; jobs there are: {names}"))
            }
        }
    }

    /// Lets a running job go on with other settings.
    pub(super) fn tune(&mut self, name: &str, changes: Texts) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        let before = job.changeable();
        let Some(run) = job.running().filter(|run| run.view.changes != changes) else { return };
        run.view.changes = changes;
        let (job, now) = (&self.jobs[name], self.jobs[name].changeable());
        let Some(run) = &job.run else { return };
        let new = now.iter().filter(|(name, value)| before.get(*name) != Some(value));
        let words = new.map(|(name, value)| format!("{name}={}", readable(value)));
        let why = format!("settings change to {}", list(words));
        let wanted = self.wanted(job, run);
        self.begin_epoch(name, &wanted, &why, "");
    }

    /// What a job has just been asked to change to.
    #[must_use]
    pub fn tune_report(&self, name: &str) -> TuneReport {
        let job = self.jobs.get(name);
        let run = job.and_then(|job| job.run.as_ref());
        TuneReport {
            job: name.to_owned(),
            epoch: run.map_or(0, |run| run.view.epoch.0),
            settings: job.map(Job::changeable).unwrap_or_default(),
        }
    }
}
