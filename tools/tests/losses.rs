//! What the real gaspi_run ends with when a host is lost after its ranks have ended.

mod harness;

use harness::Run;
use harness::far::Far;

/// Behaves as ssh does, but it dies within the last words of a rank.
const SSH: &str = r#"#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -o|-p|-i) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1; shift
echo $PPID > DIRECTORY/gaspi_run
env -i PATH=/usr/local/bin:/usr/bin:/bin HOME=DIRECTORY/home GASPI_MACHINE="$host" SHELL=/bin/sh \
  sh -c "$*" | perl -e '
    while (sysread(STDIN, my $part, 65536)) {
      my $at = index($part, "LAST");
      syswrite(STDOUT, $at < 0 ? $part : substr($part, 0, $at));
      kill(9, getppid()) if $at >= 0;
    }'
"#;

/// A rank of which the agent sends the end before the last words: gaspi_run is stopped and takes
/// nothing, so that as much output is on the way as may be, and goes on once the rank was reaped.
const RANK: &str = r#"
launcher=$(cat DIRECTORY/gaspi_run)
kill -STOP $launcher
rank=$$
(exec > /dev/null 2>&1; while kill -0 $rank; do sleep 0.01; done; kill -CONT $launcher) &
head -c $((1048576 + 65536)) /dev/zero
printf LASTLASTLAST >&2
"#;

#[test]
fn output_that_is_lost_with_a_host_is_no_success() {
    let far = Far::new();
    let directory = far.directory.path().to_string_lossy().into_owned();
    far.program("ssh", &SSH.replace("DIRECTORY", &directory));
    let rank = RANK.replace("DIRECTORY", &directory);
    let outcome = Run::start(far.gaspi_run(&["--hosts", "240.0.0.1", "sh", "-c", &rank])).finish();
    assert!(outcome.stderr.contains("host 240.0.0.1 was lost: "), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("was lost with its host"), "{}", outcome.stderr);
    assert_eq!(outcome.code, Some(125), "{}", outcome.stderr);
}
