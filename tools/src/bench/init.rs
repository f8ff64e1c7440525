//! How a job starts, what its ranks keep in memory, and what cycles of segments and queues take.
//!
//! Started by itself it runs many jobs, each of which measures its own start.

use crate::arguments::Init;
use crate::failure::{Failure, Result};
use crate::job::{Job, LIMIT_MS, Segment};
use crate::launch;
use crate::library::Library;
use crate::measure::run_together;
use crate::report::{Facts, Layout, Report};
use crate::resident;
use crate::row::Row;
use crate::samples::Samples;
use crate::system;
use crate::transport;
use gaspi_core::bootstrap::RANKS_MAX;
use serde_json::Value;
use std::ffi::OsString;
use std::process::Stdio;
use std::time::Instant;

const TEST: &str = "init";
/// Cycles of a segment, and its size.
const CYCLES: usize = 2000;
const CYCLE_BYTES: usize = 64 << 10;
/// As many as a rank may have.
const SEGMENTS: usize = 255;
const QUEUE_CYCLES: usize = 100_000;

const START: &str = "gaspi_proc_init";
const WHOLE_JOB: &str = "whole job";
/// Private memory of the rank that has most, before and after rank 0 has reached all.
const UNTALKED: &str = "private after init";
const TALKED: &str = "private, peers talked to";
/// What a peer adds to that, and is to add at most.
const EACH_PEER: [(&str, &str, f64); 2] = [
    (UNTALKED, "each peer, not talked to", (1 << 10) as f64),
    (TALKED, "each peer, talked to", (64 << 10) as f64),
];

/// What is wanted.
const GOAL: &str = "goal";
const START_US: [(usize, f64); 2] = [(2, 30e3), (64, 2e6)];
const START_TCP_US: [(usize, f64); 2] = [(2, 60e3), (32, 3e6)];
const RESIDENT_BYTES: f64 = (8 << 20) as f64;
const CYCLES_US: f64 = 2e6;

fn goal_row(variant: &'static str, samples: Samples, goal: Option<f64>) -> Row {
    let mut row = Row::new(TEST, variant, samples);
    if let Some(goal) = goal {
        row = row.limit(GOAL, goal);
        row.limit_is_goal = true;
    }
    row
}

fn start_row(ranks: usize, transport: &str, samples: Samples) -> Row {
    let goals = if transport == "shm" { START_US } else { START_TCP_US };
    let goal = goals.iter().find(|(most, _)| ranks <= *most).map(|(_, us)| *us);
    goal_row(START, samples, goal)
}

fn resident_row(variant: &'static str, bytes: u64) -> Row {
    let goal = (variant == resident::PARTS[0].1).then_some(RESIDENT_BYTES);
    let mut row = goal_row(variant, Samples::default(), goal);
    row.resident = Some(bytes);
    row
}

/// The part of a job: its own start, and the cycles.
pub(crate) fn run(job: &Job, options: &Init, report: &mut Report) -> Result<()> {
    let start = run_together(job, job.ranks, || Ok(Some(job.init_us)))?;
    let start = Samples::new(start.into_iter().collect());
    report.row(Layout::Goals, &start_row(job.ranks, job.links.transport, start))?;
    if !options.no_cycles {
        cycles(job, report)?;
    }
    if options.peers {
        for (variant, bytes) in [(UNTALKED, job.resident[resident::PRIVATE]), (TALKED, job.talked)]
        {
            let most = run_together(job, job.ranks, || Ok(bytes.map(|bytes| bytes as f64)))?;
            // Not told by each kernel.
            if let Some(most) = most {
                report.row(Layout::Memory, &resident_row(variant, most as u64))?;
            }
        }
    }
    for (part, (name, variant)) in resident::PARTS.into_iter().enumerate() {
        let Some(bytes) = job.resident[part] else {
            return Err(Failure::run(format!("/proc/self/status does not tell {name}")));
        };
        let most = run_together(job, job.ranks, || Ok(Some(bytes as f64)))?;
        report.row(Layout::Memory, &resident_row(variant, most.unwrap_or(0.0) as u64))?;
    }
    Ok(())
}

