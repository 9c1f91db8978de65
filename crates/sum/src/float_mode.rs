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
