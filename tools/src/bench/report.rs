//! Tables and JSON. Only rank 0 writes.

use crate::arguments::Plain;
use crate::failure::{Failure, Result};
use crate::goals::{self, Goal};
use crate::job::Job;
use crate::machine;
use crate::row::{Comparison, Judged, Moved, Row};
use crate::text::{size, write_line};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// Which columns a test has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Latency,
    /// The same, with what the library counts.
    Step,
    Bandwidth,
    Rate,
    /// Times with goals instead of limits.
    Goals,
    /// Bytes with goals.
    Memory,
    /// The same for one peer: fewer bytes.
    Peers,
    /// The limits themselves.
    Limits,
    /// As nccl-tests has them.
    Moved,
}

impl Layout {
    /// Of rows of memory: heads of the columns, and bytes of their unit.
    fn unit(self) -> Option<(&'static str, &'static str, f64)> {
        match self {
            Layout::Memory => Some(("MiB", "goal MiB", f64::from(1 << 20))),
            Layout::Peers => Some(("KiB", "goal KiB", f64::from(1 << 10))),
            _ => None,
        }
    }
}

/// What every row of a run has in common.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) library: String,
    pub(crate) ranks: usize,
    pub(crate) transport: &'static str,
    pub(crate) placement: String,
    pub(crate) memory: String,
}

impl Facts {
    pub(crate) fn of(job: &Job, memory: String) -> Facts {
        let library = format!("{}, GASPI interface {}", job.library.display(), job.interface);
        let placement = placement(job);
        Facts { library, ranks: job.ranks, transport: job.links.transport, placement, memory }
    }

    fn header(&self) -> String {
        header(&[
            ("library", &self.library),
            ("machine", &machine::processor()),
            ("cores", &self.placement),
            ("ranks", &format!("{}, transport {}", self.ranks, self.transport)),
            ("memory", &self.memory),
        ])
    }
}

/// What a table begins with: this program, and a line for each fact.
pub(crate) fn header(facts: &[(&str, &str)]) -> String {
    let mut text = format!("# gaspi-bench {}\n", env!("CARGO_PKG_VERSION"));
    for (name, value) in facts {
        let _ = writeln!(text, "# {name:<10}{value}");
    }
    text
}

/// Ranks that the header names one by one.
const NAMED_MAX: usize = 8;

fn placement(job: &Job) -> String {
    let bound: Vec<String> = (0..job.ranks.min(NAMED_MAX))
        .map(|rank| match job.core_of(rank) {
            Some(core) => format!("{rank} on core {core}"),
            None => format!("{rank} not bound"),
        })
        .collect();
    let more = if job.ranks > NAMED_MAX { ", ..." } else { "" };
    format!("{}; rank {}{more}", job.places.words(), bound.join(", "))
}

/// Writes rows as they come.
#[derive(Debug)]
pub(crate) struct Report {
    facts: Facts,
    quiet: bool,
    json: bool,
    percentiles: bool,
    goals: bool,
    layout: Option<Layout>,
    begun: bool,
    /// Rows that were held against a goal, and those that missed it.
    judged: usize,
    missed: usize,
}

impl Report {
    pub(crate) fn new(plain: &Plain, facts: Facts, quiet: bool) -> Report {
        Report {
            facts,
            quiet,
            json: plain.json,
            percentiles: plain.percentiles,
            goals: plain.goals,
            layout: None,
            begun: false,
            judged: 0,
            missed: 0,
        }
    }

    /// Writes one row, and before it what a table begins with.
    pub(crate) fn row(&mut self, layout: Layout, row: &Row) -> Result<()> {
        if self.quiet {
            return Ok(());
        }
        let goal =
            self.goals.then(|| goals::of(row, self.facts.ranks, self.facts.transport)).flatten();
        if self.json {
            return write_line(&self.object(layout, row, goal).to_string());
        }
        if !self.begun {
            self.begun = true;
            let times =
                "# times are for one operation, means of batches; p50, p99 and min of those";
            write_line(&format!("{}{times}", self.facts.header()))?;
        }
        let columns = self.columns(layout, row, goal);
        if self.layout != Some(layout) {
            self.layout = Some(layout);
            write_line("")?;
            write_line(&line(&columns, |column| column.head))?;
        }
        write_line(&line(&columns, |column| &column.cell))
    }

