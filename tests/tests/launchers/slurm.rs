//! Slurm itself: a controller and three nodes, each on a host of its own, without its plugins for
//! MPI and with those for PMI-1 and PMIx. Its parts trust each other, or munge.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::{Job, Result, gaspi_run};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::programs::{MpiLibrary, PmixLibrary, libraries, library_path, meet, unpacked};
use crate::{deaths, expect_met, failed, mount, trial};

/// A guard: the nodes register within a few seconds.
const GUARD: Duration = Duration::from_secs(60);
/// Where Slurm's plugin looks for the PMIx library.
const SYSTEM_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

pub(crate) fn trials() -> Vec<Trial> {
    // Slurm is slow to start, so these share one.
    let all = trial("slurm/all", || {
        let slurm = Slurm::start(Authentication::None)?;
        slurm.step_without_pmi()?;
        slurm.step_of_one_host()?;
        slurm.step_with("pmi2", "pmi")?;
        slurm.step_with("pmix", "pmix")?;
        slurm.step_with_other_library()?;
        slurm.step_of_which_one_dies()?;
        slurm.step_of_which_one_is_killed()?;
        slurm.step_that_is_cleaned_up()?;
        slurm.step_that_contradicts()?;
        slurm.script()?;
        slurm.allocation()?;
        slurm.allocation_of_three()?;
        slurm.output_of_every_byte()?;
        slurm.killed_launcher()
    });
    // With a daemon of munge on each host, by which those of Slurm know each other, too.
    let munge = trial("slurm/munge", || Slurm::start(Authentication::Munge)?.step_with_munge());
    vec![all, munge]
}

/// How Slurm's daemons and commands know each other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Authentication {
    None,
    Munge,
}

impl Authentication {
    /// The last part of the names of its plugins.
    fn name(self) -> &'static str {
        match self {
            Authentication::None => "none",
            Authentication::Munge => "munge",
        }
    }
}

struct Slurm {
    hosts: Hosts,
    files: TempDir,
    daemons: Vec<Child>,
}

const CONFIGURATION: &str = "
ClusterName=test
SlurmctldHost=ant(@ANT@)
AuthType=auth/@AUTHENTICATION@
CredType=cred/@AUTHENTICATION@
PluginDir=@PLUGINS@
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SlurmUser=root
SlurmdUser=root
StateSaveLocation=@FILES@/state
SlurmdSpoolDir=@FILES@/%n
SlurmctldPidFile=@FILES@/controller.pid
SlurmdPidFile=@FILES@/%n.pid
LaunchParameters=disable_send_gids
NodeName=ant NodeAddr=@ANT@ CPUs=1
NodeName=bee NodeAddr=@BEE@ CPUs=1
NodeName=cow NodeAddr=@COW@ CPUs=1
PartitionName=all Nodes=ant,bee,cow Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES:4
";

impl Slurm {
    fn start(authentication: Authentication) -> Result<Slurm> {
        let (hosts, files) = (Hosts::new(3, Options::default())?, TempDir::new()?);
        let mut slurm = Slurm { hosts, files, daemons: Vec::new() };
        slurm.write_files(authentication)?;
        if authentication == Authentication::Munge {
            slurm.start_munge()?;
        }
        let configuration = slurm.path("slurm.conf").display().to_string();
        let step = unpacked()?.join("usr/sbin/slurmstepd-wlm").display().to_string();
        slurm.start_daemon(0, "slurmctld-wlm", &["-D", "-f", &configuration])?;
        for host in 0..slurm.hosts.len() {
            slurm.show_pmix(&slurm.hosts[host])?;
            let name = slurm.hosts[host].name();
            let arguments = ["-D", "-f", &configuration, "-N", name, "-d", &step];
            slurm.start_daemon(host, "slurmd-wlm", &arguments)?;
        }
        slurm.await_nodes()?;
        Ok(slurm)
    }

    fn start_daemon(&mut self, host: usize, program: &str, arguments: &[&str]) -> Result<()> {
        let host = &self.hosts[host];
        let mut command = Command::new(unpacked()?.join("usr/sbin").join(program));
        command.args(arguments);
        let log = std::fs::File::create(self.path(&format!("{program}-{}", host.name())))?;
        command.env("LD_LIBRARY_PATH", library_path()?).stdin(Stdio::null());
        command.stdout(log.try_clone()?).stderr(log);
        self.daemons.push(host.spawn(&mut command)?);
        Ok(())
    }

