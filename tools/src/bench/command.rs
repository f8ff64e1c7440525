//! The command line as a whole: what there is to do.

use crate::arguments::Test;
use crate::{compare, kernels, scale};
use clap::{Args, Parser, Subcommand};

/// Measures libgaspi beside what the hardware gives, in one run.
#[derive(Debug, Parser)]
#[command(name = "gaspi-bench", version, after_help = AFTER_HELP)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum Command {
    /// What this build is, what this machine offers, and why something is not usable
    Info(Info),
    /// The same calls by libgaspi and by MPI libraries from PyPI, in one interleaved run
    Compare(compare::Options),
    /// The loops that combine elements, of every type and operation, on one core without a job
    Kernels(kernels::Options),
    /// What jobs of many ranks on this host cost: a column for each number of ranks
    Scale(scale::Options),
    #[command(flatten)]
    Test(Test),
}

impl Command {
    /// As it is called on the command line.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Command::Info(_) => "info",
            Command::Compare(_) => "compare",
            Command::Kernels(_) => "kernels",
            Command::Scale(_) => "scale",
            Command::Test(test) => test.name(),
        }
    }
}

/// `info`.
#[derive(Debug, Clone, Args)]
pub(crate) struct Info {
    /// One JSON object for each row, and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

const AFTER_HELP: &str = "\
Runs as the ranks of a job under gaspi_run, or starts itself under it with -n N. Every row shows a
time beside a limit that was measured in the same run between the batches of the operation:
`2.10x` is the time in terms of the limit's, `93%` the share of the limit that is reached.

Examples:
  gaspi-bench info                            what this machine offers, without a job
  gaspi-bench compare -n 2,4 --quick          beside Open MPI, Intel MPI and MPICH
  gaspi-bench scale -n 16,64,256              start, barrier, memory and a death at that size
  gaspi-bench all -n 2 --goals                all tests but fusion and broadcast-list, with goals
  gaspi-bench write-bw -n 2 --sizes 64K,1M    two sizes
  gaspi-bench allreduce -n 2 -d bf16 -o max   a collective operation, with type and operation
  gaspi-bench barrier -n 4 --json             for programs
  gaspi_run -n 2 gaspi-bench limits           the hardware alone";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absurd_numbers_are_told_without_a_wrong_tip() {
        for (test, options) in [
            ("barrier", &["-n", "--ranks", "--iterations", "--warmup"][..]),
            ("limits", &["-s", "-b", "-e", "-f"]),
            ("write-bw", &["--pairs", "--queues"]),
            ("write-rate", &["--threads"]),
            ("broadcast", &["--root"]),
            ("fusion", &["--compute", "--threshold"]),
            ("init", &["--jobs"]),
            ("scale", &["-n", "--jobs"]),
            ("kernels", &["-s"]),
            ("compare", &["-n", "-s", "--rounds"]),
        ] {
            for option in options {
                for number in ["-1", "-1e9", "99999999999999999999", "1.5.2"] {
                    let line = ["gaspi-bench", test, option, number];
                    let text = Arguments::try_parse_from(line).err().map(|error| error.to_string());
                    let text = text.unwrap_or_else(|| panic!("{line:?} is accepted"));
                    let named = text.contains("invalid value") && text.contains(number);
                    assert!(named && !text.contains("tip:"), "{line:?}: {text}");
                }
            }
        }
        let line = ["gaspi-bench", "limits", "-e", "-8K"];
        let text = Arguments::try_parse_from(line).expect_err("accepted").to_string();
        assert!(text.contains("a size is a number"), "{text}");
    }
}
