//! Counters (GASPI 17.1, 14).

use crate::error::Failure;
use crate::printf;
use crate::runtime;
use crate::switch;
use crate::types::*;
use gaspi_core::{Rank, Runtime};
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
        out!(counter_max).give(counters().len() as gaspi_number_t)
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

/// Every counter that is shown: its name, the rank that it is for if it takes one, its value and
/// what it counts.
fn shown(rt: &Runtime) -> impl Iterator<Item = (String, u64, &'static Described)> + '_ {
    let level = VERBOSITY.load(Ordering::Relaxed);
    let counters = (0..).zip(counters()).filter(move |(_, counter)| counter.verbosity <= level);
    counters.flat_map(move |(number, counter)| {
        let arguments = if counter.per_rank { 0..rt.size() } else { 0..1 };
        arguments.map(move |argument| {
            let name = counter.name.to_string_lossy();
            let name =
                if counter.per_rank { format!("{name}[{argument}]") } else { name.into_owned() };
            (name, rt.statistic_get(number, argument).unwrap_or(0), counter)
        })
    })
}

/// The values of all counters that are shown, one a line; those for a rank only if they are not 0.
fn table(rt: &Runtime) -> String {
    let mut text = String::new();
    for (name, value, counter) in shown(rt) {
        if value != 0 || !counter.per_rank {
            let _ = writeln!(text, "{name:<26}{value:>20}");
        }
    }
    text
}

/// The variable that asks for a summary at the end.
const VARIABLE: &str = "GASPI_STATISTICS";

/// Whether the environment asks for a summary at the end.
pub(crate) fn asked_for() -> bool {
    switch::is_on(VARIABLE).unwrap_or(false)
}

/// Whether that can be understood.
///
/// # Errors
/// [`gaspi_core::Error::Environment`] says what is possible.
pub(crate) fn check() -> Result<(), gaspi_core::Error> {
    switch::is_on(VARIABLE).map(|_| ())
}

/// The name of a counter for a rank, in a table that says that it is about ranks.
fn head(name: &str) -> String {
    let name = name.strip_prefix("NumberOf").unwrap_or(name);
    let ends = ["ToRank", "FromRank", "OnRank"];
    ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name).to_owned()
}

/// The summary: counters that are not 0, with their texts, and a table of the ranks that it
/// communicated with.
pub(crate) fn summary(rt: &Runtime) -> String {
    let (rank, size) = (rt.rank().0, rt.size());
    let mut text = format!("statistics of rank {rank} of {size}\n");
    let totals = shown(rt).filter(|(_, value, counter)| *value != 0 && !counter.per_rank);
    for (name, value, counter) in totals {
        let what = counter.description.to_string_lossy();
        let _ = writeln!(text, "  {name:<24}{value:>18}  {what}");
    }
    let per_rank: Vec<(u32, &Described)> =
        (0..).zip(counters()).filter(|(_, counter)| counter.per_rank).collect();
    let mut heads: Vec<String> = vec!["rank".into(), "transport".into()];
    heads.extend(per_rank.iter().map(|(_, counter)| head(&counter.name.to_string_lossy())));
    let mut rows = Vec::new();
    for peer in 0..size {
        let value = |(number, _): &(u32, _)| rt.statistic_get(*number, peer).unwrap_or(0);
        let values: Vec<u64> = per_rank.iter().map(value).collect();
        if values.iter().any(|value| *value != 0) {
            let link = rt.link(Rank(peer as u16)).map_or("", gaspi_core::Link::name);
            let mut row = vec![peer.to_string(), link.to_owned()];
            row.extend(values.iter().map(u64::to_string));
            rows.push(row);
        }
    }
    if !rows.is_empty() {
        for row in std::iter::once(&heads).chain(&rows) {
            text.push(' ');
            for (head, cell) in heads.iter().zip(row) {
                let width = head.len().max(12);
                let _ = write!(text, " {cell:>width$}");
            }
            text.push('\n');
        }
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
                let line = format!("{line}\n");
                printf::deliver("statistic_print_counters", 0, line.as_bytes());
            }
        }
    } else ();
}
