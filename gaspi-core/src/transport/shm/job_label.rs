//! By what gaspi_cleanup finds a process of a job, whatever has started it: a page that it maps and
//! never touches. The name of its memory file, which /proc/PID/maps shows, tells job and rank.

use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::memory::{self, Mapping};
use std::ffi::CString;
use std::os::fd::AsFd;

/// What the name begins with; the rank and the job follow, with a colon between them.
const BEGIN: &str = "gaspi-rank-";
/// Bytes of a name that the kernel takes.
const NAME_MAX: usize = 240;
const BYTES: u64 = 4096;

/// The mapping, as long as the process is in the job.
#[derive(Debug)]
pub(crate) struct JobLabel {
    _mapping: Mapping,
}

impl JobLabel {
    /// Shows that this process is `rank` of `job`, if the operating system allows it.
    pub(super) fn show(job: &str, rank: Rank) -> Option<JobLabel> {
        let label = JobLabel::new(job, rank);
        if let Err(error) = &label {
            log::debug!("proc_init: gaspi_cleanup may not find this process: {error}");
        }
        label.ok()
    }

    fn new(job: &str, rank: Rank) -> Result<JobLabel> {
        let name = format!("{BEGIN}{}:{job}", rank.0);
        let end = name.floor_char_boundary(NAME_MAX);
        let name = CString::new(&name[..end]).map_err(|error| Error::System {
            call: "naming a memory file".to_owned(),
            reason: error.to_string(),
        })?;
        let file = memory::create(&name, BYTES, false)?;
        let mapping = Mapping::new(file.as_fd(), 0, BYTES);
        let mapping = mapping.map_err(|error| Error::os("mapping the label of the job", &error))?;
        Ok(JobLabel { _mapping: mapping })
    }
}

/// The job and the rank that the text of /proc/PID/maps tells; a job's id of some hundred bytes is
/// cut off.
pub fn labelled_job(maps: &str) -> Option<(String, u32)> {
    let label = maps.lines().find_map(|line| {
        let (_, label) = line.split_once(&format!("/memfd:{BEGIN}"))?;
        label.strip_suffix(" (deleted)")
    })?;
    let (rank, job) = label.split_once(':')?;
    // The kernel writes the end of a line so.
    Some((job.replace("\\012", "\n"), rank.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_this_process() -> Vec<(String, u32)> {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        maps.lines().filter_map(labelled_job).collect()
    }

    #[test]
    fn a_process_shows_its_job_while_it_is_in_it() {
        let job = format!("label {} of\na test: prterun-h-1@1", std::process::id());
        let label = JobLabel::new(&job, Rank(258)).expect("label");
        assert!(of_this_process().contains(&(job.clone(), 258)));
        drop(label);
        assert!(of_this_process().iter().all(|(other, _)| *other != job));
        let long = "j\u{e4}".repeat(200);
        let label = JobLabel::new(&long, Rank(1)).expect("a long name");
        let cut = of_this_process();
        assert!(cut.iter().any(|(job, rank)| *rank == 1 && long.starts_with(job)), "{cut:?}");
        drop(label);
    }

    #[test]
    fn other_mappings_are_none() {
        for line in [
            "7f00-7f01 rw-s 00000000 00:01 5 /memfd:gaspi-segment (deleted)",
            "7f00-7f01 rw-s 00000000 00:01 5 /memfd:gaspi-rank-x:j (deleted)",
            "7f00-7f01 rw-s 00000000 00:01 5 /memfd:gaspi-rank-1 (deleted)",
            "",
        ] {
            assert_eq!(labelled_job(line), None, "{line}");
        }
    }

    /// Other programs of the user may map files of any name.
    #[test]
    fn mutated_maps_give_no_more_than_they_say() {
        let line = |file: &str| format!("7f00-7f01 r--s 00000000 00:01 5 {file} (deleted)\n");
        let samples = [
            line("/memfd:gaspi-rank-258:slurm-77.0.0"),
            line("/memfd:gaspi-node") + &line("/memfd:gaspi-rank-1:a\\012b: c"),
            line("/usr/lib/x:1") + "7f02-7f03 rw-p 00000000 00:00 0 [heap]\n",
        ];
        crate::fuzzed::run("label", 64 << 10, |seed| {
            let mut bytes = samples[seed.below(3) as usize].as_bytes().to_vec();
            seed.mutate(&mut bytes);
            let maps = String::from_utf8_lossy(&bytes);
            if let Some((job, rank)) = labelled_job(&maps) {
                let written = job.replace('\n', "\\012");
                assert!(maps.contains(&written) || maps.contains(&job), "{job} is not in {maps}");
                assert!(maps.contains(&rank.to_string()), "{rank} is not in {maps}");
            }
        });
    }
}
