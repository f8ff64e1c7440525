//! A limit of processes and threads that is hit: one clear error that names it and what could not
//! be started, no hang, and nothing left behind.
//!
//! What runs under the limit is of a user who has no other processes: the kernel counts by users,
//! and exempts root.

use std::path::Path;
use std::time::Duration;

use gaspi_tests::leftovers::{examined, expect_nothing_left};
use gaspi_tests::{Outcome, Result};

/// In this time every job is over: nothing has to be waited for.
const LIMIT: Duration = Duration::from_secs(10);

/// Functions of a shell: `limited N COMMAND...` is run by the user with so many processes, or
/// `any`, `poor COMMAND...` on four ranks, of which the last one may not start a thread.
const LIMITED: &str = r#"
export HOME=/mnt
# An address that ranks can offer each other.
ip link set lo up
ip link add one type veth peer name other
ip address add 10.77.0.1/24 dev one
ip link set one up
ip link set other up
limited() {
    limit=$1
    shift
    $other bash -c "[ $limit = any ] || ulimit -u $limit; "'exec "$@"' bash "$@" || echo "status $?"
}
poor() {
    limited any $run -n 4 bash -c \
        'if [ $GASPI_RANK = 3 ]; then ulimit -S -u 1; fi; exec "$@"' bash "$@"
}
# In the place of ssh: hosts are this machine. The second may start one agent, the third nothing.
cat > /mnt/ssh <<'END'
#!/bin/bash
while [ $# -gt 0 ]; do
    case $1 in -o|-p|-i) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1
shift
line=$*
if [ $host = 240.0.0.2 ]; then line=${line//\/mnt\/gaspi_run/\/mnt\/poor\/gaspi_run}; fi
if [ $host = 240.0.0.3 ]; then ulimit -u 1; fi
exec env GASPI_MACHINE=$host sh -c "$line"
END
mkdir /mnt/poor
cat > /mnt/poor/gaspi_run <<'END'
#!/bin/bash
[ "$1" = --version ] || ulimit -u 1
exec /mnt/gaspi_run "$@"
END
chmod 755 /mnt/ssh /mnt/poor/gaspi_run
"#;

fn run(script: &str) -> Result<Outcome> {
    // SAFETY: no arguments, no failure.
    let root = unsafe { libc::geteuid() } == 0;
    // Root of a namespace is nobody's root outside.
    let other = if root { "setpriv --reuid=54321 --regid=54321 --clear-groups" } else { "" };
    let starved = Path::new(env!("CARGO_BIN_EXE_starved"));
    let script = format!("other='{other}'\n{LIMITED}\n{script}");
    let outcome = expect_nothing_left(examined(&script, starved)?.run()?)?;
    if outcome.elapsed > LIMIT {
        return Err(outcome.failure("it took too long"));
    }
    Ok(outcome)
}

/// Demands that gaspi_run said one line, which has all these words, and ended with this status.
fn expect_line(outcome: Outcome, status: u8, words: &[&str]) -> Result<()> {
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let all = |line: &&str| words.iter().all(|words| line.contains(words));
    if lines.len() != 1 || !lines.iter().all(all) {
        return Err(outcome.failure(&format!("one line was to have {words:?}")));
    }
    outcome.says(&format!("status {status}"))?;
    Ok(())
}

/// The lines of stdout that begin with `word`.
fn lines<'a>(outcome: &'a Outcome, word: &str) -> Vec<&'a str> {
    outcome.stdout.lines().filter(|line| line.starts_with(word)).collect()
}

#[test]
fn a_rank_that_gaspi_run_cannot_start() -> Result<()> {
    // gaspi_run is one of the four, and what has just ended may still be counted: so any rank may
    // be the first that is one too many.
    let outcome = run("limited 4 $run -n 8 sleep 100")?;
    let words = ["starting rank ", " (sleep): no more processes may be started", "ulimit -u is 4 "];
    expect_line(outcome, 125, &words)
}

#[test]
fn a_rank_that_an_agent_cannot_start() -> Result<()> {
    let outcome = run("limited 100 $run --ssh /mnt/ssh --hosts 240.0.0.1,240.0.0.2 sleep 100")?;
    let words =
        ["host 240.0.0.2: starting rank 1 (sleep): no more processes may be started", "ulimit -u"];
    expect_line(outcome, 125, &words)
}

#[test]
fn a_host_whose_shell_cannot_start_anything() -> Result<()> {
    let outcome = run("limited 100 $run --ssh /mnt/ssh --hosts 240.0.0.1,240.0.0.3 sleep 100")?;
    let words = ["host 240.0.0.3: ", "no more processes may be started there (ulimit -u"];
    expect_line(outcome, 255, &words)
}

#[test]
fn a_remote_shell_that_cannot_be_started() -> Result<()> {
    let outcome = run("limited 1 $run --ssh /mnt/ssh --hosts 240.0.0.1,240.0.0.2 sleep 100")?;
    let words =
        ["host 240.0.0.1: starting /mnt/ssh: no more processes may be started: ulimit -u is 1 "];
    expect_line(outcome, 255, &words)
}

/// All ranks hear which one lacks its progress thread, and nobody takes it for dead.
#[test]
fn a_progress_thread_that_cannot_be_started() -> Result<()> {
    for transport in ["shm", "tcp"] {
        let outcome = run(&format!("export GASPI_TRANSPORT={transport}\npoor $victim init"))?;
        let refused = lines(&outcome, "refused ");
        let why = "starting the progress thread of rank 3: no more threads may be started: \
                   ulimit -u is 1 ";
        let says_why = |line: &&str| line.contains(why) && !line.contains("died");
        if refused.len() != 4 || !refused.iter().all(says_why) {
            return Err(outcome.failure("every rank was to say what rank 3 lacks"));
        }
    }
    Ok(())
}

/// It is the error of the call, which can be made again; the other ranks wait for that.
#[test]
fn a_background_thread_that_cannot_be_started() -> Result<()> {
    for transport in ["shm", "tcp"] {
        let script = format!(
            "export GASPI_TRANSPORT={transport}\nlimited any $run -n 4 $victim background 3"
        );
        let outcome = run(&script)?;
        let ended = lines(&outcome, "ended ");
        let words = [
            "starting the thread for operations in the background",
            "no more threads may be started: ulimit -u is 1 ",
        ];
        if ended.len() != 1 || !words.iter().all(|words| ended[0].contains(words)) {
            return Err(outcome.failure("the call was to say what it lacks"));
        }
        let sums: Vec<String> = (0..4).map(|rank| format!("summed {rank} [4]")).collect();
        let mut summed = lines(&outcome, "summed ");
        summed.sort_unstable();
        if summed != sums || outcome.stdout.contains("status") || !outcome.stderr.is_empty() {
            return Err(outcome.failure("nothing was to be wrong for the others"));
        }
    }
    Ok(())
}
