//! The hosts that a batch system has given to this job, with as many slots as ranks may run there.
//!
//! What each system says: Slurm in variables; PBS, LSF and Grid Engine in files that variables
//! name; the MPI operator of Kubernetes in the host file of Open MPI, Intel MPI or MPICH.

use crate::program;
use gaspi_core::bootstrap::{RANKS_MAX, host_file, node_list};
use gaspi_tools::hosts;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Bytes of the largest file that is read.
const FILE_MAX: u64 = 64 << 20;

/// Hosts by slot.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Allocation {
    pub(crate) hosts: Vec<String>,
    /// The variable that names them.
    pub(crate) by: &'static str,
}

type Slots = Vec<(String, u32)>;
type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;
type Reader = fn(&[u8]) -> Result<Slots, String>;

/// Variables that name a file, and how the file is read; the first that is set counts.
const FILES: [(&str, Reader); 6] = [
    ("PBS_NODEFILE", numbered),
    ("LSB_DJOB_HOSTFILE", numbered),
    ("PE_HOSTFILE", grid_engine),
    ("OMPI_MCA_orte_default_hostfile", numbered),
    ("I_MPI_HYDRA_HOST_FILE", numbered),
    ("HYDRA_HOST_FILE", numbered),
];

const SLURM: &str = "SLURM_JOB_NODELIST";

/// Variables of batch systems that have a program to reach the hosts of their jobs.
const SHELLS: [(&str, &str, &str); 4] = [
    (SLURM, "Slurm", "srun"),
    ("PBS_NODEFILE", "PBS", "pbs_tmrsh"),
    ("LSB_DJOB_HOSTFILE", "LSF", "blaunch"),
    ("PE_HOSTFILE", "Grid Engine", "qrsh"),
];

/// What reaches hosts where the user names no program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UsualShell {
    pub(crate) program: &'static str,
    /// Why it is this one.
    pub(crate) reason: String,
}

impl Default for UsualShell {
    fn default() -> UsualShell {
        UsualShell { program: "ssh", reason: "nothing else is named".to_owned() }
    }
}

impl Allocation {
    /// The allocation that the environment describes, if it describes one.
    ///
    /// # Errors
    /// It makes no sense, with the name of the variable.
    pub(crate) fn look_up(get: Lookup<'_>) -> Result<Option<Allocation>, String> {
        let set = |name: &str| get(name).filter(|value| !value.is_empty());
        if let Some(list) = set(SLURM) {
            let slots = slurm(&list.to_string_lossy(), &set)?;
            return Allocation::of(slots, SLURM).map(Some);
        }
        for (by, reader) in FILES {
            if let Some(file) = set(by) {
                let file = Path::new(&file);
                let wrong = |reason: String| format!("{by}={}: {reason}", file.display());
                let slots = read(file).and_then(|text| reader(&text)).map_err(wrong)?;
                return Allocation::of(slots, by).map_err(wrong).map(Some);
            }
        }
        Ok(None)
    }

    /// What reaches its hosts: the program that the batch system has for that, if it is there,
    /// since many clusters let no ssh in.
    pub(crate) fn shell(&self, path: Option<&OsStr>) -> UsualShell {
        let Some((_, system, program)) = SHELLS.iter().find(|(by, ..)| *by == self.by) else {
            return UsualShell::default();
        };
        if program::which(OsStr::new(program), path).is_some() {
            let reason = format!("the hosts are those of an allocation of {system}");
            return UsualShell { program, reason };
        }
        let reason = format!("{program}, by which {system} reaches its hosts, is not in PATH");
        UsualShell { reason, ..UsualShell::default() }
    }

    fn of(slots: Slots, by: &'static str) -> Result<Allocation, String> {
        let mut names = Vec::new();
        for (host, count) in slots {
            hosts::check(&host)?;
            if names.len() as u64 + u64::from(count) > u64::from(RANKS_MAX) {
                return Err(format!("it has more than {RANKS_MAX} slots for ranks"));
            }
            names.extend(std::iter::repeat_n(host, count as usize));
        }
        if names.is_empty() {
            return Err("it names no host".to_owned());
        }
        Ok(Allocation { hosts: names, by })
    }
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    let about = std::fs::metadata(file).map_err(|error| error.to_string())?;
    if !about.is_file() || about.len() > FILE_MAX {
        return Err("it is no list of hosts".to_owned());
    }
    std::fs::read(file).map_err(|error| error.to_string())
}

