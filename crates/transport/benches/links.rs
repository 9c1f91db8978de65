//! What links between two threads cost: goodput and processor time of 256 KiB chunks one way, and
//! the round trip of 64 bytes. `cargo bench -p sumpter-transport --bench links`.
//!
//! Each side is an event loop of its own, as in a node: it sleeps until its link is ready. The
//! chunks' memory is warm, so copies cost what they cost at best.

use std::io::{IoSlice, IoSliceMut};
use std::time::{Duration, Instant};

use mio::net::{TcpStream, UnixStream};
use mio::{Events, Poll, Token};
use rustix::time::{ClockId, clock_gettime};
use sumpter_endpoint::{Link, LinkError};
use sumpter_transport::{
    DEFAULT_RING_BYTES, ShmLink, TcpLink, TlsConfig, TlsLink, connect, listen, readiness,
};

const CHUNK_BYTES: usize = 256 << 10;
const MESSAGE_BYTES: usize = 64;

/// A link with the event loop that it is registered with.
struct End {
    link: Box<dyn Link>,
    poll: Poll,
    events: Events,
    wake_ups: u64,
}

impl End {
    fn new<L: Link + 'static>(make: impl FnOnce(&mio::Registry) -> L) -> End {
        let poll = Poll::new().expect("a poll");
        let link = Box::new(make(poll.registry()));
        End { link, poll, events: Events::with_capacity(4), wake_ups: 0 }
    }

    fn sleep(&mut self) {
        self.poll.poll(&mut self.events, None).expect("events");
        self.wake_ups += 1;
        self.events.iter().for_each(|event| self.link.ready(readiness(event)));
        assert!(self.link.establish().is_ok(), "good certificates");
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        self.link.send(&[IoSlice::new(bytes)]).expect("connected")
    }

    /// Bytes received; 0 if there are none now or the peer has closed the connection.
    fn recv(&mut self, space: &mut [u8]) -> usize {
        match self.link.recv(&mut [IoSliceMut::new(space)]) {
            Ok(n) => n,
            Err(LinkError::Closed) => 0,
            Err(error) => panic!("{error}"),
        }
    }

    fn send_all(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match self.send(bytes) {
                0 => self.sleep(),
                n => bytes = &bytes[n..],
            }
        }
    }

    fn fill(&mut self, mut space: &mut [u8]) {
        while !space.is_empty() {
            match self.recv(space) {
                0 => self.sleep(),
                n => space = &mut space[n..],
            }
        }
    }
}

/// Both ends of a TCP connection.
fn streams() -> [TcpStream; 2] {
    let listener = listen(([127, 0, 0, 1], 0).into()).expect("a listener");
    let a = connect(listener.local_addr().expect("an address"), None).expect("a connection");
    let b = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::WouldBlock, "{e}"),
        }
    };
    [a, b].map(|stream| {
        stream.set_nodelay(true).expect("connected");
        stream
    })
}

fn tcp() -> (End, End) {
    let [a, b] = streams().map(|stream| {
        End::new(|registry| TcpLink::new(stream, registry, Token(0)).expect("registered"))
    });
    (a, b)
}

fn tls() -> (End, End) {
    macro_rules! pem {
        ($name:literal) => {
            include_bytes!(concat!("../../coordinator/tests/certificates/", $name, ".pem"))
        };
    }
    let config = TlsConfig::new(pem!("cert"), pem!("key"), pem!("ca")).expect("certificates");
    let [a, b] = streams();
    let client =
        |registry: &_| TlsLink::client(a, registry, Token(0), &config).expect("registered");
    let server =
        |registry: &_| TlsLink::server(b, registry, Token(0), &config).expect("registered");
    (End::new(client), End::new(server))
}

fn shm(ring_bytes: usize) -> (End, End) {
    let (a, b) = UnixStream::pair().expect("sockets");
    let end = |stream: UnixStream, offer: bool| {
        End::new(|registry| {
            let mut link = ShmLink::new(stream, registry, Token(0)).expect("registered");
            match offer {
                true => link.offer(ring_bytes).expect("memory"),
                false => link.expect_offer(),
            }
            link
        })
    };
    (end(a, true), end(b, false))
}

fn cpu() -> Duration {
    clock_gettime(ClockId::ProcessCPUTime).try_into().expect("since the process began")
}

/// Chunks one way; prints GB/s, processor seconds a GB and chunks for each sleep.
fn goodput(name: &str, (mut a, mut b): (End, End), chunks: usize) {
    let (start, used) = (Instant::now(), cpu());
    let (sender, receiver) = std::thread::scope(|scope| {
        let sender = scope.spawn(move || {
            let chunk = vec![7u8; CHUNK_BYTES];
            (0..chunks).for_each(|_| a.send_all(&chunk));
            a
        });
        let mut chunk = vec![0u8; CHUNK_BYTES];
        for _ in 0..chunks {
            b.fill(&mut chunk);
        }
        assert!(chunk.iter().all(|byte| *byte == 7));
        (sender.join().expect("sent"), b)
    });
    let (elapsed, used) = (start.elapsed(), cpu() - used);
    let gigabytes = (chunks * CHUNK_BYTES) as f64 / 1e9;
    println!(
        "{name:<14} {:6.2} GB/s  {:.3} CPU s/GB  sleeps: writer {}, reader {} of {chunks} chunks",
        gigabytes / elapsed.as_secs_f64(),
        used.as_secs_f64() / gigabytes,
        sender.wake_ups,
        receiver.wake_ups,
    );
}

/// Small messages to and fro; prints the mean round trip.
fn round_trip(name: &str, (mut a, mut b): (End, End), rounds: u32) {
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut message = [0; MESSAGE_BYTES];
            for _ in 0..rounds {
                b.fill(&mut message);
                b.send_all(&message);
            }
        });
        let mut message = [1; MESSAGE_BYTES];
        for _ in 0..rounds {
            a.send_all(&message);
            a.fill(&mut message);
        }
        assert_eq!(message, [1; MESSAGE_BYTES]);
    });
    let micros = start.elapsed().as_secs_f64() * 1e6 / f64::from(rounds);
    println!("{name:<14} {micros:6.2} us for a round trip of {MESSAGE_BYTES} B");
}

fn main() {
    // `cargo test` runs this too: then only that it works.
    let measured = std::env::args().any(|argument| argument == "--bench");
    let (repeats, chunks, rounds) = if measured { (3, 20_000, 50_000) } else { (1, 40, 100) };
    for _ in 0..repeats {
        goodput("tcp", tcp(), chunks);
        goodput("tls", tls(), chunks);
        for ring_bytes in [256 << 10, 512 << 10, DEFAULT_RING_BYTES, 4 << 20] {
            goodput(&format!("shm {} KiB", ring_bytes >> 10), shm(ring_bytes), chunks);
        }
        round_trip("tcp", tcp(), rounds);
        round_trip("tls", tls(), rounds);
        round_trip("shm", shm(DEFAULT_RING_BYTES), rounds);
    }
}
