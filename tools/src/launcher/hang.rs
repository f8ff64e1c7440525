//! The hang table: what every rank is doing, to find out why a job makes no progress.

use crate::process::Ending;
use crate::report;
use crate::topology::as_list;
use gaspi_core::bootstrap::Server;
use gaspi_core::{Life, Observer, Pairs, Rank, Wait};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::time::Duration;

/// A call in which a thread of a rank sleeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) call: String,
    pub(crate) object: String,
    pub(crate) since: Duration,
    /// Whom it waits for.
    pub(crate) awaited: Vec<usize>,
    /// There may be more of them.
    pub(crate) in_part: bool,
}

impl From<Wait> for Waiting {
    fn from(wait: Wait) -> Waiting {
        Waiting {
            call: wait.call.to_owned(),
            object: wait.object,
            since: wait.since,
            awaited: wait.awaited.iter().map(|rank| rank.index()).collect(),
            in_part: wait.in_part,
        }
    }
}

/// What is known of one rank.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) pid: i32,
    pub(crate) state: String,
    /// What it does if it does not wait.
    pub(crate) doing: String,
    pub(crate) waits: Vec<Waiting>,
    /// Its RDMA connections; empty if it has made none.
    pub(crate) pairs: String,
}

impl Row {
    /// Of a rank of which nothing can be seen.
    pub(crate) fn unknown(pid: i32, state: &str, doing: &str) -> Row {
        let (state, doing) = (state.to_owned(), doing.to_owned());
        Row { pid, state, doing, ..Row::default() }
    }
}

/// The queue pairs of a rank in words.
fn in_words(pairs: Pairs) -> String {
    let plural = if pairs.up == 1 { "" } else { "s" };
    let mut text = format!("{} RDMA connection{plural} up", pairs.up);
    // Writing to a string cannot fail.
    if pairs.being_made > 0 {
        let _ = write!(text, ", {} being made", pairs.being_made);
    }
    if pairs.failed > 0 {
        let _ = write!(text, ", {} failed so far", pairs.failed);
    }
    let _ = match pairs.messages {
        None => write!(text, "; messages by TCP"),
        Some(1) => write!(text, "; messages by RDMA with 1 rank"),
        Some(peers) => write!(text, "; messages by RDMA with {peers} ranks"),
    };
    text
}

/// What a rank of this machine does, whose process runs or has ended so.
pub(crate) fn row(host: &Server, rank: u32, pid: i32, ending: Option<Ending>) -> Row {
    let rank = Rank(rank as u16);
    let area = host.shared_area(rank);
    let observer = area.map(|(area, layout)| Observer::new(area, layout));
    let seen = observer.as_ref().and_then(|observer| observer.as_ref().ok());
    match ending {
        None => {
            let mut row = running(host, seen, rank, pid);
            if let Some(Err(error)) = &observer {
                row.doing = format!("calls are not shown: {error}");
            }
            row
        }
        Some(ending) => {
            let died = seen.is_some_and(|observer| observer.life(rank) == Life::Dead);
            Row::unknown(pid, if died { "dead" } else { "ended" }, &report::phrase(ending))
        }
    }
}

/// A rank whose process runs.
fn running(host: &Server, observer: Option<&Observer>, rank: Rank, started: i32) -> Row {
    let presence = host.presence(rank);
    let life = observer.map_or(Life::Absent, |observer| observer.life(rank));
    // The process that joined may be a child of the one that was started.
    let pid = presence.as_ref().map_or(started, |presence| presence.pid);
    let mut waits = observer.map_or(Vec::new(), |observer| observer.waits(rank));
    let (mut state, doing) = match (&presence, life) {
        (Some(presence), _) if presence.missing.is_some() => {
            if let Some((since, awaited)) = presence.missing.clone() {
                let (call, object) = ("proc_init", String::new());
                waits = vec![Wait { call, object, since, awaited, in_part: false }];
            }
            ("not joined", "")
        }
        (Some(_), Life::Absent | Life::Left) => ("not joined", "in proc_init"),
        (None, Life::Absent) => ("not joined", "has not called proc_init"),
        (None, Life::Left) => ("left", "has called proc_term"),
        (_, Life::Joined) => ("joined", "computing, or in a call that does not sleep"),
        (_, Life::Dead) => ("dead", "the process that joined has ended, what started it has not"),
    };
    let joined;
    if is_stopped(pid) {
        joined = format!("{state}, stopped");
        state = &joined;
    }
    let waits = waits.into_iter().map(Waiting::from).collect();
    let pairs = observer.filter(|_| life == Life::Joined).and_then(|seen| seen.pairs(rank));
    let pairs = pairs.map_or(String::new(), in_words);
    Row { pid, state: state.to_owned(), doing: doing.to_owned(), waits, pairs }
}

