//! Ranks that run out of descriptors or of addresses say so, and nobody takes the living for dead.

use std::path::PathBuf;
use std::time::Duration;

use gaspi_tests::{Job, Outcome, Result};

const RANKS: u32 = 16;
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];
/// The rank with the limit.
const POOR: &str = "3";
/// Addresses of a program that can start, but not join.
const FEW_KIB: u32 = 60_000;
/// In this time every start is over, whatever its outcome.
const START_LIMIT: Duration = Duration::from_secs(10);
/// In this time every call has said what is wrong.
const CALL_LIMIT_MS: u64 = 2000;

fn starved() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_starved"))
}

/// A job of which the ranks that `condition` (of a shell) is true for set the limit of open files.
fn limited(transport: &str, condition: &str, ulimit: &str) -> Result<Outcome> {
    let script = format!("{condition} && ulimit {ulimit}; exec \"$@\"");
    Job::launched(RANKS, &PathBuf::from("sh"))?
        .env("GASPI_TRANSPORT", transport)
        .args(["-c", &script, "sh"])
        .arg(starved())
        .arg("init")
        .limit(Duration::from_secs(60))
        .run()
}

fn poor_rank(transport: &str, ulimit: &str) -> Result<Outcome> {
    limited(transport, &format!("test \"$GASPI_RANK\" = {POOR}"), ulimit)
}

/// Nobody died, and nobody may be said to have.
fn expect_no_deaths(outcome: &Outcome) -> Result<()> {
    let said = format!("{}{}", outcome.stdout, outcome.stderr);
    for death in ["has died", "died while joining"] {
        if said.contains(death) {
            return Err(outcome.failure(&format!("{death:?} was said of a rank that lived")));
        }
    }
    Ok(())
}

/// The lines of stdout that begin with `word`.
fn lines<'a>(outcome: &'a Outcome, word: &str) -> Vec<&'a str> {
    outcome.stdout.lines().filter(|line| line.starts_with(word)).collect()
}

/// Every rank is told of one that has too few, of `POOR` if that is the only one.
fn expect_refusal(outcome: &Outcome, of_all: bool) -> Result<()> {
    expect_no_deaths(outcome)?;
    if outcome.elapsed > START_LIMIT {
        return Err(outcome.failure("it took too long"));
    }
    let refused = lines(outcome, "refused ");
    if refused.len() != RANKS as usize || outcome.status.success() {
        return Err(outcome.failure("every rank was to be refused"));
    }
    let wrong = refused.iter().find(|line| {
        let names = if of_all { " needs ".to_owned() } else { format!("rank {POOR} needs ") };
        !(line.contains(&names)
            && line.contains("too many open files")
            && line.contains("ulimit -n"))
    });
    match wrong {
        Some(line) => Err(outcome.failure(&format!("{line:?} does not say who lacks what"))),
        None => Ok(()),
    }
}

/// Every rank is told of one that has too few addresses, and each of its own lack.
#[test]
fn a_rank_with_too_few_addresses_is_named_on_all_ranks() -> Result<()> {
    for transport in TRANSPORTS {
        for (of_all, outcome) in [
            (false, poor_rank(transport, &format!("-v {FEW_KIB}"))?),
            (true, limited(transport, "true", &format!("-v {FEW_KIB}"))?),
        ] {
            expect_no_deaths(&outcome)?;
            let refused = lines(&outcome, "refused ");
            let who = if of_all {
                "starting rank ".to_owned()
            } else {
                format!("starting rank {POOR}: ")
            };
            let limit = format!("the limit is {FEW_KIB} KiB");
            let says_why = |line: &&str| {
                [&who, "KiB of addresses for 16 ranks", &limit, "ulimit -v to "]
                    .iter()
                    .all(|words| line.contains(*words))
            };
            let is_late = outcome.elapsed > START_LIMIT;
            if is_late || refused.len() != RANKS as usize || !refused.iter().all(says_why) {
                return Err(outcome.failure("every rank was to say who lacks addresses, soon"));
            }
        }
    }
    Ok(())
}

/// By hand, where no launcher tells of the end of a rank.
#[test]
fn a_rank_that_finds_no_port_is_heard_of_by_the_one_that_has_one() -> Result<()> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: &str| {
        Job::plain(&starved())
            .env("GASPI_RANK", rank)
            .env("GASPI_NRANKS", "2")
            .env("GASPI_JOB_ID", format!("one-port-{}", std::process::id()))
            .env("GASPI_TRANSPORT", "tcp")
            .env("GASPI_PORT_RANGE", format!("{port}-{port}"))
            .arg("init")
            .start()
    };
    for rank in [start("0")?, start("1")?] {
        let outcome = rank.wait()?.says("GASPI_PORT_RANGE")?;
        let refused = lines(&outcome, "refused ");
        if refused.len() != 1 || !refused[0].contains("widen the range") {
            return Err(outcome.failure("it was to say that there is no port"));
        }
        if outcome.elapsed > START_LIMIT {
            return Err(outcome.failure("it took too long"));
        }
    }
    Ok(())
}

