//! Which launcher is taken, with environments as the launchers set them.

use super::*;
use crate::bootstrap::job::ServerLocation;
use crate::bootstrap::this_machine::ThisMachine;
use std::collections::HashMap;
use std::ffi::OsString;

type Set<'a> = &'a [(&'a str, &'a str)];

fn with<T>(sets: &[Set<'_>], then: impl FnOnce(&Variables<'_>) -> T) -> T {
    let map: HashMap<&str, OsString> =
        sets.iter().copied().flatten().map(|(name, value)| (*name, (*value).into())).collect();
    let machine = || ThisMachine::called("ant", &["192.0.2.1".parse().expect("address")]);
    then(&Variables::new(&|name| map.get(name).cloned(), &machine))
}

/// Name, rank and size of what is chosen.
fn chosen(sets: &[Set<'_>]) -> Result<Option<(&'static str, u16, Option<u32>)>> {
    with(sets, |variables| {
        let (choice, _) = choose(variables)?;
        Ok(choice.map(|(launcher, task)| (launcher.name(), task.rank.0, task.size)))
    })
}

fn refusal(sets: &[Set<'_>]) -> String {
    chosen(sets).expect_err("accepted").to_string()
}

/// The job of the chosen launcher, which must not need a process manager.
fn job(sets: &[Set<'_>]) -> Result<Job> {
    with(sets, |variables| {
        let (launcher, task) = choose(variables)?.0.expect("a launcher");
        launcher.job(variables, task, Deadline::Never)
    })
}

const OPEN_MPI: Set<'_> = &[
    ("PMIX_RANK", "1"),
    ("PMIX_NAMESPACE", "1689190401"),
    ("PMIX_SERVER_URI4", "1689190400.0;tcp4://127.0.0.1:35391"),
    ("OMPI_COMM_WORLD_RANK", "1"),
    ("OMPI_COMM_WORLD_SIZE", "4"),
];
const PRTERUN: Set<'_> = &[("PMIX_RANK", "3"), ("PMIX_NAMESPACE", "prterun-ant-77@1")];
const HYDRA: Set<'_> = &[
    ("PMI_FD", "6"),
    ("PMI_RANK", "1"),
    ("PMI_SIZE", "4"),
    ("MPI_LOCALNRANKS", "2"),
    ("MPI_LOCALRANKID", "1"),
];
const SRUN: Set<'_> = &[
    ("SLURM_JOB_ID", "77"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NTASKS", "4"),
    ("SLURM_STEP_NUM_TASKS", "4"),
    ("SLURM_STEP_NUM_NODES", "2"),
    ("SLURM_STEP_NODELIST", "ant,bee"),
    ("SLURMD_NODENAME", "ant"),
];
const TORCHRUN: Set<'_> = &[
    ("RANK", "3"),
    ("WORLD_SIZE", "4"),
    ("LOCAL_RANK", "1"),
    ("LOCAL_WORLD_SIZE", "2"),
    ("MASTER_ADDR", "192.0.2.1"),
    ("MASTER_PORT", "29500"),
    ("TORCHELASTIC_RUN_ID", "none"),
    ("TORCHELASTIC_RESTART_COUNT", "0"),
];
const POD: Set<'_> = &[
    ("JOB_COMPLETION_INDEX", "2"),
    ("GASPI_NRANKS", "4"),
    ("GASPI_MEETING", "tcp:heat-0.heat:4711"),
];

#[test]
fn each_launcher_is_recognised() {
    assert_eq!(chosen(&[]).expect("none"), None);
    let gaspi: Set<'_> = &[("GASPI_RANK", "1"), ("GASPI_NRANKS", "4")];
    for (set, expected) in [
        (gaspi, ("gaspi", 1, Some(4))),
        (OPEN_MPI, ("pmix", 1, Some(4))),
        (PRTERUN, ("pmix", 3, None)),
        (HYDRA, ("pmi", 1, Some(4))),
        (SRUN, ("slurm", 1, Some(4))),
        (TORCHRUN, ("torchrun", 3, Some(4))),
        (POD, ("kubernetes", 2, Some(4))),
    ] {
        assert_eq!(chosen(&[set]).expect("taken"), Some(expected));
    }
}

