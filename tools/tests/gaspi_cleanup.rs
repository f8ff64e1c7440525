//! The real gaspi_cleanup on processes that look like ranks. Every test names its own job: whatever
//! else runs on this machine is left alone.

mod harness;

use harness::far::{self, Far};
use harness::{GUARD, Outcome, Run, ended, gaspi_run, shell};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A unique job id.
fn id(name: &str) -> String {
    format!("cleanup-test-{}-{name}", std::process::id())
}

fn cleanup(arguments: &[&str]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_cleanup"));
    command.args(arguments).stdin(Stdio::null());
    Run::start(command).finish()
}

/// A process of a job that was started by hand; ended with the test.
struct Rank(Child);

impl Rank {
    /// One that sleeps.
    fn start(job: &str, rank: u32) -> Rank {
        let mut command = Command::new("sleep");
        command.arg("1000");
        Rank(Rank::spawn(command, job, rank))
    }

    /// One that runs a script, which begins by saying that it is ready.
    fn script(job: &str, rank: u32, text: &str) -> Rank {
        let mut command = Command::new("sh");
        command.args(["-c", text]).stdout(Stdio::piped());
        let mut rank = Rank(Rank::spawn(command, job, rank));
        let stdout = rank.0.stdout.as_mut().expect("stdout");
        stdout.read_exact(&mut [0; 6]).expect("ready");
        rank
    }