/// What the error asks for suffices, on one rank and on all.
#[test]
fn addresses_that_the_error_asks_for_are_enough() -> Result<()> {
    for transport in TRANSPORTS {
        let refused = poor_rank(transport, &format!("-v {FEW_KIB}"))?;
        let asked = refused.stdout.split("ulimit -v to ").nth(1);
        let Some(kib) = asked.and_then(|rest| rest.split(' ').next()) else {
            return Err(refused.failure("it was to say how many addresses are enough"));
        };
        for condition in [&format!("test \"$GASPI_RANK\" = {POOR}"), "true"] {
            let outcome = limited(transport, condition, &format!("-v {kib}"))?.success()?;
            expect_no_deaths(&outcome)?;
            assert_eq!(lines(&outcome, "joined ").len(), RANKS as usize, "{}", outcome.stdout);
        }
    }
    Ok(())
}

/// Among many ranks of a host each maps what it accesses first.
#[test]
fn a_segment_that_cannot_be_mapped_is_the_error_of_the_access() -> Result<()> {
    let outcome = Job::launched(24, &starved())?
        .env("GASPI_TRANSPORT", "shm")
        .args(["map", POOR])
        .limit(Duration::from_secs(60))
        .run()?
        .success()?;
    expect_no_deaths(&outcome)?;
    let ended = lines(&outcome, "ended ");
    let says_why = ["mapping segment 0 of a peer", "ulimit -v and vm.max_map_count"];
    if ended.len() != 1 || !says_why.iter().all(|words| ended[0].contains(words)) {
        return Err(outcome.failure("the write was to fail, and to name the limit"));
    }
    assert_eq!(lines(&outcome, "written "), [format!("written {POOR}")]);
    Ok(())
}

#[test]
fn a_rank_with_too_few_descriptors_is_named_on_all_ranks() -> Result<()> {
    for transport in TRANSPORTS {
        for limit in [16, 20, 24] {
            expect_refusal(&poor_rank(transport, &format!("-n {limit}"))?, false)?;
        }
        expect_refusal(&limited(transport, "true", "-n 20")?, true)?;
    }
    Ok(())
}

#[test]
fn few_descriptors_are_enough_for_few_ranks() -> Result<()> {
    for transport in TRANSPORTS {
        for condition in [&format!("test \"$GASPI_RANK\" = {POOR}"), "true"] {
            for limit in [64, 256] {
                let outcome = limited(transport, condition, &format!("-n {limit}"))?.success()?;
                expect_no_deaths(&outcome)?;
                assert_eq!(lines(&outcome, "joined ").len(), RANKS as usize, "{}", outcome.stdout);
            }
        }
    }
    Ok(())
}

#[test]
fn a_soft_limit_is_raised() -> Result<()> {
    for transport in TRANSPORTS {
        let outcome = poor_rank(transport, "-S -n 20")?.success()?;
        expect_no_deaths(&outcome)?;
        assert_eq!(lines(&outcome, "joined ").len(), RANKS as usize, "{}", outcome.stdout);
    }
    Ok(())
}

/// What the message asks for suffices, and one less does not.
#[test]
fn the_need_that_is_told_is_enough() -> Result<()> {
    for transport in TRANSPORTS {
        let outcome = poor_rank(transport, "-n 20")?;
        let told = outcome.stdout.split("needs ").nth(1).and_then(|rest| rest.split(' ').next());
        let Some(need) = told.and_then(|need| need.parse::<u32>().ok()) else {
            return Err(outcome.failure("the need is not told"));
        };
        let outcome = limited(transport, "true", &format!("-n {need}"))?.success()?;
        expect_no_deaths(&outcome)?;
        assert_eq!(lines(&outcome, "joined ").len(), RANKS as usize, "{}", outcome.stdout);
        expect_refusal(&poor_rank(transport, &format!("-n {}", need - 1))?, false)?;
    }
    Ok(())
}

