//! The hang table: what every rank is doing, for somebody who wonders why nothing happens.

use crate::report::{self, End};
use crate::topology::as_list;
use gaspi_core::bootstrap::Host;
use gaspi_core::{Life, Observer, Rank, Wait};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

/// What is known of one rank.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Row {
    pid: i32,
    state: String,
    /// What it does if it does not wait.
    doing: String,
    waits: Vec<Wait>,
}

/// The table. `processes` are the pids of the ranks that still run.
pub(crate) fn table(host: &Host, processes: &[Option<i32>], ends: &[End]) -> String {
    let mut text = String::new();
    let mut row = |(rank, process): (usize, &Option<i32>)| {
        let number = Rank(rank as u16);
        let observer = host.observer(number).and_then(|observer| match observer {
            Ok(observer) => Some(observer),
            Err(error) => {
                text = format!("gaspi_run: calls are not shown: {error}\n");
                None
            }
        });
        match process {
            Some(pid) => running(host, observer.as_ref(), number, *pid),
            None => {
                let end = ends.iter().find(|end| end.rank == rank);
                let died = observer.as_ref().is_some_and(|o| o.life(number) == Life::Dead);
                Row {
                    pid: end.map_or(0, |end| end.pid),
                    state: if died { "dead" } else { "ended" }.to_owned(),
                    doing: end.map_or(String::new(), |end| report::phrase(end.ending)),
                    waits: Vec::new(),
                }
            }
        }
    };
    let rows: Vec<Row> = processes.iter().enumerate().map(&mut row).collect();
    text.push_str(&format(&rows));
    text
}

/// A rank whose process runs.
fn running(host: &Host, observer: Option<&Observer>, rank: Rank, started: i32) -> Row {
    let presence = host.presence(rank);
    let life = observer.map_or(Life::Absent, |observer| observer.life(rank));
    // The process that joined may be a child of the one that was started.
    let pid = presence.as_ref().map_or(started, |presence| presence.pid);
    let mut waits = observer.map_or(Vec::new(), |observer| observer.waits(rank));
    let (mut state, doing) = match (&presence, life) {
        (Some(presence), _) if presence.meeting.is_some() => {
            if let Some((since, awaited)) = presence.meeting.clone() {
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
    Row { pid, state: state.to_owned(), doing: doing.to_owned(), waits }
}

/// Whether a signal or a debugger has stopped the process.
fn is_stopped(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name, field 2, may hold anything; it ends with the last parenthesis.
    let state = stat.rfind(')').and_then(|end| stat[end + 1..].split_whitespace().next());
    matches!(state, Some("T" | "t"))
}

fn format(rows: &[Row]) -> String {
    let titles = ["rank", "pid", "state", "call", "object", "for", "waits for ranks"];
    let mut lines = vec![titles.map(str::to_owned)];
    for (rank, row) in rows.iter().enumerate() {
        let waits = row.waits.iter().map(Some);
        let none = row.waits.is_empty().then_some(None);
        for (number, wait) in waits.chain(none).enumerate() {
            let mut line: [String; 7] = Default::default();
            if number == 0 {
                line[0] = rank.to_string();
                line[1] = row.pid.to_string();
                line[2].clone_from(&row.state);
            }
            match wait {
                Some(wait) => {
                    line[3] = wait.call.to_owned();
                    line[4].clone_from(&wait.object);
                    line[5] = duration(wait.since);
                    line[6] = ranks(wait);
                }
                None => line[3].clone_from(&row.doing),
            }
            lines.push(line);
        }
    }
    let mut text = String::from("gaspi_run: what the ranks are doing:\n");
    // A rank that does not wait has a sentence in the place of the last columns.
    let whole = |line: &[String; 7]| !line[4].is_empty() || !line[5].is_empty();
    let widths: [usize; 7] = std::array::from_fn(|column| {
        let counted = lines.iter().filter(|line| column < 3 || whole(line));
        counted.map(|line| line[column].len()).max().unwrap_or(0)
    });
    for line in &lines {
        let mut shown = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            // Writing to a string cannot fail.
            let _ = match column {
                0 | 1 => write!(shown, "  {cell:>width$}"),
                _ => write!(shown, "  {cell:<width$}"),
            };
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text.push_str(&culprits(rows));
    text
}

/// Who is waited for and does not wait.
fn culprits(rows: &[Row]) -> String {
    let awaited: BTreeSet<usize> = rows
        .iter()
        .flat_map(|row| &row.waits)
        .flat_map(|wait| wait.awaited.iter().map(|rank| rank.index()))
        .filter(|rank| rows.get(*rank).is_some_and(|row| row.waits.is_empty()))
        .collect();
    if awaited.is_empty() {
        return String::new();
    }
    let list: Vec<usize> = awaited.into_iter().collect();
    let (plural, verb) = if list.len() == 1 { ("rank", "does") } else { ("ranks", "do") };
    format!("gaspi_run: {plural} {}: waited for, but {verb} not wait\n", as_list(&list))
}

fn ranks(wait: &Wait) -> String {
    let ranks: Vec<usize> = wait.awaited.iter().map(|rank| rank.index()).collect();
    let more = if wait.in_part { ", ..." } else { "" };
    format!("{}{more}", as_list(&ranks))
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

    fn row(state: &str, doing: &str, waits: Vec<Wait>) -> Row {
        Row { pid: 4711, state: state.to_owned(), doing: doing.to_owned(), waits }
    }

    fn wait(call: &'static str, object: &str, seconds: u64, awaited: &[u16]) -> Wait {
        Wait {
            call,
            object: object.to_owned(),
            since: Duration::from_secs(seconds),
            awaited: awaited.iter().map(|rank| Rank(*rank)).collect(),
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
        assert_eq!(format(&rows), expected);
    }
}
