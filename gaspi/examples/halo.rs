//! A checked two-dimensional halo exchange: `gaspi_run -n 4 halo [--points N] [--steps N]`.
//!
//! A square field is cut into blocks, one per rank. In each step every rank puts the edges of its
//! block into the halos of its neighbours, each with a notification, and then replaces each point
//! by the mean of its four neighbours. At the end an all-reduce adds up the whole field, and every
//! rank computes the same steps for its block alone, on a copy that is large enough that no
//! neighbour is needed. The two must agree in every bit.
//!
//! A neighbour's next edges may arrive while this rank still reads the last ones. So there are two
//! sets of halos, used in turn: an edge of step s + 2 cannot come before the neighbour has got this
//! rank's edge of step s + 1, which is sent after step s was computed.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use gaspi::collectives::{Operation, allreduce_slice};
use gaspi::{
    Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Rank, Runtime, SegmentId,
    Timeout, Transfer,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Outgoing edges, then the halos of even steps, then those of odd steps.
const HALOS: SegmentId = SegmentId(0);
const QUEUE: QueueId = QueueId(0);
/// An exchange that takes longer has gone wrong.
const LIMIT: Timeout = Timeout::Millis(60_000);
/// How often the all-reduce is repeated for its time.
const REDUCTIONS: u32 = 100;
const SIDES: [Side; 4] = [Side::North, Side::South, Side::West, Side::East];

/// A side of a block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    North,
    South,
    West,
    East,
}

impl Side {
    fn opposite(self) -> Side {
        match self {
            Side::North => Side::South,
            Side::South => Side::North,
            Side::West => Side::East,
            Side::East => Side::West,
        }
    }
}

/// A rectangle of the field with a frame of one point around it.
#[derive(Clone)]
struct Block {
    rows: usize,
    columns: usize,
    points: Vec<f64>,
}

impl Block {
    /// The part of the generated field that starts at (row, column); the field repeats at its
    /// edges.
    fn generate(field: usize, row: isize, column: isize, rows: usize, columns: usize) -> Block {
        let mut block = Block { rows, columns, points: vec![0.0; (rows + 2) * (columns + 2)] };
        let wrap = |at: isize| at.rem_euclid(field as isize) as u64;
        for r in 0..rows {
            for c in 0..columns {
                let (r_field, c_field) = (wrap(row + r as isize), wrap(column + c as isize));
                *block.at_mut(r + 1, c + 1) = value(r_field * field as u64 + c_field);
            }
        }
        block
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        self.points[row * (self.columns + 2) + column]
    }

    fn at_mut(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.points[row * (self.columns + 2) + column]
    }

    /// Points along a side.
    fn length(&self, side: Side) -> usize {
        if matches!(side, Side::North | Side::South) { self.columns } else { self.rows }
    }

    /// Place of the `at`th point along a side: in the block, or in the frame beside it.
    fn place(&self, side: Side, at: usize, frame: bool) -> (usize, usize) {
        let inward = usize::from(!frame);
        match side {
            Side::North => (inward, at + 1),
            Side::South => (self.rows + 1 - inward, at + 1),
            Side::West => (at + 1, inward),
            Side::East => (at + 1, self.columns + 1 - inward),
        }
    }

    /// Every point becomes the mean of its neighbours.
    fn step(&mut self, next: &mut Block) {
        for row in 1..=self.rows {
            for column in 1..=self.columns {
                let vertical = self.at(row - 1, column) + self.at(row + 1, column);
                let horizontal = self.at(row, column - 1) + self.at(row, column + 1);
                *next.at_mut(row, column) = 0.25 * (vertical + horizontal);
            }
        }
        std::mem::swap(&mut self.points, &mut next.points);
    }
}

