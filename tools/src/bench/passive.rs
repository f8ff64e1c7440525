//! gaspi_passive_send and gaspi_passive_receive, there and back.

use crate::arguments::{Paired, Sizes};
use crate::baseline;
use crate::failure::{Failure, Result};
use crate::job::{Job, LIMIT_MS};
use crate::measure::{Lane, Schedule, interleave};
use crate::pair::{Pair, SEGMENT, for_each_size};
use crate::report::{Layout, Report};
use crate::row::Row;
use crate::shm_baseline::{self, Taken};

pub(crate) const SIZES: [usize; 5] = [8, 64, 1 << 10, 8 << 10, 32 << 10];
/// Sending waits for the receiver: some microseconds.
const BATCH: usize = 100;

fn send(pair: &Pair<'_>, offset: usize) -> Result<()> {
    let (offset, size) = (offset as u64, pair.size() as u64);
    // SAFETY: no pointers.
    let status = unsafe {
        (pair.job.procedures.passive_send)(SEGMENT, offset, pair.peer as u16, size, LIMIT_MS)
    };
    pair.job.call("gaspi_passive_send", status)
}

fn receive(pair: &Pair<'_>, offset: usize) -> Result<()> {
    let (to, size) = ((pair.inbox_offset + offset) as u64, pair.size() as u64);
    let mut from = 0;
    // SAFETY: writes the rank that it is given.
    let status = unsafe {
        (pair.job.procedures.passive_receive)(SEGMENT, to, &raw mut from, size, LIMIT_MS)
    };
    pair.job.call("gaspi_passive_receive", status)?;
    if usize::from(from) == pair.peer {
        return Ok(());
    }
    Err(Failure::run(format!("gaspi_passive_receive: rank {from} is no rank of this pair")))
}

fn there_and_back<'a>(pair: &'a Pair<'a>, size: usize) -> Lane<'a> {
    let mut out = pair.rotation();
    let mut incoming = out;
    shm_baseline::in_turn(
        pair,
        move |step| {
            let offset = out.offset();
            shm_baseline::mark(pair.source, offset, size, step);
            send(pair, offset)
        },
        move |step| {
            let offset = incoming.offset();
            receive(pair, offset)?;
            shm_baseline::take(pair.job, pair.inbox, offset, size, step, Taken::Last);
            Ok(())
        },
    )
}

fn check(pair: Option<&Pair<'_>>, round: u64) -> Result<u64> {
    let Some(pair) = pair else { return Ok(0) };
    let size = pair.size();
    if pair.is_initiator() {
        pair.source.fill(0, size, round);
        send(pair, 0)?;
        return Ok(0);
    }
    receive(pair, 0)?;
    Ok(pair.inbox.errors(0, size, round))
}

pub(crate) fn run(job: &Job, sizes: &Sizes, report: &mut Report) -> Result<()> {
    let paired = Paired { sizes: sizes.clone(), pairs: 1 };
    for_each_size(job, &paired, &SIZES, |ground, pair, size| {
        let mut lanes = pair.map_or_else(Vec::new, |pair| {
            vec![baseline::notified(pair, size, Taken::Last), there_and_back(pair, size)]
        });
        let schedule = Schedule::of_batches(&sizes.plain, BATCH);
        let measured = interleave(job, ground.participants(), schedule, &mut lanes, |round| {
            check(pair, round)
        })?;
        let Some([limit, operation]) = measured.of() else { return Ok(()) };
        let row = Row::new("passive-lat", "send and receive", operation.clone())
            .size(size)
            .limit(measured.name(0), limit.median())
            .errors(measured.errors);
        report.row(Layout::Latency, &row)
    })
}
