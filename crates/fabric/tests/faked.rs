//! What is said of libraries that are missing, too old or refuse, by libraries that a test builds.
#![cfg(not(target_feature = "crt-static"))]

mod fake;

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use fake::{Release, run_beside};
use sumpter_fabric::{
    Access, Choice, Completion, FabricError, FabricStream, LibfabricEndpoint, PlacedWrites, Posted,
    Segment, Shape, Unavailable, Write, device_memory_providers, providers, version,
};

type Stream = FabricStream<LibfabricEndpoint>;

fn open_on(device: Option<String>) -> Result<Stream, FabricError> {
    let choice = Choice { provider: Some("fake".to_owned()), device };
    let shape = Shape::default();
    FabricStream::new(LibfabricEndpoint::open(&choice, None, shape.writes())?, shape)
}

fn open() -> Result<Stream, FabricError> {
    open_on(None)
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
    let expected = Unavailable::Old { version: "1.9".to_owned(), lacks: "fi_getinfo" };
    assert_eq!(error, expected);
    let text = "libfabric 1.9 lacks fi_getinfo; Sumpter needs libfabric 1.15 or newer";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_library_with_all_functions_and_an_older_interface_is_named() {
    run_beside(Release::Previous, &[], "previous_alone");
}

#[test]
#[ignore = "needs another library: a_library_with_all_functions_and_an_older_interface_is_named"]
fn previous_alone() {
    let text = "libfabric 1.14 lacks version 1.15 of its interface; Sumpter needs libfabric 1.15 \
                or newer";
    assert_eq!(version().expect_err("it is too old").to_string(), text);
    assert_eq!(providers(&Choice::default()).expect_err("it is too old").to_string(), text);
    assert!(open().expect_err("it is too old").to_string().contains(text));
}

/// Names the version of the library to such a test.
const EXPECTED: &str = "FAKE_FABRIC_EXPECTED";

#[test]
fn functions_are_taken_by_their_versions_from_the_first_release_on() {
    run_beside(Release::First, &[(EXPECTED, "1.15")], "versions_alone");
    run_beside(Release::Latest, &[(EXPECTED, "2.4")], "versions_alone");
}

#[test]
#[ignore = "needs another library: functions_are_taken_by_their_versions_from_the_first_release_on"]
fn versions_alone() {
    assert_eq!(version().expect("it is new enough"), std::env::var(EXPECTED).expect("is set"));
    // Every function of another version ends the process.
    assert_eq!(providers(&Choice::default()).expect("a provider")[0].name, "fake");
    carried(&mut [open().expect("rings"), open().expect("rings")]);
    let none = Choice { provider: Some("nonesuch".to_owned()), device: None };
    assert!(providers(&none).expect_err("there is none").to_string().contains("`nonesuch`"));
}

#[test]
fn a_library_whose_functions_have_no_versions_is_refused() {
    run_beside(Release::Unversioned, &[], "unversioned_alone");
}

#[test]
#[ignore = "needs another library: a_library_whose_functions_have_no_versions_is_refused"]
fn unversioned_alone() {
    let error = version().expect_err("it may expect anything");
    assert_eq!(error, Unavailable::Unversioned { version: "1.15".to_owned() });
    let text = error.to_string();
    assert!(
        text.starts_with("libfabric 1.15 was built without versions of its functions"),
        "{text}"
    );
}

/// What a device wants of memory that is registered, as its mode says.
const MODES: [(&str, u32); 5] = [
    ("FI_MR_LOCAL", 1 << 2),
    ("FI_MR_VIRT_ADDR", 1 << 4),
    ("FI_MR_ALLOCATED", 1 << 5),
    ("FI_MR_PROV_KEY", 1 << 6),
    ("FI_MR_ENDPOINT", 1 << 9),
];

#[test]
fn memory_is_registered_as_each_device_wants_it() {
    run_beside(Release::New, &[], "modes_alone");
}

#[test]
#[ignore = "needs another library: memory_is_registered_as_each_device_wants_it"]
fn modes_alone() {
    for chosen in 0..1u32 << MODES.len() {
        let wanted = MODES.iter().enumerate().filter(|(i, _)| chosen >> i & 1 != 0);
        let (names, bits): (Vec<&str>, Vec<u32>) = wanted.map(|(_, mode)| *mode).unzip();
        let mode: u32 = bits.iter().sum();
        let mut ends = [(); 2].map(|()| {
            let end = open_on(Some(format!("mr{mode}")));
            end.unwrap_or_else(|error| panic!("{names:?}: {error}"))
        });
        for end in &ends {
            let ring = end.offer().ring;
            assert_eq!(ring.address == 0, !names.contains(&"FI_MR_VIRT_ADDR"), "{names:?}");
            // The library's keys are counted from 1000; ours are hard to guess.
            let is_theirs = (1000..2000).contains(&ring.key);
            assert_eq!(is_theirs, names.contains(&"FI_MR_PROV_KEY"), "{names:?}: {}", ring.key);
        }
        carried(&mut ends);
        for end in &ends {
            let counts = end.counts();
            assert_eq!((counts.registrations, counts.segments), (2, counts.writes), "{names:?}");
        }
        // What was made last is closed first, but for regions that are bound to an endpoint.
        drop(ends);
    }
}

#[test]
fn a_device_that_wants_another_registration_is_not_taken() {
    run_beside(Release::New, &[], "other_mode_alone");
}

#[test]
#[ignore = "needs another library: a_device_that_wants_another_registration_is_not_taken"]
fn other_mode_alone() {
    // FI_MR_RAW, FI_MR_MMU_NOTIFY, FI_MR_RMA_EVENT, FI_MR_COLLECTIVE.
    for bit in [3, 7, 8, 11] {
        let device = Some(format!("mr{}", 1 << bit));
        let choice = Choice { provider: None, device: device.clone() };
        let error = providers(&choice).expect_err("it is not for us").to_string();
        assert!(error.contains("(fabric_device); it has fake"), "{error}");
        let error = open_on(device).expect_err("it is not for us").to_string();
        assert!(error.contains("(fabric_provider, fabric_device); it has fake"), "{error}");
    }
}

#[test]
fn a_peer_that_writes_without_end_is_judged_meanwhile() {
    run_beside(Release::New, &[], "endless_alone");
}

#[test]
#[ignore = "needs another library: a_peer_that_writes_without_end_is_judged_meanwhile"]
fn endless_alone() {
    let choice = Choice { provider: Some("fake".to_owned()), device: None };
    let open = || LibfabricEndpoint::open(&choice, None, 4).expect("an endpoint");
    let (mut a, mut b) = (open(), open());
    let target = a.register(4096, Access::Target).expect("memory");
    let from = b.register(4096, Access::Source).expect("memory");
    b.connect(a.name()).expect("a peer");
    for immediate in 0..600 {
        let (to, segments) = (a.remote(target), &[Segment { at: 0, len: 8 }]);
        let write = Write { from, segments, to, offset: 0, immediate, context: 0 };
        assert_eq!(b.post(&write), Ok(Posted::Posted));
    }
    let mut arrived = Vec::new();
    a.poll(&mut arrived).expect("no failure");
    assert_eq!(arrived.len(), 256, "as many as are read in one turn");
    a.poll(&mut arrived).expect("no failure");
    a.poll(&mut arrived).expect("no failure");
    assert!(arrived.iter().copied().eq((0..600).map(Completion::Arrived)), "none is lost");
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
    carried(&mut [open().expect("rings"), open().expect("rings")]);
}

/// Joins both ends and carries bytes from each to the other, several times around the rings.
fn carried(ends: &mut [Stream; 2]) {
    let [a, b] = ends;
    let (to_a, to_b) = (b.offer(), a.offer());
    a.join(&to_a).expect("a peer");
    b.join(&to_b).expect("a peer");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|i| (i >> 7) as u8 ^ (i >> 16) as u8).collect();
    let (mut sent, mut read) = ([0; 2], [Vec::new(), Vec::new()]);
    let mut space = vec![0; 100_000];
    while read.iter().any(|read| read.len() < bytes.len()) {
        let mut moved = 0;
        for (side, end) in ends.iter_mut().enumerate() {
            let n = end.send(&[IoSlice::new(&bytes[sent[side]..])]).expect("no failure");
            sent[side] += n;
            end.poll().expect("no failure");
            let got = end.recv(&mut [IoSliceMut::new(&mut space)]).expect("no failure");
            read[side].extend_from_slice(&space[..got]);
            moved += n + got;
        }
        // The library moves bytes at once, and both ends have looked.
        assert!(moved > 0, "stuck: {ends:?}");
    }
    assert!(read.iter().all(|read| *read == bytes));
}