/// `srun -n 2 prog : -n 4 prog` in a job of two components: this is the second task of the first.
#[test]
fn a_component_of_a_step_does_not_tell_the_size_of_the_job() {
    let pmix: Set<'_> = &[("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "slurm.pmix.77.0")];
    let hydra: Set<'_> = &[("PMI_RANK", "1"), ("PMI_SIZE", "6"), ("PMI_FD", "6")];
    let (component, whole): (Set<'_>, Set<'_>) =
        (&[("SLURM_STEP_NUM_TASKS", "2")], &[("SLURM_STEP_NUM_TASKS", "6")]);
    let taken = |sets: &[Set<'_>]| {
        with(sets, choose).map(|(choice, _)| {
            let (launcher, task) = choice.expect("a launcher");
            (launcher.name(), task.rank.0, task.size, task.size_by)
        })
    };
    for several in ["SLURM_HET_SIZE", "SLURM_PACK_SIZE"] {
        let two: Set<'_> = &[(several, "2")];
        // The library is asked, and nothing else is compared with what it says.
        let by_library = ("pmix", 1, None, None);
        assert_eq!(taken(&[SRUN, component, two, pmix]).expect("taken"), by_library);
        assert_eq!(taken(&[SRUN, whole, two, pmix]).expect("taken"), by_library);
        let by_pmi = ("pmi", 1, Some(6), None);
        assert_eq!(taken(&[SRUN, component, two, hydra]).expect("taken"), by_pmi);
        // A job of one component has one size, and ranks have to agree in any.
        let one: Set<'_> = &[(several, "1")];
        let by_slurm = ("pmix", 1, Some(2), Some("slurm"));
        assert_eq!(taken(&[SRUN, component, one, pmix]).expect("taken"), by_slurm);
        assert!(taken(&[SRUN, component, one, hydra]).is_err());
        let other: Set<'_> = &[("SLURM_PROCID", "0")];
        assert!(taken(&[SRUN, other, two, pmix]).is_err());
    }
}

#[test]
fn the_first_counts_where_all_agree() {
    let agreeing: Set<'_> = &[("RANK", "1"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "ant")];
    assert_eq!(chosen(&[OPEN_MPI, SRUN, agreeing]).expect("pmix"), Some(("pmix", 1, Some(4))));
    assert_eq!(chosen(&[SRUN, agreeing]).expect("slurm"), Some(("slurm", 1, Some(4))));
    // Ranks of gaspi_run have all variables anew.
    let run: Set<'_> = &[
        ("GASPI_RANK", "0"),
        ("GASPI_NRANKS", "2"),
        ("GASPI_MEETING", "gaspi-x"),
        ("GASPI_JOB_ID", "x"),
    ];
    assert_eq!(chosen(&[run, SRUN, TORCHRUN]).expect("gaspi"), Some(("gaspi", 0, Some(2))));
    // Daemons and proxies that srun started hand their variables on.
    let daemon: Set<'_> = &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
    assert_eq!(chosen(&[SRUN, daemon, OPEN_MPI]).expect("pmix"), Some(("pmix", 1, Some(4))));
    assert_eq!(chosen(&[SRUN, daemon, HYDRA]).expect("pmi"), Some(("pmi", 1, Some(4))));
}

