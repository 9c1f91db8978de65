//! A libfabric built for a test, in place of the machine's.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What its symbols say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "not every test that includes this builds all of them")]
pub enum Release {
    /// All that Sumpter needs.
    New,
    /// The first release that Sumpter takes, 1.15: with all earlier versions of each function.
    First,
    /// One whose functions have later versions as well, which are what a program gets that names
    /// none.
    Latest,
    /// All functions, without versions.
    Unversioned,
    /// As libfabric was before 1.3 of `fi_getinfo`.
    Old,
    /// The last release that Sumpter does not take, 1.14: it has all functions.
    Previous,
    /// A file that is no library.
    Garbage,
}

impl Release {
    /// Its version.
    fn version(self) -> (u32, u32) {
        match self {
            Release::Latest => (2, 4),
            Release::Old => (1, 9),
            Release::Previous => (1, 14),
            Release::First | Release::Unversioned => (1, 15),
            Release::New | Release::Garbage => (1, 20),
        }
    }

    /// The versions of its functions.
    fn symbols(self) -> Option<&'static str> {
        match self {
            Release::Unversioned | Release::Garbage => None,
            Release::Old => Some(OLD),
            Release::Latest => Some(LATEST),
            Release::New | Release::First | Release::Previous => Some(NEW),
        }
    }

    /// What its source is compiled with beside its version.
    fn define(self) -> Option<&'static str> {
        match self {
            Release::First => Some("-DFIRST"),
            Release::Latest => Some("-DLATEST"),
            _ => None,
        }
    }
}

const NEW: &str = "FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.2 { } FABRIC_1.1;
FABRIC_1.3 { global: fi_getinfo; fi_freeinfo; fi_dupinfo; } FABRIC_1.2;
";

const LATEST: &str = "FABRIC_1.0 { global: fi_version; fi_strerror; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { } FABRIC_1.1;
FABRIC_1.7 { } FABRIC_1.3;
";

const OLD: &str = "FABRIC_1.0 { global: fi_version; fi_strerror; fi_fabric; fi_getinfo;
    fi_freeinfo; fi_dupinfo; local: *; };
";

/// A folder with this `libfabric.so.1`. It is built by the compiler that links Rust programs.
fn build(release: Release) -> PathBuf {
    static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let name = format!("fake-libfabric-{}-{number}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).expect("a folder");
    let library = folder.join("libfabric.so.1");
    if release == Release::Garbage {
        std::fs::write(&library, "this is no library").expect("a file");
        return folder;
    }
    let script = release.symbols().map(|symbols| {
        let path = folder.join("versions");
        std::fs::write(&path, symbols).expect("a file");
        format!("-Wl,--version-script={}", path.display())
    });
    let (major, minor) = release.version();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let built = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O1", "-pthread", "-Wl,-soname,libfabric.so.1"])
        .args([format!("-DMAJOR={major}"), format!("-DMINOR={minor}")])
        .args(script)
        .args(release.define())
        .arg("-o")
        .arg(&library)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../fabric/tests/fake/libfabric.c"))
        .output();
    let built = built.unwrap_or_else(|error| panic!("no C compiler `{compiler}`: {error}"));
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
}

/// Runs an ignored test of this file in a process of its own that finds this library, with an
/// environment; a library is loaded once a process. What it has printed.
pub fn run_beside(release: Release, environment: &[(&str, &str)], test: &str) -> String {
    let folder = build(release);
    let this = std::env::current_exe().expect("a path");
    let output = Command::new(this)
        .args(["--ignored", "--exact", "--nocapture", test])
        .env("LD_LIBRARY_PATH", &folder)
        .envs(environment.iter().copied())
        .output();
    let output = output.expect("started");
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    let _ = std::fs::remove_dir_all(&folder);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    said
}
