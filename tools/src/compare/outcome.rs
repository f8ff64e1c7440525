//! What a comparison prints and leaves: tables with ratios and goals, JSON lines for programs,
//! charts.

use super::chart::{self, Line};
use super::goals::{Goals, Least, Setting};
use super::no_result::{self, NoResult};
use super::operation::Operation;
use super::rivals::Side;
use super::row::{Best, Row, geometric_mean};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::text::{size, write_line};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Where results go.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Name, version and title of each side, ours first.
    sides: Vec<(&'static str, String, &'static str)>,
    cores: Vec<usize>,
    directory: PathBuf,
    file: File,
    json: bool,
    table: Option<Table>,
    /// Sides whose end was told.
    ended: Vec<bool>,
    wrong: u64,
    /// Goals, and those that were missed.
    goals: usize,
    missed: Vec<String>,
}

/// Rows of one operation on so many ranks.
#[derive(Debug)]
struct Table {
    setting: Setting,
    in_place: bool,
    goals: Goals,
    rows: Vec<Row>,
}

impl Outcome {
    /// Results of these sides, ours first, into `results.jsonl` of `directory`.
    pub(crate) fn new(
        sides: &[Side],
        cores: &[usize],
        directory: &Path,
        json: bool,
    ) -> Result<Outcome> {
        let path = directory.join("results.jsonl");
        let file = File::create(&path).map_err(|error| cannot_write(&path, &error))?;
        let named = |side: &Side| (side.name(), side.version().to_owned(), side.title());
        Ok(Outcome {
            sides: sides.iter().map(named).collect(),
            cores: cores.to_vec(),
            directory: directory.to_path_buf(),
            file,
            json,
            table: None,
            ended: vec![false; sides.len()],
            wrong: 0,
            goals: 0,
            missed: Vec::new(),
        })
    }

    /// Rows of this setting follow.
    pub(crate) fn begin(&mut self, setting: Setting, in_place: bool) -> Result<()> {
        let goals = Goals::of(setting);
        let in_place = setting.operation.is_in_place(in_place);
        self.table = Some(Table { setting, in_place, goals, rows: Vec::new() });
        if self.json {
            return Ok(());
        }
        let sides = self.sides.iter();
        let versions: Vec<String> =
            sides.map(|(_, version, title)| format!("{title} {version}")).collect();
        let cores: Vec<String> = self.cores.iter().map(usize::to_string).collect();
        let place = if in_place { ", in place" } else { "" };
        write_line(&format!(
            "\n# {}\n# {}\n# {} ranks, rank r on core r modulo {} of {}; transport {}; gaspi's \
             buffers in {} memory\n# {}{place}, floats, sum; inputs rewritten before each call, \
             outside of the time\n# medians in us, until the last rank has returned; x best: how \
             many times as fast as the best of the others\n\n{}",
            versions.join(", "),
            machine::processor(),
            setting.ranks,
            self.cores.len(),
            cores.join(","),
            transport(setting),
            setting.memory.name(),
            setting.operation.name(),
            self.head()
        ))
    }

    fn head(&self) -> String {
        let mut text = format!("{:<14}{:>6}", "operation", "size");
        for (_, _, title) in &self.sides {
            text.push_str(&format!("{title:>13}"));
        }
        text.push_str(&format!("{:>9}{:>9}{:>5}", "x best", "goal", "met"));
        text
    }

    /// Takes a row of the table.
    pub(crate) fn row(&mut self, row: Row) -> Result<()> {
        let Some(table) = &mut self.table else { return Ok(()) };
        let least = table.goals.least(row.shape.bytes());
        let best = row.best();
        self.wrong += row.wrong();
        if let (Some(least), Some(best)) = (least, best) {
            self.goals += 1;
            if !least.is_met(best.ratio) {
                let what = format!("{} at {}", title(table.setting), size(row.shape.bytes()));
                self.missed.push(format!("{what}: {:.2}x, goal {}", best.ratio, least.text()));
            }
        }
        for side in 0..self.sides.len() {
            if let Some(object) = self.object(&row, side, best, least) {
                self.write(&object)?;
            }
        }
        if !self.json {
            write_line(&line(&row, best, least))?;
        }
        if let Some(table) = &mut self.table {
            table.rows.push(row);
        }
        Ok(())
    }

