//! The answer to scrapes, on a thread of its own.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::runtime;
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::samples::Sample;
use crate::text;

/// Connections at once: a scraper needs one, a person another.
const CONNECTIONS: usize = 16;
/// How long a request may take to arrive.
const HEADER_LIMIT: Duration = Duration::from_secs(5);
/// How long a connection may last, idle or not.
const CONNECTION_LIMIT: Duration = Duration::from_secs(600);
/// A pause after a connection could not be accepted: most likely there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Another process listens there.
    #[error("metrics: {address} is in use; give another --metrics-port")]
    InUse {
        /// Where.
        address: SocketAddr,
    },
    /// The address is not one of this machine, or the port needs privileges.
    #[error("metrics: cannot listen on {address}: {reason}; see metrics_address and metrics_port")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        reason: io::Error,
    },
    /// No thread, or no event queue.
    #[error("metrics: {0}")]
    Io(#[from] io::Error),
}

/// What a scrape is answered with.
type Source = Arc<dyn Fn() -> Vec<Sample> + Send + Sync>;

/// Answers `GET /metrics` until it is dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens on `address`; port 0 takes any free one. `source` is asked for each scrape, on the
    /// endpoint's thread.
    ///
    /// # Errors
    /// [`EndpointError`] if it cannot listen there.
    pub fn start(
        address: SocketAddr,
        source: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) -> Result<Endpoint, EndpointError> {
        let listener = TcpListener::bind(address).map_err(|reason| match reason.kind() {
            io::ErrorKind::AddrInUse => EndpointError::InUse { address },
            _ => EndpointError::Listen { address, reason },
        })?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _context = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let source: Source = Arc::new(source);
        let serving = async move {
            tokio::select! {
                () = accept(listener, source) => {}
                // A dropped sender stops it as well.
                _ = stopped => {}
            }
        };
        let thread =
            std::thread::Builder::new().name("sumpter-metrics".to_owned()).spawn(move || {
                runtime.block_on(serving);
                runtime.shutdown_background();
            })?;
        Ok(Endpoint { address, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        // The thread may have ended already.
        let _ = self.stop.take().map(|stop| stop.send(()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, source: Source) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        // The semaphore is never closed.
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a scraper's connection was not accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let source = source.clone();
        tokio::spawn(async move {
            let answer = service_fn(|request| {
                let answer = answer(&request, &source);
                async move { Ok::<_, Infallible>(answer) }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEADER_LIMIT)
                .serve_connection(TokioIo::new(stream), answer);
            // The scraper notices the failure.
            let _ = timeout(CONNECTION_LIMIT, connection).await;
            drop(place);
        });
    }
}

fn answer(request: &Request<Incoming>, source: &Source) -> Response<Full<Bytes>> {
    let known = request.uri().path() == "/metrics";
    match *request.method() {
        _ if !known => plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n"),
        Method::GET | Method::HEAD => match text::encode(source()) {
            Ok(text) => with_type(StatusCode::OK, OPEN_METRICS, text),
            Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")),
        },
        _ => {
            let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            refusal
                .headers_mut()
                .insert(ALLOW, hyper::header::HeaderValue::from_static("GET, HEAD"));
            refusal
        }
    }
}

fn plain(status: StatusCode, text: &str) -> Response<Full<Bytes>> {
    with_type(status, "text/plain; charset=utf-8", text.to_owned())
}

fn with_type(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}
