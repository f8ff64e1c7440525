//! Why a library has no figures in a row, as tables and JSON show it.

use super::row::Row;
use super::sampling::TOO_SLOW;
use crate::text::size;

/// Why a side has no figures in a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum NoResult {
    /// The library does not have the operation.
    NotOffered,
    /// Its first calls took `times` as long as those of the best.
    TooSlow {
        us: f64,
        times: f64,
        /// Elements that were not what they had to be.
        wrong: u64,
    },
    /// It was too slow at so many bytes, and to try it again would take too long.
    NotTried { times: f64, bytes: usize },
    /// Its job has ended, or has never run.
    Gone(String),
}

impl NoResult {
    /// For programs; none where there is nothing to measure.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            NoResult::NotOffered => None,
            NoResult::TooSlow { us, times, .. } => Some(format!(
                "a call takes {us:.0} us, {times:.0} times as long as with the fastest library; \
                 the limit is {TOO_SLOW:.0} times"
            )),
            NoResult::NotTried { times, bytes } => Some(format!(
                "not measured: it took {times:.0} times as long as the fastest library at {}, and \
                 to try it again would take too long",
                place(*bytes)
            )),
            NoResult::Gone(reason) => Some(reason.clone()),
        }
    }
}

fn place(bytes: usize) -> String {
    if bytes == 0 { "the barrier".to_owned() } else { size(bytes) }
}

/// What is said below a table about a side's empty cells, without repeating itself. `told` says
/// that the end of its job was told before.
pub(crate) fn notes(title: &str, rows: &[Row], side: usize, told: bool) -> Vec<String> {
    let reasons = || {
        let of = |row: &Row| Some((row.shape.bytes(), row.lanes.get(side)?.clone().err()?));
        rows.iter().filter_map(of)
    };
    let mut notes = Vec::new();
    let slow = reasons().filter_map(|(bytes, reason)| match reason {
        NoResult::TooSlow { times, .. } => Some((bytes, times)),
        _ => None,
    });
    let (slow_at, times): (Vec<usize>, Vec<f64>) = slow.unzip();
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    let list = |bytes: &[usize]| bytes.iter().map(|one| place(*one)).collect::<Vec<_>>().join(", ");
    if !slow_at.is_empty() {
        let range = match (format!("{least:.0}"), format!("{most:.0}")) {
            (least, most) if least == most => least,
            (least, most) => format!("{least} to {most}"),
        };
        notes.push(format!(
            "{title}: - at {}: a call takes {range} times as long as with the fastest library, and \
             from {TOO_SLOW:.0} times on it is not measured",
            list(&slow_at)
        ));
    }
    let untried = reasons().filter(|(_, reason)| matches!(reason, NoResult::NotTried { .. }));
    let untried: Vec<usize> = untried.map(|(bytes, _)| bytes).collect();
    if !untried.is_empty() {
        notes.push(format!(
            "{title}: - at {}: not tried any more, since it was too slow before",
            list(&untried)
        ));
    }
    let gone = reasons().find_map(|(bytes, reason)| match reason {
        NoResult::Gone(reason) => Some((bytes, reason)),
        _ => None,
    });
    match gone {
        Some(_) if told => notes.push(format!("{title}: has ended, see above")),
        // The reason begins with the title.
        Some((bytes, reason)) => {
            notes.push(format!("from {} on without {reason}", place(bytes)).replace('\n', "\n# "));
        }
        None => {}
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::operation::Operation;
    use super::super::row::tests::row;
    use super::*;

    fn without_result(bytes: usize, reason: NoResult) -> Row {
        let mut row = row(Operation::Allreduce, bytes, &[Some(1.0), Some(2.0)]);
        row.lanes[1] = Err(reason);
        row
    }

    #[test]
    fn empty_cells_of_a_table_are_told_once() {
        let slow = |times| NoResult::TooSlow { us: 9e3, times, wrong: 0 };
        let rows = [
            without_result(8, slow(2000.0)),
            without_result(1024, slow(70.0)),
            without_result(4096, NoResult::NotTried { times: 70.0, bytes: 1024 }),
            without_result(8192, NoResult::Gone("MPICH: it rains\n  and pours".to_owned())),
            without_result(16384, NoResult::Gone("MPICH: it rains\n  and pours".to_owned())),
            without_result(32768, NoResult::NotOffered),
        ];
        let expected = [
            "MPICH: - at 8, 1K: a call takes 70 to 2000 times as long as with the fastest library, \
             and from 50 times on it is not measured",
            "MPICH: - at 4K: not tried any more, since it was too slow before",
            "from 8K on without MPICH: it rains\n#   and pours",
        ];
        assert_eq!(notes("MPICH", &rows, 1, false), expected);
        assert_eq!(notes("MPICH", &rows, 1, true)[2], "MPICH: has ended, see above");
        assert!(notes("gaspi", &rows, 0, false).is_empty());
    }
}
