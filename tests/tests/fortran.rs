//! The Fortran programs of `tests/fortran`, compiled with the modules of `include/`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use gaspi_tests::{Program, Result, fortran, root, run_trials};
use libtest_mimic::{Arguments, Trial};

/// In the order in which they use each other.
const MODULES: [&str; 4] =
    ["gaspi_types.f90", "gaspi.f90", "gaspi_ext.f90", "gaspi_collectives.f90"];

fn main() -> ExitCode {
    run_trials(Arguments::from_args(), trials())
}

fn trials() -> Result<Vec<Trial>> {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fortran");
    std::fs::create_dir_all(&directory)?;
    let modules: Vec<PathBuf> =
        MODULES.iter().map(|name| root().join("include/fortran").join(name)).collect();
    let mut trials = Vec::new();
    for program in Program::all("tests/fortran", &["f90", "F90"])? {
        let binary = directory.join(&program.name);
        let shared = Arc::new((program, OnceLock::<Result<()>>::new()));
        for ranks in shared.0.ranks.clone() {
            let (shared, binary, modules) = (Arc::clone(&shared), binary.clone(), modules.clone());
            trials.push(Trial::test(format!("{}/{ranks}", shared.0.name), move || {
                let (program, compiled) = &*shared;
                compiled.get_or_init(|| fortran(&modules, &program.source, &binary)).clone()?;
                program.run(&binary, ranks, &[]).map(drop).map_err(Into::into)
            }));
        }
    }
    Ok(trials)
}
