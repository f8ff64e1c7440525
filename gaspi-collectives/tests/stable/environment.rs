//! Floating-point environments that programs set in their threads.

/// A thread whose small numbers count as zero, as with `-ffast-math`, until this is dropped.
pub(crate) struct Environment(());

impl Environment {
    pub(crate) fn flushing() -> Environment {
        flush(true);
        Environment(())
    }
}

impl Drop for Environment {
    fn drop(&mut self) {
        flush(false);
    }
}

#[cfg(target_arch = "x86_64")]
fn flush(on: bool) {
    let control: u32 = if on { 0x1f80 | 0x8040 } else { 0x1f80 };
    // SAFETY: reads the variable; what the library and this test compute in floats meanwhile is
    // either integers, or what is to be tested.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack));
    }
}

/// Elsewhere all threads compute alike.
#[cfg(not(target_arch = "x86_64"))]
fn flush(_: bool) {}
