//! Counters (GASPI 17.1, 13).

use crate::error::Failure;
use crate::printf;
use crate::runtime;
use crate::types::*;
use gaspi_core::Runtime;
use std::ffi::CString;
use std::fmt::Write as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The highest level of the counters that `statistic_print_counters` shows. Counting itself is
/// always on.
static VERBOSITY: AtomicU32 = AtomicU32::new(u32::MAX);

/// A counter with its texts as C reads them.
struct Described {
    name: CString,
    description: CString,
    per_rank: bool,
    verbosity: u32,
}

/// All counters; they do not depend on a job.
fn counters() -> &'static [Described] {
    static COUNTERS: OnceLock<Vec<Described>> = OnceLock::new();
    COUNTERS.get_or_init(|| {
        (0..)
            .map_while(Runtime::statistic_info)
            .map(|info| Described {
                name: CString::new(info.name).unwrap_or_default(),
                description: CString::new(info.description).unwrap_or_default(),
                per_rank: info.per_rank,
                verbosity: info.verbosity,
            })
            .collect()
    })
}

fn described(counter: gaspi_statistic_counter_t) -> Result<&'static Described, Failure> {
    let counters = counters();
    counters.get(counter as usize).ok_or_else(|| {
        Failure::Rejected(format!("counter {counter} does not exist; there are {}", counters.len()))
    })
}

procedures! {
    /// GASPI.h: the highest level of the counters that are shown.
    fn statistic_verbosity_level(verbosity_level: gaspi_number_t) {
        runtime::refuse_fork()?;
        VERBOSITY.store(verbosity_level, Ordering::Relaxed);
        Ok(())
    }

    /// GASPI.h: the number of counters.
    fn statistic_counter_max(counter_max: *mut gaspi_number_t) {
        runtime::refuse_fork()?;
        out!(counter_max).set(counters().len() as gaspi_number_t);
        Ok(())
    }

    /// GASPI.h: what a counter counts.
    fn statistic_counter_info(
        counter: gaspi_statistic_counter_t,
        counter_argument: *mut gaspi_statistic_argument_t,
        counter_name: *mut gaspi_string_t,
        counter_description: *mut gaspi_string_t,
        verbosity_level: *mut gaspi_number_t,
    ) {
        runtime::refuse_fork()?;
        let argument = out!(counter_argument);
        let name = out!(counter_name);
        let description = out!(counter_description);
        let level = out!(verbosity_level);
        let counter = described(counter)?;
        argument.set(match counter.per_rank {
            true => GASPI_STATISTIC_ARGUMENT_RANK,
            false => GASPI_STATISTIC_ARGUMENT_NONE,
        });
        name.set(counter.name.as_ptr().cast_mut());
        description.set(counter.description.as_ptr().cast_mut());
        level.set(counter.verbosity);
        Ok(())
    }

    /// GASPI.h: the value of a counter.
    fn statistic_counter_get(
        counter: gaspi_statistic_counter_t,
        argument: gaspi_number_t,
        value: *mut gaspi_ulong,
    ) holding rt {
        let out = out!(value);
        described(counter)?;
        out.set(rt.statistic_get(counter, argument)?);
        Ok(())
    }

    /// GASPI_Ext.h: the value of a counter as a floating point number.
    fn statistic_counter_get_f(
        counter: gaspi_statistic_counter_t,
        argument: gaspi_number_t,
        value: *mut gaspi_float,
    ) holding rt {
        let out = out!(value);
        described(counter)?;
        out.set(rt.statistic_get(counter, argument)? as gaspi_float);
        Ok(())
    }

    /// GASPI.h: sets a counter to 0.
    fn statistic_counter_reset(counter: gaspi_statistic_counter_t) holding rt {
        described(counter)?;
        Ok(rt.statistic_reset(counter)?)
    }
}

/// The values of all counters that are shown, one a line.
fn table(rt: &Runtime) -> String {
    let level = VERBOSITY.load(Ordering::Relaxed);
    let mut text = String::new();
    for (number, counter) in (0..).zip(counters()) {
        if counter.verbosity > level {
            continue;
        }
        // A counter per rank is shown as its sum.
        let arguments = if counter.per_rank { 0..rt.size() } else { 0..1 };
        let value: u64 =
            arguments.map(|argument| rt.statistic_get(number, argument).unwrap_or(0)).sum();
        let _ = writeln!(text, "{:<26}{value:>20}", counter.name.to_string_lossy());
    }
    text
}

plain_procedures! {
    /// GASPI.h: prints all counters.
    fn statistic_print_counters() -> () {
        if let Ok(rt) = runtime::hold() {
            // One datagram holds 1024 bytes: a few lines each.
            let text = table(&rt);
            for line in text.lines() {
                printf::deliver(0, format!("{line}\n").as_bytes());
            }
        }
    } else ();
}
