//! Fused buffers (gaspi_fusion_*): a step of many tensors beside one all-reduce of as many bytes.
//! [`pieces`] has the other operation on all tensors of a model.
//!
//! All tensors are averaged, so that values stay what they are from step to step. Each rank submits
//! them all, then waits for each. With computing, the ranks spin between the submits as a backward
//! pass would, and what is left behind the last submit is the exposed part.

mod pieces;
mod variants;

pub(crate) use self::pieces::broadcast_list;
use self::variants::{Kind, compared};
use crate::arguments::{FusedStep, Plain, TensorOrder};
use crate::failure::{Failure, Result};
use crate::job::{Job, LIMIT_MS, Segment, micros};
use crate::library::{Fusions, Options, Tensor, TensorOptions};
use crate::links;
use crate::measure::{Batch, Lane, Measured, Schedule, interleave, run_together, timed};
use crate::memory::PAGE;
use crate::pair::SEGMENT;
use crate::report::{Layout, Report};
use crate::resident;
use crate::row::{Carried, Row};
use crate::samples::Samples;
use crate::system::cpu_time;
use crate::tensors;
use std::cell::{Cell, RefCell};
use std::ffi::c_void;
use std::time::{Duration, Instant};

const GROUP_ALL: u8 = 0;
const TYPE_F32: u32 = 34;
const OP_AVERAGE: u64 = 23;
const FLOAT: usize = size_of::<f32>();
/// How often a fused buffer is made for the row that says how long that takes.
const SET_UPS: usize = 7;
/// How long and how often ranks do nothing between two steps.
const REST: Duration = Duration::from_millis(200);
const RESTS: usize = 5;
/// Steps behind which the memory that they have touched is read.
const TOUCHING: u32 = 3;
/// What they may touch, in terms of the bytes of all tensors, and a page for each bucket.
const MOST_SHM: f64 = 1.25;
const MOST_TCP: f64 = 2.5;
/// Steps whose messages and copies are counted.
const COUNTED: u32 = 5;
/// The library's counters of those.
const COUNTERS: [&str; 2] = ["NumberOfCollectiveMessages", "BytesCopiedByCollectives"];

/// A fused buffer, and the gradients of this rank.
struct Gradients<'a> {
    job: &'a Job,
    procedures: Fusions,
    fusion: u64,
    counts: &'a [usize],
    /// Places of the tensors in the fused buffer.
    places: Vec<*mut f32>,
    private: RefCell<Vec<Vec<f32>>>,
    order: TensorOrder,
    steps: Cell<u64>,
    compute: Duration,
    kind: Kind,
}

impl<'a> Gradients<'a> {
    fn create(
        job: &'a Job,
        procedures: Fusions,
        counts: &[usize],
        step: &FusedStep,
        kind: Kind,
    ) -> Result<u64> {
        let tensors: Vec<Tensor> =
            counts.iter().map(|count| Tensor::of(*count, TYPE_F32)).collect();
        let (threshold, background) = (step.threshold as u64, !step.no_background);
        let options = TensorOptions::of(OP_AVERAGE, threshold, background, kind.numbers());
        let mut fusion = 0;
        // SAFETY: as many tensors as it says.
        let status = unsafe {
            (procedures.create)(
                tensors.as_ptr(),
                tensors.len() as u64,
                GROUP_ALL,
                &raw const options,
                &raw mut fusion,
                LIMIT_MS,
            )
        };
        job.call("gaspi_fusion_create", status)?;
        Ok(fusion)
    }

