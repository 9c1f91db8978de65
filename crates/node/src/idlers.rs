//! Workers that have run out of data while others have not (Horovod's `join`).
//!
//! Such a worker takes part with zeros in every round that the others begin, so lanes and rounds
//! know nothing of it. It hears of rounds through the coordinator: of those under way when a worker
//! runs out, from everyone; of later ones, from the lowest of a round's ranks that still has data.
//! A round that it has been told of before, or has begun itself, is no news.

use std::collections::BTreeSet;
use std::time::Instant;

use crossbeam_channel::Sender;
use sumpter_transport::TensorMemory;
use sumpter_types::{Collective, Rank, TensorId};

use crate::command::Submission;
use crate::completion::Promise;
use crate::error::OpError;
use crate::event_loop::EventLoop;
use crate::session::Session;

/// Who is out of data.
#[derive(Debug, Default)]
pub(crate) struct Idlers {
    others: BTreeSet<Rank>,
    /// Set while this worker is: where to say which was the last.
    answer: Option<Sender<Result<Rank, OpError>>>,
}

impl Idlers {
    /// Whoever waits for the others waits in vain.
    pub(crate) fn fail(&mut self, reason: &OpError) {
        if let Some(answer) = self.answer.take() {
            // The caller may have given up.
            let _ = answer.send(Err(reason.about("other ranks still had data")));
        }
    }

    /// Whether rank `own` is the one that tells of a new round of `members`.
    fn tells(&self, own: Rank, members: &[Rank]) -> bool {
        let mut with_data = members.iter().filter(|rank| !self.others.contains(rank));
        self.answer.is_none()
            && members.iter().any(|rank| self.others.contains(rank))
            && with_data.next() == Some(&own)
    }
}

impl Session {
    /// A worker that has left will never run out of data.
    pub(crate) fn fail_idling(&mut self) {
        if let Some((rank, _)) = self.left.first() {
            let reason = format!("rank {rank} has left the job without running out of data");
            self.idlers.fail(&OpError::PeerLost(reason));
        }
    }
}

impl EventLoop {
    /// This worker has no more data.
    pub(crate) fn run_out_of_data(&mut self, answer: Sender<Result<Rank, OpError>>) {
        let (Some(session), Some(member)) = (self.session.as_mut(), &self.member) else {
            let error = OpError::Closed("the job has not started".to_owned());
            return drop(answer.send(Err(error)));
        };
        session.idlers.answer = Some(answer);
        if let Some(over) = session.over.clone() {
            return session.idlers.fail(&over);
        }
        session.fail_idling();
        member.out_of_data();
    }

    /// Another worker, or this one, is out of data: tells of what is under way.
    pub(crate) fn out_of_data(&mut self, rank: Rank) {
        let Some(session) = self.session.as_mut() else { return };
        if rank != session.rank {
            session.idlers.others.insert(rank);
        }
        // Before it is there, nothing has been submitted.
        let Some(member) = &self.member else { return };
        let mut under_way: Vec<_> =
            session.running.values().map(|running| (running.tensor, running.round)).collect();
        under_way.sort_unstable();
        under_way.into_iter().for_each(|(tensor, round)| member.began(tensor, round));
    }

    /// Everyone takes part as before.
    pub(crate) fn all_out_of_data(&mut self, last: Rank) {
        let Some(session) = self.session.as_mut() else { return };
        session.idlers.others.clear();
        if let Some(answer) = session.idlers.answer.take() {
            // The caller may have given up.
            let _ = answer.send(Ok(last));
        }
    }

    /// Tells those that are out of data of a round that has begun here.
    pub(crate) fn announce(&mut self, tensor: TensorId, round: u64) {
        let (Some(session), Some(member)) = (&self.session, &self.member) else { return };
        if session.idlers.others.is_empty() {
            return;
        }
        let Some(spec) = session.table.spec(tensor) else { return };
        if session.idlers.tells(session.rank, &session.members(spec)) {
            member.began(tensor, round);
        }
    }

    /// Takes part with zeros in a round that others have begun.
    pub(crate) fn take_part(&mut self, tensor: TensorId, round: u64) {
        let Some(session) = self.session.as_mut() else { return };
        let begun = session.begun.get(&tensor).copied().unwrap_or(0);
        let (own, idle) = (session.rank, session.idlers.answer.is_some());
        // Rounds are told of in order: a later one cannot come before this.
        let Some(spec) = session.table.spec(tensor).filter(|_| begun == round && idle) else {
            return;
        };
        if session.over.is_some() || !session.members(spec).contains(&own) {
            return;
        }
        let spec = spec.clone();
        if spec.collective == Collective::Broadcast && spec.root == own {
            let name = spec.name;
            let message =
                format!("tensor '{name}': rank {own} is its root, but is out of data (join)");
            if let Some(member) = &self.member {
                member.refuse(name, message);
            }
            return;
        }
        let bytes = spec.elements().unwrap_or(0) as usize * spec.dtype.size();
        self.submit(Submission {
            spec,
            tag: String::new(),
            average: false,
            priority: 0,
            memory: TensorMemory::zeros(bytes),
            completion: Promise::unwatched(),
            since: Instant::now(),
        });
    }
}
