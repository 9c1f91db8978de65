//! The model against the runtime's own state machines on a network in virtual time: figures that
//! `cargo test --release -p sumpter-engine --test network -- --nocapture` printed.

use sumpter_plan::Architecture;
use sumpter_whatif::{Case, Layer, Profile, Tensor, simulate};

/// GPU machines, CPU machines, MiB of one tensor, seconds that the engine took at 200 Mb/s.
const ENGINE: [(u32, u32, u64, f64); 19] = [
    (2, 0, 64, 2.687),
    (2, 1, 64, 2.711),
    (2, 2, 64, 2.702),
    (2, 4, 64, 2.701),
    (4, 0, 64, 4.038),
    (4, 1, 64, 3.633),
    (4, 2, 64, 3.264),
    (4, 4, 64, 2.710),
    (8, 0, 64, 4.725),
    (8, 1, 64, 4.404),
    (8, 2, 64, 4.069),
    (8, 4, 64, 3.485),
    (8, 8, 64, 2.726),
    (2, 1, 16, 0.690),
    (4, 1, 16, 0.943),
    (4, 2, 16, 0.840),
    (4, 4, 16, 0.689),
    (8, 2, 16, 1.090),
    (8, 8, 16, 0.707),
];

#[test]
fn rounds_take_as_long_as_in_the_engine() {
    let mut errors = Vec::new();
    for (workers, servers, mib, engine_s) in ENGINE {
        let tensor = Tensor { layer: 0, bytes: mib << 20, ready_s: 0.0 };
        let layers = vec![Layer { forward_s: None }];
        let profile = Profile::new(1.0, 0.0, layers, vec![tensor], None).unwrap();
        let architecture = Architecture::Sumpter;
        let case = Case { workers, servers, architecture, bandwidth_gbps: 0.2, ..Case::default() };
        let model_s = simulate(&profile, &case).unwrap().overhead_s;
        let error = model_s / engine_s - 1.0;
        println!(
            "| {workers} | {servers} | {mib} MiB | {engine_s:.3} | {model_s:.3} | {:+.1} % |",
            100.0 * error
        );
        errors.push(error.abs());
        assert!(error.abs() < 0.06, "n = {workers}, k = {servers}: {model_s} s, not {engine_s} s");
    }
    errors.sort_by(f64::total_cmp);
    println!("median {:.1} %, largest {:.1} %", 100.0 * errors[9], 100.0 * errors[18]);
    assert!(errors[9] < 0.025);
}