    fn new(
        job: &'a Job,
        procedures: Fusions,
        counts: &'a [usize],
        step: &FusedStep,
        kind: Kind,
    ) -> Result<Gradients<'a>> {
        let fusion = Gradients::create(job, procedures, counts, step, kind)?;
        let mut places = Vec::with_capacity(counts.len());
        for tensor in 0..counts.len() {
            let mut place = std::ptr::null_mut::<c_void>();
            // SAFETY: writes the pointer.
            let status = unsafe { (procedures.tensor_ptr)(fusion, tensor as u64, &raw mut place) };
            job.call("gaspi_fusion_tensor_ptr", status)?;
            places.push(place.cast::<f32>());
        }
        let private = RefCell::default();
        let (order, compute) = (step.order, Duration::from_micros(step.compute.into()));
        let steps = Cell::new(0);
        let gradients = Gradients {
            job,
            procedures,
            fusion,
            counts,
            places,
            private,
            order,
            steps,
            compute,
            kind,
        };
        gradients.fill();
        Ok(gradients)
    }

    /// The same with gradients in memory of the program as well.
    fn with_private(self) -> Gradients<'a> {
        self.private.replace(self.counts.iter().map(|count| vec![1.0; *count]).collect());
        self.fill();
        self
    }

    /// Whole numbers that differ by rank and tensor.
    fn value(rank: usize, tensor: usize) -> f32 {
        ((rank + 1) * (tensor % 7 + 1)) as f32
    }

    fn fill(&self) {
        for (tensor, count) in self.counts.iter().enumerate() {
            let value = Gradients::value(self.job.rank, tensor);
            // Places of values that travel in 16 bits hold those.
            let in_place = if self.kind.wire.is_none() { *count } else { 0 };
            for index in 0..in_place {
                // SAFETY: inside of the tensor's place, which has been waited for.
                unsafe { self.places[tensor].add(index).write(value) };
            }
            if let Some(private) = self.private.borrow_mut().get_mut(tensor) {
                private.fill(value);
            }
        }
    }

    /// The tensors in the order in which this rank submits them in this step.
    fn order(&self) -> Vec<usize> {
        let step = self.steps.replace(self.steps.get() + 1);
        let mut order: Vec<usize> = (0..self.counts.len()).collect();
        match self.order {
            TensorOrder::Forward => {}
            TensorOrder::Reverse => order.reverse(),
            TensorOrder::Random => {
                let mut random = (step << 16) + self.job.rank as u64 + 1;
                for last in (1..order.len()).rev() {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    order.swap(last, (random >> 33) as usize % (last + 1));
                }
            }
        }
        order
    }

    fn submit(&self, tensor: usize, data: *const f32) -> Result<()> {
        // SAFETY: as many elements as the tensor has.
        let status = unsafe {
            (self.procedures.submit)(self.fusion, tensor as u64, data.cast::<c_void>(), 1.0)
        };
        self.job.call("gaspi_fusion_submit", status)
    }

    /// Waits for a tensor, and has its sum copied unless `result` is null.
    fn wait(&self, tensor: usize, result: *mut f32) -> Result<()> {
        // SAFETY: as many elements as the tensor has, or nothing is copied.
        let status = unsafe {
            (self.procedures.wait)(self.fusion, tensor as u64, result.cast::<c_void>(), LIMIT_MS)
        };
        self.job.call("gaspi_fusion_wait", status)
    }

    /// All tensors in their places; returns when the last was submitted.
    fn step_in_place(&self, compute: Duration) -> Result<Instant> {
        let order = self.order();
        let part = compute / order.len() as u32;
        for tensor in &order {
            spin(part);
            self.submit(*tensor, self.places[*tensor])?;
        }
        let submitted = Instant::now();
        (0..self.counts.len()).try_for_each(|tensor| self.wait(tensor, std::ptr::null_mut()))?;
        Ok(submitted)
    }

    /// All tensors from private memory, and their sums copied to where they came from.
    fn step_copied(&self) -> Result<()> {
        let mut private = self.private.borrow_mut();
        for tensor in self.order() {
            self.submit(tensor, private[tensor].as_ptr())?;
        }
        (0..self.counts.len())
            .try_for_each(|tensor| self.wait(tensor, private[tensor].as_mut_ptr()))
    }

    /// Elements of such a step that are wrong.
    fn wrong_of_copied(&self) -> Result<u64> {
        self.fill();
        self.step_copied()?;
        let private = self.private.borrow();
        let of_tensor = |(tensor, values): (usize, &Vec<f32>)| {
            values.iter().filter(|found| self.differs(tensor, **found)).count() as u64
        };
        Ok(private.iter().enumerate().map(of_tensor).sum())
    }

    /// Whether an element differs from the mean of all ranks.
    fn differs(&self, tensor: usize, found: f32) -> bool {
        let all = (0..self.job.ranks).map(|rank| Gradients::value(rank, tensor));
        let mean = all.sum::<f32>() / self.job.ranks as f32;
        (found - mean).abs() > mean * self.kind.tolerance(self.job.ranks)
    }

    /// All tensors from private memory, and their sums lent.
    fn step_lent(&self) -> Result<()> {
        for tensor in self.order() {
            let data = self.private.borrow()[tensor].as_ptr();
            self.submit(tensor, data)?;
        }
        for tensor in 0..self.counts.len() as u64 {
            let mut lent = std::ptr::null();
            // SAFETY: writes the pointer.
            let status =
                unsafe { (self.procedures.result)(self.fusion, tensor, &raw mut lent, LIMIT_MS) };
            self.job.call("gaspi_fusion_result", status)?;
            // SAFETY: gives back what was lent.
            let status = unsafe { (self.procedures.release)(self.fusion, tensor, lent) };
            self.job.call("gaspi_fusion_release", status)?;
        }
        Ok(())
    }

    /// Elements of a step that are wrong.
    fn wrong(&self) -> Result<u64> {
        let mut wrong = 0;
        for lent in [false, true] {
            self.fill();
            self.job.barrier()?;
            if lent {
                self.step_lent()?
            } else {
                self.step_in_place(Duration::ZERO).map(drop)?
            }
            for (tensor, count) in self.counts.iter().enumerate() {
                let differs = |index: &usize| {
                    // SAFETY: inside of the tensor's place.
                    self.differs(tensor, unsafe { self.places[tensor].add(*index).read() })
                };
                wrong += (0..*count).filter(differs).count() as u64;
            }
            // Nobody begins the next step while another compares.
            self.job.barrier()?;
        }
        Ok(wrong)
    }

    fn free(self) -> Result<()> {
        // SAFETY: no arguments but the number.
        self.job.call("gaspi_fusion_free", unsafe { (self.procedures.free)(self.fusion) })
    }
}

