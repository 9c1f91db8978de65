//! How fast this process is, as it says when it joins: what `auto` decides by.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::OnceLock;
use std::thread::available_parallelism;
use std::time::Instant;

use sumpter_codec::{Selection, Spec, median_s};
use sumpter_config::Config;
use sumpter_types::{CodecSpeeds, Speeds};

use crate::codec_rates::{addition_rate, codec_rates};
use crate::codecs::codecs;

/// Bytes that are sent and received at a time: few enough to stay in a core's cache, as codecs and
/// additions are tried, too.
const BLOCK_BYTES: usize = 64 << 10;

/// For how long: as long as a phase of a codec, and hundreds of blocks.
const SECONDS: f64 = 0.002;

/// What this process measures: the codecs that `auto` chooses from by default, and those that the
/// setting lists. A few milliseconds, once in a process.
pub(crate) fn speeds(config: &Config) -> Speeds {
    let mut specs = Selection::default_candidates();
    if let Ok(Selection::Auto(listed)) = codecs().select(&config.compression) {
        specs.extend(listed.into_iter().filter(|spec| !specs.contains(spec)).collect::<Vec<_>>());
    }
    // One that is not in this process is one of which the others know how fast it is.
    let measured = |spec: Spec| Some((spec.to_string(), codec_rates(&spec).ok()?.into()));
    Speeds {
        cores: available_parallelism().map_or(0, |cores| cores.get() as u32),
        add: addition_rate() as u64,
        transport: transport_rate().map_or(0, |rate| rate as u64),
        codecs: specs.into_iter().filter_map(measured).collect(),
    }
}

/// How fast a codec is: as measured, or else as it is with the usual ways of error feedback and
/// sums, which make a small difference.
pub(crate) fn speeds_of(speeds: &Speeds, spec: &Spec) -> Option<CodecSpeeds> {
    let of = |spec: &Spec| speeds.codecs.get(&spec.to_string());
    let usual = Spec::new(spec.scheme.clone());
    // Of a codec of users, sums are never encoded.
    let alike = Spec { two_way: spec.two_way, ..usual.clone() };
    let found = of(spec).or_else(|| of(&alike)).or_else(|| of(&usual));
    found.copied().filter(|speeds| speeds.are_known())
}

/// Bytes that one core of this machine sends or receives in a second over TCP, measured once: over
/// the loopback interface, so without what a network interface's driver takes. `None` if it has
/// none.
fn transport_rate() -> Option<f64> {
    static RATE: OnceLock<Option<f64>> = OnceLock::new();
    *RATE.get_or_init(|| {
        let measured = over_loopback();
        measured
            .inspect_err(|error| tracing::debug!(%error, "what sending takes is not measured"))
            .ok()
    })
}

fn over_loopback() -> io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)?;
    let (mut back, _) = listener.accept()?;
    out.set_nodelay(true)?;
    for socket in [&out, &back] {
        socket.set_nonblocking(true)?;
    }
    let (block, mut received) = (vec![1; BLOCK_BYTES], vec![0; BLOCK_BYTES]);
    let started = Instant::now();
    let mut clock = || started.elapsed().as_secs_f64();
    let mut pass = || {
        let (mut sent, mut here) = (0, 0);
        // The one thread does both, each as far as there is room or data.
        while here < BLOCK_BYTES {
            if sent < BLOCK_BYTES {
                sent += progress(out.write(&block[sent..]))?;
            }
            here += progress(back.read(&mut received[here..]))?;
        }
        Ok::<_, io::Error>(())
    };
    let seconds = median_s(SECONDS, &mut clock, &mut pass)?;
    Ok(2.0 * BLOCK_BYTES as f64 / seconds)
}

/// What was moved, if anything.
fn progress(moved: io::Result<usize>) -> io::Result<usize> {
    match moved {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        moved => moved,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_how_fast_the_codecs_are_that_auto_may_choose() {
        let of = |text: &str| {
            let texts = [("compression".to_owned(), text.to_owned())];
            speeds(&sumpter_config::load_from(&texts, |_| None).unwrap())
        };
        let by_default = of("none");
        assert!(by_default.cores > 0 && by_default.add > 0 && by_default.transport > 0);
        let names = |speeds: &Speeds| speeds.codecs.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&by_default), ["bf16", "int8"]);
        assert_eq!(of("int8:ef=false"), by_default, "a codec that is not to be chosen");
        let listed = of("auto:codecs=topk:k=0.25+int8");
        assert_eq!(names(&listed), ["bf16", "int8", "topk:k=0.25"]);
        assert_eq!(listed.codecs["int8"], by_default.codecs["int8"], "measured once");
    }

    #[test]
    fn a_codec_without_error_feedback_counts_as_with() {
        let int8 = CodecSpeeds { encode: 3, decode: 2, add: 1 };
        let unknown = CodecSpeeds { add: 0, ..int8 };
        let codecs = [("int8".to_owned(), int8), ("bf16".to_owned(), unknown)].into();
        let speeds = Speeds { codecs, ..Speeds::default() };
        let of = |text: &str| speeds_of(&speeds, &text.parse().unwrap());
        assert_eq!([of("int8"), of("int8:ef=false,nan=skip")], [Some(int8); 2]);
        assert_eq!([of("bf16"), of("fp8"), of("topk:k=0.1")], [None; 3]);
    }

    #[test]
    fn what_sending_takes_is_measured_once() {
        let rate = transport_rate().unwrap();
        assert!((1e6..1e12).contains(&rate), "{rate}");
        assert_eq!(transport_rate(), Some(rate));
    }
}