fn cycles(job: &Job, report: &mut Report) -> Result<()> {
    let together = |run: &dyn Fn() -> Result<()>| {
        let us = run_together(job, job.ranks, || {
            let begin = Instant::now();
            run()?;
            Ok(Some(crate::job::micros(begin.elapsed())))
        })?;
        Ok(Samples::new(us.into_iter().collect()))
    };
    let segments = together(&|| (0..CYCLES).try_for_each(|_| cycle(job)))?;
    report.row(
        Layout::Goals,
        &goal_row("2000 x 64 KiB segment", segments, Some(CYCLES_US)).errors(check(job)?),
    )?;
    let many = together(&|| all_segments(job))?;
    report.row(Layout::Goals, &goal_row("255 segments at once", many, None))?;
    let queues = together(&|| (0..QUEUE_CYCLES).try_for_each(|_| queue_cycle(job)))?;
    report.row(Layout::Goals, &goal_row("100000 x queue", queues, None))
}

fn cycle(job: &Job) -> Result<()> {
    job.bare_segment(0, CYCLE_BYTES)?;
    job.delete_segment(0)
}

fn all_segments(job: &Job) -> Result<()> {
    (0..SEGMENTS).try_for_each(|id| job.bare_segment(id as u8, CYCLE_BYTES))?;
    let mut count = 0;
    // SAFETY: writes the number that it is given.
    let status = unsafe { (job.procedures.segment_num)(&raw mut count) };
    job.call("gaspi_segment_num", status)?;
    if count as usize != SEGMENTS {
        return Err(Failure::run(format!("{SEGMENTS} segments made, but {count} are there")));
    }
    job.barrier()?;
    (0..SEGMENTS).try_for_each(|id| job.delete_segment(id as u8))
}

fn queue_cycle(job: &Job) -> Result<()> {
    let (p, mut queue) = (job.procedures, 0);
    // SAFETY: writes the number that it is given.
    let status = unsafe { (p.queue_create)(&raw mut queue, LIMIT_MS) };
    job.call("gaspi_queue_create", status)?;
    // SAFETY: no pointers.
    job.call("gaspi_queue_delete", unsafe { (p.queue_delete)(queue) })
}

/// After all cycles a segment still connects each rank with the next.
fn check(job: &Job) -> Result<u64> {
    let segment: Segment<'_> = job.segment(0, CYCLE_BYTES)?;
    segment.region.set_last(0, 8, job.rank as u64 + 1);
    segment.write(0, (job.rank + 1) % job.ranks, 8, 8, 0)?;
    job.wait(0)?;
    job.barrier()?;
    let before = (job.rank + job.ranks - 1) % job.ranks;
    let found = segment.region.last(8, 8);
    job.add_errors_if(found != before as u64 + 1);
    segment.delete()?;
    job.meet_all()?;
    let errors = if job.rank == 0 { job.take_errors() } else { 0 };
    // No rank adds errors of the next row before these are taken.
    job.meet_all()?;
    Ok(errors)
}

/// Runs jobs one after another, and reports all of them.
pub(crate) fn start_jobs(options: &Init) -> Result<()> {
    let ranks = options.plain.ranks.unwrap_or(1);
    let twice = if options.peers { Some(twice(ranks)?) } else { None };
    let library = Library::load()?;
    let mut interface = 0f32;
    // SAFETY: writes the number that it is given.
    unsafe { (library.procedures.version)(&raw mut interface) };
    let mut transport = None;
    let mut starts = Vec::new();
    let mut whole = Vec::new();
    let mut rest = Vec::new();
    for number in 0..options.jobs {
        let cycles = number == 0 && !options.no_cycles;
        let begin = Instant::now();
        let rows = one_job(options, ranks, cycles, false)?;
        if !cycles {
            whole.push(crate::job::micros(begin.elapsed()));
        }
        transport = transport.or_else(|| rows.first()?["transport"].as_str().map(str::to_owned));
        for row in rows {
            match row["p50_us"].as_f64() {
                Some(us) if row["variant"] == START => starts.push(us),
                _ => rest.push(row),
            }
        }
    }
    let facts = Facts {
        library: format!("{}, GASPI interface {interface}", library.path.display()),
        ranks: ranks as usize,
        transport: transport::of_row(transport.as_deref()),
        placement: format!("{} usable", system::cores().len()),
        memory: "of each rank right after gaspi_proc_init, the largest".into(),
    };
    let transport = facts.transport;
    let mut report = Report::new(&options.plain, facts, false);
    report.row(Layout::Goals, &start_row(ranks as usize, transport, Samples::new(starts)))?;
    if !whole.is_empty() {
        report.row(Layout::Goals, &goal_row(WHOLE_JOB, Samples::new(whole), None))?;
    }
    let errors = report_rest(&rest, &mut report)?;
    if let Some(twice) = twice {
        report_peers(options, ranks, twice, &mut report)?;
    }
    report.finish(errors)
}

