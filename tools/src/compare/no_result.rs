//! Why a library has no figures in a row, and how tables and programs are told.

use super::rounds::TOO_SLOW;
use super::row::Row;
use crate::report::size;

/// Why a side has no figures in a row.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Absence {
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

impl Absence {
    /// For programs; none where there is nothing to measure.
    pub(crate) fn reason(&self) -> Option<String> {
        match self {
            Absence::NotOffered => None,
            Absence::TooSlow { us, times, .. } => Some(format!(
                "a call takes {us:.0} us, {times:.0} times as long as with the fastest library; \
                 the limit is {TOO_SLOW:.0} times"
            )),
            Absence::NotTried { times, bytes } => Some(format!(
                "not measured: it took {times:.0} times as long as the fastest library at {}, and \
                 to try it again would take too long",
                place(*bytes)
            )),
            Absence::Gone(reason) => Some(reason.clone()),
        }
    }
}

fn place(bytes: usize) -> String {
    if bytes == 0 { "the barrier".to_owned() } else { size(bytes) }
}

/// What is said below a table about a side's empty cells, without repeating itself. `told` says
/// that the end of its job was told before.
pub(crate) fn notes(title: &str, rows: &[Row], side: usize, told: bool) -> Vec<String> {
    let absences = || {
        let of = |row: &Row| Some((row.shape.bytes(), row.lanes.get(side)?.clone().err()?));
        rows.iter().filter_map(of)
    };
    let mut notes = Vec::new();
    let slow = absences().filter_map(|(bytes, absence)| match absence {
        Absence::TooSlow { times, .. } => Some((bytes, times)),
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
    let untried = absences().filter(|(_, absence)| matches!(absence, Absence::NotTried { .. }));
    let untried: Vec<usize> = untried.map(|(bytes, _)| bytes).collect();
    if !untried.is_empty() {
        notes.push(format!(
            "{title}: - at {}: not tried any more, since it was too slow before",
            list(&untried)
        ));
    }
    let gone = absences().find_map(|(bytes, absence)| match absence {
        Absence::Gone(reason) => Some((bytes, reason)),
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

    fn absent(bytes: usize, absence: Absence) -> Row {
        let mut row = row(Operation::Allreduce, bytes, &[Some(1.0), Some(2.0)]);
        row.lanes[1] = Err(absence);
        row
    }

    #[test]
    fn empty_cells_of_a_table_are_told_once() {
        let slow = |times| Absence::TooSlow { us: 9e3, times, wrong: 0 };
        let rows = [
            absent(8, slow(2000.0)),
            absent(1024, slow(70.0)),
            absent(4096, Absence::NotTried { times: 70.0, bytes: 1024 }),
            absent(8192, Absence::Gone("MPICH: it rains\n  and pours".to_owned())),
            absent(16384, Absence::Gone("MPICH: it rains\n  and pours".to_owned())),
            absent(32768, Absence::NotOffered),
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
