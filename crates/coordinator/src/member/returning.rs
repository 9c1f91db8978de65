//! A member whose coordinator is gone, but whose run goes on: it joins again once there is one.

use std::collections::VecDeque;
use std::time::Duration;

use sumpter_membership::{MemberEvent, Rejoin};
use sumpter_types::MemberId;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{info, warn};

use super::greeting::Greeting;
use super::session::{Command, Session};
use crate::codec::{join_to_proto, rejoin_to_proto};
use crate::handshake::process_number;
use crate::member::options::JoinOptions;
use crate::proto;

/// How a member's time without a coordinator ends.
enum Away {
    Back,
    /// Its owner wants nothing more of it.
    Dropped,
    Lost(String),
}

impl<F: FnMut(MemberEvent)> Session<F> {
    /// Runs until the last session ends, the member has left, or its owner drops it.
    pub async fn run(
        mut self,
        options: &JoinOptions,
        mut commands: mpsc::UnboundedReceiver<Command>,
    ) {
        while let Some(how) = self.attend(&mut commands).await {
            let id = self.standing.id();
            let Some(rejoin) = self.memory.rejoin(id, &options.role).filter(|_| !self.is_over())
            else {
                return self.lost(&how);
            };
            warn!("lost the coordinator at {}: {how}; work goes on without it", self.coordinator);
            self.standing.set_away(true);
            let away = self.come_back(options, rejoin, &mut commands).await;
            self.standing.set_away(false);
            match away {
                Away::Back => {}
                Away::Dropped => return,
                Away::Lost(why) => return self.lost(&format!("{how}; {why}")),
            }
        }
    }

    async fn come_back(
        &mut self,
        options: &JoinOptions,
        rejoin: Rejoin,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Away {
        let mut join = join_to_proto(options, process_number());
        join.rejoin = Some(rejoin_to_proto(rejoin));
        let greeting = Greeting {
            coordinator: &options.coordinator,
            token: &options.token,
            tls: options.tls.as_ref(),
            purpose: proto::purpose::Body::Join(join),
        };
        let mut put_off = VecDeque::new();
        let greeted = {
            let greeted = greeting.until(options.start_timeout);
            tokio::pin!(greeted);
            loop {
                tokio::select! {
                    greeted = &mut greeted => break greeted,
                    command = commands.recv() => match command {
                        None => return Away::Dropped,
                        Some(command) => put_off.push_back(command),
                    },
                }
            }
        };
        match greeted {
            Ok(greeted) => {
                info!("back with the coordinator at {}", self.coordinator);
                self.standing.set_id(MemberId(greeted.welcome.member));
                self.greeted = greeted;
                self.heard = Instant::now();
                self.clock.forget();
                self.memory.declarations.forget_asked();
                self.ask_next();
                for command in self.memory.unanswered() {
                    self.say_of(command);
                }
                put_off.into_iter().for_each(|command| self.handle_command(command));
                Away::Back
            }
            Err(error) => Away::Lost(format!("joining again failed: {error}")),
        }
    }
}

/// How long a worker that leaves waits for a coordinator that is gone: the others wait for this
/// worker when they come back, unless a coordinator knows that it has left.
pub(super) const AWAY_LIMIT: Duration = Duration::from_secs(5);
