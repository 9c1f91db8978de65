//! A coordinator inside this process: a thread with the service and its clock.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, io};

use sumpter_membership::{Input, Options, Registry, Serves, Tenants};
use sumpter_types::StatusReport;
use sumpter_wire::Token;
use tokio::runtime;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::error::{CoordinatorError, root_cause};
use crate::handshake::{nonce, process_number};
use crate::keys::{Keys, Scope};
use crate::proto::control_server::ControlServer;
use crate::service::{Service, Shared};
use crate::tls::Tls;

/// How often the registry looks at the clock: well below any time-out a person would set.
const TICK: Duration = Duration::from_millis(250);
/// The largest message of a member: what a worker of a huge model has of its rounds is well below
/// a megabyte, and what one that comes back knows of its run is compressed.
pub(crate) const MESSAGE_LIMIT: usize = 4 << 20;
/// Sessions on one connection: a member opens one.
const SESSIONS_PER_CONNECTION: u32 = 4;
/// A member's system that answers nothing for so long is asked whether it is there: a session of a
/// machine that has vanished would stay open.
const KEEPALIVE: Duration = Duration::from_secs(60);
/// Between two connections if the first could not be accepted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long members may take to read their last events when the coordinator stops.
const STOP_LIMIT: Duration = Duration::from_secs(1);

/// How a coordinator behaves.
#[derive(Clone, Debug)]
pub struct CoordinatorOptions {
    /// The secret of the cluster, which every server must prove to hold, and every worker unless
    /// its job has a token of its own.
    pub token: Token,
    /// The jobs that are admitted.
    pub tenants: Tenants,
    /// What sessions are encrypted with, if they are: members must then show a certificate.
    pub tls: Option<Tls>,
    /// How long servers may take to get ready for a run. How long a job waits for its members is
    /// what its workers ask for.
    pub start_timeout: Duration,
    /// Silence after which a member counts as dead, unless it asks for less patience.
    pub peer_timeout: Duration,
    /// Silence after which a server counts as dead, if that is shorter.
    pub server_timeout: Duration,
    /// Which jobs may come, and how often.
    pub serves: Serves,
}

/// A running coordinator. It stops when dropped.
pub struct Coordinator {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Listens on `HOST:PORT`; port 0 takes any free one.
    ///
    /// # Errors
    /// [`CoordinatorError`] if it cannot listen there.
    pub fn start(listen: &str, options: CoordinatorOptions) -> Result<Self, CoordinatorError> {
        Self::start_in(process_number(), listen, options)
    }