    /// Takes a library that is not compared at all.
    pub(crate) fn without(&mut self, library: &str, reason: &str) -> Result<()> {
        self.write(&json!({ "test": "compare", "library": library, "reason": reason }))
    }

    /// Writes an object at once: what follows may fail.
    fn write(&mut self, object: &Value) -> Result<()> {
        let object = object.to_string();
        writeln!(self.file, "{object}")
            .map_err(|error| cannot_write(&self.directory.join("results.jsonl"), &error))?;
        if self.json { write_line(&object) } else { Ok(()) }
    }

    fn object(
        &self,
        row: &Row,
        side: usize,
        best: Option<Best>,
        least: Option<Least>,
    ) -> Option<Value> {
        let (name, version, _) = &self.sides[side];
        let (lane, table) = (row.lanes.get(side)?, self.table.as_ref()?);
        let mut object = json!({
            "test": "compare",
            "operation": row.shape.operation.name(),
            "type": "f32",
            "ranks": row.ranks,
            "cores": self.cores.len(),
            "transport": transport(table.setting),
            "memory": if side == 0 { table.setting.memory.name() } else { "private" },
            "in_place": row.shape.in_place,
            "elements": row.shape.count,
            "size_bytes": row.shape.bytes(),
            "library": name,
            "version": version,
        });
        match lane {
            Ok(lane) => {
                object["calls"] = json!(lane.samples.count());
                object["p50_us"] = json!(lane.samples.median());
                object["p99_us"] = json!(lane.samples.quantile(0.99));
                object["min_us"] = json!(lane.samples.min());
                object["bandwidth_gb_s"] = json!(row.gb_s(side));
                object["ours_is_faster_by"] = json!(row.ratio(side));
                object["errors"] = json!(lane.wrong);
            }
            Err(absence) => object["reason"] = json!(absence.reason()?),
        }
        if side == 0 {
            object["best_rival"] = json!(best.map(|best| self.sides[best.side].0));
            object["of_best"] = json!(best.map(|best| best.ratio));
            object["goal"] = json!(least.map(Least::figure));
            object["goal_met"] =
                json!(least.zip(best).map(|(least, best)| least.is_met(best.ratio)));
        }
        Some(object)
    }

    /// Ends a table: its means and its chart.
    pub(crate) fn end(&mut self) -> Result<()> {
        let Some(table) = self.table.take() else { return Ok(()) };
        self.tell_absences(&table)?;
        let ratios: Vec<f64> =
            table.rows.iter().filter_map(|row| Some(row.best()?.ratio)).collect();
        let mut text = String::from("\n# geometric means of how many times as fast gaspi is:");
        for side in 1..self.sides.len() {
            let ratios: Vec<f64> = table.rows.iter().filter_map(|row| row.ratio(side)).collect();
            if let Some(mean) = geometric_mean(&ratios) {
                text.push_str(&format!(" {} {mean:.2}x,", self.sides[side].2));
            }
        }
        let all = geometric_mean(&ratios);
        if let Some(mean) = all {
            text.push_str(&format!(" the best of them {mean:.2}x"));
        }
        if let Some(mean) = table.goals.mean(&table.rows) {
            self.goals += 1;
            let is_met = mean.ratio >= mean.least;
            let what = format!(
                "from {} to {} {:.2}x, goal >={:.2}x",
                size(mean.from),
                size(mean.to),
                mean.ratio,
                mean.least
            );
            let verdict = if is_met { "met" } else { "MISSED" };
            text.push_str(&format!("\n# geometric mean {what}: {verdict}"));
            if !is_met {
                self.missed.push(format!("{}, mean {what}", title(table.setting)));
            }
        }
        let chart = self.draw(&table)?;
        if self.json {
            return Ok(());
        }
        if all.is_some() {
            write_line(&text)?;
        }
        chart.map_or(Ok(()), |path| write_line(&format!("# chart: {}", path.display())))
    }