/// A point of the generated field: something between 0 and 1 that looks random.
fn value(index: u64) -> f64 {
    let mut bits = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

/// How the field is cut, and where this rank's block lies.
struct Layout {
    down: usize,
    across: usize,
    row: usize,
    column: usize,
}

impl Layout {
    /// As square as the number of ranks allows.
    fn new(rank: Rank, ranks: u32) -> Layout {
        let ranks = ranks as usize;
        let down = (1..=ranks).rev().find(|n| n * n <= ranks && ranks.is_multiple_of(*n));
        let down = down.unwrap_or(1);
        let across = ranks / down;
        Layout { down, across, row: rank.index() / across, column: rank.index() % across }
    }

    fn neighbour(&self, side: Side) -> Rank {
        let (row, column) = match side {
            Side::North => ((self.row + self.down - 1) % self.down, self.column),
            Side::South => ((self.row + 1) % self.down, self.column),
            Side::West => (self.row, (self.column + self.across - 1) % self.across),
            Side::East => (self.row, (self.column + 1) % self.across),
        };
        Rank((row * self.across + column) as u16)
    }
}

/// The exchange of one rank.
struct Exchange<'a> {
    rt: &'a Runtime,
    layout: Layout,
    /// Bytes of the longest side.
    slot: u64,
}

impl Exchange<'_> {
    fn outgoing(&self, step: u32, side: Side) -> u64 {
        (u64::from(step % 2) * 4 + side as u64) * self.slot
    }

    fn incoming(&self, step: u32, side: Side) -> u64 {
        (8 + u64::from(step % 2) * 4 + side as u64) * self.slot
    }

    fn notification(step: u32, side: Side) -> NotificationId {
        NotificationId((step % 2) * 4 + side as u32)
    }

    /// Sends this rank's edges and puts those of its neighbours into the frame.
    fn run(&self, block: &mut Block, step: u32) -> Result<()> {
        for side in SIDES {
            let edge: Vec<u8> = (0..block.length(side))
                .map(|at| block.place(side, at, false))
                .flat_map(|(row, column)| block.at(row, column).to_ne_bytes())
                .collect();
            self.rt.segment_write(HALOS, self.outgoing(step, side), &edge)?;
            let transfer = Transfer {
                local: HALOS,
                local_offset: self.outgoing(step, side),
                rank: self.layout.neighbour(side),
                remote: HALOS,
                remote_offset: self.incoming(step, side.opposite()),
                size: edge.len() as u64,
            };
            let id = Self::notification(step, side.opposite());
            self.rt.write_notify(&transfer, id, 1, QUEUE, LIMIT)?;
        }
        for side in SIDES {
            let id = Self::notification(step, side);
            self.rt.notify_waitsome(HALOS, id.0, 1, LIMIT)?;
            self.rt.notify_reset(HALOS, id)?;
            let mut edge = vec![0; block.length(side) * size_of::<f64>()];
            self.rt.segment_read(HALOS, self.incoming(step, side), &mut edge)?;
            for (at, bytes) in edge.chunks_exact(size_of::<f64>()).enumerate() {
                let (row, column) = block.place(side, at, true);
                *block.at_mut(row, column) = f64::from_ne_bytes(bytes.try_into()?);
            }
        }
        // The outgoing edges of this step are written again two steps later.
        Ok(self.rt.wait(QUEUE, LIMIT)?)
    }
}

/// Computes a block alone: with a margin of as many points as there are steps.
fn alone(
    field: usize,
    row: usize,
    column: usize,
    rows: usize,
    columns: usize,
    steps: u32,
) -> Block {
    let margin = steps as usize;
    let (top, left) = (row as isize - margin as isize, column as isize - margin as isize);
    let mut large = Block::generate(field, top, left, rows + 2 * margin, columns + 2 * margin);
    let mut next = large.clone();
    for _ in 0..steps {
        large.step(&mut next);
    }
    let mut block = Block { rows, columns, points: vec![0.0; (rows + 2) * (columns + 2)] };
    for r in 1..=rows {
        for c in 1..=columns {
            *block.at_mut(r, c) = large.at(r + margin, c + margin);
        }
    }
    block
}

/// What the command line asks for.
struct Options {
    /// Points along a side of the field.
    points: usize,
    steps: u32,
}

fn options() -> Result<Options> {
    let mut options = Options { points: 1200, steps: 100 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().ok_or(format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--points" => options.points = value.parse()?,
            "--steps" => options.steps = value.parse()?,
            _ => return Err(format!("unknown argument {argument:?}").into()),
        }
    }
    Ok(options)
}

/// Times of one rank.
#[derive(Default)]
struct Times {
    exchange: Duration,
    compute: Duration,
    allreduce: Duration,
}

