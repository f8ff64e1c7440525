//! Fused buffers over every kind of link, against a naive oracle, and when something is wrong.

#[macro_use]
#[path = "../../../gaspi-core/tests/ranks/mod.rs"]
mod ranks;

mod buckets;
mod deaths;
mod devices;
mod drawn;
mod drops;
mod ends;
mod forked;
mod freed;
mod library_thread;
mod results;
mod roots;
mod rounding;
mod stall;
mod sums;
mod taken_away;
mod trouble;
mod turns;

use gaspi_collectives::DataType;
use gaspi_collectives::fusion::{Fusion, Options, Tensor};
use gaspi_core::{GroupId, Runtime};
use ranks::LIMIT;

fn main() -> std::process::ExitCode {
    stall::keep_warnings();
    ranks::run_tests([
        buckets::tests(),
        sums::tests(),
        taken_away::tests(),
        results::tests(),
        roots::tests(),
        rounding::tests(),
        deaths::tests(),
        devices::tests(),
        drawn::tests(),
        drops::tests(),
        ends::tests(),
        forked::tests(),
        freed::tests(),
        library_thread::tests(),
        stall::tests(),
        trouble::tests(),
        turns::tests(),
    ])
}

const ALL: GroupId = GroupId::ALL;

fn floats(counts: &[usize]) -> Vec<Tensor> {
    counts.iter().map(|count| Tensor { count: *count as u64, ty: DataType::F32 }).collect()
}

fn create<'r>(rt: &'r Runtime, tensors: &[Tensor], options: &Options) -> Fusion<'r> {
    Fusion::create(rt, tensors, ALL, options, LIMIT).expect("a fused buffer")
}

/// What a rank contributes: integers small enough that all sums are exact.
fn value(rank: usize, tensor: usize, step: usize, index: usize) -> f32 {
    ((rank * 7 + tensor * 3 + step * 5 + index) % 31) as f32 - 11.0
}

fn contribution(rank: usize, tensor: usize, step: usize, count: usize) -> Vec<f32> {
    (0..count).map(|index| value(rank, tensor, step, index)).collect()
}

/// The sum over all ranks.
fn sum(ranks: usize, tensor: usize, step: usize, count: usize) -> Vec<f32> {
    let element = |index| (0..ranks).map(|rank| value(rank, tensor, step, index)).sum();
    (0..count).map(element).collect()
}

/// Numbers that look random: the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    /// Numbers below a limit, in some order.
    fn order(&mut self, limit: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..limit).collect();
        for last in (1..limit).rev() {
            order.swap(last, self.below(last + 1));
        }
        order
    }
}

fn submit(fusion: &Fusion<'_>, tensor: usize, data: &[f32]) {
    // SAFETY: as many elements as the tensor has.
    unsafe { fusion.submit(tensor, data.as_ptr().cast(), 1.0) }.expect("submitted");
}

/// Waits for a tensor and copies its sum.
fn wait(fusion: &Fusion<'_>, tensor: usize, count: usize) -> Vec<f32> {
    let mut found = vec![f32::NAN; count];
    // SAFETY: as many elements as the tensor has.
    unsafe { fusion.wait(tensor, found.as_mut_ptr().cast(), LIMIT) }.expect("ended");
    found
}

/// What lies at a pointer that a fused buffer gave.
fn read(from: *const u8, count: usize) -> Vec<f32> {
    // SAFETY: the place of a tensor of so many elements.
    (0..count).map(|index| unsafe { from.cast::<f32>().add(index).read() }).collect()
}
