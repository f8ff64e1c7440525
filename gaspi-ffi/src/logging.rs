//! Standard error: `[rank host] call: reason; remedy`, each cause once, as many as a person can
//! read, at the level of `GASPI_LOG` (0/none, 1/error, 2/warn, 3/info, 4/debug, 5/trace;
//! 1 if not set). Another word is an error of init, which is told at level 1.
//!
//! Never blocks on a lock of its own, never raises SIGPIPE.

use gaspi_core::Error;
use gaspi_core::os::{cancel, process};
use log::{Level, LevelFilter, Log, Metadata, Record};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock, TryLockError};
use std::time::{Duration, Instant};

const VARIABLE: &str = "GASPI_LOG";
/// Lines that may follow each other at once; then one per [`REFILL`].
const BURST: u32 = 20;
const REFILL: Duration = Duration::from_secs(1);
/// Causes that are remembered as told; a program with more gets the rest at the limited rate.
const CAUSES_MAX: usize = 1024;

/// Rank and host of this process once it has joined a job.
static IDENTITY: RwLock<Option<(u16, String)>> = RwLock::new(None);
static LIMITER: Mutex<Option<Limiter>> = Mutex::new(None);
/// Lines that were not printed since the last one that was.
static SUPPRESSED: AtomicU64 = AtomicU64::new(0);

/// Sets the rank and host of further lines; none after `proc_term`.
pub(crate) fn identify(identity: Option<(u16, String)>) {
    *IDENTITY.write().unwrap_or_else(PoisonError::into_inner) = identity;
}

/// Installs the receiver of what the libraries below log, and returns the level.
pub(crate) fn level() -> LevelFilter {
    static LEVEL: OnceLock<LevelFilter> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let level = parse(std::env::var_os(VARIABLE).as_deref()).unwrap_or(LevelFilter::Error);
        if log::set_logger(&Stderr).is_ok() {
            log::set_max_level(level);
        }
        level
    })
}

/// Whether the environment asks for a level that there is.
///
/// # Errors
/// [`Error::Environment`] names the levels.
pub(crate) fn check() -> Result<(), Error> {
    parse(std::env::var_os(VARIABLE).as_deref()).map(|_| ())
}

fn parse(text: Option<&OsStr>) -> Result<LevelFilter, Error> {
    let Some(text) = text.map(OsStr::to_string_lossy) else { return Ok(LevelFilter::Error) };
    Ok(match text.trim().to_ascii_lowercase().as_str() {
        "0" | "none" | "off" => LevelFilter::Off,
        "1" | "error" => LevelFilter::Error,
        "2" | "warn" | "warning" => LevelFilter::Warn,
        "3" | "info" => LevelFilter::Info,
        "4" | "debug" => LevelFilter::Debug,
        "5" | "trace" => LevelFilter::Trace,
        _ => {
            return Err(Error::Environment {
                reason: format!(
                    "{VARIABLE} is {text:?}; it can be none, error, warn, info, debug or trace, \
                     or 0 to 5"
                ),
            });
        }
    })
}

/// Logs the failure of a procedure.
pub(crate) fn report(call: &str, reason: &str) {
    if level() >= LevelFilter::Error {
        line(Level::Error, &format!("gaspi_{call}: {reason}"));
    }
}

struct Stderr;

