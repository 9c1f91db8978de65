//! The floating-point mode that the kernels count on.

/// Has this thread compute as IEEE 754 says: with subnormals, to nearest, and without traps.
///
/// That is what Rust assumes as well. A thread inherits the mode of the one that starts it, which
/// may flush subnormals to zero, as after `torch.set_flush_denormal(True)`; results would then
/// differ between machines.
pub fn set_float_mode() {
    #[cfg(target_arch = "x86_64")]
    {
        const MASKED: u32 = 0x1f80;
        // SAFETY: It reads four bytes and sets the register to what it is when a program starts.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &MASKED, options(nostack, readonly));
        }
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: It sets the register to what it is when a program starts.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) 0_u64, options(nomem, nostack));
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::hint::black_box;

    use super::*;

    fn flush_subnormals() {
        const FLUSHED: u32 = 0x9fc0;
        // SAFETY: As above; the thread ends with its test.
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
}