    /// As if in the process of this number.
    pub(crate) fn start_in(
        process: u64,
        listen: &str,
        options: CoordinatorOptions,
    ) -> Result<Self, CoordinatorError> {
        let server = server(options.tls.as_ref())?;
        let listener = bind(listen)?;
        let address = listener.local_addr()?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let tenants = Arc::new(options.tenants.clone());
        let shared = Arc::new(Shared::new(
            Keys::new(options.token, options.tenants, &nonce()?),
            Options {
                start_timeout: options.start_timeout,
                peer_timeout: options.peer_timeout,
                server_timeout: options.server_timeout,
                serves: options.serves,
                process,
                tenants,
            },
        ));
        let incoming = {
            let _context = runtime.enter();
            TcpIncoming::from(tokio::net::TcpListener::from_std(listener)?)
                .with_nodelay(Some(true))
                .with_keepalive(Some(KEEPALIVE))
        };
        let (stop, stopped) = oneshot::channel();
        let serving = serve(server, shared.clone(), incoming, stopped);
        let thread = std::thread::Builder::new().name("sumpter-coordinator".to_owned()).spawn(
            move || {
                runtime.block_on(serving);
                runtime.shutdown_background();
            },
        )?;
        Ok(Self { address, shared, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether a run has begun whose workers have not all gone, and which has not failed.
    #[must_use]
    pub fn running(&self) -> bool {
        self.shared.running()
    }

    /// The status of all jobs, to be read from other threads.
    pub fn observer(&self) -> impl Fn() -> StatusReport + Send + Sync + 'static {
        let shared = self.shared.clone();
        move || shared.status("", Scope::Cluster)
    }

    /// Waits until no worker is left; whether none is. Whoever embeds a coordinator beside a
    /// worker calls this before [`stop`](Self::stop), lest the others lose the coordinator before
    /// they are done.
    #[must_use]
    pub fn wait_empty(&self, limit: Duration) -> bool {
        self.shared.wait_empty(limit, |_| true)
    }

    /// Waits until the one run of a coordinator for [`Serves::OneRun`] is over; whether it is.
    #[must_use]
    pub fn wait_finished(&self, limit: Duration) -> bool {
        self.shared.wait_empty(limit, Registry::finished)
    }

    /// Stops listening and ends all sessions, after each has got the events that are still queued
    /// for it, which takes at most a second.
    pub fn stop(&mut self) {
        self.shared.stop();
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        self.stop();
    }
}

fn bind(listen: &str) -> Result<TcpListener, CoordinatorError> {
    let address = listen.to_owned();
    let listener = TcpListener::bind(listen).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    listener.map_err(|reason| match reason.kind() {
        io::ErrorKind::AddrInUse => CoordinatorError::AddressInUse { address },
        _ => CoordinatorError::Listen { address, reason },
    })
}

fn server(tls: Option<&Tls>) -> Result<Server, CoordinatorError> {
    let server = Server::builder().max_concurrent_streams(SESSIONS_PER_CONNECTION);
    match tls {
        None => Ok(server),
        Some(tls) => server
            .tls_config(tls.of_server())
            .map_err(|error| CoordinatorError::Tls { reason: root_cause(&error) }),
    }
}

async fn serve(
    server: Server,
    shared: Arc<Shared>,
    incoming: TcpIncoming,
    stopped: oneshot::Receiver<()>,
) {
    let mut clock = tokio::spawn(tick(shared.clone()));
    let (stopping, stop_begins) = oneshot::channel::<()>();
    let signal = async move {
        // A dropped sender stops it as well.
        let _ = stopped.await;
        let _ = stopping.send(());
    };
    let service = ControlServer::new(Service(shared)).max_decoding_message_size(MESSAGE_LIMIT);
    let server = server.serve_with_incoming_shutdown(service, paced(incoming), signal);
    let out_of_time = async {
        let _ = stop_begins.await;
        sleep(STOP_LIMIT).await;
    };
    tokio::select! {
        result = server => if let Err(error) = result {
            tracing::error!(%error, "the coordinator's listener failed");
        },
        () = out_of_time => {}
        // Without it, silent members would never be given up.
        ended = &mut clock => if let Err(error) = ended {
            tracing::error!(%error, "the coordinator's clock has stopped: it ends");
        },
    }
    clock.abort();
}

/// Pauses where a connection cannot be accepted. Without a free descriptor the listener stays
/// ready, and asking it again at once would take a core.
fn paced<T>(incoming: impl Stream<Item = io::Result<T>>) -> impl Stream<Item = io::Result<T>> {
    incoming.then(async |accepted| {
        if let Err(error) = &accepted {
            tracing::warn!(%error, "a connection could not be accepted");
            sleep(ACCEPT_PAUSE).await;
        }
        accepted
    })
}

async fn tick(shared: Arc<Shared>) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.apply(Input::Tick);
        shared.seats.apply(sumpter_elastic::Input::Tick);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_listener_that_cannot_accept_is_asked_again_after_a_pause() {
        let exhausted = || Err(io::Error::from_raw_os_error(24));
        let incoming = tokio_stream::iter([exhausted(), exhausted(), Ok(5), Ok(6)]);
        let started = Instant::now();
        let accepted: Vec<_> = paced(incoming).filter_map(Result::ok).collect().await;
        assert_eq!(accepted, [5, 6]);
        assert!(started.elapsed() >= 2 * ACCEPT_PAUSE);
    }
}