/// Whether a signal or a debugger has stopped the process.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, field 2, may hold anything; it ends with the last parenthesis.
    let state = stat.rfind(')').and_then(|end| stat[end + 1..].split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

/// The table of all ranks; with the machine of each in a job of several.
pub(crate) fn table(rows: &[Row], hosts: Option<&[&str]>) -> String {
    let titles = ["rank", "host", "pid", "state", "call", "object", "for", "waits for ranks"];
    let mut lines = vec![titles.map(str::to_owned)];
    for (rank, row) in rows.iter().enumerate() {
        let waits = row.waits.iter().map(Some);
        let none = row.waits.is_empty().then_some(None);
        for (number, wait) in waits.chain(none).enumerate() {
            let mut line: [String; COLUMNS] = Default::default();
            if number == 0 {
                line[0] = rank.to_string();
                line[1] = hosts.map_or("", |hosts| hosts[rank]).to_owned();
                line[2] = row.pid.to_string();
                line[3].clone_from(&row.state);
            }
            match wait {
                Some(wait) => {
                    line[4].clone_from(&wait.call);
                    line[5].clone_from(&wait.object);
                    line[6] = duration(wait.since);
                    line[7] = ranks(wait);
                }
                None => line[4].clone_from(&row.doing),
            }
            lines.push(line);
        }
    }
    let shown = |column: &usize| *column != HOST || hosts.is_some();
    let (lines, culprits) = (aligned(&lines, shown), culprits(rows));
    format!("gaspi_run: what the ranks are doing:\n{lines}{culprits}{}", pairs(rows))
}

/// The RDMA connections of ranks that have any, equal ones in one line.
fn pairs(rows: &[Row]) -> String {
    let mut by_text: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    let with_pairs = rows.iter().enumerate().filter(|(_, row)| !row.pairs.is_empty());
    with_pairs.for_each(|(rank, row)| by_text.entry(&row.pairs).or_default().push(rank));
    let mut lines: Vec<(&str, Vec<usize>)> = by_text.into_iter().collect();
    lines.sort_by_key(|(_, ranks)| ranks[0]);
    let line = |(text, ranks): &(&str, Vec<usize>)| {
        let plural = if ranks.len() == 1 { "rank" } else { "ranks" };
        let each = if ranks.len() == 1 { "" } else { " each" };
        format!("gaspi_run: {plural} {}:{each} {text}\n", as_list(ranks))
    };
    lines.iter().map(line).collect()
}

const COLUMNS: usize = 8;
/// The column of the machines.
const HOST: usize = 1;

/// The lines with columns below each other, as far as they are shown.
fn aligned(lines: &[[String; COLUMNS]], shown: impl Fn(&usize) -> bool) -> String {
    // A rank that does not wait has a sentence in the place of the last columns.
    let whole = |line: &[String; COLUMNS]| !line[5].is_empty() || !line[6].is_empty();
    let widths: [usize; COLUMNS] = std::array::from_fn(|column| {
        let counted = lines.iter().filter(|line| column < 4 || whole(line));
        counted.map(|line| line[column].len()).max().unwrap_or(0)
    });
    let mut text = String::new();
    for line in lines {
        let mut words = String::new();
        for column in (0..COLUMNS).filter(&shown) {
            let (cell, width) = (&line[column], widths[column]);
            // Writing to a string cannot fail.
            let _ = match column {
                0 | 2 => write!(words, "  {cell:>width$}"),
                _ => write!(words, "  {cell:<width$}"),
            };
        }
        text.push_str(words.trim_end());
        text.push('\n');
    }
    text
}

/// The ranks that others wait for and that do not wait themselves.
fn culprits(rows: &[Row]) -> String {
    let awaited: BTreeSet<usize> = rows
        .iter()
        .flat_map(|row| &row.waits)
        .flat_map(|wait| wait.awaited.iter().copied())
        .filter(|rank| rows.get(*rank).is_some_and(|row| row.waits.is_empty()))
        .collect();
    if awaited.is_empty() {
        return String::new();
    }
    let list: Vec<usize> = awaited.into_iter().collect();
    let (plural, verb) = if list.len() == 1 { ("rank", "does") } else { ("ranks", "do") };
    format!("gaspi_run: {plural} {}: waited for, but {verb} not wait\n", as_list(&list))
}

fn ranks(wait: &Waiting) -> String {
    let more = if wait.in_part { ", ..." } else { "" };
    format!("{}{more}", as_list(&wait.awaited))
}

/// As a person says it.
pub(crate) fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, doing: &str, waits: Vec<Waiting>) -> Row {
        let (state, doing) = (state.to_owned(), doing.to_owned());
        Row { pid: 4711, state, doing, waits, pairs: String::new() }
    }

    #[test]
    fn connections_by_rdma_are_told_below_the_table() {
        let some = Pairs { up: 4, being_made: 0, failed: 0, messages: None };
        let other = Pairs { up: 1, being_made: 2, failed: 3, messages: Some(1) };
        let with = |pairs| Row { pairs: in_words(pairs), ..row("joined", "computing", vec![]) };
        let none = row("joined", "computing", vec![]);
        let table = table(&[with(some), with(other), with(some), none], None);
        let expected = "\
gaspi_run: ranks 0,2: each 4 RDMA connections up; messages by TCP
gaspi_run: rank 1: 1 RDMA connection up, 2 being made, 3 failed so far; messages by RDMA with 1 rank
";
        assert!(table.ends_with(expected), "{table}");
    }

    fn wait(call: &str, object: &str, seconds: u64, awaited: &[usize]) -> Waiting {
        Waiting {
            call: call.to_owned(),
            object: object.to_owned(),
            since: Duration::from_secs(seconds),
            awaited: awaited.to_vec(),
            in_part: false,
        }
    }

    #[test]
    fn columns_align_and_culprits_are_named() {
        let mut scattered = wait("barrier", "group 31", 7260, &[2, 3]);
        scattered.in_part = true;
        let rows = [
            row("joined", "", vec![wait("barrier", "group 0", 3, &[1, 2, 3]), scattered]),
            row("joined", "", vec![wait("notify_waitsome", "segment 7", 75, &[])]),
            row("joined, stopped", "computing", vec![]),
            row("dead", "killed by signal 9, SIGKILL", vec![]),
        ];
        let expected = "\
gaspi_run: what the ranks are doing:
  rank   pid  state            call             object     for         waits for ranks
     0  4711  joined           barrier          group 0    3.0 s       1-3
                               barrier          group 31   2 h 1 min   2-3, ...
     1  4711  joined           notify_waitsome  segment 7  1 min 15 s
     2  4711  joined, stopped  computing
     3  4711  dead             killed by signal 9, SIGKILL
gaspi_run: ranks 2-3: waited for, but do not wait
";
        assert_eq!(table(&rows, None), expected);
        let expected = "\
gaspi_run: what the ranks are doing:
  rank  host   pid  state            call             object     for         waits for ranks
     0  a     4711  joined           barrier          group 0    3.0 s       1-3
                                     barrier          group 31   2 h 1 min   2-3, ...
     1  bcd   4711  joined           notify_waitsome  segment 7  1 min 15 s
     2  bcd   4711  joined, stopped  computing
     3  a     4711  dead             killed by signal 9, SIGKILL
gaspi_run: ranks 2-3: waited for, but do not wait
";
        assert_eq!(table(&rows, Some(&["a", "bcd", "bcd", "a"])), expected);
    }
}
