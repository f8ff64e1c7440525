//! Time: float milliseconds that count from init, so that a float has digits left for them, and
//! the processor's own counter with its frequency.

use crate::error::Failure;
use crate::types::*;
use gaspi_core::os::cancel;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// From here on the error of reading both clocks is below a part in 10^5.
const MEASURABLE: Duration = Duration::from_millis(10);

/// How often both clocks are read to find them close together.
const READINGS: usize = 8;

/// Both clocks at the same moment.
struct Moment {
    time: Instant,
    ticks: u64,
}

impl Moment {
    /// Reads both clocks some times and keeps the reading that took least: a thread can lose its
    /// core between the two.
    fn now() -> Moment {
        let read = || {
            let (before, time, after) = (ticks(), Instant::now(), ticks());
            let took = after.wrapping_sub(before);
            (took, Moment { time, ticks: before.wrapping_add(took / 2) })
        };
        let mut best = read();
        for _ in 1..READINGS {
            let next = read();
            if next.0 < best.0 {
                best = next;
            }
        }
        best.1
    }
}

/// Time counts from the first call on, which is `proc_init` unless the program asks before.
fn begin() -> &'static Moment {
    static START: OnceLock<Moment> = OnceLock::new();
    START.get_or_init(Moment::now)
}

/// Makes time begin.
pub(crate) fn start() {
    begin();
}

/// The counter of this core.
#[inline]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has the counter, and Linux leaves it readable.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(target_arch = "aarch64")]
    {
        let ticks: u64;
        // SAFETY: Linux leaves the virtual counter readable; the read has no side effect.
        unsafe { std::arch::asm!("mrs {}, cntvct_el0", out(reg) ticks, options(nomem, nostack)) };
        ticks
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the clock exists everywhere, and the time is written to `now`.
        unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// MHz of the counter, without spinning. If neither the processor nor the kernel knows it, it is
/// measured from the start on, once enough time has passed.
fn frequency() -> Option<f64> {
    static TOLD: OnceLock<Option<f64>> = OnceLock::new();
    static MEASURED: OnceLock<f64> = OnceLock::new();
    let told = *TOLD.get_or_init(|| counter_frequency().or_else(base_frequency));
    if told.is_some() {
        return told;
    }
    let (start, now) = (begin(), Moment::now());
    let elapsed = now.time.saturating_duration_since(start.time);
    if elapsed >= MEASURABLE {
        let measured = now.ticks.wrapping_sub(start.ticks) as f64 / elapsed.as_secs_f64() / 1e6;
        return Some(*MEASURED.get_or_init(|| measured));
    }
    frequency_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// The frequency as the processor, or the hypervisor around it, knows it.
#[cfg(target_arch = "x86_64")]
fn counter_frequency() -> Option<f64> {
    use std::arch::x86_64::__cpuid;
    let highest = __cpuid(0).eax;
    if highest >= 0x15 {
        // Leaf 0x15: ratio of the counter to a crystal, and the crystal's hertz.
        let leaf = __cpuid(0x15);
        if leaf.eax != 0 && leaf.ebx != 0 && leaf.ecx != 0 {
            let hertz = f64::from(leaf.ecx) * f64::from(leaf.ebx) / f64::from(leaf.eax);
            return Some(hertz / 1e6);
        }
    }
    // Bit 31: there is a hypervisor. Some tell the counter's kHz in leaf 0x40000010.
    if __cpuid(1).ecx >> 31 == 1 && __cpuid(0x4000_0000).eax >= 0x4000_0010 {
        let khz = __cpuid(0x4000_0010).eax;
        if khz != 0 {
            return Some(f64::from(khz) / 1e3);
        }
    }
    None
}

/// The frequency as the processor knows it.
#[cfg(target_arch = "aarch64")]
fn counter_frequency() -> Option<f64> {
    let hertz: u64;
    // SAFETY: the register is readable and the read has no side effect.
    unsafe { std::arch::asm!("mrs {}, cntfrq_el0", out(reg) hertz, options(nomem, nostack)) };
    (hertz != 0).then(|| hertz as f64 / 1e6)
}

/// The counter is the nanosecond clock.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn counter_frequency() -> Option<f64> {
    Some(1e3)
}

/// The nominal frequency, with which the counter runs, from the kernel.
fn base_frequency() -> Option<f64> {
    let path = "/sys/devices/system/cpu/cpu0/cpufreq/base_frequency";
    let khz: f64 = std::fs::read_to_string(path).ok()?.trim().parse().ok()?;
    (khz > 0.0).then_some(khz / 1e3)
}

/// The nominal frequency from a model name that tells it, else the present one: a guess.
fn frequency_in(cpuinfo: &str) -> Option<f64> {
    let value = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim())
    };
    let nominal = || {
        let (_, text) = value("model name")?.rsplit_once('@')?;
        let ghz: f64 = text.trim().strip_suffix("GHz")?.trim().parse().ok()?;
        Some(ghz * 1e3)
    };
    let present = || value("cpu MHz")?.parse().ok();
    nominal().or_else(present).filter(|mhz: &f64| *mhz > 0.0)
}

procedures! {
    /// GASPI.h: milliseconds since init.
    fn time_get(wtime: *mut gaspi_time_t) {
        out!(wtime).give((begin().time.elapsed().as_secs_f64() * 1e3) as gaspi_time_t)
    }

    /// GASPI.h: the processor's counter.
    fn time_ticks(ticks_out: *mut gaspi_cycles_t) {
        out!(ticks_out).give(ticks())
    }

    /// GASPI_Ext.h: MHz of the processor's counter.
    fn cpu_frequency(cpu_mhz: *mut gaspi_float) {
        let _uncancelled = cancel::hold_off();
        let out = out!(cpu_mhz);
        let mhz = frequency().ok_or_else(|| {
            Failure::Rejected(
                "neither the processor nor /proc/cpuinfo tells the frequency".to_owned(),
            )
        })?;
        out.set(mhz as gaspi_float);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequency_from_cpuinfo() {
        let named = "processor : 0\nmodel name\t: Some CPU @ 2.50GHz\ncpu MHz\t\t: 3100.5\n";
        assert_eq!(frequency_in(named), Some(2500.0));
        let plain = "model name : EPYC\ncpu MHz\t\t: 3100.5\n";
        assert_eq!(frequency_in(plain), Some(3100.5));
        assert_eq!(frequency_in("model name : x @ y\ncpu MHz : 0.0\n"), None);
        assert_eq!(frequency_in(""), None);
    }

    #[test]
    fn the_counter_runs_forward() {
        let before = ticks();
        assert!(ticks() >= before);
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_frequency_is_that_of_the_counter() {
        start();
        let before = Moment::now();
        while before.time.elapsed() < MEASURABLE * 5 {
            std::hint::spin_loop();
        }
        let mhz = frequency().unwrap();
        let after = Moment::now();
        let seconds = (after.time - before.time).as_secs_f64();
        let measured = (after.ticks - before.ticks) as f64 / seconds / 1e6;
        assert!((measured / mhz - 1.0).abs() < 0.05, "told {mhz} MHz, measured {measured}");
    }
}