    /// Whether the rows have reached their goals, in words.
    fn verdict(&self) -> String {
        match (self.judged, self.missed) {
            (0, _) => "no row has a goal".to_owned(),
            (_, 0) => "all goals are met".to_owned(),
            (_, 1) => "1 goal is missed".to_owned(),
            (_, missed) => format!("{missed} goals are missed"),
        }
    }

    /// Fails if data was wrong: so much of it in all. Rows that were measured together all have
    /// their common errors, so that their sum would be too much.
    pub(crate) fn finish(&self, errors: u64) -> Result<()> {
        if self.goals && !self.json && !self.quiet {
            write_line(&format!("\n# {}", self.verdict()))?;
        }
        match errors {
            0 => Ok(()),
            1 => Err(Failure::run("1 error in the data; see the column errors")),
            errors => {
                Err(Failure::run(format!("{errors} errors in the data; see the column errors")))
            }
        }
    }

    fn object(&self, layout: Layout, row: &Row, goal: Option<Goal>) -> Value {
        let mut object = Map::new();
        let mut set = |name: &str, value: Value| object.insert(name.to_owned(), value);
        set("test", json!(row.test));
        set("variant", json!(row.variant()));
        set("ranks", json!(self.facts.ranks));
        set("transport", json!(self.facts.transport));
        set("memory", json!(self.facts.memory));
        set("size_bytes", json!(row.size));
        match row.resident {
            Some(bytes) => {
                set("resident_bytes", json!(bytes));
            }
            None => {
                for (name, us) in self.times(row) {
                    set(&format!("{}_us", name.replace('.', "")), json!(us));
                }
                set("bandwidth_gb_s", json!(row.gb_s(row.samples.median())));
            }
        }
        if layout == Layout::Rate {
            set("rate_million_s", json!(row.rate()));
        }
        if layout == Layout::Step {
            let [messages, copies] = carried(row);
            set("messages", json!(messages));
            set("copies_per_byte", json!(copies));
        }
        if let Some(moved) = &row.moved {
            set("count", json!(moved.count));
            set("type", json!(moved.ty));
            set("op", json!(moved.op));
            set("algorithm", json!(moved.algorithm));
            set("in_place", json!(moved.in_place));
            set("buffers", json!(moved.memory));
            set("bus_bandwidth_gb_s", json!(row.bus_gb_s()));
            set("noise", json!(row.samples.noise()));
        }
        set("limit", json!(row.limit.as_ref().map(|limit| &limit.name)));
        let limit = row.limit.as_ref().map(|limit| limit.us);
        match layout {
            Layout::Bandwidth => set("limit_gb_s", json!(limit.and_then(|us| row.gb_s(us)))),
            Layout::Memory | Layout::Peers => set("limit_bytes", json!(limit)),
            _ => set("limit_us", json!(limit)),
        };
        set("of_limit", json!(row.of_limit()));
        set("errors", json!(row.errors));
        if self.goals {
            set("goal", json!(goal.map(Goal::figure)));
            set("goal_met", json!(met(row, goal)));
        }
        Value::Object(object)
    }

    fn times(&self, row: &Row) -> Vec<(&'static str, f64)> {
        let of = |share| row.samples.quantile(share);
        let mut times = vec![("p50", of(0.5)), ("p99", of(0.99)), ("min", row.samples.min())];
        if self.percentiles {
            times.insert(1, ("p90", of(0.9)));
            times.insert(3, ("p99.9", of(0.999)));
        }
        times
    }

