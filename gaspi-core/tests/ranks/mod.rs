//! Ranks as threads of the test process: the real transport, descriptors and progress threads
//! included.

#![allow(dead_code, unused_imports, reason = "each test program uses its share")]

#[macro_use]
pub(crate) mod layouts;
mod threads;
mod tries;

pub(crate) use layouts::{
    BY_DEVICE, DEVICES, Devices, EVERY, MIXED, Nodes, REAL, SEVERAL, SHM, TCP, TWIN, Test, VERBS,
    VERBS_PAIRS, next_seed, run_tests, sizes,
};
pub(crate) use threads::{Barrier, now, pause, scope};
pub(crate) use tries::Tries;

use gaspi_core::twin::{Network, Ticket};
use gaspi_core::{
    Config, DeviceChoice, Job, MessageCarrier, PendingInit, Rank, Runtime, TestMachine, Timeout,
};
use gaspi_mock_card::Fabric;
use gaspi_mock_card::control::Live;
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Long enough for anything that is right; a test that hangs ends by it.
pub(crate) const LIMIT: Timeout = Timeout::Millis(60_000);

static JOBS: AtomicU64 = AtomicU64::new(0);

/// How long a test may take; GASPI_TEST_TIME_SCALE makes it longer.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long the other ranks of a test may take to end once one has fallen.
const AFTERMATH: Duration = Duration::from_secs(10);

/// What threads of this process have said when they fell.
fn said() -> MutexGuard<'static, Vec<String>> {
    static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
    SAID.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps what threads say when they fall, for the end of a test that the others do not let end.
fn keep_panics() {
    static KEPT: Once = Once::new();
    KEPT.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let thread = std::thread::current();
            let name = thread.name().unwrap_or("a thread of a rank");
            said().push(format!("{name}: {panic}"));
            usual(panic);
        }));
    });
}

/// A rank that is running; others are told if it falls.
struct Running(Sender<Fallen>);

/// A rank has fallen.
pub(crate) struct Fallen;

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The receiver may be gone already.
            let _ = self.0.send(Fallen);
        }
    }
}

