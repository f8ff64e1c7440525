//! Slurm itself: a controller and three nodes, each on a host of its own, without its plugins for
//! MPI and with those for PMI-1 and PMIx.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::{Job, Result, gaspi_run};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::programs::{MpiLibrary, libraries, library_path, meet, unpacked};
use crate::{deaths, expect_met, failed, trial};

/// A guard: the nodes register within a few seconds.
const GUARD: Duration = Duration::from_secs(60);
/// Where Slurm's plugin looks for the PMIx library.
const SYSTEM_LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";

pub(crate) fn trials() -> Vec<Trial> {
    // Slurm is slow to start, so these share one.
    vec![trial("slurm/all", || {
        let slurm = Slurm::start()?;
        slurm.step_without_pmi()?;
        slurm.step_of_one_host()?;
        slurm.step_with("pmi2", "pmi")?;
        slurm.step_with("pmix", "pmix")?;
        slurm.step_of_which_one_dies()?;
        slurm.step_that_contradicts()?;
        slurm.script()?;
        slurm.step_with_munge()?;
        slurm.allocation()?;
        slurm.allocation_of_three()?;
        slurm.output_of_every_byte()?;
        slurm.killed_launcher()
    })]
}

struct Slurm {
    hosts: Hosts,
    files: TempDir,
    daemons: Vec<Child>,
}

const CONFIGURATION: &str = "
ClusterName=test
SlurmctldHost=ant(@ANT@)
AuthType=auth/none
CredType=cred/none
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
    fn start() -> Result<Slurm> {
        let (hosts, files) = (Hosts::new(3, Options::default())?, TempDir::new()?);
        let mut slurm = Slurm { hosts, files, daemons: Vec::new() };
        slurm.write_files()?;
        let (hosts, tools) = (&slurm.hosts, unpacked()?.join("usr/sbin"));
        let configuration = slurm.path("slurm.conf");
        let mut daemons = Vec::new();
        let mut start = |host: &Host, program: &str, arguments: &[&str]| -> Result<()> {
            let mut command = Command::new(tools.join(program));
            command.arg("-D").arg("-f").arg(&configuration).args(arguments);
            let log = std::fs::File::create(slurm.path(&format!("{program}-{}", host.name())))?;
            command.env("LD_LIBRARY_PATH", library_path()?).stdin(Stdio::null());
            command.stdout(log.try_clone()?).stderr(log);
            daemons.push(host.spawn(&mut command)?);
            Ok(())
        };
        start(&hosts[0], "slurmctld-wlm", &[])?;
        let step = tools.join("slurmstepd-wlm").display().to_string();
        for host in hosts.iter() {
            slurm.show_pmix(host)?;
            start(host, "slurmd-wlm", &["-N", host.name(), "-d", &step])?;
        }
        slurm.daemons = daemons;
        slurm.await_nodes()?;
        Ok(slurm)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn write_files(&self) -> Result<()> {
        for name in ["state", "ant", "bee", "cow", "pmix-files", "shown/pmix2/lib"] {
            std::fs::create_dir_all(self.path(name))?;
        }
        let text = CONFIGURATION
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
        let own = self.path("pmix-files");
        let mount = |arguments: &[&str], at: &Path| {
            host.inside(|| {
                let status = Command::new("mount").args(arguments).arg(at).status()?;
                if status.success() { Ok(()) } else { Err(failed("mount failed")) }
            })?
        };
        mount(&["-t", "tmpfs", "none"], &own)?;
        let shown = format!("lowerdir={}:{SYSTEM_LIBRARIES}", self.path("shown").display());
        mount(&["-t", "overlay", "overlay", "-o", &shown], Path::new(SYSTEM_LIBRARIES))
    }

    /// Waits until all nodes are idle.
    fn await_nodes(&mut self) -> Result<()> {
        let end = Instant::now() + GUARD;
        loop {
            let job = self.tool("sinfo")?.args(["-h", "-t", "idle", "-o", "%D"]);
            if job.run()?.stdout.trim() == "3" {
                return Ok(());
            }
            let ended =
                self.daemons.iter_mut().any(|child| matches!(child.try_wait(), Ok(Some(_))));
            if ended || Instant::now() > end {
                return Err(failed(format!("Slurm does not come up:\n{}", self.logs())));
            }
        }
    }

    fn logs(&self) -> String {
        let names = ["slurmctld-wlm-ant", "slurmd-wlm-ant", "slurmd-wlm-bee", "slurmd-wlm-cow"];
        let log = |name: &str| std::fs::read_to_string(self.path(name)).unwrap_or_default();
        names.iter().map(|name| format!("{name}:\n{}", log(name))).collect()
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

    /// By each way of Slurm to start ranks.
    fn step_of_which_one_dies(&self) -> Result<()> {
        for plugin in ["none", "pmi2", "pmix"] {
            let mpi = format!("--mpi={plugin}");
            let job = self.srun(&[&mpi, "--kill-on-bad-exit=0", "-N", "2", "-n", "4"])?;
            deaths::expect_known(&self.hosts, job, "SLURM_PROCID")?;
        }
        Ok(())
    }

    /// Variables that say something else than Slurm.
    fn step_that_contradicts(&self) -> Result<()> {
        let job = self.srun(&["-N", "1", "-n", "2"])?.env("RANK", "0").env("WORLD_SIZE", "3");
        let outcome = job.arg(meet(MpiLibrary::None)?).arg("Gg").run()?.code(7)?;
        let outcome = outcome.says("two launchers contradict each other")?;
        outcome.says("set GASPI_LAUNCHER to slurm, torchrun or single").map(drop)
    }

    /// Without a key file munge vouches for the hosts: one daemon for all, since they share /run.
    fn step_with_munge(&self) -> Result<()> {
        let (key, socket) = (self.path("munge.key"), Path::new("/run/munge/munge.socket.2"));
        std::fs::write(&key, [0x5a; 64])?;
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600))?;
        std::fs::create_dir_all("/run/munge")?;
        let log = std::fs::File::create(self.path("munged"))?;
        let mut daemon = Command::new(unpacked()?.join("usr/sbin/munged"));
        daemon.args(["--foreground", "--force", "--num-threads=1", "--key-file"]).arg(&key);
        daemon.arg("--seed-file").arg(self.path("munge.seed"));
        daemon.arg("--pid-file").arg(self.path("munge.pid")).arg("--socket").arg(socket);
        daemon.env("LD_LIBRARY_PATH", library_path()?).stdin(Stdio::null());
        let mut daemon = self.hosts[0].spawn(daemon.stdout(log.try_clone()?).stderr(log))?;
        let end = Instant::now() + GUARD;
        while std::os::unix::net::UnixStream::connect(socket).is_err() {
            if Instant::now() > end || daemon.try_wait()?.is_some() {
                let said = std::fs::read_to_string(self.path("munged"))?;
                return Err(failed(format!("munged does not come up:\n{said}")));
            }
            std::thread::yield_now();
        }
        let job = self.srun(&["-N", "2", "-n", "4"])?.env("XDG_CONFIG_HOME", "/nonexistent");
        let outcome =
            job.arg(meet(MpiLibrary::None)?).arg("GgGg").limit(Duration::from_secs(20)).run();
        daemon.kill()?;
        daemon.wait()?;
        let said = std::fs::read_to_string(self.path("munged"))?;
        let outcome = outcome.map_err(|failure| failed(format!("{failure}\nmunged:\n{said}")))?;
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