    /// Columns that users of nccl-tests know.
    fn moved_columns(&mut self, row: &Row, moved: &Moved, goal: Option<Goal>) -> Vec<Column> {
        let mut columns = vec![
            Column::left("test", 16, row.test),
            Column::right("size", 10, row.size.map(|bytes| bytes.to_string())),
            Column::right("count", 10, Some(moved.count.to_string())),
            Column::right("type", 5, Some(moved.ty.to_owned())),
            Column::right("op", 7, moved.op.map(str::to_owned)),
            Column::left("algorithm", 24, moved.algorithm.as_deref().unwrap_or("-")),
            Column::left("place", 5, if moved.in_place { "in" } else { "out" }),
            Column::right("time us", 12, Some(time(row.samples.median()))),
        ];
        if self.percentiles {
            for (head, share) in [("p90 us", 0.9), ("p99 us", 0.99), ("p99.9 us", 0.999)] {
                columns.push(Column::right(head, 12, Some(time(row.samples.quantile(share)))));
            }
        }
        let speed = |gb_s: Option<f64>| gb_s.map(|gb_s| format!("{gb_s:.2}"));
        columns.push(Column::right("algbw", 8, speed(row.gb_s(row.samples.median()))));
        columns.push(Column::right("busbw", 8, speed(row.bus_gb_s())));
        columns.push(Column::right("errors", 7, Some(row.errors.to_string())));
        if let Some(comparison) = moved.comparison {
            let ratio = row.of_limit().map(|ratio| ratio_text(row.judged, ratio));
            let head = match comparison {
                Comparison::Algorithms => "of best",
                Comparison::Modes => "of fast",
                Comparison::Writes => "of p2p",
            };
            columns.push(Column::right(head, 8, ratio));
            let noise = row.samples.noise().map(|noise| format!("{:.1}%", noise * 100.0));
            columns.push(Column::right("noise", 6, noise));
            self.add_goal(&mut columns, row, goal);
        }
        columns
    }

    /// Whether a row reaches its goal, where goals are asked for.
    fn add_goal(&mut self, columns: &mut Vec<Column>, row: &Row, goal: Option<Goal>) {
        if !self.goals {
            return;
        }
        let met = met(row, goal);
        self.judged += usize::from(met.is_some());
        self.missed += usize::from(met == Some(false));
        columns.push(Column::right("goal", 9, goal.map(|goal| goal_text(row, goal))));
        let word = met.map(|met| if met { "yes" } else { "NO" }.to_owned());
        columns.push(Column::right("met", 4, word));
    }

    fn columns(&mut self, layout: Layout, row: &Row, goal: Option<Goal>) -> Vec<Column> {
        if let Some(moved) = &row.moved {
            return self.moved_columns(row, moved, goal);
        }
        let mut columns =
            vec![Column::left("test", 16, row.test), Column::left("variant", 26, row.variant)];
        if layout != Layout::Goals && layout.unit().is_none() {
            columns.push(Column::right("size", 6, row.size.map(size)));
        }
        if let Some((head, goal_head, unit)) = layout.unit() {
            let text = |bytes: f64| format!("{:.2}", bytes / unit);
            columns.push(Column::right(head, 12, row.resident.map(|bytes| text(bytes as f64))));
            let limit = row.limit.as_ref().map(|limit| text(limit.us));
            columns.push(Column::right(goal_head, 12, limit));
        } else {
            self.add_figures(&mut columns, layout, row);
        }
        if layout != Layout::Limits {
            let ratio = row.of_limit().map(|ratio| ratio_text(row.judged, ratio));
            let head = if row.limit_is_goal { "of goal" } else { "of limit" };
            columns.push(Column::right(head, 9, ratio));
        }
        columns.push(Column::right("errors", 7, Some(row.errors.to_string())));
        self.add_goal(&mut columns, row, goal);
        if !matches!(layout, Layout::Limits | Layout::Goals) && layout.unit().is_none() {
            let name = row.limit.as_ref().map_or("-", |limit| &limit.name);
            columns.push(Column::left("the limit", 9, name));
        }
        columns
    }