fn spin(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Times a batch as [`timed`] does, and keeps the microseconds that all threads of this process
/// have computed for an operation.
fn timed_with_cpu(
    batch: Batch,
    cpu: &Cell<f64>,
    mut operation: impl FnMut() -> Result<()>,
) -> Result<f64> {
    (0..batch.before).try_for_each(|_| operation())?;
    let begin = cpu_time();
    let us = timed(Batch { before: 0, ..batch }, operation)?;
    cpu.set(micros(cpu_time().saturating_sub(begin)) / batch.operations as f64);
    Ok(us)
}

/// The processor time of the last batch of another lane.
fn of_last_batch(cpu: &Cell<f64>) -> Lane<'_> {
    Lane::new(move |_| Ok(Some(cpu.get())))
}

/// One all-reduce of all bytes, in a segment, in place. The segment holds what the tensors do:
/// there are machines whose memory gives zeros faster than other values.
fn allreduce<'a>(
    job: &'a Job,
    segment: &'a Segment<'_>,
    counts: &[usize],
    cpu: &'a Cell<f64>,
) -> Result<Lane<'a>> {
    let procedures = job.extensions.collectives.ok_or_else(|| without(job, "gaspi_coll_*"))?;
    let elements: usize = counts.iter().sum();
    let values = counts.iter().enumerate().flat_map(|(tensor, count)| {
        std::iter::repeat_n(Gradients::value(job.rank, tensor), *count)
    });
    for (index, value) in values.enumerate() {
        // SAFETY: the segment has so many elements, and nobody uses it yet.
        unsafe { segment.region.address().cast::<f32>().add(index).write(value) };
    }
    Ok(Lane::new(move |batch| {
        let us = timed_with_cpu(batch, cpu, || {
            let data: *mut c_void = segment.region.address().cast();
            let options = Options::of(None, 0);
            // SAFETY: the segment has so many elements.
            let status = unsafe {
                (procedures.allreduce)(
                    data,
                    data,
                    elements as u64,
                    TYPE_F32,
                    OP_AVERAGE,
                    GROUP_ALL,
                    &raw const options,
                    LIMIT_MS,
                )
            };
            job.call("gaspi_coll_allreduce", status)
        })?;
        Ok(Some(us))
    }))
}

/// A memcpy of so many bytes, from what was written before to what was read before.
fn copy(bytes: usize) -> Lane<'static> {
    let (mut from, mut to) = (vec![1u8; bytes], vec![0u8; bytes]);
    Lane::new(move |batch| {
        let us = timed(batch, || {
            to.copy_from_slice(std::hint::black_box(&from));
            std::mem::swap(&mut from, &mut to);
            Ok(())
        })?;
        Ok(Some(us))
    })
}

