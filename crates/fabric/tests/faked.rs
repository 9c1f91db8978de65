//! What is said of libraries that are missing, too old or refuse, by libraries that a test builds.
#![cfg(not(target_feature = "crt-static"))]

mod fake;

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use fake::{Release, run_beside};
use sumpter_fabric::{
    Choice, FabricError, FabricStream, LibfabricEndpoint, Shape, Unavailable,
    device_memory_providers, providers, version,
};

fn open() -> Result<FabricStream<LibfabricEndpoint>, FabricError> {
    let choice = Choice { provider: Some("fake".to_owned()), device: None };
    let shape = Shape::default();
    FabricStream::new(LibfabricEndpoint::open(&choice, None, shape.writes())?, shape)
}

#[test]
fn a_library_that_cannot_be_loaded_is_missing() {
    run_beside(Release::Garbage, &[], "missing_alone");
}

#[test]
#[ignore = "needs another library: a_library_that_cannot_be_loaded_is_missing"]
fn missing_alone() {
    let error = version().expect_err("it is no library");
    assert!(matches!(error, Unavailable::Missing(_)), "{error:?}");
    let text = error.to_string();
    let begin = "libfabric is not installed (Debian, Ubuntu: `apt install libfabric1`): ";
    assert!(text.starts_with(begin) && text.contains("libfabric.so.1"), "{text}");
    // An endpoint says the same.
    let error = open().expect_err("there is no library");
    assert!(error.to_string().contains(begin), "{error}");
}

#[test]
fn a_library_with_older_functions_is_named_with_what_it_lacks() {
    run_beside(Release::Old, &[], "old_alone");
}

#[test]
#[ignore = "needs another library: a_library_with_older_functions_is_named_with_what_it_lacks"]
fn old_alone() {
    let error = version().expect_err("it is too old");
    let expected = Unavailable::Old { version: "1.9".to_owned(), function: "fi_getinfo" };
    assert_eq!(error, expected);
    let text = "libfabric 1.9 lacks fi_getinfo; Sumpter needs libfabric 1.15 or newer";
    assert_eq!(error.to_string(), text);
}

#[test]
fn memory_that_cannot_be_locked_names_the_limit() {
    run_beside(Release::New, &[("FAKE_FABRIC", "nomem")], "nomem_alone");
}

#[test]
#[ignore = "needs another library: memory_that_cannot_be_locked_names_the_limit"]
fn nomem_alone() {
    let text = open().expect_err("nothing can be registered").to_string();
    let ring = Shape::default().registered_bytes() / 2;
    assert!(text.starts_with("fi_mr_reg: Cannot allocate memory"), "{text}");
    let hint = "raise the limit of locked memory (`ulimit -l`)";
    assert!(text.contains(&format!("({ring} bytes)")) && text.ends_with(hint), "{text}");
}

#[test]
fn a_library_that_does_not_answer_is_asked_for_a_bounded_time() {
    run_beside(Release::New, &[("FAKE_FABRIC", "getinfo")], "silent_alone");
}

#[test]
#[ignore = "needs another library: a_library_that_does_not_answer_is_asked_for_a_bounded_time"]
fn silent_alone() {
    let any = Choice::default();
    let (begun, ask) = (Instant::now(), std::thread::spawn(|| providers(&Choice::default())));
    assert_eq!(device_memory_providers(&any), Err(Unavailable::Silent));
    let error = ask.join().expect("no panic").expect_err("it does not answer");
    assert!(error.to_string().contains("has not said in 10 s which networks there are"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert_eq!(version().as_deref(), Ok("1.20"), "that takes no driver");
}

#[test]
fn signals_stay_with_the_program_though_a_library_takes_them() {
    run_beside(Release::New, &[("FAKE_FABRIC", "signals")], "signals_alone");
}

#[test]
#[ignore = "needs another library: signals_stay_with_the_program_though_a_library_takes_them"]
fn signals_alone() {
    static SEEN: AtomicI32 = AtomicI32::new(0);
    extern "C" fn ours(signal: libc::c_int) {
        SEEN.store(signal, Ordering::Relaxed);
    }
    let ours: extern "C" fn(libc::c_int) = ours;
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: the handler stores a number and does nothing else.
        unsafe { libc::signal(signal, ours as libc::sighandler_t) };
    }
    let found = providers(&Choice::default()).expect("a provider");
    assert_eq!(found[0].name, "fake");
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: a handler of ours is installed, unless the library's ends this process.
        unsafe { libc::raise(signal) };
        assert_eq!(SEEN.load(Ordering::Relaxed), signal);
    }
}

#[test]
fn the_library_of_the_tests_carries_bytes() {
    run_beside(Release::New, &[], "bytes_alone");
}

#[test]
#[ignore = "needs another library: the_library_of_the_tests_carries_bytes"]
fn bytes_alone() {
    let (mut a, mut b) = (open().expect("rings"), open().expect("rings"));
    let (to_a, to_b) = (b.offer(), a.offer());
    a.join(&to_a).expect("a peer");
    b.join(&to_b).expect("a peer");
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i >> 7) as u8).collect();
    assert_eq!(a.send(&[IoSlice::new(&bytes)]).expect("no failure"), bytes.len());
    b.poll().expect("no failure");
    let mut read = vec![0; bytes.len()];
    assert_eq!(b.recv(&mut [IoSliceMut::new(&mut read)]).expect("no failure"), bytes.len());
    assert!(read == bytes);
}
