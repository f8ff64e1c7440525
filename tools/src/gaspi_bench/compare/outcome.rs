//! What a comparison prints: a table with ratios, and JSON lines for programs.

use super::jobs::Operation;
use super::rivals::Side;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::measure::Samples;
use crate::report::write_line;
use crate::transport::Choice;
use serde_json::{Value, json};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Bytes of an element.
const DOUBLE: u32 = 8;

/// One operation, by side; ours is the first.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) operation: Operation,
    pub(crate) samples: Vec<Samples>,
    /// Medians of the bursts, in the order in which they were made.
    pub(crate) bursts: Vec<Vec<f64>>,
    pub(crate) wrong: Vec<u64>,
}

impl Row {
    /// Our time in terms of that of `side`: below 1 ours is faster. The median over the rounds: the
    /// bursts of a round follow each other at once, while the machine itself may be twice as fast
    /// later.
    fn ratio(&self, side: usize) -> f64 {
        let pairs = self.bursts[0].iter().zip(&self.bursts[side]);
        Samples::new(pairs.map(|(ours, theirs)| ours / theirs).collect()).median()
    }

    fn name(&self) -> &'static str {
        match self.operation {
            Operation::Barrier => "barrier",
            Operation::Allreduce(_) => "allreduce",
        }
    }

    fn count(&self) -> u32 {
        match self.operation {
            Operation::Barrier => 0,
            Operation::Allreduce(count) => count,
        }
    }
}

/// Where results go.
#[derive(Debug)]
pub(crate) struct Outcome {
    sides: Vec<(&'static str, String)>,
    heads: Vec<&'static str>,
    cores: Vec<usize>,
    ranks: u32,
    file: File,
    path: PathBuf,
    transport: &'static str,
    json: bool,
    wrong: u64,
    /// Rows in which a rival was faster.
    slower: Vec<String>,
}

impl Outcome {
    /// Results of these sides, ours first, into `results.jsonl` of `directory`.
    pub(crate) fn new(
        sides: &[Side],
        cores: &[usize],
        directory: &Path,
        transport: Choice,
        json: bool,
    ) -> Result<Outcome> {
        let path = directory.join("results.jsonl");
        let file = File::create(&path)
            .map_err(|error| Failure::run(format!("cannot write {}: {error}", path.display())))?;
        let outcome = Outcome {
            sides: sides.iter().map(|side| (side.name(), side.version().to_owned())).collect(),
            heads: sides.iter().map(Side::title).collect(),
            cores: cores.to_vec(),
            ranks: 0,
            file,
            path,
            transport: if transport == Choice::Tcp { "tcp" } else { "shm" },
            json,
            wrong: 0,
            slower: Vec::new(),
        };
        Ok(outcome)
    }

    /// Rows of so many ranks follow.
    pub(crate) fn begin(&mut self, ranks: u32) -> Result<()> {
        self.ranks = ranks;
        if self.json {
            return Ok(());
        }
        let sides = self.heads.iter().zip(&self.sides);
        let versions: Vec<String> =
            sides.map(|(head, (_, version))| format!("{head} {version}")).collect();
        let cores: Vec<String> = self.cores.iter().map(usize::to_string).collect();
        write_line(&format!(
            "\n# {}\n# {}\n# {ranks} ranks, rank r on core r modulo {} of {}; transport {}; doubles, \
             sum, buffers rewritten before each call\n# medians of the slowest rank in us per call; \
             x: ours in terms of theirs, median of the rounds, below 1 is faster\n\n{}",
            versions.join(", "),
            machine::processor(),
            self.cores.len(),
            cores.join(","),
            self.transport,
            self.head()
        ))
    }

    fn head(&self) -> String {
        let mut text = format!("{:<10}{:>9}{:>12}", "operation", "doubles", self.heads[0]);
        for head in &self.heads[1..] {
            text.push_str(&format!("{head:>14}{:>8}", "x"));
        }
        text
    }

    /// Takes a row.
    pub(crate) fn row(&mut self, row: &Row) -> Result<()> {
        for side in 0..self.sides.len() {
            let object = self.object(row, side).to_string();
            writeln!(self.file, "{object}")
                .map_err(|error| Failure::run(format!("{}: {error}", self.path.display())))?;
            if self.json {
                write_line(&object)?;
            }
            if side > 0 && row.ratio(side) >= 1.0 {
                let (what, count, than) = (row.name(), row.count(), self.heads[side]);
                self.slower.push(format!("{what} {count} at {} ranks ({than})", self.ranks));
            }
        }
        self.wrong += row.wrong.iter().sum::<u64>();
        if self.json { Ok(()) } else { write_line(&line(row)) }
    }