    /// A daemon of munge on each host, all with one key, at the place where libmunge looks for it.
    fn start_munge(&mut self) -> Result<()> {
        let (key, place) = (self.path("munge.key"), Path::new("/run/munge"));
        std::fs::write(&key, [0x5a; 64])?;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
        std::fs::create_dir_all(place)?;
        let socket = place.join("munge.socket.2");
        for host in 0..self.hosts.len() {
            // The hosts share all directories but this one.
            mount(&self.hosts[host], &["-t", "tmpfs", "none"], place)?;
            let name = self.hosts[host].name();
            let file =
                |kind: &str| self.path(&format!("munge-{name}.{kind}")).display().to_string();
            let [seed, pid, key] = [file("seed"), file("pid"), key.display().to_string()];
            let at = socket.display().to_string();
            let files = ["--key-file", &key, "--seed-file", &seed, "--pid-file", &pid];
            let arguments = ["--foreground", "--force", "--num-threads=1", "--socket", &at];
            self.start_daemon(host, "munged", &[&arguments[..], &files].concat())?;
            let is_up = || UnixStream::connect(&socket).is_ok();
            let end = Instant::now() + GUARD;
            while !self.hosts[host].inside(is_up)? {
                if self.has_ended() || Instant::now() > end {
                    return Err(failed(format!("munged does not come up:\n{}", self.logs())));
                }
            }
        }
        Ok(())
    }

