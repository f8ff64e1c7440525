//! Submits tensors by the Rust interface, a thousand times each way, for a profiler that counts
//! instructions as it does for `tests/tests/instructions/paths.c`: inside of the functions path_*,
//! with a profile after each run_*. No tool: it lies here since it is built of what the tools are
//! built of, and nothing has to be compiled once more.

use std::process::ExitCode;

use gaspi_collectives::DataType;
use gaspi_collectives::fusion::{Fusion, Options, Tensor};
use gaspi_core::{Config, GroupId, Job, PendingInit, Result, Timeout};

const WARM_UP: usize = 20;
const CALLS: usize = 1000;
/// One bucket of more tensors than are submitted.
const TENSORS: usize = WARM_UP + CALLS + 1;
static GRADIENT: [f64; 8] = [1.0; 8];

/// A call of its own, which the profile counts.
#[inline(never)]
fn submit(fusion: &Fusion<'_>, tensor: usize, scale: f64) -> bool {
    // SAFETY: all tensors have as many elements of that type.
    unsafe { fusion.submit(tensor, GRADIENT.as_ptr().cast(), scale) }.is_ok()
}

macro_rules! path {
    ($path:ident, $run:ident, $scale:literal) => {
        /// What is counted.
        // SAFETY: no other function has this name.
        #[unsafe(no_mangle)]
        #[inline(never)]
        fn $path(fusion: &Fusion<'_>) -> bool {
            (WARM_UP..WARM_UP + CALLS).all(|tensor| submit(fusion, tensor, $scale))
        }

        /// Behind it the profile is written.
        // SAFETY: no other function has this name.
        #[unsafe(no_mangle)]
        #[inline(never)]
        fn $run(fusion: &Fusion<'_>) -> bool {
            (0..WARM_UP).all(|tensor| submit(fusion, tensor, $scale)) && $path(fusion)
        }
    };
}

path!(path_rust_submit, run_rust_submit, 1.0);
path!(path_rust_submit_scale, run_rust_submit_scale, 0.5);

fn count() -> Result<bool> {
    let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
    let tensors = [Tensor { count: GRADIENT.len() as u64, ty: DataType::F64 }; TENSORS];
    let options = Options { threshold: 1 << 20, ..Options::default() };
    let make = || Fusion::create(&rt, &tensors, GroupId::ALL, &options, Timeout::Block);
    let (copied, scaled) = (make()?, make()?);
    println!("path rust_submit Fusion::submit in Rust, 8 doubles, not the last of its bucket");
    println!("path rust_submit_scale Fusion::submit in Rust, times 0.5, besides the kernel");
    Ok(run_rust_submit(&copied) && run_rust_submit_scale(&scaled))
}

fn main() -> ExitCode {
    match count() {
        Ok(true) => ExitCode::SUCCESS,
        outcome => {
            eprintln!("a tensor could not be submitted: {outcome:?}");
            ExitCode::FAILURE
        }
    }
}
