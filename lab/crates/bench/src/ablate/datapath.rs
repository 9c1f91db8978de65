//! What each rule of the data path is worth (BytePS, OSDI'20, section 6.2 and Table 2): half of the
//! bytes go to another machine, half to the lane of the own one, as in a job without servers and
//! with two workers.

use std::io;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use mio::{Registry, Token};
use sumpter_endpoint::{Link, Upgrade};
use sumpter_fabric::{Ablated, Choice, LeftOut, providers};
use sumpter_transport::{FabricLink, ShmLink};

use super::transfer::{Cost, there_and_back};
use crate::driver::{Driver, loopback_pairs, tcp_link};
use crate::error::BenchError;
use crate::pattern::Pattern;
use crate::server::Pages;

/// To the other machine, and to the lane of this one.
const CONNECTIONS: usize = 2;

/// How bytes go over one connection.
#[derive(Clone, Debug)]
enum Way {
    Tcp,
    SharedMemory,
    Placed(Ablated),
}

/// One step of the ladder.
#[derive(Clone, Debug)]
struct Rung {
    name: &'static str,
    /// To the other machine, and to the lane of this one.
    ways: [Way; CONNECTIONS],
}

/// One transfer on one rung.
#[derive(Clone, Copy, Debug)]
pub struct DatapathSample {
    /// Which rung.
    pub rung: &'static str,
    /// For `bytes` there and as many back.
    pub seconds: f64,
    /// Processor time of both threads.
    pub cpu_s: f64,
}

/// TCP alone and beside shared memory; then, if there is a provider, placed writes, first without
/// any rule, then with one more at each step.
fn rungs(provider: Option<&str>) -> Vec<Rung> {
    let rung = |name, remote, local| Rung { name, ways: [remote, local] };
    let mut rungs = vec![
        rung("TCP", Way::Tcp, Way::Tcp),
        rung("TCP, shared memory", Way::Tcp, Way::SharedMemory),
    ];
    let Some(provider) = provider else { return rungs };
    let choice = Choice { provider: Some(provider.to_owned()), device: None };
    let none = LeftOut::default();
    let placed = |left_out| Way::Placed(Ablated { choice: choice.clone(), left_out });
    let all = LeftOut { alignment: true, single_segment: true, single_registration: true };
    let aligned = LeftOut { alignment: false, ..all };
    let single = LeftOut { single_registration: true, ..none };
    rungs.extend([
        rung("placed, loopback by the network", placed(all), placed(all)),
        rung("+ shared memory", placed(all), Way::SharedMemory),
        rung("+ page alignment", placed(aligned), Way::SharedMemory),
        rung("+ one segment", placed(single), Way::SharedMemory),
        rung("+ registered once", placed(none), Way::SharedMemory),
    ]);
    let shm = Choice { provider: Some("shm".to_owned()), device: None };
    if provider != "shm" && providers(&shm).is_ok() {
        let placed = Way::Placed(Ablated { choice: shm, left_out: none });
        rungs.push(rung("placed by libfabric's shm", placed, Way::SharedMemory));
    }
    rungs
}

/// Moves `bytes` there and back on each rung, `rounds` times, interleaved. Without a provider only
/// what needs none is measured.
///
/// # Errors
/// [`BenchError`]; a provider that is not here, and bytes that arrive wrong, are some.
pub fn datapath(
    provider: Option<&str>,
    bytes: usize,
    chunk_bytes: usize,
    rounds: usize,
    mut progress: impl FnMut() -> bool,
) -> Result<Vec<DatapathSample>, BenchError> {
    if chunk_bytes == 0 || bytes < chunk_bytes * CONNECTIONS || rounds == 0 {
        let text = format!("{bytes} bytes in chunks of {chunk_bytes}: need 2 chunks and a round");
        return Err(BenchError::Argument(text));
    }
    if let Some(name) = provider {
        let choice = Choice { provider: Some(name.to_owned()), device: None };
        providers(&choice).map_err(|reason| BenchError::Argument(reason.to_string()))?;
    }
    let rungs = rungs(provider);
    let mut memory = vec![Pages::new(bytes, 1)];
    let mut samples = Vec::new();
    for round in 0..=rounds {
        for rung in &rungs {
            if progress() {
                return Err(BenchError::Interrupted);
            }
            let Cost { seconds, cpu_s } = transfer(rung, &mut memory, bytes, chunk_bytes)?;
            if let Some(at) = memory[0].check(&Pattern::new(0)) {
                let text = format!("{}: wrong bytes from {at} on", rung.name);
                return Err(BenchError::Wrong(text));
            }
            if round > 0 {
                samples.push(DatapathSample { rung: rung.name, seconds, cpu_s });
            }
        }
    }
    Ok(samples)
}

fn transfer(
    rung: &Rung,
    memory: &mut Vec<Pages>,
    bytes: usize,
    chunk_bytes: usize,
) -> Result<Cost, BenchError> {
    let failed = BenchError::io("connecting within this machine");
    let tcp = loopback_pairs(CONNECTIONS).map_err(&failed)?;
    let mut ends = [Vec::new(), Vec::new()];
    for (way, (a, b)) in rung.ways.iter().zip(tcp) {
        let unix = UnixStream::pair().map_err(&failed)?;
        for (end, sockets) in ends.iter_mut().zip([(a, unix.0), (b, unix.1)]) {
            end.push((way.clone(), sockets));
        }
    }
    let [ours, theirs] = ends;
    let links =
        |ends, dialled| Driver::of(|registry| links(ends, dialled, registry), Arc::default());
    let (driver, server) = (links(ours, true).map_err(&failed)?, links(theirs, false));
    let server = server.map_err(&failed)?;
    let placed = rung.ways.iter().filter(|way| matches!(way, Way::Placed(_))).count();
    there_and_back([driver, server], memory, CONNECTIONS, placed, bytes, chunk_bytes)
}

fn links(
    ends: Vec<(Way, (TcpStream, UnixStream))>,
    dialled: bool,
    registry: &Registry,
) -> io::Result<Vec<Box<dyn Link>>> {
    let link = |(index, (way, (tcp, unix))): (usize, (Way, (TcpStream, UnixStream)))| {
        let token = Token(index);
        let placed = matches!(way, Way::Placed(_));
        let mut link: Box<dyn Link> = match way {
            Way::Tcp => Box::new(tcp_link(tcp, registry, token)?),
            Way::SharedMemory => {
                unix.set_nonblocking(true)?;
                let unix = mio::net::UnixStream::from_std(unix);
                Box::new(ShmLink::new(unix, registry, token)?)
            }
            Way::Placed(network) => {
                let tcp = tcp_link(tcp, registry, token)?;
                Box::new(FabricLink::new(tcp, registry, token, network)?)
            }
        };
        link.upgrade(Upgrade { dialled, placed })?;
        Ok(link)
    };
    ends.into_iter().enumerate().map(link).collect()
}