    fn object(&self, row: &Row, side: usize) -> Value {
        let (name, version) = &self.sides[side];
        let samples = &row.samples[side];
        json!({
            "test": "compare",
            "operation": row.name(),
            "ranks": self.ranks,
            "cores": self.cores.len(),
            "transport": self.transport,
            "elements": row.count(),
            "size_bytes": row.count() * DOUBLE,
            "library": name,
            "version": version,
            "p50_us": samples.median(),
            "p99_us": samples.quantile(0.99),
            "min_us": samples.min(),
            "ours_of_this": row.ratio(side),
            "errors": row.wrong[side],
        })
    }

    /// The last words; wrong results are a failure.
    pub(crate) fn finish(&self) -> Result<()> {
        if !self.json {
            let verdict = match self.slower.as_slice() {
                [] => "gaspi is faster in every row".to_owned(),
                slower => format!("gaspi is not faster in: {}", slower.join("; ")),
            };
            write_line(&format!("\n# {verdict}\n# written to {}", self.path.display()))?;
        }
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::run(format!("{wrong} elements were not the sum; see errors"))),
        }
    }
}

/// A row of the table.
fn line(row: &Row) -> String {
    let count = match row.operation {
        Operation::Barrier => "-".to_owned(),
        Operation::Allreduce(count) => count.to_string(),
    };
    let mut text = format!("{:<10}{count:>9}{:>12.3}", row.name(), row.samples[0].median());
    for side in 1..row.samples.len() {
        let (median, ratio) = (row.samples[side].median(), row.ratio(side));
        text.push_str(&format!("{median:>14.3}{ratio:>8.2}"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: f64, theirs: f64) -> Row {
        Row {
            operation: Operation::Allreduce(4),
            samples: [ours, theirs].map(|us| Samples::new(vec![us, us, 9.0 * us])).to_vec(),
            bursts: vec![vec![ours, 2.0 * ours, ours], vec![theirs, 2.0 * theirs, 9.0 * theirs]],
            wrong: vec![0, 0],
        }
    }

    fn outcome(directory: &Path) -> Outcome {
        let sides = [
            Side::Ours("/l/libgaspi.so".into()),
            Side::Rival(
                super::super::rivals::Rival::Impi,
                super::super::environment::Installed {
                    prefix: "/p".into(),
                    version: "2021.19".to_owned(),
                },
            ),
        ];
        Outcome::new(&sides, &[0, 1], directory, Choice::Shm, true).unwrap()
    }

    #[test]
    fn ratios_are_those_of_most_rounds() {
        assert_eq!(row(1.0, 4.0).ratio(1), 0.25);
        assert_eq!(row(1.0, 4.0).ratio(0), 1.0);
        assert_eq!(line(&row(1.0, 4.0)), "allreduce         4       1.000         4.000    0.25");
    }

    #[test]
    fn the_columns_of_head_and_rows_end_together() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(outcome(directory.path()).head().len(), line(&row(1.0, 4.0)).len());
    }

    #[test]
    fn every_library_gets_a_line_and_slower_rows_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut outcome = outcome(directory.path());
        outcome.begin(2).unwrap();
        outcome.row(&row(1.0, 4.0)).unwrap();
        assert!(outcome.slower.is_empty() && outcome.finish().is_ok());
        outcome.row(&row(4.0, 1.0)).unwrap();
        assert_eq!(outcome.slower, ["allreduce 4 at 2 ranks (Intel MPI)"]);
        let text = std::fs::read_to_string(directory.path().join("results.jsonl")).unwrap();
        let objects: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects.len(), 4);
        assert_eq!(
            (&objects[1]["library"], &objects[1]["version"]),
            (&json!("impi"), &json!("2021.19"))
        );
        assert_eq!(objects[1]["size_bytes"], 32);
        assert_eq!(objects[1]["ours_of_this"], 0.25);
    }

    #[test]
    fn wrong_sums_are_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let mut outcome = outcome(directory.path());
        outcome.row(&Row { wrong: vec![0, 7], ..row(1.0, 4.0) }).unwrap();
        assert!(outcome.finish().unwrap_err().message.contains("7 elements"));
    }
}