    /// Says why cells of a table are empty: below it, or beside the objects.
    fn tell_absences(&mut self, table: &Table) -> Result<()> {
        let mut text = String::new();
        for (side, (_, _, title)) in self.sides.iter().enumerate() {
            for note in no_result::notes(title, &table.rows, side, self.ended[side]) {
                text.push_str(&format!("\n# {note}"));
            }
            let is_gone = |row: &Row| matches!(row.lanes.get(side), Some(Err(NoResult::Gone(_))));
            self.ended[side] |= table.rows.iter().any(is_gone);
        }
        match (text.is_empty(), self.json) {
            (false, false) => write_line(&text),
            (false, true) => {
                eprintln!("{}", text.trim_start());
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the chart of a table, if there is something to show.
    fn draw(&self, table: &Table) -> Result<Option<PathBuf>> {
        let line = |side: usize| -> Line {
            let place = |row: &Row| Some((row.shape.bytes() as f64, row.median(side)?));
            let (_, version, title) = &self.sides[side];
            let points = table.rows.iter().filter_map(place).collect();
            Line { name: format!("{title} {version}"), points }
        };
        let lines: Vec<Line> = (0..self.sides.len()).map(line).collect();
        let place = if table.in_place { ", in place" } else { "" };
        let head = format!("{} of floats{place}", title(table.setting));
        let Some(text) = chart::draw(&head, &lines) else { return Ok(None) };
        let setting = table.setting;
        let path = self.directory.join(format!(
            "{}-{}-{}-{}.svg",
            setting.operation.name(),
            setting.ranks,
            transport(setting),
            setting.memory.name()
        ));
        fs::write(&path, text).map_err(|error| cannot_write(&path, &error))?;
        Ok(Some(path))
    }

    /// The last words; wrong results are a failure.
    pub(crate) fn finish(&self) -> Result<()> {
        if !self.json {
            let verdict = match (self.goals, self.missed.len()) {
                (0, _) => "no row has a goal".to_owned(),
                (goals, 0) => format!("all {goals} goals are met"),
                (goals, missed) => {
                    let list = self.missed.join("\n#   ");
                    format!("{} of {goals} goals are met; missed:\n#   {list}", goals - missed)
                }
            };
            let path = self.directory.join("results.jsonl");
            write_line(&format!("\n# {verdict}\n# written to {}", path.display()))?;
        }
        match self.wrong {
            0 => Ok(()),
            wrong => Err(Failure::run(format!(
                "{wrong} elements were not what they had to be; see errors in the JSON lines"
            ))),
        }
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    Failure::run(format!("cannot write {}: {error}", path.display()))
}

fn transport(setting: Setting) -> &'static str {
    if setting.tcp { "tcp" } else { "shm" }
}

/// What a table is about.
fn title(setting: Setting) -> String {
    let (operation, memory) = (setting.operation.name(), setting.memory.name());
    format!("{operation}, {} ranks, {}, {memory} memory", setting.ranks, transport(setting))
}

/// A row of the table.
fn line(row: &Row, best: Option<Best>, least: Option<Least>) -> String {
    let name = row.shape.operation.name();
    let bytes = match row.shape.operation {
        Operation::Barrier => "-".to_owned(),
        _ => size(row.shape.bytes()),
    };
    let mut text = format!("{name:<14}{bytes:>6}");
    for side in 0..row.lanes.len() {
        match row.median(side) {
            Some(us) => text.push_str(&format!("{us:>13.3}")),
            None => text.push_str(&format!("{:>13}", "-")),
        }
    }
    let ratio = best.map_or("-".to_owned(), |best| format!("{:.2}x", best.ratio));
    let goal = least.map_or("-".to_owned(), Least::text);
    let is_met = least.zip(best).map(|(least, best)| least.is_met(best.ratio));
    let met = match is_met {
        Some(true) => "yes",
        Some(false) => "NO",
        None => "-",
    };
    text.push_str(&format!("{ratio:>9}{goal:>9}{met:>5}"));
    text
}

#[cfg(test)]
mod tests {
    use super::super::environment::Installed;
    use super::super::operation::Memory;
    use super::super::rivals::Rival;
    use super::super::row::tests::row;
    use super::*;

    const SETTING: Setting = Setting {
        operation: Operation::Allreduce,
        tcp: false,
        memory: Memory::Segment,
        ranks: 2,
        crowded: false,
    };

    fn outcome(directory: &Path) -> Outcome {
        let installed = Installed { prefix: "/p".into(), version: "2021.19".to_owned() };
        let sides = [Side::Ours("/l/libgaspi.so".into()), Side::Rival(Rival::Impi, installed)];
        let mut outcome = Outcome::new(&sides, &[0, 1], directory, true).unwrap();
        outcome.begin(SETTING, true).unwrap();
        outcome
    }

    fn pair(bytes: usize, theirs: f64) -> Row {
        row(Operation::Allreduce, bytes, &[Some(1.0), Some(theirs)])
    }

    #[test]
    fn the_columns_of_head_and_rows_end_together() {
        let directory = tempfile::tempdir().unwrap();
        let row = pair(4096, 1.2);
        let text = line(&row, row.best(), Some(Least::Ratio(1.4)));
        assert_eq!(text, "allreduce         4K        1.000        1.200    1.20x  >=1.40x   NO");
        assert_eq!(outcome(directory.path()).head().len(), text.len());
        let alone = row_of_rival_alone();
        let text = line(&alone, alone.best(), None);
        assert_eq!(text, "gather             8            -        4.000        -        -    -");
    }

    fn row_of_rival_alone() -> Row {
        row(Operation::Gather, 8, &[None, Some(4.0)])
    }

    #[test]
    fn every_library_gets_an_object_and_missed_goals_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let mut outcome = outcome(directory.path());
        outcome.row(pair(4096, 1.2)).unwrap();
        outcome.row(pair(1 << 20, 4.0)).unwrap();
        outcome.row(row_of_rival_alone()).unwrap();
        outcome.end().unwrap();
        outcome.finish().unwrap();
        let missed = [
            "allreduce, 2 ranks, shm, segment memory at 4K: 1.20x, goal >=1.40x",
            "allreduce, 2 ranks, shm, segment memory, mean from 4K to 1M 2.19x, goal >=2.50x",
        ];
        assert_eq!((outcome.goals, &outcome.missed[..]), (3, &missed.map(str::to_owned)[..]));
        let text = fs::read_to_string(directory.path().join("results.jsonl")).unwrap();
        let objects: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(objects.len(), 5);
        assert_eq!(objects[0]["library"], "gaspi");
        assert_eq!(objects[0]["best_rival"], "impi");
        assert_eq!(objects[0]["goal_met"], false);
        assert_eq!(objects[0]["memory"], "segment");
        assert_eq!(objects[1]["version"], "2021.19");
        assert_eq!(objects[1]["memory"], "private");
        assert_eq!(objects[2]["size_bytes"], 1 << 20);
        assert_eq!((&objects[2]["of_best"], &objects[2]["goal_met"]), (&json!(4.0), &json!(true)));
        let chart = directory.path().join("allreduce-2-shm-segment.svg");
        let chart = fs::read_to_string(chart).unwrap();
        assert!(chart.contains("Intel MPI 2021.19") && chart.contains("in place"), "{chart}");
    }

    #[test]
    fn wrong_results_are_a_failure() {
        let directory = tempfile::tempdir().unwrap();
        let mut outcome = outcome(directory.path());
        let mut row = pair(8, 2.0);
        row.lanes.iter_mut().flatten().for_each(|lane| lane.wrong = 7);
        outcome.row(row).unwrap();
        assert!(outcome.finish().unwrap_err().message.contains("14 elements"));
    }
}