/// Numbers of processes mean something else in each pid namespace: ranks that do not see each other
/// live.
#[test]
fn ranks_in_other_pid_namespaces_are_not_dead() -> Result<()> {
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() } == 0;
    let user: &[&str] = if root { &[] } else { &["--user", "--map-current-user"] };
    for transport in TRANSPORTS {
        let outcome = Job::launched(4, &PathBuf::from("unshare"))?
            .env("GASPI_TRANSPORT", transport)
            .args(user)
            .args(["--pid", "--fork", "--mount-proc", "--kill-child"])
            .arg(starved())
            .arg("init")
            .run()?
            .success()?;
        expect_no_deaths(&outcome)?;
        assert_eq!(lines(&outcome, "joined ").len(), 4, "{}", outcome.stdout);
    }
    Ok(())
}

/// Runs out of descriptors after init: every rank hears why its call failed, soon, and all go on.
fn starve(ranks: u32, transport: &str, call: &str, who: &str) -> Result<Outcome> {
    let outcome = Job::launched(ranks, &starved())?
        .env("GASPI_TRANSPORT", transport)
        .args([call, who])
        .limit(Duration::from_secs(100))
        .run()?
        .success()?;
    expect_no_deaths(&outcome)?;
    if lines(&outcome, "ended ").len() != ranks as usize {
        return Err(outcome.failure("some calls did not end"));
    }
    for line in lines(&outcome, "ended ") {
        let took_ms = line.split(' ').nth(2).and_then(|took| took.parse::<u64>().ok());
        if took_ms.is_none_or(|took_ms| took_ms > CALL_LIMIT_MS) {
            return Err(outcome.failure(&format!("{line:?}: it took too long")));
        }
    }
    Ok(outcome)
}

fn expect_reasons(outcome: &Outcome, but_of: &str) -> Result<()> {
    for line in lines(outcome, "ended ") {
        let own = line.split(' ').nth(1) == Some(but_of);
        let says_why = line.contains("too many open files") && line.contains("ulimit -n");
        if !own && !says_why {
            return Err(outcome.failure(&format!("{line:?} does not say why")));
        }
    }
    Ok(())
}

/// What a rank says whose connection cannot be made comes once it can be.
#[test]
fn an_arrival_without_descriptors_comes_later() -> Result<()> {
    for ranks in [2, 5] {
        let name = format!("met-{}-{ranks}", std::process::id());
        let file = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        let outcome = Job::launched(ranks, &starved())?
            .env("GASPI_TRANSPORT", "tcp")
            .args(["meet", "1"])
            .arg(&file)
            .limit(Duration::from_secs(100))
            .run()?
            .success()?;
        expect_no_deaths(&outcome)?;
        std::fs::remove_file(&file)?;
        let ended = lines(&outcome, "ended 1 ");
        if ended.len() != 1 || ended[0].contains("well") || outcome.elapsed > START_LIMIT {
            return Err(outcome.failure("the first barrier was to time out, the second one not"));
        }
        assert_eq!(lines(&outcome, "met ").len(), ranks as usize, "{}", outcome.stdout);
    }
    Ok(())
}

#[test]
fn making_a_segment_without_descriptors_says_so_at_once() -> Result<()> {
    for transport in TRANSPORTS {
        for who in ["all", "5", "rest"] {
            expect_reasons(&starve(32, transport, "segment", who)?, "")?;
        }
    }
    Ok(())
}

/// The leader of the node, the first of a team, or any other.
#[test]
fn a_commit_without_descriptors_says_so_at_once() -> Result<()> {
    for (ranks, who) in
        [(32, "all"), (32, "rest"), (32, "0"), (32, "16"), (32, "5"), (4, "2"), (4, "rest")]
    {
        expect_reasons(&starve(ranks, "shm", "commit", who)?, "")?;
    }
    Ok(())
}

/// A rank that may not map the arenas of all in one piece: all map them one by one.
#[test]
fn a_rank_with_few_addresses_takes_part_in_collectives() -> Result<()> {
    const MANY: usize = 20;
    // 20 arenas have 80 GiB; a quarter of the addresses may be theirs.
    for (limit, files) in [("unlimited", 0), ("200000000", MANY)] {
        let script = format!("test \"$GASPI_RANK\" = {POOR} && ulimit -v {limit}; exec \"$@\"");
        let outcome = Job::launched(MANY as u32, &PathBuf::from("sh"))?
            .args(["-c", &script, "sh"])
            .arg(starved())
            .arg("sum")
            .limit(Duration::from_secs(60))
            .run()?
            .success()?;
        let summed = lines(&outcome, "summed ");
        let mapped = |line: &&&str| line.ends_with(&format!(" {files}"));
        if summed.len() != MANY || summed.iter().filter(mapped).count() != MANY {
            return Err(outcome.failure(&format!("{files} files of arenas on each rank")));
        }
    }
    Ok(())
}

#[test]
fn a_rank_without_descriptors_says_why_it_turns_others_away() -> Result<()> {
    expect_reasons(&starve(32, "shm", "register", "5")?, "5")
}
