//! What the lanes of one process have counted.

use crossbeam_channel::bounded;
use sumpter_types::{Late, Stats};

use crate::command::Command;
use crate::remote::Remote;

/// What all lanes have counted together.
pub(crate) fn total(remotes: &[Remote]) -> Stats {
    let mut total = Stats::default();
    for remote in remotes {
        let (answer, stats) = bounded(1);
        remote.send(Command::Stats(answer));
        let Ok(stats) = stats.recv() else { continue };
        for (name, value) in stats.counters {
            let sum = total.counters.entry(name.clone()).or_default();
            *sum = if name == "elapsed_s" { sum.max(value) } else { *sum + value };
        }
        for late in stats.late {
            match total.late.iter_mut().find(|l| l.rank == late.rank) {
                Some(known) => {
                    known.count += late.count;
                    known.seconds += late.seconds;
                }
                None => total.late.push(Late { ..late }),
            }
        }
    }
    total
}