    /// Whether one of the daemons has ended.
    fn has_ended(&mut self) -> bool {
        self.daemons.iter_mut().any(|child| matches!(child.try_wait(), Ok(Some(_))))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn write_files(&self, authentication: Authentication) -> Result<()> {
        for name in ["state", "ant", "bee", "cow", "pmix-files", "shown/pmix2/lib"] {
            std::fs::create_dir_all(self.path(name))?;
        }
        let text = CONFIGURATION
            .replace("@AUTHENTICATION@", authentication.name())
            .replace("@ANT@", &self.hosts[0].ipv4().to_string())
            .replace("@BEE@", &self.hosts[1].ipv4().to_string())
            .replace("@COW@", &self.hosts[2].ipv4().to_string())
            .replace("@PLUGINS@", &libraries()?.join("slurm-wlm").display().to_string())
            .replace("@FILES@", &self.files.path().display().to_string());
        std::fs::write(self.path("slurm.conf"), text)?;
        // It is not used, and found out by itself it would have to be there.
        std::fs::write(self.path("cgroup.conf"), "CgroupPlugin=cgroup/v1\n")?;
        let library = libraries()?.join("pmix2/lib/libpmix.so.2");
        symlink(library, self.path("shown/pmix2/lib/libpmix.so"))?;
        Ok(())
    }

    /// Slurm's plugin knows the library by its place in the system only, and all nodes by one name
    /// of a directory, which has to be each one's own.
    fn show_pmix(&self, host: &Host) -> Result<()> {
        mount(host, &["-t", "tmpfs", "none"], &self.path("pmix-files"))?;
        let shown = format!("lowerdir={}:{SYSTEM_LIBRARIES}", self.path("shown").display());
        mount(host, &["-t", "overlay", "overlay", "-o", &shown], Path::new(SYSTEM_LIBRARIES))
    }

    /// Waits until all nodes are idle.
    fn await_nodes(&mut self) -> Result<()> {
        let end = Instant::now() + GUARD;
        loop {
            let job = self.tool("sinfo")?.args(["-h", "-t", "idle", "-o", "%D"]);
            if job.run()?.stdout.trim() == "3" {
                return Ok(());
            }
            if self.has_ended() || Instant::now() > end {
                return Err(failed(format!("Slurm does not come up:\n{}", self.logs())));
            }
        }
    }

    fn logs(&self) -> String {
        let programs = ["munged", "slurmctld-wlm", "slurmd-wlm"];
        let of_host = |program: &str, host: &Host| {
            let name = format!("{program}-{}", host.name());
            let log = std::fs::read_to_string(self.path(&name)).ok()?;
            Some(format!("{name}:\n{log}"))
        };
        let of = |program| self.hosts.iter().filter_map(move |host| of_host(program, host));
        programs.into_iter().flat_map(of).collect()
    }

    /// A command of Slurm on the first host.
    fn tool(&self, name: &str) -> Result<Job> {
        let tools = unpacked()?.join("usr/bin");
        let job = Job::plain(&tools.join(name)).on(&self.hosts[0]);
        let job = job.env("LD_LIBRARY_PATH", library_path()?);
        let path = std::env::var("PATH").unwrap_or_default();
        let job = job.env("PATH", format!("{}:{path}", tools.display()));
        let own = self.path("pmix-files").display().to_string();
        let configuration = self.path("slurm.conf").display().to_string();
        Ok(job.env("SLURM_CONF", configuration).env("SLURM_PMIX_TMPDIR", own))
    }

    fn srun(&self, arguments: &[&str]) -> Result<Job> {
        Ok(self.tool("srun")?.args(["--overcommit"]).args(arguments).env("GASPI_LOG", "info"))
    }

    fn step_without_pmi(&self) -> Result<()> {
        let job = self.srun(&["-N", "2", "-n", "4"])?.arg(meet(MpiLibrary::None)?).arg("GgGg");
        let outcome = job.run()?.says("proc_init: launcher slurm, by SLURM_JOB_ID")?;
        expect_met(outcome, 4, 2)
    }

    fn step_of_one_host(&self) -> Result<()> {
        let job = self.srun(&["-N", "1", "-n", "3"])?.arg(meet(MpiLibrary::None)?).arg("Gg");
        expect_met(job.run()?, 3, 1)
    }

    fn step_with(&self, plugin: &str, launcher: &str) -> Result<()> {
        let mpi = format!("--mpi={plugin}");
        let job =
            self.srun(&[&mpi, "-N", "2", "-n", "4"])?.arg(meet(MpiLibrary::None)?).arg("GgGg");
        let outcome = job.run()?.says(&format!("proc_init: launcher {launcher}, by PMI"))?;
        expect_met(outcome, 4, 2)
    }

    /// The ranks' PMIx library is newer than that of Slurm's plugin.
    fn step_with_other_library(&self) -> Result<()> {
        let job = self.srun(&["--mpi=pmix", "-N", "2", "-n", "4"])?;
        let library = PmixLibrary::Wheel;
        library.expect_used(job.args(library.ranks()?).run()?, 4)
    }

    /// By each way of Slurm to start ranks.
    fn step_of_which_one_dies(&self) -> Result<()> {
        for plugin in ["none", "pmi2", "pmix"] {
            let mpi = format!("--mpi={plugin}");
            let job = self.srun(&[&mpi, "--kill-on-bad-exit=0", "-N", "2", "-n", "4"])?;
            deaths::expect_known(&self.hosts, job, "SLURM_PROCID")?;
        }
        Ok(())
    }

    /// By gaspi_proc_kill.
    fn step_of_which_one_is_killed(&self) -> Result<()> {
        let job = self.srun(&["--mpi=none", "--kill-on-bad-exit=0", "-N", "2", "-n", "4"])?;
        deaths::expect_killed(&self.hosts, job, "SLURM_PROCID")
    }

    /// By gaspi_cleanup.
    fn step_that_is_cleaned_up(&self) -> Result<()> {
        let job = self.srun(&["--mpi=none", "--kill-on-bad-exit=0", "-N", "2", "-n", "4"])?;
        deaths::expect_cleaned_up(&self.hosts, job)
    }

    /// Variables that say something else than Slurm.
    fn step_that_contradicts(&self) -> Result<()> {
        let job = self.srun(&["-N", "1", "-n", "2"])?.env("RANK", "0").env("WORLD_SIZE", "3");
        let outcome = job.arg(meet(MpiLibrary::None)?).arg("Gg").run()?.code(7)?;
        let outcome = outcome.says("two launchers contradict each other")?;
        outcome.says("set GASPI_LAUNCHER to slurm, torchrun or single").map(drop)
    }

    /// Without a key file munge vouches for the hosts.
    fn step_with_munge(&self) -> Result<()> {
        let job = self.srun(&["--mpi=none", "-N", "2", "-n", "4"])?;
        let job = job.env("XDG_CONFIG_HOME", "/nonexistent").arg(meet(MpiLibrary::None)?);
        let outcome = job.arg("GgGg").limit(Duration::from_secs(20)).run();
        let outcome = outcome.map_err(|failure| failed(format!("{failure}\n{}", self.logs())))?;
        expect_met(outcome.says("munge vouches for the hosts of this job")?, 4, 2)
    }

    /// A program that the script of a batch job starts directly is a job of one rank.
    fn script(&self) -> Result<()> {
        let (output, program) = (self.path("script-output"), meet(MpiLibrary::None)?);
        let job = self.tool("sbatch")?.args(["--wait", "-N", "2", "-n", "4", "-O", "-o"]);
        let job = job.arg(&output).arg(format!("--wrap={} Gg", program.display()));
        let outcome = job.run()?.success()?;
        let said = std::fs::read_to_string(output)?;
        if said == "rank 0 of 1 heard 0\n" { Ok(()) } else { Err(outcome.failure(&said)) }
    }

    /// gaspi_run takes hosts and tasks of the allocation, and reaches them by srun: no host has an
    /// sshd.
    fn allocation(&self) -> Result<()> {
        let salloc = || self.tool("salloc").map(|job| job.args(["-N", "2", "-n", "4", "-O"]));
        let job = salloc()?.arg(gaspi_run()?);
        let script = "echo rank $GASPI_RANK of $GASPI_NRANKS on $(hostname)";
        let outcome = job.args(["sh", "-c", script]).run()?.success()?;
        let mut found = outcome;
        for (rank, host) in ["ant", "ant", "bee", "bee"].into_iter().enumerate() {
            found = found.says(&format!("rank {rank} of 4 on {host}"))?;
        }
        let job = salloc()?.arg(gaspi_run()?).args(["-n", "5", "true"]);
        job.run()?.code(2)?.says("SLURM_JOB_NODELIST) has 4 slots")?.says("--oversubscribe")?;
        let job = salloc()?.arg(gaspi_run()?).args(["--oversubscribe", "-n", "6"]);
        expect_met(job.arg(meet(MpiLibrary::None)?).arg("Gg").run()?, 6, 1)
    }

    /// One srun starts gaspi_run on all other hosts, and each calls back.
    fn allocation_of_three(&self) -> Result<()> {
        let job = self.tool("salloc")?.args(["-N", "3", "-n", "6", "-O"]).arg(gaspi_run()?);
        let job = job.env("GASPI_LOG", "info").arg(meet(MpiLibrary::None)?).arg("GgGg");
        let outcome = job.run()?.says("srun starts gaspi_run on bee, cow, to call back")?;
        // Ranks may refuse what those of the first meeting still say.
        let missed = |line: &str| {
            let is_said = |words| line.starts_with("gaspi_run: ") && line.contains(words);
            is_said("tried by itself") || is_said("refused")
        };
        if outcome.stderr.lines().any(missed) {
            return Err(outcome.failure("a host did not call back"));
        }
        expect_met(outcome, 6, 2)
    }

    /// The connections hand on what ranks write as it is, lines or not, and their status.
    fn output_of_every_byte(&self) -> Result<()> {
        let file = self.path("bytes");
        let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at ^ (at >> 8)) as u8).collect();
        std::fs::write(&file, bytes)?;
        let line = format!(
            "{0} -n 4 sh -c 'if [ $GASPI_RANK = 3 ]; then cat {1}; exit 9; fi' | cmp - {1} && \
             {0} -n 4 sh -c '[ $GASPI_RANK != 3 ] || exit 5'",
            gaspi_run()?.display(),
            file.display()
        );
        let job = self.tool("salloc")?.args(["-N", "2", "-n", "4", "-O", "sh", "-c", &line]);
        job.run()?.code(5).map(drop)
    }

    /// The ranks on the hosts that srun reached end with a gaspi_run that is killed, and so does
    /// srun: nobody holds the two pipes any more.
    fn killed_launcher(&self) -> Result<()> {
        let line = format!(
            "mkfifo {0}; {{ {1} -n 4 sh -c 'exec 4> {0}; echo started >&4; exec sleep 1000' 5>&1 & \
             exec 3< {0}; for rank in 0 1 2 3; do read line <&3; done; \
             kill -KILL $!; cat <&3; }} | cat",
            self.path("started").display(),
            gaspi_run()?.display()
        );
        let job = self.tool("salloc")?.args(["-N", "2", "-n", "4", "-O", "sh", "-c", &line]);
        job.run()?.success().map(drop)
    }
}
