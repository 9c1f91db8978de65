//! The floating-point mode of a thread.

#![cfg(target_arch = "x86_64")]

use std::hint::black_box;

use sumpter_sum::set_float_mode;

fn flush_subnormals() {
    const FLUSHED: u32 = 0x9fc0;
    // SAFETY: It reads four bytes and sets a register; the thread ends with its test.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &FLUSHED, options(nostack, readonly));
    }
}

#[test]
fn a_thread_keeps_subnormals_also_if_its_parent_does_not() {
    let half = || black_box(black_box(f32::MIN_POSITIVE) * black_box(0.5));
    std::thread::spawn(move || {
        flush_subnormals();
        let inherited = std::thread::spawn(half).join().unwrap();
        let set = std::thread::spawn(move || {
            set_float_mode();
            half()
        });
        assert_eq!(inherited.to_bits(), 0, "the mode is inherited");
        assert_eq!(set.join().unwrap().to_bits(), (f32::MIN_POSITIVE / 2.0).to_bits());
    })
    .join()
    .unwrap();
}
