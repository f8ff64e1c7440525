//! Jobs after whose end the machine is searched for what they have left: processes, files, sockets.
//!
//! Each runs in namespaces of its own (processes, mounts with empty /tmp, /dev/shm and /run,
//! network, System V IPC), so that whatever is found there afterwards came from it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::{Job, Outcome, Result, gaspi_run};

/// Runs `$2` (a shell text in which `$run` and `$victim` are programs) and then prints what is
/// left. /mnt holds the programs, because a build may lie below /tmp.
const INSIDE: &str = r#"
set -e
mount --make-rprivate /
mount -t tmpfs none /mnt
cp "$1/gaspi_run" "$3" /mnt/
# /run last: mount itself notes there what it did.
for place in /tmp /dev/shm /var/tmp /run; do
    if [ -d "$place" ]; then mount -t tmpfs none "$place"; fi
done
cd /mnt
run=/mnt/gaspi_run
victim=/mnt/${3##*/}
# Until all four ranks said so, or the job has ended early.
until_ready() {
    until [ "$(grep -c ready /mnt/out)" = 4 ]; do
        kill -0 "$1" || { echo "LEFT early:"; cat /mnt/out; exit 1; }
    done
}
eval "$2"
wait
# Processes that are being killed need a moment. This shell is process 1 of its namespace.
end=$((SECONDS + 5))
while :; do
    left=
    for place in /proc/[0-9]*; do
        [ "$place" = /proc/1 ] && continue
        read -r stat 2> /dev/null < "$place/stat" || continue
        state=${stat##*) }
        # The main thread may have ended before others, which still hold what the process has.
        threads=("$place"/task/*)
        [ "${state%% *} ${#threads[@]}" = "Z 1" ] || left="$left ${stat%%) *})"
    done
    [ -n "$left" ] && [ "$SECONDS" -lt "$end" ] || break
done
[ -z "$left" ] || echo "LEFT process $left"
for place in /tmp /dev/shm /run /var/tmp; do
    find "$place" -mindepth 1 2> /dev/null | sed 's/^/LEFT file /'
done
tail -n +2 /proc/net/unix | awk '$8 ~ /^@/ { print "LEFT socket " $8 }'
tail -n +2 /proc/sysvipc/shm | sed 's/^/LEFT shm /'
echo examined
"#;

/// A job that runs a shell text, in which `$run` is gaspi_run and `$victim` this program.
///
/// # Errors
/// When gaspi_run is not built.
pub fn examined(script: &str, victim: &Path) -> Result<Job> {
    let build = gaspi_run()?;
    let build = build.parent().unwrap_or(Path::new("/")).to_path_buf();
    let job = Job::plain(Path::new("unshare"))
        .args(["--mount", "--pid", "--fork", "--mount-proc", "--net", "--ipc"])
        .args(if is_root() { &[][..] } else { &["--user", "--map-root-user"][..] })
        .args(["bash", "-c", INSIDE, "leftovers"])
        .arg(build)
        .arg(script)
        .arg(victim)
        .limit(Duration::from_secs(60));
    Ok(job)
}

/// Demands of such a job that it has left nothing.
///
/// # Errors
/// With what is left.
pub fn expect_nothing_left(outcome: Outcome) -> Result<Outcome> {
    let outcome = outcome.success()?.says("examined")?;
    if outcome.stdout.contains("LEFT ") {
        return Err(outcome.failure("something is left"));
    }
    Ok(outcome)
}

fn is_root() -> bool {
    let output = Command::new("id").arg("-u").output();
    output.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}