/// Ranks of the larger job, in which each has as many peers more.
fn twice(ranks: u32) -> Result<u32> {
    let most = RANKS_MAX / 2;
    if ranks > most {
        return Err(Failure::usage(format!(
            "--peers starts a job of twice as many ranks too, and a job has {RANKS_MAX} at most: \
             -n {most} at most"
        )));
    }
    Ok(2 * ranks)
}

/// What a peer costs: the difference between a job and one of twice its size.
fn report_peers(options: &Init, ranks: u32, twice: u32, report: &mut Report) -> Result<()> {
    let small = one_job(options, ranks, false, true)?;
    let large = one_job(options, twice, false, true)?;
    let bytes = |rows: &[Value], variant: &str| {
        let found = rows.iter().find(|row| row["variant"] == variant);
        found.and_then(|row| row["resident_bytes"].as_u64())
    };
    for (of, variant, goal) in EACH_PEER {
        let Some((small, large)) = bytes(&small, of).zip(bytes(&large, of)) else { continue };
        let more = large.saturating_sub(small);
        let mut row = goal_row(variant, Samples::default(), Some(goal));
        row.resident = Some(more / u64::from(ranks));
        report.row(Layout::Peers, &row)?;
    }
    Ok(())
}

/// Rows of cycles, of which there is one each, and of memory, of which the largest counts. Returns
/// the errors of all.
fn report_rest(rows: &[Value], report: &mut Report) -> Result<u64> {
    let mut all = 0;
    let cycles = [
        ("2000 x 64 KiB segment", Some(CYCLES_US)),
        ("255 segments at once", None),
        ("100000 x queue", None),
    ];
    for (variant, goal) in cycles {
        for row in rows.iter().filter(|row| row["variant"] == variant) {
            let samples = Samples::new(row["p50_us"].as_f64().into_iter().collect());
            let errors = row["errors"].as_u64().unwrap_or(0);
            all += errors;
            report.row(Layout::Goals, &goal_row(variant, samples, goal).errors(errors))?;
        }
    }
    for (_, variant) in resident::PARTS {
        let found = rows.iter().filter(|row| row["variant"] == variant);
        let most = found.filter_map(|row| row["resident_bytes"].as_u64()).max();
        if let Some(bytes) = most {
            report.row(Layout::Memory, &resident_row(variant, bytes))?;
        }
    }
    Ok(all)
}

fn one_job(options: &Init, ranks: u32, cycles: bool, peers: bool) -> Result<Vec<Value>> {
    let mut arguments: Vec<OsString> = vec![TEST.into(), "--json".into()];
    if !cycles {
        arguments.push("--no-cycles".into());
    }
    if peers {
        arguments.extend(["--peers".into(), "-n".into(), ranks.to_string().into()]);
    }
    if let Some(choice) = options.plain.transport {
        arguments.extend(["--transport".into(), choice.name().into()]);
    }
    if let Some(bind) = options.plain.bind {
        arguments.extend(["--bind".into(), bind.name().into()]);
    }
    let mut command = launch::command(ranks, options.plain.bind, arguments)?;
    system::end_with_caller(&mut command);
    let output =
        command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|error| {
            Failure::run(format!("cannot start {}: {error}", launch::launcher().display()))
        })?;
    if !output.status.success() {
        return Err(Failure::run(format!("a job of {ranks} ranks failed: {}", output.status)));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .map(|line| {
            serde_json::from_str(line)
                .map_err(|error| Failure::run(format!("a job printed {line:?}: {error}")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_of_twice_as_many_ranks_has_to_be_possible() {
        assert_eq!((twice(1), twice(32_767)), (Ok(2), Ok(65_534)));
        assert!(twice(32_768).expect_err("too many").message.contains("-n 32767 at most"));
    }
}