    fn spawn(mut command: Command, job: &str, rank: u32) -> Child {
        command.env("GASPI_JOB_ID", job).env("GASPI_RANK", rank.to_string());
        command.env("GASPI_NRANKS", "9").stdin(Stdio::null()).spawn().expect("rank")
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    fn runs(&mut self) -> bool {
        self.0.try_wait().expect("wait").is_none()
    }

    /// The signal that it is ended by.
    fn signal(mut self) -> Option<i32> {
        let deadline = Instant::now() + GUARD;
        while self.runs() {
            assert!(Instant::now() < deadline, "did not end");
            std::thread::yield_now();
        }
        self.0.wait().expect("wait").signal()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_job_is_listed_and_ended() {
    let job = id("plain");
    let mut ranks: Vec<Rank> = (0..3).map(|rank| Rank::start(&job, rank)).collect();
    let other = id("plain-other");
    let mut stranger = Rank::start(&other, 0);
    let expected = |what: &str| -> String {
        let line = |(rank, process): (usize, &Rank)| {
            format!("job {job} pid {} rank {rank}: {what}: sleep 1000\n", process.pid())
        };
        ranks.iter().enumerate().map(line).collect()
    };
    let (listed, ended_lines) =
        (expected("started without gaspi_run"), expected("ended by SIGTERM"));
    for line in [&["-c", "--job", &job][..], &["-c", "--job", &job]] {
        let outcome = cleanup(line).success();
        assert_eq!((outcome.stdout, outcome.stderr), (listed.clone(), String::new()));
    }
    assert!(ranks.iter_mut().all(Rank::runs));
    assert_eq!(cleanup(&["--job", &job]).success().stdout, ended_lines);
    for rank in ranks {
        assert_eq!(rank.signal(), Some(libc::SIGTERM));
    }
    assert_eq!(cleanup(&["--job", &job]).success().stdout, "");
    assert!(stranger.runs());
}

#[test]
fn a_job_by_hand_on_several_hosts_is_kept() {
    let job = id("hosts");
    let mut command = Command::new("sleep");
    command.arg("1000").env("GASPI_MEETING", "tcp:ant:4711");
    let mut rank = Rank(Rank::spawn(command, &job, 0));
    // Nothing else that runs on this machine is looked at.
    let with = format!("GASPI_JOB_ID={job}");
    let outcome = cleanup(&["--with", &with]).success();
    let kept = format!("job {job} pid {} rank 0: kept, started without gaspi_run: ", rank.pid());
    assert!(outcome.stdout.starts_with(&kept), "{}", outcome.stdout);
    assert!(rank.runs());
}

#[test]
fn without_options_all_are_listed() {
    let job = id("all");
    let rank = Rank::start(&job, 4);
    let text = cleanup(&["-c"]).success().stdout;
    let line =
        format!("job {job} pid {} rank 4: started without gaspi_run: sleep 1000", rank.pid());
    assert!(text.lines().any(|found| found == line), "{text}");
}

#[test]
fn the_deaf_and_the_stopped_are_killed() {
    let job = id("deaf");
    let deaf = Rank::script(&job, 0, "trap '' TERM; echo ready; sleep 1000 & wait; sleep 1000");
    let mut stopped = Rank::start(&job, 1);
    let pid = stopped.pid();
    assert!(Command::new("kill").args(["-STOP", &pid]).status().expect("kill").success());
    let text = cleanup(&["--job", &job]).success().stdout;
    let line = |pid: &str, what: &str| format!("job {job} pid {pid} rank {what}: ");
    assert!(text.contains(&line(&deaf.pid(), "0: killed by SIGKILL")), "{text}");
    assert!(text.contains(&line(&pid, "1: ended by SIGTERM")), "{text}");
    // The child that the shell had started, and whatever it started meanwhile.
    assert!(text.matches("sleep 1000").count() >= 3, "{text}");
    assert_eq!(deaf.signal(), Some(libc::SIGKILL));
    assert!(!stopped.runs() || stopped.signal() == Some(libc::SIGTERM));
    let nothing = cleanup(&["-c", "--job", &job]).success();
    assert_eq!(nothing.stdout, "");
    assert!(nothing.stderr.contains(&format!("no process of job {job}")), "{}", nothing.stderr);
}

#[test]
fn it_ends_neither_itself_nor_those_it_was_started_by() {
    let job = id("own");
    let program = env!("CARGO_BIN_EXE_gaspi_cleanup");
    // The shell is part of the job and starts it; so is the program itself.
    let script = format!("'{program}' --job {job}; echo status $?");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::null());
    command.env("GASPI_JOB_ID", &job).env("GASPI_RANK", "0").env("GASPI_NRANKS", "1");
    assert_eq!(Run::start(command).finish().success().stdout, "status 0\n");
}

#[test]
fn the_jobs_id_alone_makes_nobody_a_rank() {
    let job = id("shell");
    let mut command = Command::new("sleep");
    command.arg("1000").env("GASPI_JOB_ID", &job).stdin(Stdio::null());
    let mut child = command.spawn().expect("sleep");
    assert_eq!(cleanup(&["--job", &job]).success().stdout, "");
    assert!(child.try_wait().expect("wait").is_none());
    child.kill().expect("kill");
    child.wait().expect("wait");
}

#[test]
fn jobs_of_gaspi_run_are_told_from_what_they_left() {
    // The child of the rank outlives gaspi_run, as the kernel kills only ranks with it.
    let script = "(trap '' HUP; echo $GASPI_JOB_ID; exec sleep 1000) & wait";
    let mut run = Run::start(gaspi_run(&["-n", "1", "sh", "-c", script]));
    let job = run.lines(1)[0].clone();
    let text = cleanup(&["-c", "--job", &job]).success().stdout;
    assert!(text.contains("its gaspi_run is running: "), "{text}");
    run.signal("KILL");
    assert_eq!(run.child.wait().expect("wait").code(), None);
    // The rank ends with it, its child stays.
    let deadline = Instant::now() + GUARD;
    let left = loop {
        let text = cleanup(&["-c", "--job", &job]).success().stdout;
        if text.lines().count() == 1 && text.contains("its gaspi_run has gone: sleep 1000") {
            break text;
        }
        assert!(Instant::now() < deadline, "{text}");
    };
    assert!(left.starts_with(&format!("job {job} pid ")), "{left}");
    let text = cleanup(&["--job", &job]).success().stdout;
    assert!(text.contains("ended by SIGTERM: sleep 1000"), "{text}");
    drop(run);
}

#[test]
fn a_running_job_is_ended_when_it_is_named() {
    let script = "echo $GASPI_JOB_ID; exec sleep 1000";
    let mut run = Run::start(gaspi_run(&["-n", "4", "sh", "-c", script]));
    let job = run.lines(4)[0].clone();
    let text = cleanup(&["--job", &job]).success().stdout;
    assert_eq!(text.matches("ended by SIGTERM").count(), 4, "{text}");
    assert_eq!(run.finish().code, Some(143));
}

#[test]
fn odd_commands_fit_on_a_line() {
    let job = id("odd");
    let mut command = Command::new("sleep");
    command.arg0("a\nb \x1b[31m").arg("1000").stdin(Stdio::null());
    command.env("GASPI_JOB_ID", &job).env("GASPI_RANK", "0").env("GASPI_NRANKS", "1");
    let child = command.spawn().expect("sleep");
    let text = cleanup(&["--job", &job]).success().stdout;
    let line = format!("job {job} pid {} rank 0: ended by SIGTERM: a?b ?[31m 1000\n", child.id());
    assert_eq!(text, line);
    ended(child);
}

#[test]
fn on_other_hosts_it_is_run_through_ssh() {
    let far = Far::with("[ \"$host\" = 240.0.0.9 ] && { echo refused >&2; exit 255; }");
    let ssh = far.path("ssh").to_string_lossy().into_owned();
    let file = far.path("machines");
    fs::write(&file, "240.0.0.1\n127.0.0.1\n240.0.0.1\n# none\n240.0.0.2").expect("write");
    let name = file.to_string_lossy();
    let job = id("far");
    let rank = Rank::start(&job, 3);
    let pid = rank.pid();
    let outcome = cleanup(&["--ssh", &ssh, "-m", &name, "-c", "--job", &job]).success();
    let listed = |host: &str| {
        format!("{host}: job {job} pid {pid} rank 3: started without gaspi_run: sleep 1000")
    };
    let expected = ["127.0.0.1", "240.0.0.1", "240.0.0.2"].map(listed);
    assert_eq!(outcome.sorted(), expected);
    assert_eq!(outcome.stderr, "");
    // A host that does not answer is told; what can be ended is ended.
    let hosts = "240.0.0.9,240.0.0.1:7";
    let outcome = cleanup(&["--ssh", &ssh, "--hosts", hosts, "--job", &job]);
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let ended = format!("240.0.0.1: job {job} pid {pid} rank 3: ended by SIGTERM: sleep 1000\n");
    assert_eq!(outcome.stdout, ended);
    let refused = format!("gaspi_cleanup: 240.0.0.9: {ssh} ended with exit status 255: refused\n");
    assert_eq!(outcome.stderr, refused);
    assert_eq!(rank.signal(), Some(libc::SIGTERM));
    let outcome = cleanup(&["--ssh", &ssh, "--hosts", "240.0.0.1", "--job", &job]).success();
    let none = format!("gaspi_cleanup: 240.0.0.1: there is no process of job {job} of this user\n");
    assert_eq!(outcome.stderr, none);
    for wrong in [
        &["-m", "/nonexistent", "-c"][..],
        &["--hosts", "a:x"],
        &["--ssh", " "],
        &["--timeout", "never"],
    ] {
        let hosts = if wrong[0] == "--ssh" { &["--hosts", "240.0.0.1"][..] } else { &[] };
        assert_eq!(cleanup(&[wrong, hosts].concat()).code, Some(2), "{wrong:?}");
    }
}

#[test]
fn hosts_that_do_not_finish_in_time_are_named_and_the_others_cleaned_up() {
    // ssh hangs while it connects; on another host what it has started keeps its pipes; a third one
    // goes silent once gaspi_cleanup runs there.
    let far = Far::with(
        "case $host in \
         240.0.0.7) exec sleep 1000 ;; \
         240.0.0.8) sleep 1000 & echo $! > DIRECTORY/left; wait ;; \
         240.0.0.9) echo '@gaspi run@'; echo listed; echo odd >&2; exec sleep 1000 ;; \
         esac",
    );
    let ssh = far.path("ssh").to_string_lossy().into_owned();
    let job = id("silent");
    let rank = Rank::start(&job, 3);
    let pid = rank.pid();
    let hosts = "240.0.0.7,240.0.0.8,240.0.0.1,240.0.0.9";
    let limit = ["--timeout", "8"];
    let rest = ["--ssh", &ssh, "--hosts", hosts, "--job", &job];
    let outcome = cleanup(&[&limit[..], &rest].concat());
    let left = fs::read_to_string(far.path("left")).expect("left");
    assert!(Command::new("kill").args(["-9", left.trim()]).status().expect("kill").success());
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    let ended = format!("240.0.0.1: job {job} pid {pid} rank 3: ended by SIGTERM: sleep 1000");
    assert_eq!(outcome.sorted(), [&ended, "240.0.0.9: listed"]);
    let mut told: Vec<&str> = outcome.stderr.lines().collect();
    told.sort_unstable();
    let late = |host: &str, words: &str| {
        format!("gaspi_cleanup: {host}: {ssh} has not ended after 8 s (--timeout){words}")
    };
    let expected = [("240.0.0.7", ""), ("240.0.0.8", ""), ("240.0.0.9", ": odd")];
    assert_eq!(told, expected.map(|(host, words)| late(host, words)));
    assert_eq!(rank.signal(), Some(libc::SIGTERM));
}

#[test]
fn many_hosts_are_cleaned_up_some_at_a_time() {
    const HOSTS: usize = 80;
    const TOGETHER: usize = 64;
    let far = Far::with("read line < DIRECTORY/gate");
    // Both ends: nobody is waited for.
    let path = far.fifo("gate");
    let mut gate = fs::File::options().read(true).write(true).open(path).expect("gate");
    let hosts: Vec<String> = (1..=HOSTS).map(|number| format!("240.0.0.{number}")).collect();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_cleanup"));
    command.arg("--ssh").arg(far.path("ssh")).args(["--hosts", &hosts.join(",")]);
    command.args(["--job", &id("many")]).stdin(Stdio::null());
    let run = Run::start(command);
    let begun = || far.calls().lines().count();
    let await_begun = |count: usize| {
        let deadline = Instant::now() + GUARD;
        while begun() < count {
            assert!(Instant::now() < deadline, "{} of {count}", begun());
            // Only how often is looked: nothing depends on it.
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    await_begun(TOGETHER);
    // Another one begins when one has ended.
    for ended in 0..=HOSTS - TOGETHER {
        await_begun(TOGETHER + ended);
        assert_eq!(begun(), TOGETHER + ended);
        gate.write_all(b"\n").expect("gate");
    }
    gate.write_all(&[b'\n'; TOGETHER]).expect("gate");
    let outcome = run.finish().success();
    assert_eq!(outcome.stderr.matches("there is no process of job").count(), HOSTS);
}

#[test]
fn it_is_carried_over_where_it_is_not_installed() {
    let far = Far::with(&far::not_installed(env!("CARGO_BIN_EXE_gaspi_cleanup")));
    let ssh = far.path("ssh").to_string_lossy().into_owned();
    let job = id("carried");
    let rank = Rank::start(&job, 0);
    let outcome = cleanup(&["--ssh", &ssh, "--hosts", "240.0.0.1", "--job", &job]).success();
    assert!(outcome.stdout.contains("rank 0: ended by SIGTERM"), "{}", outcome.stdout);
    assert_eq!(rank.signal(), Some(libc::SIGTERM));
}

#[test]
fn a_reader_that_goes_away_does_not_keep_it_from_ending_jobs() {
    let job = id("pipe");
    let rank = Rank::start(&job, 0);
    let program = env!("CARGO_BIN_EXE_gaspi_cleanup");
    shell(&format!("'{program}' --job {job} | exec 0<&-; true")).success();
    assert_eq!(rank.signal(), Some(libc::SIGTERM));
}

#[test]
fn variables_choose_among_jobs() {
    let jobs = [id("with-a"), id("with-b")];
    let start = |job: &str, value: &str| {
        let mut command = Command::new("sleep");
        command.arg("1000").env("CLEANUP_TEST", format!("{job}-{value}"));
        Rank(Rank::spawn(command, job, 0))
    };
    let (chosen, mut other) = (start(&jobs[0], "x"), start(&jobs[1], "x"));
    let with = format!("CLEANUP_TEST={}-x", jobs[0]);
    let outcome = cleanup(&["--all", "--kill", "--with", &with]).success();
    assert!(outcome.stdout.contains(&chosen.pid()), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("killed by SIGKILL"), "{}", outcome.stdout);
    assert_eq!(chosen.signal(), Some(libc::SIGKILL));
    assert!(other.runs());
    let nothing = cleanup(&["--all", "--with", &format!("{with}y")]).success();
    assert!(nothing.stderr.contains("with these variables"), "{}", nothing.stderr);
}