    fn add_figures(&self, columns: &mut Vec<Column>, layout: Layout, row: &Row) {
        let heads = ["p50 us", "p90 us", "p99 us", "p99.9 us", "min us"];
        for (name, us) in self.times(row) {
            let head = heads.iter().find(|head| head.strip_suffix(" us") == Some(name));
            columns.push(Column::right(head.copied().unwrap_or(name), 12, Some(time(us))));
        }
        let speed = |gb_s: Option<f64>| gb_s.map(|gb_s| format!("{gb_s:.2}"));
        if layout != Layout::Goals {
            columns.push(Column::right("GB/s", 9, speed(row.gb_s(row.samples.median()))));
        }
        if layout == Layout::Rate {
            let rate = row.rate().map(|rate| format!("{rate:.2}"));
            columns.push(Column::right("million/s", 10, rate));
        }
        if layout == Layout::Step {
            let [messages, copies] = carried(row).map(|f| f.map(|f| format!("{f:.2}")));
            columns.push(Column::right("messages", 10, messages));
            columns.push(Column::right("copies/B", 8, copies));
        }
        let limit = row.limit.as_ref().map(|limit| limit.us);
        match layout {
            Layout::Limits | Layout::Memory | Layout::Peers | Layout::Moved => {}
            Layout::Bandwidth => {
                let gb_s = speed(limit.and_then(|us| row.gb_s(us)));
                columns.push(Column::right("limit GB/s", 11, gb_s));
            }
            Layout::Goals => columns.push(Column::right("goal us", 12, limit.map(time))),
            Layout::Latency | Layout::Step | Layout::Rate => {
                columns.push(Column::right("limit us", 12, limit.map(time)));
            }
        }
    }
}

/// Messages of an operation, and copies of each of its bytes.
fn carried(row: &Row) -> [Option<f64>; 2] {
    [row.carried.map(|carried| carried.messages), row.carried.map(|carried| carried.copies)]
}

fn met(row: &Row, goal: Option<Goal>) -> Option<bool> {
    goal?.is_met(row)
}

fn ratio_text(judged: Judged, ratio: f64) -> String {
    match judged {
        Judged::Time => format!("{ratio:.2}x"),
        Judged::Share => format!("{:.1}%", ratio * 100.0),
    }
}

fn goal_text(row: &Row, goal: Goal) -> String {
    match goal {
        Goal::AtMost(figure) => format!("<={}", ratio_text(row.judged, figure)),
        Goal::AtLeast(figure) => format!(">={}", ratio_text(row.judged, figure)),
        Goal::Rate(figure) => format!(">={figure} M/s"),
    }
}

fn time(us: f64) -> String {
    format!("{us:.4}")
}

struct Column {
    head: &'static str,
    width: usize,
    left: bool,
    cell: String,
}

impl Column {
    fn left(head: &'static str, width: usize, cell: &str) -> Column {
        Column { head, width, left: true, cell: cell.to_owned() }
    }

    fn right(head: &'static str, width: usize, cell: Option<String>) -> Column {
        Column { head, width, left: false, cell: cell.unwrap_or_else(|| "-".to_owned()) }
    }
}

fn line(columns: &[Column], text: impl Fn(&Column) -> &str) -> String {
    let mut line = String::new();
    for column in columns {
        let (text, width) = (text(column), column.width);
        let _ = if column.left {
            write!(line, "{text:<width$}  ")
        } else {
            write!(line, "{text:>width$}  ")
        };
    }
    line.truncate(line.trim_end().len());
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::Samples;

    fn row() -> Row {
        Row::new("write-bw", "write", Samples::new(vec![2.0])).size(4000).limit("memcpy", 1.0)
    }

    #[test]
    fn goals_are_judged_by_their_direction() {
        assert_eq!(met(&row(), Some(Goal::AtMost(1.9))), Some(false));
        assert_eq!(met(&row(), Some(Goal::AtMost(2.0))), Some(true));
        assert_eq!(met(&row().share(), Some(Goal::AtLeast(0.51))), Some(false));
        assert_eq!(met(&row(), Some(Goal::Rate(0.5))), Some(true));
        assert_eq!(met(&row(), Some(Goal::Rate(0.6))), Some(false));
        assert_eq!(met(&row(), None), None);
    }

    #[test]
    fn a_verdict_needs_rows_that_were_judged() {
        let facts = Facts {
            library: String::new(),
            ranks: 2,
            transport: "shm",
            placement: String::new(),
            memory: String::new(),
        };
        let plain = Plain { goals: true, ..Plain::default() };
        let mut report = Report::new(&plain, facts, false);
        assert_eq!(report.verdict(), "no row has a goal");
        report.columns(Layout::Latency, &row(), None);
        assert_eq!(report.verdict(), "no row has a goal");
        report.columns(Layout::Latency, &row(), Some(Goal::AtMost(2.0)));
        assert_eq!(report.verdict(), "all goals are met");
        report.columns(Layout::Latency, &row(), Some(Goal::AtMost(1.9)));
        assert_eq!(report.verdict(), "1 goal is missed");
    }
}
