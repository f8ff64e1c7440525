//! gaspi-bench where no process may open the descriptors of another in /proc.

use crate::{alone, demand, launched, objects};
use gaspi_tests::{Result, c_compiler, root, run_compiler};
use serde_json::Value;

/// Memory that ranks share is handed over, not opened through /proc, which a machine may not allow.
#[test]
fn nobody_opens_descriptors_of_another_process() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let library = directory.path().join("closed_proc.so");
    let mut compiler = c_compiler(false);
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    run_compiler(compiler.arg(root().join("tests/tests/bench/closed_proc.c")).arg("-ldl"))?;
    let job = launched(3, &["write-lat", "-s", "8", "--iterations", "20", "--json"])?
        .env("LD_PRELOAD", &library);
    demand(!objects(&job.run()?.success()?)?.is_empty(), "rows", &Value::Null)?;
    let arguments = ["compare", "--alone", "-n", "2", "-s", "8", "--quick", "--json"];
    let job = alone(&arguments)?.arg("--directory").arg(directory.path());
    let outcome = job.env("LD_PRELOAD", &library).run()?.success()?;
    demand(objects(&outcome)?.len() == 3, "a row of each operation", &Value::Null)
}