fn without(job: &Job, what: &str) -> Failure {
    Failure::usage(format!("{} has no {what}: there is nothing to measure", job.library.display()))
}

/// How long it takes to make a fused buffer: the slowest rank, each time.
fn set_up(job: &Job, procedures: Fusions, counts: &[usize], step: &FusedStep) -> Result<Samples> {
    let mut samples = Vec::new();
    for _ in 0..SET_UPS {
        let mut made = 0;
        samples.extend(run_together(job, job.ranks, || {
            let begin = Instant::now();
            made = Gradients::create(job, procedures, counts, step, Kind::default())?;
            Ok(Some(micros(begin.elapsed())))
        })?);
        // SAFETY: no arguments but the number.
        job.call("gaspi_fusion_free", unsafe { (procedures.free)(made) })?;
    }
    Ok(Samples::new(samples))
}

/// Processor time of the slowest rank between two steps, while its program sleeps.
fn at_rest(job: &Job) -> Result<Row> {
    let mut samples = Vec::new();
    for _ in 0..RESTS {
        samples.extend(run_together(job, job.ranks, || {
            let begin = cpu_time();
            std::thread::sleep(REST);
            Ok(Some(micros(cpu_time().saturating_sub(begin))))
        })?);
    }
    let row = Row::new("fusion", "CPU at rest", Samples::new(samples));
    Ok(row.limit("0.1 % of the time", micros(REST) / 1000.0))
}

/// What the library counts for an operation of so many bytes; None if it has no such counters.
fn carried(job: &Job, bytes: usize, operation: impl Fn() -> Result<()>) -> Result<Option<Carried>> {
    let counts = || -> Result<Option<[u64; 2]>> {
        let [messages, copied] = COUNTERS.map(|name| links::counter(job, name));
        Ok(messages?.zip(copied?).map(<[u64; 2]>::from))
    };
    let mut counted = None;
    run_together(job, job.ranks, || {
        let before = counts()?;
        (0..COUNTED).try_for_each(|_| operation())?;
        let after = counts()?;
        counted = before.zip(after);
        Ok(None)
    })?;
    let Some((before, after)) = counted else { return Ok(None) };
    let of_step = |at: usize| f64::from(COUNTED).recip() * (after[at] - before[at]) as f64;
    let most = |figure| run_together(job, job.ranks, || Ok(Some(figure)));
    let (messages, copied) = (most(of_step(0))?, most(of_step(1))?);
    let all = |(messages, copied)| Carried { messages, copies: copied / bytes as f64 };
    Ok(messages.zip(copied).map(all))
}

/// Memory that a fused buffer and some steps of it touch, on the rank that touches most; what ranks
/// touch together is divided by their number. None where the kernel does not tell.
fn touched(
    job: &Job,
    procedures: Fusions,
    counts: &[usize],
    step: &FusedStep,
) -> Result<Option<Row>> {
    job.barrier()?;
    let before = resident::proportional();
    let gradients = Gradients::new(job, procedures, counts, step, Kind::default())?;
    (0..TOUCHING).try_for_each(|_| gradients.step_in_place(Duration::ZERO).map(drop))?;
    job.barrier()?;
    let grown = resident::proportional().zip(before).map(|(now, then)| now.saturating_sub(then));
    let most = run_together(job, job.ranks, || Ok(grown.map(|bytes| bytes as f64)))?;
    let mut buckets = 0;
    // SAFETY: writes the number.
    let status = unsafe { (procedures.buckets)(gradients.fusion, &raw mut buckets) };
    job.call("gaspi_fusion_buckets", status)?;
    gradients.free()?;
    let bytes = counts.iter().sum::<usize>() * FLOAT;
    let times = if job.links.transport == "shm" { MOST_SHM } else { MOST_TCP };
    let goal = bytes as f64 * times + (buckets as usize * PAGE) as f64;
    Ok(most.map(|most| {
        let row = Row::new("fusion", "memory touched", Samples::default()).size(bytes);
        Row { resident: Some(most as u64), limit_is_goal: true, ..row.limit("goal", goal) }
    }))
}