impl Log for Stderr {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= level()
    }

    fn log(&self, record: &Record<'_>) {
        if self.enabled(record.metadata()) {
            line(record.level(), &record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// What was told already, and how much may be told now.
#[derive(Debug)]
struct Limiter {
    told: HashSet<u64>,
    tokens: u32,
    refilled: Instant,
}

impl Limiter {
    fn new(now: Instant) -> Limiter {
        Limiter { told: HashSet::new(), tokens: BURST, refilled: now }
    }

    /// Whether a line that says `text` may be printed at `now`.
    fn admits(&mut self, text: &str, now: Instant) -> Admission {
        let mut hasher = DefaultHasher::new();
        text.hash(&mut hasher);
        let cause = hasher.finish();
        if self.told.contains(&cause) {
            return Admission::Told;
        }
        let elapsed = now.saturating_duration_since(self.refilled);
        let earned = (elapsed.as_millis() / REFILL.as_millis()).min(u128::from(BURST));
        if earned > 0 {
            self.tokens = (self.tokens + earned as u32).min(BURST);
            self.refilled = now;
        }
        if self.tokens == 0 {
            return Admission::TooMany;
        }
        self.tokens -= 1;
        if self.told.len() < CAUSES_MAX {
            self.told.insert(cause);
        }
        Admission::Now
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Admission {
    Now,
    Told,
    TooMany,
}

/// Prints a line; errors and warnings are limited, what was asked for by a higher level is not.
fn line(level: Level, text: &str) {
    if level <= Level::Warn {
        // After a fork the lock may have been copied while taken: then the line is lost.
        let mut limiter = match LIMITER.try_lock() {
            Ok(limiter) => limiter,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => {
                SUPPRESSED.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let now = Instant::now();
        match limiter.get_or_insert_with(|| Limiter::new(now)).admits(text, now) {
            Admission::Now => {}
            Admission::Told => return,
            Admission::TooMany => {
                SUPPRESSED.fetch_add(1, Ordering::Relaxed);
                return;
            }
        }
    }
    let who = identity();
    let mut whole = suppressed(&who);
    // A line break inside would look like output of somebody else.
    whole.push_str(&format!("[{who}] {}\n", text.replace('\n', " ")));
    write_stderr(whole.as_bytes());
}

/// The line that tells how many were not printed since the last that was, if any.
fn suppressed(who: &str) -> String {
    match SUPPRESSED.swap(0, Ordering::Relaxed) {
        0 => String::new(),
        count => format!("[{who}] {count} further messages were not printed\n"),
    }
}

/// Tells what was held back; for a rank that leaves, after which nothing may follow.
pub(crate) fn settle() {
    let line = suppressed(&identity());
    if !line.is_empty() {
        write_stderr(line.as_bytes());
    }
}

/// Prints lines that the program was asked for, whatever the level.
pub(crate) fn lines(text: &str) {
    let who = identity();
    let lines: String = text.lines().map(|line| format!("[{who}] {line}\n")).collect();
    if !lines.is_empty() {
        write_stderr(lines.as_bytes());
    }
}

fn identity() -> String {
    match IDENTITY.try_read().as_deref() {
        Ok(Some((rank, host))) => format!("{rank} {host}"),
        _ => format!("- {}", process::host_name()),
    }
}

/// One write, so that lines of several ranks do not mix; a closed pipe costs the line, not the
/// program.
fn write_stderr(bytes: &[u8]) {
    let _uncancelled = cancel::hold_off();
    // SAFETY: all-zero is a valid signal set, and each call gets sets that live here.
    unsafe {
        let mut pipe: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut pipe);
        libc::sigaddset(&mut pipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &pipe, &mut before);
        let written = libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len());
        let broken = written < 0 && *libc::__errno_location() == libc::EPIPE;
        if broken && libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            libc::sigtimedwait(&pipe, std::ptr::null_mut(), &now);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_by_number_and_name() {
        let level = |text: &str| parse(Some(OsStr::new(text))).ok();
        assert_eq!(parse(None).ok(), Some(LevelFilter::Error));
        assert_eq!(level("1"), Some(LevelFilter::Error));
        assert_eq!(level("0"), Some(LevelFilter::Off));
        assert_eq!(level(" Debug "), Some(LevelFilter::Debug));
        assert_eq!(level("3"), Some(LevelFilter::Info));
        for wrong in ["", "nonsense", "-1", "6", "18446744073709551616", "info,"] {
            assert_eq!(level(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_cause_is_told_once_and_the_rate_is_limited() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        assert_eq!(limiter.admits("a", start), Admission::Now);
        assert_eq!(limiter.admits("a", start), Admission::Told);
        for n in 1..BURST {
            assert_eq!(limiter.admits(&n.to_string(), start), Admission::Now);
        }
        assert_eq!(limiter.admits("late", start), Admission::TooMany);
        let later = start + REFILL;
        assert_eq!(limiter.admits("late", later), Admission::Now);
        assert_eq!(limiter.admits("later", later), Admission::TooMany);
        let much_later = start + REFILL * 1000;
        for n in 0..BURST {
            assert_eq!(limiter.admits(&format!("x{n}"), much_later), Admission::Now);
        }
        assert_eq!(limiter.admits("y", much_later), Admission::TooMany);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let start = Instant::now();
        let mut limiter = Limiter::new(start);
        for n in 0..2 * CAUSES_MAX as u32 {
            limiter.admits(&n.to_string(), start + REFILL * n);
        }
        assert_eq!(limiter.told.len(), CAUSES_MAX);
    }
}
