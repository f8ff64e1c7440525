//! Ranks as threads of the test process: the real transport, descriptors and progress threads
//! included.

#![allow(dead_code, reason = "each test program uses its share")]

use gaspi_core::{Config, Job, Joining, Rank, Runtime, Timeout};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Long enough for anything that is right; a test that hangs ends by it.
pub(crate) const LIMIT: Timeout = Timeout::Millis(60_000);

static JOBS: AtomicU64 = AtomicU64::new(0);

/// How the ranks of a test are spread over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nodes {
    /// All on one: shared memory only.
    One,
    /// Each on its own: TCP only.
    Each,
    /// Two and two.
    Pairs,
}

impl Nodes {
    /// What GASPI_TEST_NODES says: the same tests run over every kind of link.
    pub(crate) fn of_this_run() -> Nodes {
        match std::env::var("GASPI_TEST_NODES").as_deref() {
            Err(_) | Ok("one") => Nodes::One,
            Ok("each") => Nodes::Each,
            Ok("pairs") => Nodes::Pairs,
            Ok(other) => panic!("GASPI_TEST_NODES is {other:?}; it can be one, each or pairs"),
        }
    }

    fn node(self, rank: Rank) -> u64 {
        let rank = u64::from(rank.0);
        match self {
            Nodes::One => 0,
            Nodes::Each => rank,
            // Not neighbours: 0 and 2, 1 and 3, 4 and 6.
            Nodes::Pairs => rank / 4 * 2 + rank % 2,
        }
    }

    /// The job of a rank that is a thread of this process.
    pub(crate) fn job(self, id: &str, rank: Rank, size: u32) -> Job {
        let job = Job::in_process(id, rank, size);
        if self == Nodes::One { job } else { job.on_node(self.node(rank)) }
    }

    /// Ranks on the node of `rank`, of a job of `size`.
    pub(crate) fn neighbours(self, rank: Rank, size: u32) -> u32 {
        let same = |other: &u32| self.node(Rank(*other as u16)) == self.node(rank);
        (0..size).filter(same).count() as u32
    }
}

/// How long a test may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the other ranks of a test may take to end once one has fallen.
const AFTERMATH: Duration = Duration::from_secs(10);

/// What threads of this process have said when they fell.
fn said() -> MutexGuard<'static, Vec<String>> {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shows at once why a thread of a test has fallen: what is said in the usual way is kept until the
/// test ends, which the others may not let it do.
fn show_panics() {
    static SHOWN: Once = Once::new();
    SHOWN.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread of a rank");
            // Straight to where it can be seen; if that is closed, nobody wants to see it.
            let text = format!("{name}: {panic}");
            let _ = writeln!(std::io::stderr(), "{text}");
            said().push(text);
            usual(panic);
        }));
    });
}

/// A rank that is running; others are told if it falls.
struct Running(Sender<Fallen>);

/// A rank has fallen.
struct Fallen;

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Whoever is told may have gone already.
            let _ = self.0.send(Fallen);
        }
    }
}

/// Ends the process with what all threads do if a test hangs: after a long time, or soon after one
/// of its ranks has fallen, since others may wait for that one for ever.
fn watchdog(name: String) -> Sender<Fallen> {
    let (running, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let fallen = match wait.recv_timeout(PATIENCE) {
            Ok(Fallen) => {
                // Others may fall too.
                let end = Instant::now() + AFTERMATH;
                loop {
                    match wait.recv_timeout(end.saturating_duration_since(Instant::now())) {
                        Ok(Fallen) => {}
                        Err(RecvTimeoutError::Timeout) => break true,
                        Err(RecvTimeoutError::Disconnected) => return,
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let why = if fallen { "a rank has fallen, and others wait for it" } else { "hangs" };
        let _ = writeln!(std::io::stderr(), "{name}: {why}; stacks of all threads follow");
        let pid = std::process::id().to_string();
        let gdb = ["-p", &pid, "-batch", "-ex", "thread apply all bt"];
        if let Err(error) = std::process::Command::new("gdb").args(gdb).status() {
            let _ = writeln!(std::io::stderr(), "no stacks: gdb: {error}");
        }
        // Once more, where whoever sees only the end looks.
        let _ = writeln!(std::io::stderr(), "{name}: {why}");
        for panic in said().iter() {
            let _ = writeln!(std::io::stderr(), "{panic}");
        }
        std::process::abort();
    });
    running
}

/// Runs `body` on `size` ranks with this configuration and hands out the results by rank.
pub(crate) fn run_with<T: Send>(
    size: u32,
    config: &Config,
    body: impl Fn(&Runtime) -> T + Sync,
) -> Vec<T> {
    run_owned(size, config, |runtime| {
        let result = body(&runtime);
        // A rank that has left already did so on purpose.
        let _ = runtime.term(LIMIT);
        result
    })
}

/// As [`run_with`], but what becomes of a rank is up to the body.
pub(crate) fn run_owned<T: Send>(
    size: u32,
    config: &Config,
    body: impl Fn(Runtime) -> T + Sync,
) -> Vec<T> {
    run_over(Nodes::of_this_run(), size, config, body)
}

/// As [`run_owned`], over these links.
pub(crate) fn run_over<T: Send>(
    nodes: Nodes,
    size: u32,
    config: &Config,
    body: impl Fn(Runtime) -> T + Sync,
) -> Vec<T> {
    run_jobs(size, config, |id, rank| nodes.job(id, rank, size), body)
}

/// As [`run_owned`], with whatever jobs.
pub(crate) fn run_jobs<T: Send>(
    size: u32,
    config: &Config,
    job: impl Fn(&str, Rank) -> Job + Sync,
    body: impl Fn(Runtime) -> T + Sync,
) -> Vec<T> {
    let id = format!("test-{}", JOBS.fetch_add(1, Ordering::Relaxed));
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    show_panics();
    let running = watchdog(name.clone());
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (id, job, body) = (&id, &job, &body);
                let running = Running(running.clone());
                let thread = std::thread::Builder::new().name(format!("{name}: rank {rank}"));
                let run = move || {
                    let _running = running;
                    let job = job(id, Rank(rank as u16));
                    let mut joining = Joining::new(job, config.clone()).expect("joining");
                    let runtime = joining.wait(LIMIT).expect("all ranks meet");
                    body(runtime)
                };
                thread.spawn_scoped(scope, run).expect("a thread")
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank ended well")).collect()
    });
    drop(running);
    results
}

/// Runs `body` on `size` ranks.
pub(crate) fn run<T: Send>(size: u32, body: impl Fn(&Runtime) -> T + Sync) -> Vec<T> {
    run_with(size, &Config::default(), body)
}

/// A death, as far as the others can see: the thread that owns the rank panics.
pub(crate) fn die(runtime: Runtime) {
    let death = std::panic::AssertUnwindSafe(move || {
        let _dying = runtime;
        // Not a panic!, whose message would look like a failure.
        std::panic::resume_unwind(Box::new("death"));
    });
    assert!(std::panic::catch_unwind(death).is_err());
}

/// Ranks other than `own`.
pub(crate) fn others(rt: &Runtime) -> impl Iterator<Item = Rank> {
    let own = rt.rank();
    (0..rt.size()).map(|rank| Rank(rank as u16)).filter(move |rank| *rank != own)
}