/// Ends the process with what all threads do if a test hangs: after a long time, or soon after one
/// of its ranks has fallen, since others may wait for that one for ever.
pub(crate) fn watchdog(name: String) -> Sender<Fallen> {
    let (running, wait) = std::sync::mpsc::channel();
    let scale = std::env::var("GASPI_TEST_TIME_SCALE").ok().and_then(|text| text.parse().ok());
    let patience = PATIENCE.mul_f64(scale.unwrap_or(1.0));
    std::thread::spawn(move || {
        let fallen = match wait.recv_timeout(patience) {
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
        // Once more at the end, below the stacks.
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
    run_over(Nodes::of_this_test(), size, config, body)
}

/// As [`run_owned`], over these links.
pub(crate) fn run_over<T: Send>(
    nodes: Nodes,
    size: u32,
    config: &Config,
    body: impl Fn(Runtime) -> T + Sync,
) -> Vec<T> {
    let network = layouts::network(nodes, size);
    let devices = layouts::devices(Nodes::of_this_test(), size, "");
    run_on(
        (network.as_ref(), layouts::faults(nodes), devices.as_ref()),
        size,
        config,
        |id, rank| nodes.job(id, rank, size),
        body,
    )
}

/// As [`run`], on machines like this one.
pub(crate) fn run_on_machine<T: Send>(
    size: u32,
    machine: TestMachine,
    body: impl Fn(&Runtime) -> T + Sync,
) -> Vec<T> {
    let nodes = Nodes::of_this_test();
    let network = layouts::network(nodes, size);
    let devices = layouts::devices(nodes, size, "");
    run_on(
        (network.as_ref(), layouts::faults(nodes), devices.as_ref()),
        size,
        &Config::default(),
        |id, rank| nodes.job(id, rank, size).on_machine(machine),
        |runtime| {
            let result = body(&runtime);
            let _ = runtime.term(LIMIT);
            result
        },
    )
}

/// As [`run_owned`], with whatever jobs.
pub(crate) fn run_jobs<T: Send>(
    size: u32,
    config: &Config,
    job: impl Fn(&str, Rank) -> Job + Sync,
    body: impl Fn(Runtime) -> T + Sync,
) -> Vec<T> {
    let devices = layouts::devices(Nodes::of_this_test(), size, "");
    run_on((None, None, devices.as_ref()), size, config, job, body)
}

/// Runs `body` on `size` ranks with devices that have these options.
pub(crate) fn run_with_devices<T: Send>(
    size: u32,
    options: &str,
    body: impl Fn(&Runtime, &Fabric) -> T + Sync,
) -> Vec<T> {
    run_with_prepared(size, (options, &Config::default()), |_| (), |_| (), body)
}

/// As [`run_with_devices`], with something done to the devices before, and asked of them.
pub(crate) fn run_with_prepared<T: Send>(
    size: u32,
    (options, config): (&str, &Config),
    prepare: impl FnOnce(&Fabric),
    ask: impl Fn(&mut DeviceChoice) + Sync,
    body: impl Fn(&Runtime, &Fabric) -> T + Sync,
) -> Vec<T> {
    run_owned_with_devices(size, (options, config), prepare, ask, |runtime, fabric| {
        let result = body(&runtime, fabric);
        let _ = runtime.term(LIMIT);
        result
    })
}

/// As [`run_with_prepared`], but what becomes of a rank is up to the body.
pub(crate) fn run_owned_with_devices<T: Send>(
    size: u32,
    (options, config): (&str, &Config),
    prepare: impl FnOnce(&Fabric),
    ask: impl Fn(&mut DeviceChoice) + Sync,
    body: impl Fn(Runtime, &Fabric) -> T + Sync,
) -> Vec<T> {
    let nodes = Nodes::of_this_test();
    let devices = layouts::mocked_devices(size, options);
    prepare(&devices.0);
    let job = |id: &str, rank| {
        let mut job = nodes.job(id, rank, size);
        // Whatever carries those of other tests: what is asked of devices is about them.
        job.device.messages = MessageCarrier::Device;
        ask(&mut job.device);
        job
    };
    run_on((None, None, Some(&devices)), size, config, job, |runtime| body(runtime, &devices.0))
}

fn run_on<T: Send>(
    (network, faults, devices): (Option<&Network>, Option<u64>, Option<&Devices>),
    size: u32,
    config: &Config,
    job: impl Fn(&str, Rank) -> Job + Sync,
    body: impl Fn(Runtime) -> T + Sync,
) -> Vec<T> {
    let mut tickets: Vec<Ticket> =
        network.iter().flat_map(|n| (0..size).map(|rank| n.ticket(Rank(rank as u16)))).collect();
    tickets.reverse();
    let id = format!("test-{}", JOBS.fetch_add(1, Ordering::Relaxed));
    let name = std::thread::current().name().unwrap_or("test").to_owned();
    let nodes = Nodes::of_this_test();
    keep_panics();
    let running = watchdog(name.clone());
    let results = std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let (id, job, body) = (&id, &job, &body);
                let running = Running(running.clone());
                let ticket = tickets.pop();
                let thread = std::thread::Builder::new().name(format!("{name}: rank {rank}"));
                let run = move || {
                    let _running = running;
                    nodes.enter();
                    let _entered = ticket.map(Ticket::enter);
                    let mut job = job(id, Rank(rank as u16));
                    if let Some((fabric, library)) = devices {
                        fabric.use_all();
                        let name = format!("mock{}_{rank}", fabric.number());
                        job.transport = nodes.transport_of_devices();
                        // A rank may have been given another one, or none.
                        job.device.library.get_or_insert_with(|| library.clone());
                        job.device.devices = vec![name];
                    } else if let Some(name) = layouts::real_device(nodes) {
                        job.transport = nodes.transport_of_devices();
                        job.device.devices = vec![name];
                    }
                    let mut joining = match network {
                        Some(network) => PendingInit::on_twin(job, config.clone(), network.clone()),
                        None => PendingInit::new(job, config.clone()),
                    }
                    .expect("joining");
                    if let Some(seed) = faults {
                        joining = joining.with_faults(seed + u64::from(rank));
                    }
                    let runtime = joining.wait(LIMIT).expect("all ranks meet");
                    body(runtime)
                };
                thread.spawn_scoped(scope, run).expect("a thread")
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank ended well")).collect()
    });
    if let Some((fabric, _)) = devices {
        let live = (0..size).map(|device| fabric.live(device));
        let left = live.filter(|live| *live != Live::default()).count();
        assert_eq!(left, 0, "devices with objects that nobody has ended");
        let relaxed: u64 = (0..size).map(|device| fabric.counter(device, "relaxed")).sum();
        assert_eq!(relaxed, 0, "registrations with relaxed ordering");
    }
    drop(running);
    results
}

/// Runs `body` on `size` ranks whose devices have these options and leave messages to TCP, where
/// their pairs would be in the way of what is tested.
pub(crate) fn run_without_messages<T: Send>(
    size: u32,
    options: &str,
    body: impl Fn(&Runtime, &Fabric) -> T + Sync,
) -> Vec<T> {
    let by_tcp = |choice: &mut DeviceChoice| choice.messages = MessageCarrier::Tcp;
    run_with_prepared(size, (options, &Config::default()), |_| (), by_tcp, body)
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
