//! Calls that wait for long: since when, and what the log says of them.
//!
//! A call that waits without a limit says after GASPI_STALL_WARNING seconds what it waits for, and
//! again whenever it has waited twice as long.

use crate::error::{Error, Result};
use crate::os::clock;
use crate::timeout::Deadline;
use std::cell::Cell;
use std::env::VarError;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

const VARIABLE: &str = "GASPI_STALL_WARNING";
const DEFAULT: Duration = Duration::from_secs(60);

thread_local! {
    /// Since when the call of this thread waits that waits in parts.
    static SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// After how long a call says what it waits for, by GASPI_STALL_WARNING; `None`: never.
///
/// # Errors
/// [`Error::Environment`] if that is no number of seconds.
pub(crate) fn stall_warning() -> Result<Option<Duration>> {
    parse(std::env::var(VARIABLE)).map_err(|reason| Error::Environment { reason })
}

fn parse(
    value: std::result::Result<String, VarError>,
) -> std::result::Result<Option<Duration>, String> {
    let text = match value {
        Err(VarError::NotPresent) => return Ok(Some(DEFAULT)),
        Err(VarError::NotUnicode(text)) => text.to_string_lossy().into_owned(),
        Ok(text) => text,
    };
    match text.parse::<u32>() {
        Ok(seconds) => Ok((seconds > 0).then(|| Duration::from_secs(seconds.into()))),
        Err(_) => Err(format!("{VARIABLE} is {text:?}; it takes seconds, 0 for never")),
    }
}

/// Since when the call of this thread waits, if it waits in parts.
pub(super) fn since() -> Option<Instant> {
    SINCE.get()
}

/// When the log tells of a call that waits.
#[derive(Debug)]
pub(super) struct Reports {
    since: Instant,
    /// How long it has waited then; `None`: it never does.
    due: Cell<Option<Duration>>,
}

impl Reports {
    pub(super) fn new(since: Instant, after: Option<Duration>) -> Reports {
        Reports { since, due: Cell::new(after) }
    }

    /// How long until the next one.
    pub(super) fn left(&self) -> Option<Duration> {
        self.due.get().map(|due| due.saturating_sub(clock::since(self.since)))
    }

    /// The earlier of `deadline` and the time of the next one.
    fn limit(&self, deadline: Deadline) -> Deadline {
        self.due.get().map_or(deadline, |due| deadline.at_latest(self.since + due))
    }

    /// Says what `call` waits for, if it is time to.
    #[cold]
    pub(super) fn tell(&self, call: &str, awaited: impl FnOnce() -> String) {
        let (Some(due), waited) = (self.due.get(), clock::since(self.since)) else { return };
        if waited >= due {
            log::warn!("{call}: has waited {} s for {}", waited.as_secs(), awaited());
            self.due.set(Some(waited * 2));
        }
    }
}

/// A call that waits in parts, in the course of which it does something else. As long as this
/// lives it appears as one that has waited since the beginning.
#[derive(Debug)]
pub struct LongWait {
    reports: Reports,
    is_outermost: bool,
    /// Belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl LongWait {
    /// Within another one it says nothing, and the wait is that of the other one.
    pub(crate) fn begin(
        since: Instant,
        deadline: Deadline,
        stall_warning: Option<Duration>,
    ) -> LongWait {
        let is_outermost = SINCE.get().is_none();
        let says = is_outermost && deadline == Deadline::Never;
        if is_outermost {
            SINCE.set(Some(since));
        }
        let reports = Reports::new(since, stall_warning.filter(|_| says));
        LongWait { reports, is_outermost, _thread: PhantomData }
    }

    /// Until when one part may wait: until `deadline`, or until there is something to be said.
    pub fn part(&self, deadline: Deadline) -> Deadline {
        self.reports.limit(deadline)
    }

    /// Between two parts: says what `call` waits for, if it is time to.
    pub(crate) fn tell(&self, call: &str, awaited: impl FnOnce() -> String) {
        self.reports.tell(call, awaited);
    }

    /// The same, where the error of a timeout says what that is.
    pub fn tell_pending(&self, call: &str, timeout: impl FnOnce() -> Error) {
        self.reports.tell(call, || match timeout() {
            Error::Timeout { pending } => pending,
            other => other.to_string(),
        });
    }
}

impl Drop for LongWait {
    fn drop(&mut self) {
        if self.is_outermost {
            SINCE.set(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stalls_are_told_after_seconds_or_never() {
        let given = |text: &str| parse(Ok(text.to_owned()));
        assert_eq!(parse(Err(VarError::NotPresent)), Ok(Some(Duration::from_secs(60))));
        assert_eq!(given("5"), Ok(Some(Duration::from_secs(5))));
        assert_eq!(given("0"), Ok(None));
        for wrong in ["", "-1", "1.5", "soon", "99999999999"] {
            let reason = given(wrong).expect_err(wrong);
            assert!(reason.contains(VARIABLE) && reason.contains(wrong), "{reason}");
        }
    }

    #[test]
    fn a_wait_within_another_one_is_part_of_it() {
        let outer = LongWait::begin(clock::now(), Deadline::Never, Some(Duration::ZERO));
        let began = since().expect("a wait");
        {
            let inner = LongWait::begin(clock::now(), Deadline::Never, Some(Duration::ZERO));
            assert_eq!(since(), Some(began));
            assert_eq!(inner.part(Deadline::Never), Deadline::Never);
            inner.tell("inner", || panic!("it says something"));
        }
        assert_eq!(since(), Some(began));
        assert!(outer.part(Deadline::Never).passed(), "it has to say something");
        drop(outer);
        assert_eq!(since(), None);
    }

    #[test]
    fn a_call_with_a_limit_says_nothing() {
        let limit = Deadline::Never.at_most(Duration::from_secs(600));
        let wait = LongWait::begin(clock::now(), limit, Some(Duration::ZERO));
        assert_eq!(wait.part(limit), limit);
        wait.tell("call", || panic!("it says something"));
    }
}