fn run() -> Result<bool> {
    let started = Instant::now();
    let options = options()?;
    let job = Job::from_environment()?;
    let rt = PendingInit::new(job, Config::default())?.wait(LIMIT)?;
    let joined = started.elapsed();
    let layout = Layout::new(rt.rank(), rt.size());
    let (rows, columns) = (options.points / layout.down, options.points / layout.across);
    if rows * layout.down != options.points || columns * layout.across != options.points {
        let (down, across) = (layout.down, layout.across);
        return Err(
            format!("{} points cannot be cut into {down} x {across}", options.points).into()
        );
    }
    let slot = (rows.max(columns) * size_of::<f64>()) as u64;
    rt.segment_create(HALOS, 16 * slot, GroupId::ALL, LIMIT, Init::Zeroed)?;

    let (row, column) = (layout.row * rows, layout.column * columns);
    let mut block = Block::generate(options.points, row as isize, column as isize, rows, columns);
    let mut next = block.clone();
    let exchange = Exchange { rt: &rt, layout, slot };
    let mut times = Times::default();
    for step in 0..options.steps {
        let start = Instant::now();
        exchange.run(&mut block, step)?;
        let exchanged = Instant::now();
        block.step(&mut next);
        times.exchange += exchanged - start;
        times.compute += exchanged.elapsed();
    }
    let expected = alone(options.points, row, column, rows, columns, options.steps);
    let wrong = wrong_points(&block, &expected);
    let mut sums = [0.0; 2];
    let mine = [sum(&block), wrong as f64];
    // So that the time is that of the all-reduce and not that of waiting for the slowest rank.
    rt.barrier(GroupId::ALL, LIMIT)?;
    let start = Instant::now();
    for _ in 0..REDUCTIONS {
        allreduce_slice(&rt, &mine, &mut sums, Operation::Sum, GroupId::ALL, LIMIT)?;
    }
    times.allreduce = start.elapsed() / REDUCTIONS;
    report(&rt, &options, &exchange.layout, joined, &times, sums)?;
    rt.barrier(GroupId::ALL, LIMIT)?;
    rt.term(LIMIT)?;
    Ok(sums[1] == 0.0)
}

fn wrong_points(block: &Block, expected: &Block) -> usize {
    let mut wrong = 0;
    for row in 1..=block.rows {
        for column in 1..=block.columns {
            let (found, right) = (block.at(row, column), expected.at(row, column));
            wrong += usize::from(found.to_bits() != right.to_bits());
        }
    }
    wrong
}

fn sum(block: &Block) -> f64 {
    let rows = 1..=block.rows;
    rows.flat_map(|row| (1..=block.columns).map(move |column| block.at(row, column))).sum()
}

/// Rank 0 prints the slowest rank's times.
fn report(
    rt: &Runtime,
    options: &Options,
    layout: &Layout,
    joined: Duration,
    times: &Times,
    sums: [f64; 2],
) -> Result<()> {
    let mine =
        [joined, times.exchange, times.compute, times.allreduce].map(|time| time.as_secs_f64());
    let mut slowest = [0.0; 4];
    allreduce_slice(rt, &mine, &mut slowest, Operation::Max, GroupId::ALL, LIMIT)?;
    if rt.rank() != Rank(0) {
        return Ok(());
    }
    let (points, steps) = (options.points, options.steps);
    println!("field {points} x {points}, {} x {} ranks, {steps} steps", layout.down, layout.across);
    println!("  joining the job            {:>10.3} ms", slowest[0] * 1e3);
    println!("  halo exchange, per step    {:>10.3} us", slowest[1] * 1e6 / f64::from(steps));
    println!("  computing, per step        {:>10.3} us", slowest[2] * 1e6 / f64::from(steps));
    println!("  all-reduce of 2 doubles    {:>10.3} us", slowest[3] * 1e6);
    println!("  sum of the field           {:>10.3}", sums[0]);
    match sums[1] {
        0.0 => println!("every point is right on every rank"),
        wrong => println!("{wrong} points are WRONG"),
    }
    Ok(())
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("halo: {reason}");
            ExitCode::FAILURE
        }
    }
}