/// The nodes of a job, each with its tasks, or else its cores.
fn slurm(list: &str, set: Lookup<'_>) -> Result<Slots, String> {
    let shown = || list.chars().take(60).collect::<String>();
    let hosts =
        node_list::hosts(list).map_err(|reason| format!("{SLURM} is {:?}: {reason}", shown()))?;
    let counted = ["SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE"]
        .into_iter()
        .find_map(|name| set(name).map(|value| (name, value)));
    let counts = match counted {
        None => vec![1; hosts.len()],
        Some((name, value)) => {
            let text = value.to_string_lossy();
            let counts = node_list::tasks(&text);
            let counts = counts.map_err(|reason| format!("{name} is {text:?}: {reason}"))?;
            if counts.len() != hosts.len() {
                return Err(format!(
                    "{SLURM} names {} hosts, but {name} speaks of {}",
                    hosts.len(),
                    counts.len()
                ));
            }
            counts
        }
    };
    Ok(hosts.into_iter().zip(counts).collect())
}

/// As machine files.
fn numbered(text: &[u8]) -> Result<Slots, String> {
    host_file::slots(text).map_err(|wrong| wrong.to_string())
}

/// `host slots queue processors`, a line for each host and queue.
fn grid_engine(text: &[u8]) -> Result<Slots, String> {
    let text = String::from_utf8_lossy(text);
    let lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| !line.is_empty());
    let entry = |(number, line): (usize, &str)| {
        let mut words = line.split_whitespace();
        match (words.next(), words.next().and_then(|count| count.parse::<u32>().ok())) {
            (Some(host), Some(count)) if count > 0 => Ok((host.to_owned(), count)),
            _ => Err(format!("line {number}: {line:?} is no host with a number of slots")),
        }
    };
    lines.map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn found(variables: &[(&str, &str)]) -> Result<Option<(String, &'static str)>, String> {
        let map: HashMap<&str, OsString> =
            variables.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
        let found = Allocation::look_up(&|name| map.get(name).cloned())?;
        Ok(found.map(|found| (found.hosts.join(" "), found.by)))
    }

    /// What is found where `variable` names a file with this text.
    fn in_file(variable: &str, text: &str) -> Result<String, String> {
        let file = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(file.path(), text).expect("text");
        let path = file.path().to_str().expect("a path");
        let found = found(&[(variable, path)])?.expect("an allocation");
        assert_eq!(found.1, variable);
        Ok(found.0)
    }

    #[test]
    fn slurm_names_nodes_and_tasks() {
        assert_eq!(found(&[]), Ok(None));
        let all = |more: &[(&str, &str)]| {
            let mut variables = vec![("SLURM_JOB_NODELIST", "n[01-02],login")];
            variables.extend(more);
            found(&variables).map(|found| found.expect("an allocation").0)
        };
        assert_eq!(all(&[]).expect("one each"), "n01 n02 login");
        let cores = ("SLURM_JOB_CPUS_PER_NODE", "2(x3)");
        assert_eq!(all(&[cores]).expect("cores"), "n01 n01 n02 n02 login login");
        let tasks = ("SLURM_TASKS_PER_NODE", "2(x2),1");
        assert_eq!(all(&[cores, tasks]).expect("tasks"), "n01 n01 n02 n02 login");
        let error = all(&[("SLURM_TASKS_PER_NODE", "2(x2)")]).expect_err("too few");
        assert!(error.contains("names 3 hosts") && error.contains("speaks of 2"), "{error}");
        let error = all(&[("SLURM_TASKS_PER_NODE", "x")]).expect_err("no number");
        assert!(error.contains("SLURM_TASKS_PER_NODE is \"x\""), "{error}");
        let error = found(&[("SLURM_JOB_NODELIST", "a[001-100000000]")]).expect_err("too many");
        assert!(error.contains("SLURM_JOB_NODELIST is \"a[001-100000000]\""), "{error}");
        // Slurm's variables count before those of what it started.
        let both = [("SLURM_JOB_NODELIST", "ant"), ("HYDRA_HOST_FILE", "/nonexistent")];
        assert_eq!(found(&both), Ok(Some(("ant".to_owned(), "SLURM_JOB_NODELIST"))));
    }

    #[test]
    fn others_name_files() {
        for (variable, text) in [
            // As PBS Professional and Torque write it, and LSF: a line for each slot.
            ("PBS_NODEFILE", "n01.example.org\nn01.example.org\nn02.example.org\n"),
            ("LSB_DJOB_HOSTFILE", "n01.example.org\nn01.example.org\nn02.example.org\n"),
            (
                "PE_HOSTFILE",
                "n01.example.org 2 all.q@n01.example.org UNDEFINED\n\
                 n02.example.org 1 all.q@n02.example.org <NULL>\n",
            ),
            // As the MPI operator of Kubernetes writes it for Open MPI and Intel MPI.
            (
                "OMPI_MCA_orte_default_hostfile",
                "n01.example.org slots=2\nn02.example.org slots=1\n",
            ),
            ("I_MPI_HYDRA_HOST_FILE", "n01.example.org:2\nn02.example.org:1\n"),
            ("HYDRA_HOST_FILE", "n01.example.org:2\nn02.example.org:1\n"),
        ] {
            let hosts = in_file(variable, text).expect(variable);
            assert_eq!(hosts, "n01.example.org n01.example.org n02.example.org", "{variable}");
        }
    }

    #[test]
    fn batch_systems_have_their_own_way_to_hosts() {
        let directory = tempfile::tempdir().expect("directory");
        let path = Some(directory.path().as_os_str());
        for (by, program) in [
            ("SLURM_JOB_NODELIST", "srun"),
            ("PBS_NODEFILE", "pbs_tmrsh"),
            ("LSB_DJOB_HOSTFILE", "blaunch"),
            ("PE_HOSTFILE", "qrsh"),
        ] {
            let allocation = Allocation { hosts: vec!["n01".to_owned()], by };
            let shell = allocation.shell(path);
            let reason = &shell.reason;
            assert!(shell.program == "ssh" && reason.contains("is not in PATH"), "{reason}");
            assert!(reason.starts_with(program), "{reason}");
            let file = directory.path().join(program);
            fs::write(&file, "").expect("file");
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("mode");
            assert_eq!(allocation.shell(path).program, program);
        }
        let other = Allocation { hosts: vec!["n01".to_owned()], by: "HYDRA_HOST_FILE" };
        assert_eq!(other.shell(path), UsualShell::default());
    }

    #[test]
    fn mutated_files_of_grid_engine_end_in_hosts_or_an_error() {
        let good = [
            b"n01.example.org 2 all.q@n01.example.org UNDEFINED\nn02 16 all.q <NULL>\n".to_vec(),
            b"\n  ant\t1\r\n".to_vec(),
        ];
        crate::mutated::mutated(&good, |bytes| {
            let Ok(slots) = grid_engine(bytes) else { return };
            assert!(slots.iter().all(|(host, count)| !host.is_empty() && *count > 0));
            // Names that are no hosts, and too many slots, are refused before any is kept.
            if let Ok(found) = Allocation::of(slots, "PE_HOSTFILE") {
                assert!((1..=RANKS_MAX as usize).contains(&found.hosts.len()));
            }
        });
    }

    #[test]
    fn files_that_are_none() {
        for (variable, text, why) in [
            ("PBS_NODEFILE", "", "names no host"),
            ("PBS_NODEFILE", "-oProxyCommand=x\n", "cannot be the name"),
            ("PE_HOSTFILE", "n01\n", "no host with a number of slots"),
            ("PE_HOSTFILE", "n01 1 q u\n\nn02 0 q u\n", "line 3: \"n02 0 q u\" is no host"),
            ("HYDRA_HOST_FILE", "n01:0\n", "1 to 65535"),
            ("HYDRA_HOST_FILE", "# two\nn01:0\n", "line 2: \"n01:0\""),
        ] {
            let error = in_file(variable, text).expect_err(text);
            assert!(error.starts_with(variable) && error.contains(why), "{error}");
        }
        let many = "n01\n".repeat(1_000_000);
        let error = in_file("LSB_DJOB_HOSTFILE", &many).expect_err("too many");
        assert!(error.contains("more than 65535 slots"), "{error}");
        let error = found(&[("PBS_NODEFILE", "/nonexistent")]).expect_err("not there");
        assert!(error.contains("PBS_NODEFILE=/nonexistent: No such file"), "{error}");
        let error = found(&[("PBS_NODEFILE", "/")]).expect_err("a directory");
        assert!(error.contains("no list of hosts"), "{error}");
    }
}