#[test]
fn contradictions_name_both_and_the_remedy() {
    let text = refusal(&[SRUN, TORCHRUN]);
    for words in ["slurm (", "SLURM_PROCID", "rank 1 of 4", "torchrun (RANK", "rank 3 of 4"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(text.contains("GASPI_LAUNCHER to slurm, torchrun or single"), "{text}");
    let by_srun: Set<'_> = &[("PMIX_NAMESPACE", "slurm.pmix.77.0"), ("PMIX_RANK", "0")];
    assert!(refusal(&[SRUN, by_srun]).contains("pmix (PMIX_RANK"), "{}", refusal(&[SRUN, by_srun]));
    let two: Set<'_> = &[("WORLD_SIZE", "2"), ("RANK", "1")];
    assert!(refusal(&[SRUN, TORCHRUN, two]).contains("rank 1 of 2"), "the size counts too");
    let by_hand: Set<'_> = &[("GASPI_RANK", "0"), ("GASPI_NRANKS", "4")];
    assert!(refusal(&[SRUN, by_hand]).contains("by gaspi (GASPI_RANK"), "by hand within srun");
}

/// A process manager may know another size: rank 0, which all launchers agree on, would wait for
/// ranks that have ended because they do not.
#[test]
fn the_size_of_another_launcher_counts_where_the_first_does_not_tell_it() {
    let first: Set<'_> = &[("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "prterun-ant-77@1")];
    let other: Set<'_> = &[("RANK", "0"), ("WORLD_SIZE", "3")];
    assert_eq!(chosen(&[first, other]).expect("pmix"), Some(("pmix", 0, Some(3))));
    let task = with(&[first, other], |variables| choose(variables).expect("pmix").0);
    assert_eq!(task.expect("a launcher").1.size_by, Some("torchrun"));
    // One that tells its own size keeps it.
    let own: Set<'_> = &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "3")];
    let task = with(&[first, own, other], |variables| choose(variables).expect("pmix").0);
    assert_eq!(task.expect("a launcher").1.size_by, None);
    // The third one is compared with the second.
    let third: Set<'_> = &[
        ("JOB_COMPLETION_INDEX", "0"),
        ("GASPI_NRANKS", "4"),
        ("GASPI_MEETING", "tcp:heat-0.heat:4711"),
    ];
    let text = refusal(&[first, other, third]);
    for words in ["rank 0 of 3 (the size by torchrun)", "by kubernetes (", "rank 0 of 4"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    // Within prterun the variables of srun speak of its daemons.
    let daemon: Set<'_> = &[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
    assert_eq!(chosen(&[SRUN, daemon, first]).expect("pmix"), Some(("pmix", 0, None)));
    let by_srun: Set<'_> = &[("PMIX_NAMESPACE", "slurm.pmix.77.0"), ("PMIX_RANK", "1")];
    assert_eq!(chosen(&[SRUN, by_srun]).expect("pmix"), Some(("pmix", 1, Some(4))));
}

#[test]
fn gaspi_launcher_names_one() {
    let named = |name| [("GASPI_LAUNCHER", name)];
    let taken = |name, sets: &[Set<'_>]| chosen(&[sets, &[&named(name)]].concat());
    assert_eq!(taken("torchrun", &[SRUN, TORCHRUN]).expect("one"), Some(("torchrun", 3, Some(4))));
    assert_eq!(taken("single", &[SRUN, TORCHRUN]).expect("none"), None);
    let text = taken("pmix", &[SRUN]).expect_err("not there").to_string();
    assert!(text.contains("only these are set: none") && text.contains("PMIX_RANK"), "{text}");
    let text = taken("mpirun", &[]).expect_err("no such").to_string();
    let all = "gaspi, pmix, pmi, slurm, torchrun, kubernetes or single";
    assert!(text.contains(all), "{text}");
    assert!(taken("", &[]).is_err());
}

#[test]
fn half_an_environment_is_an_error_with_a_remedy() {
    let cases: &[(Set<'_>, &[&str])] = &[
        (&[("PMIX_RANK", "0")], &["PMIX_RANK is set but PMIX_NAMESPACE"]),
        (&[("PMIX_NAMESPACE", "x")], &["PMIX_NAMESPACE is set but PMIX_RANK"]),
        (&[("PMIX_RANK", "x"), ("PMIX_NAMESPACE", "x")], &["PMIX_RANK", "not a number"]),
        (&[("PMIX_RANK", "65535"), ("PMIX_NAMESPACE", "x")], &["1 to 65535 ranks"]),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], &["but not PMI_FD"]),
        (&[("PMI_FD", "5")], &["but not PMI_RANK and PMI_SIZE"]),
        (&[("PMI_FD", "5"), ("PMI_RANK", "2"), ("PMI_SIZE", "2")], &["ranks are 0 to 1"]),
        (
            &[("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"), ("SLURM_JOB_ID", "1")],
            &["but not SLURM_PROCID and SLURM_STEP_NUM_TASKS", "srun"],
        ),
        (&[("TORCHELASTIC_RUN_ID", "x"), ("RANK", "0")], &["RANK and WORLD_SIZE"]),
        (&[("RANK", "0"), ("WORLD_SIZE", "0")], &["1 to 65535"]),
        (
            &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "4")],
            &["OMPI_COMM_WORLD_SIZE is 4", "PMIX_RANK and PMIX_NAMESPACE are not", "mpirun"],
        ),
        (
            &[("PMI_PORT", "ant:40000"), ("PMI_ID", "1")],
            &["PMI_PORT and PMI_ID are set but not PMI_FD", "without -pmi-port"],
        ),
        (
            &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_JOB_ID", "1")],
            &["SLURM_STEP_NUM_TASKS are set", "but not SLURM_PROCID", "srun"],
        ),
        (
            &[("GROUP_RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "a"), ("LOCAL_RANK", "1")],
            &["GROUP_RANK, MASTER_ADDR are set as torchrun does", "not RANK and WORLD_SIZE"],
        ),
        (&[("JOB_COMPLETION_INDEX", "0"), ("GASPI_MEETING", "tcp:a:1")], &["GASPI_NRANKS is not"]),
    ];
    for (set, words) in cases {
        let text = refusal(&[set]);
        assert!(words.iter().all(|word| text.contains(word)), "{set:?}: {text}");
        let alone: Set<'_> = &[("GASPI_LAUNCHER", "single")];
        assert_eq!(chosen(&[set, alone]).expect("alone"), None, "{set:?}");
    }
    // Nothing of these speaks of ranks.
    for set in [
        &[("SLURM_JOB_ID", "1"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")][..],
        // The script of a batch job.
        &[("SLURM_STEP_ID", "4294967291"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")],
        &[("RANK", "0")],
        &[("WORLD_SIZE", "4")],
        &[("WORLD_SIZE", "4"), ("MASTER_ADDR", "ant"), ("LOCAL_RANK", "0")],
        &[("WORLD_SIZE", "1"), ("MASTER_ADDR", "ant"), ("GROUP_RANK", "0")],
        // Steps of one task, and the script of a batch job that asks for several.
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")],
        &[("SLURM_STEP_ID", "4294967291"), ("SLURM_STEP_NUM_TASKS", "4")],
        // A program of Open MPI that was started alone.
        &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")],
        &[("OMPI_COMM_WORLD_SIZE", "4")],
        &[("PMI_PORT", "ant:40000")],
        &[("JOB_COMPLETION_INDEX", "3")],
    ] {
        assert_eq!(chosen(&[set]).expect("none"), None, "{set:?}");
    }
    // What Open MPI adds where the process manager speaks PMI-1.
    let added: Set<'_> = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    assert_eq!(chosen(&[HYDRA, added]).expect("pmi"), Some(("pmi", 1, Some(4))));
    // Slurm's variables do where its plugin speaks something else.
    let other: Set<'_> = &[("PMI_RANK", "1"), ("PMI_SIZE", "4")];
    assert_eq!(chosen(&[SRUN, other]).expect("slurm"), Some(("slurm", 1, Some(4))));
}

#[test]
fn a_way_to_meet_is_needed() {
    for (set, without, word) in [
        (SRUN, "SLURM_STEP_NODELIST", "SLURM_STEP_NODELIST"),
        (SRUN, "SLURM_JOB_ID", "SLURM_JOB_ID"),
        (TORCHRUN, "MASTER_ADDR", "MASTER_ADDR"),
        (POD, "GASPI_MEETING", "tcp:HOST:PORT"),
    ] {
        let set: Vec<_> = set.iter().copied().filter(|(name, _)| *name != without).collect();
        let text = job(&[&set]).expect_err(without).to_string();
        assert!(text.contains(word), "{without}: {text}");
    }
    let list: Set<'_> = &[("SLURM_STEP_NODELIST", "a[1-")];
    let text = job(&[SRUN, list]).expect_err("a list").to_string();
    assert!(text.contains("\"a[1-\": a bracket is not closed"), "{text}");
}

fn hub(job: &Job) -> (&str, bool, Option<u16>) {
    match &job.server {
        ServerLocation::OverHosts { hub, .. } => (&hub.host, hub.here, hub.port),
        other => panic!("{other:?}"),
    }
}

#[test]
fn ranks_of_slurm_meet_on_its_first_host() {
    let found = job(&[SRUN]).expect("job");
    assert_eq!((found.id.as_str(), found.local_rank, found.spans_hosts), ("slurm-77.0.0", 1, true));
    assert_eq!(hub(&found), ("ant", true, None));
    let elsewhere: Set<'_> = &[("SLURMD_NODENAME", "bee"), ("SLURM_RESTART_COUNT", "2")];
    let other = job(&[SRUN, elsewhere]).expect("job");
    assert_eq!((other.id.as_str(), hub(&other)), ("slurm-77.0.2", ("ant", false, None)));
    let one: Set<'_> = &[("SLURM_STEP_NUM_NODES", "1")];
    let found = job(&[SRUN, one]).expect("job");
    assert!(matches!(found.server, ServerLocation::FirstRank(_)) && !found.spans_hosts);
}

#[test]
fn ranks_of_torchrun_meet_at_its_master_by_other_ports() {
    let found = job(&[TORCHRUN]).expect("job");
    assert_eq!((found.local_rank, hub(&found)), (1, ("192.0.2.1", true, None)));
    // Hosts count their own failures only, so there the count is no part of the name.
    let restart: Set<'_> = &[("TORCHELASTIC_RESTART_COUNT", "1")];
    let restarted = job(&[TORCHRUN, restart]).expect("job");
    assert_eq!((&restarted.id, &restarted.server), (&found.id, &found.server));
    let one_host: Set<'_> = &[("LOCAL_WORLD_SIZE", "4")];
    let one = job(&[TORCHRUN, one_host]).expect("job");
    assert!(matches!(one.server, ServerLocation::FirstRank(_)));
    assert_ne!(job(&[TORCHRUN, one_host, restart]).expect("job").server, one.server);
}

#[test]
fn pods_meet_where_they_are_told() {
    let found = job(&[POD]).expect("job");
    assert_eq!((found.local_rank, hub(&found)), (0, ("heat-0.heat", false, Some(4711))));
    let first = job(&[POD, &[("JOB_COMPLETION_INDEX", "0")]]).expect("job");
    assert!(hub(&first).1);
    assert_eq!(first.id, found.id);
}

#[test]
fn a_job_of_one_needs_no_way_to_meet() {
    let one: Set<'_> = &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")];
    assert_eq!(job(&[SRUN, one]).expect("job").server, ServerLocation::NotNeeded);
    let alone: Set<'_> = &[("RANK", "0"), ("WORLD_SIZE", "1")];
    assert_eq!(job(&[alone]).expect("job").server, ServerLocation::NotNeeded);
}
