//! Jobs over hosts whose ranks are started one by one, as any launcher would.

use std::path::Path;
use std::time::Duration;

use gaspi_tests::hosts::{Host, Hosts, Options};
use gaspi_tests::{Job, Outcome, Result, Running};
use libtest_mimic::Trial;
use tempfile::NamedTempFile;

use crate::job::rounds;
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("by-hand/one-host", || {
        rounds_on(&[0, 0, 0], Options::default(), |host| host.name().to_owned())
    })]
}

/// The ranks of a job.
pub(crate) struct ByHand {
    ranks: Vec<Running>,
    _machine_file: NamedTempFile,
}

/// How the machine file names a host.
pub(crate) type Naming = fn(&Host) -> String;

impl ByHand {
    /// Starts rank r on host `places[r]`.
    pub(crate) fn start(
        hosts: &Hosts,
        places: &[usize],
        naming: Naming,
        program: &Path,
        arguments: &[&str],
    ) -> Result<ByHand> {
        let machine_file = NamedTempFile::new()?;
        let lines: Vec<String> = places.iter().map(|place| naming(&hosts[*place])).collect();
        std::fs::write(machine_file.path(), lines.join("\n"))?;
        let mut ranks = Vec::new();
        for (rank, place) in places.iter().enumerate() {
            let local = places[..rank].iter().filter(|other| *other == place).count();
            let job = Job::plain(program)
                .args(arguments)
                .env("GASPI_RANK", rank.to_string())
                .env("GASPI_NRANKS", places.len().to_string())
                .env("GASPI_SOCKET", local.to_string())
                .env("GASPI_MFILE", machine_file.path())
                .limit(Duration::from_secs(60))
                .on(&hosts[*place])
                .start()?;
            ranks.push(job);
        }
        Ok(ByHand { ranks, _machine_file: machine_file })
    }

    /// Waits for all ranks.
    pub(crate) fn wait(self) -> Result<Vec<Outcome>> {
        self.ranks.into_iter().map(Running::wait).collect()
    }
}

fn rounds_on(places: &[usize], options: Options, naming: Naming) -> Result<()> {
    let count = places.iter().max().map_or(0, |last| last + 1);
    let hosts = Hosts::new(count, options)?;
    let job = ByHand::start(&hosts, places, naming, &rounds(), &["60"])?;
    for (rank, outcome) in job.wait()?.into_iter().enumerate() {
        outcome.success()?.says(&format!("finished {rank} 60"))?;
    }
    hosts.await_idle()
}
