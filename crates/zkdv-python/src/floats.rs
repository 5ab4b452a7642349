//! The floating-point environment that probes are summed in: round to nearest, subnormals kept.
//!
//! XLA's threads flush subnormals to zero, libraries built for speed switch a whole process to it, and a new thread starts
//! with the settings of the one that made it. Sums would then depend on who calls.

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use std::arch::asm;

/// Runs `work` with the default settings, and restores those of the thread.
pub(crate) fn with_default_environment<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(Control);
    impl Drop for Restore {
        fn drop(&mut self) {
            set(self.0);
        }
    }
    let _restore = Restore(get());
    set(DEFAULT);
    work()
}

/// Sets the defaults for good: for threads of our own.
pub(crate) fn set_default_environment() {
    set(DEFAULT);
}

#[cfg(target_arch = "x86_64")]
type Control = u32;
/// All exceptions masked, round to nearest, subnormals neither flushed nor read as zero (Intel SDM volume 1, 10.2.3).
#[cfg(target_arch = "x86_64")]
const DEFAULT: Control = 0x1f80;

#[cfg(target_arch = "x86_64")]
fn get() -> Control {
    let mut control = 0_u32;
    // SAFETY: stores MXCSR into the place given, and nothing else.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags)) };
    control
}

#[cfg(target_arch = "x86_64")]
fn set(control: Control) {
    // SAFETY: the value is the default, which Rust code may assume, or one that `get` found in this thread.
    unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags)) };
}

#[cfg(target_arch = "aarch64")]
type Control = u64;
#[cfg(target_arch = "aarch64")]
const DEFAULT: Control = 0;

#[cfg(target_arch = "aarch64")]
fn get() -> Control {
    let control: u64;
    // SAFETY: reads FPCR, and nothing else.
    unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nomem, nostack, preserves_flags)) };
    control
}

#[cfg(target_arch = "aarch64")]
fn set(control: Control) {
    // SAFETY: the value is the default, which Rust code may assume, or one that `get` found in this thread.
    unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack, preserves_flags)) };
}

/// Other architectures have no such setting, or nothing that is known to change it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
type Control = ();
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const DEFAULT: Control = ();

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn get() -> Control {}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn set((): Control) {}
