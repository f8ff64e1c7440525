//! How the ranks ended: the closing summary and the exit status.

use crate::process::Ending;
use gaspi_tools::signals;
use std::fmt::Write;
use std::time::Duration;

/// Ranks that are named one by one.
const NAMED_MAX: usize = 16;

/// How one rank ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End {
    pub(crate) rank: usize,
    pub(crate) pid: i32,
    pub(crate) ending: Ending,
    /// gaspi_run was ending the job by then.
    pub(crate) ordered: bool,
    /// Since the ranks were started.
    pub(crate) after: Duration,
}

/// What happened to a rank, as a phrase for other ranks' errors.
pub(crate) fn phrase(ending: Ending) -> String {
    match ending {
        Ending::Exited(status) => format!("exit status {status}"),
        Ending::Killed { signal, .. } => {
            format!("killed by signal {signal}, {}", signals::name(signal))
        }
        Ending::Lost => "its host was lost".to_owned(),
    }
}

/// The status of the first rank that failed, by the time that it ended.
pub(crate) fn status(ends: &[End]) -> u8 {
    ends.iter().find(|end| end.ending.failed()).map_or(0, |end| end.ending.status())
}

/// The first rank that failed by itself.
pub(crate) fn first(ends: &[End]) -> Option<&End> {
    ends.iter().find(|end| end.ending.failed() && !end.ordered)
}

/// Ranks that ended with 0.
pub(crate) fn succeeded(ends: &[End]) -> usize {
    ends.iter().filter(|end| !end.ending.failed()).count()
}

/// The closing summary: empty if no rank failed. Ranks that a signal killed come first.
/// Ranks that gaspi_run ended after a failure are only counted.
pub(crate) fn summary<'a>(ends: &[End], host: impl Fn(usize) -> &'a str) -> String {
    let killed = |end: &&End| matches!(end.ending, Ending::Killed { .. } | Ending::Lost);
    let failed = || ends.iter().filter(|end| end.ending.failed() && !end.ordered);
    let mut text = String::new();
    let sorted = failed().filter(killed).chain(failed().filter(|end| !killed(end)));
    for end in sorted.take(NAMED_MAX) {
        let how = match end.ending {
            Ending::Exited(status) => format!("ended with exit status {status}"),
            Ending::Killed { signal, core } => {
                let core = if core { ", core dumped" } else { "" };
                format!("was killed by signal {signal} ({}){core}", signals::name(signal))
            }
            Ending::Lost => "was lost with its host".to_owned(),
        };
        let (rank, pid, host) = (end.rank, end.pid, host(end.rank));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "gaspi_run: rank {rank} (pid {pid}, host {host}) {how}");
    }
    let more = failed().count().saturating_sub(NAMED_MAX);
    if more > 0 {
        let _ = writeln!(text, "gaspi_run: {more} more ranks failed");
    }
    let ordered = ends.iter().filter(|end| end.ordered && end.ending.failed()).count();
    if ordered > 0 {
        let ranks = if ordered == 1 { "rank was" } else { "ranks were" };
        let _ = writeln!(text, "gaspi_run: {ordered} {ranks} ended by gaspi_run");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, ending: Ending, ordered: bool) -> End {
        End { rank, pid: 100 + rank as i32, ending, ordered, after: Duration::ZERO }
    }

    #[test]
    fn signals_first_then_statuses_then_counts() {
        let killed = Ending::Killed { signal: 9, core: false };
        let ends = [
            end(3, Ending::Exited(0), false),
            end(0, Ending::Exited(1), false),
            end(2, killed, false),
            end(1, Ending::Killed { signal: 15, core: false }, true),
            end(5, Ending::Lost, false),
        ];
        assert_eq!(status(&ends), 1);
        assert_eq!((first(&ends).map(|end| end.rank), succeeded(&ends)), (Some(0), 1));
        assert_eq!(
            summary(&ends, |_| "x"),
            "gaspi_run: rank 2 (pid 102, host x) was killed by signal 9 (SIGKILL)\n\
             gaspi_run: rank 5 (pid 105, host x) was lost with its host\n\
             gaspi_run: rank 0 (pid 100, host x) ended with exit status 1\n\
             gaspi_run: 1 rank was ended by gaspi_run\n"
        );
        assert_eq!((status(&ends[2..]), status(&ends[4..])), (137, 255));
        assert_eq!((status(&ends[..1]), summary(&ends[..1], |_| "x")), (0, String::new()));
    }

    #[test]
    fn thousands_are_counted() {
        let ends: Vec<End> = (0..1000).map(|rank| end(rank, Ending::Exited(2), false)).collect();
        let text = summary(&ends, |_| "x");
        assert_eq!(text.lines().count(), NAMED_MAX + 1);
        assert!(text.ends_with("984 more ranks failed\n"), "{text}");
    }
}