pub(crate) fn run(job: &Job, step: &FusedStep, report: &mut Report) -> Result<()> {
    let procedures = job.extensions.fusions.ok_or_else(|| without(job, "gaspi_fusion_*"))?;
    let counts = tensors::counts(&step.all.tensors)?;
    let bytes = counts.iter().sum::<usize>() * FLOAT;
    // First, since memory that was touched before is used again.
    let touched = touched(job, procedures, &counts, step)?;
    let set_up = set_up(job, procedures, &counts, step)?;
    let segment = job.segment(SEGMENT, bytes)?;
    let gradients = Gradients::new(job, procedures, &counts, step, Kind::default())?;
    let gradients = gradients.with_private();
    let cpu = [const { Cell::new(0.0) }; 3];
    let measured = {
        let gradients = &gradients;
        let exposed = &RefCell::new(Vec::new());
        let mut lanes = vec![
            allreduce(job, &segment, &counts, &cpu[0])?,
            copy(bytes),
            Lane::new(|batch| {
                let step = || gradients.step_in_place(Duration::ZERO).map(drop);
                timed_with_cpu(batch, &cpu[1], step).map(Some)
            }),
            Lane::new(|batch| timed(batch, || gradients.step_lent()).map(Some)),
            of_last_batch(&cpu[0]),
            of_last_batch(&cpu[1]),
        ];
        if !gradients.compute.is_zero() {
            lanes.push(Lane::new(|batch| {
                exposed.borrow_mut().clear();
                let step = || {
                    let submitted = gradients.step_in_place(gradients.compute)?;
                    exposed.borrow_mut().push(micros(submitted.elapsed()));
                    Ok(())
                };
                timed_with_cpu(batch, &cpu[2], step).map(Some)
            }));
            lanes.push(of_last_batch(&cpu[2]));
            // Of the batch before, behind what was not measured.
            lanes.push(Lane::new(|batch| {
                let exposed = exposed.borrow();
                let measured = &exposed[batch.before.min(exposed.len())..];
                Ok(Some(measured.iter().sum::<f64>() / measured.len().max(1) as f64))
            }));
        }
        let schedule = schedule(&step.all.plain, bytes);
        interleave(job, job.ranks, schedule, &mut lanes, |_| gradients.wrong())?
    };
    let in_place = || gradients.step_in_place(Duration::ZERO).map(drop);
    let steps = [carried(job, bytes, in_place)?, carried(job, bytes, || gradients.step_lent())?];
    let mut rows = vec![Row::new("fusion", "set-up", set_up)];
    rows.extend(rows_of(&measured, bytes, f64::from(step.compute), steps));
    rows.push(at_rest(job)?);
    gradients.free()?;
    segment.delete()?;
    for kind in Kind::wanted(step) {
        rows.push(compared(job, procedures, &counts, step, kind)?);
    }
    if job.rank == 0 {
        rows.iter().try_for_each(|row| report.row(Layout::Step, row))?;
        if let Some(touched) = touched {
            report.row(Layout::Memory, &touched)?;
        }
    }
    Ok(())
}

/// What steps came to, beside what they are compared with.
fn rows_of(
    measured: &Measured,
    bytes: usize,
    compute_us: f64,
    [step, of_lent]: [Option<Carried>; 2],
) -> Vec<Row> {
    let [one, copy, in_place, lent, cpu_of_one, cpu, computing @ ..] = &measured.samples[..] else {
        return Vec::new();
    };
    let (one, copy, cpu_of_one) = (one.median(), copy.median(), cpu_of_one.median());
    let row = |variant, samples: &Samples, limit: &str, us: f64| {
        Row::new("fusion", variant, samples.clone()).limit(limit, us).size(bytes)
    };
    let mut rows = vec![
        row("in place", in_place, "one all-reduce", one).errors(measured.errors).carried(step),
        row("private, lent", lent, "all-reduce + memcpy", one + copy).carried(of_lent),
        row("CPU, in place", cpu, "CPU of one all-reduce", cpu_of_one),
    ];
    if let [whole, cpu, exposed] = computing {
        rows.push(row("with computing", whole, "computing + all-reduce", compute_us + one));
        let limit = "computing + CPU of one all-reduce";
        rows.push(row("CPU, with computing", cpu, limit, compute_us + cpu_of_one));
        rows.push(row("exposed", exposed, "one all-reduce", one));
    }
    rows
}

fn schedule(plain: &Plain, bytes: usize) -> Schedule {
    Schedule::of_size(plain, bytes.max(64 << 10))
}
