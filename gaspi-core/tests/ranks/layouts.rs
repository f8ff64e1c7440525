//! Node layouts, and the harness that runs each test once per layout: `shm/queues::NAME`,
//! `tcp/queues::NAME`, `mixed/queues::NAME`.

use std::cell::Cell;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::OnceLock;

use gaspi_core::twin::Network;
use gaspi_core::{Job, MessageCarrier, Rank, Transport};
use gaspi_mock_card::{Fabric, MockCard, Options};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// How the ranks of a test are spread over nodes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nodes {
    /// All on one: shared memory only.
    One,
    /// Each on its own: TCP only.
    Each,
    /// Two and two.
    Pairs,
    /// Two and two, with requests that are delayed by a seed.
    Faulty,
    /// Each on its own, on a network in this process and in virtual time.
    Twin,
    /// Each on its own, with an RDMA device that is as unkind as the standard allows, by a seed.
    Verbs,
    /// Two and two, with such devices between, which are used where they can be.
    VerbsPairs,
    /// Nodes that differ in number and size: see [`sizes`].
    Several,
}

pub(crate) const SHM: &[Nodes] = &[Nodes::One];
pub(crate) const TCP: &[Nodes] = &[Nodes::Each];
pub(crate) const MIXED: &[Nodes] = &[Nodes::Pairs];
pub(crate) const TWIN: &[Nodes] = &[Nodes::Twin];
pub(crate) const VERBS: &[Nodes] = &[Nodes::Verbs];
pub(crate) const VERBS_PAIRS: &[Nodes] = &[Nodes::VerbsPairs];
pub(crate) const SEVERAL: &[Nodes] = &[Nodes::Several];
pub(crate) const BY_DEVICE: &[Nodes] = &[Nodes::Verbs, Nodes::VerbsPairs];
/// With sockets and clocks.
pub(crate) const REAL: &[Nodes] = &[Nodes::One, Nodes::Each, Nodes::Pairs, Nodes::Faulty];
/// The same, and with devices.
pub(crate) const DEVICES: &[Nodes] =
    &[Nodes::One, Nodes::Each, Nodes::Pairs, Nodes::Faulty, Nodes::Verbs, Nodes::VerbsPairs];
pub(crate) const EVERY: &[Nodes] = &[
    Nodes::One,
    Nodes::Each,
    Nodes::Pairs,
    Nodes::Faulty,
    Nodes::Twin,
    Nodes::Verbs,
    Nodes::VerbsPairs,
];

/// With how many seeds each test runs over the twin; GASPI_TEST_SEEDS says another number.
const SEEDS: u64 = 4;

thread_local! {
    /// What decides the course of a job, where something is left to chance.
    static SEED: Cell<u64> = const { Cell::new(0) };
    static LAYOUT: Cell<Option<Nodes>> = const { Cell::new(None) };
}

impl Nodes {
    /// The layout of the test that this thread belongs to: its own thread, or one of its ranks.
    pub(crate) fn of_this_test() -> Nodes {
        LAYOUT.get().expect("the thread of a test or of a rank")
    }

    /// Makes this thread part of a test of this layout.
    pub(crate) fn enter(self) {
        LAYOUT.set(Some(self));
    }

    /// The prefix of the names of tests.
    fn name(self) -> &'static str {
        match self {
            Nodes::One => "shm",
            Nodes::Each => "tcp",
            Nodes::Pairs => "mixed",
            Nodes::Faulty => "faulty",
            Nodes::Twin => "twin",
            Nodes::Verbs => "verbs",
            Nodes::VerbsPairs => "verbs-pairs",
            Nodes::Several => "several",
        }
    }

    /// How ranks with devices are to use them.
    pub(crate) fn transport_of_devices(self) -> Transport {
        if self == Nodes::Verbs { Transport::Verbs } else { Transport::Auto }
    }

    fn node(self, rank: Rank, size: u32) -> u64 {
        let rank = u64::from(rank.0);
        match self {
            Nodes::One => 0,
            Nodes::Each | Nodes::Twin | Nodes::Verbs => rank,
            // Not neighbours: 0 and 2, 1 and 3, 4 and 6.
            Nodes::Pairs | Nodes::Faulty | Nodes::VerbsPairs => rank / 4 * 2 + rank % 2,
            Nodes::Several if size <= 6 => rank % 2,
            // Not neighbours either.
            Nodes::Several => rank % u64::from(size / 2),
        }
    }

    /// The job of a rank that is a thread of this process.
    pub(crate) fn job(self, id: &str, rank: Rank, size: u32) -> Job {
        let mut job = Job::in_process(id, rank, size);
        job.device.messages = message_carrier();
        if self == Nodes::One { job } else { job.on_node(self.node(rank, size)) }
    }

    /// Ranks on the node of `rank`, of a job of `size`.
    pub(crate) fn neighbours(self, rank: Rank, size: u32) -> u32 {
        let same = |other: &u32| self.node(Rank(*other as u16), size) == self.node(rank, size);
        (0..size).filter(same).count() as u32
    }
}

/// A test over one layout.
pub(crate) struct Test {
    nodes: Nodes,
    name: String,
    run: fn(),
}

impl Test {
    /// `module` is a path that begins with the test program.
    pub(crate) fn new(nodes: Nodes, module: &str, function: &str, run: fn()) -> Test {
        let path = module.split_once("::").map_or(String::new(), |(_, path)| format!("{path}::"));
        Test { nodes, name: format!("{}/{path}{function}", nodes.name()), run }
    }

    /// Runs in a thread of its own: a test may change what belongs to a thread.
    fn run(self) -> Result<Completion, Failed> {
        let Test { nodes, name, run } = self;
        let seeds = match nodes {
            Nodes::Twin => seeds(SEEDS),
            Nodes::Faulty | Nodes::Verbs | Nodes::VerbsPairs | Nodes::Several => seeds(1),
            Nodes::One | Nodes::Each | Nodes::Pairs => 0..1,
        };
        for seed in seeds {
            let body = move || {
                nodes.enter();
                SEED.set(seed);
                run();
            };
            let thread = std::thread::Builder::new().name(name.clone()).spawn(body)?;
            if let Err(end) = thread.join() {
                if let Some(NotHere(reason)) = end.downcast_ref() {
                    return Ok(Completion::ignored_with(reason));
                }
                return Err(format!("panicked with seed {seed}; the message is above").into());
            }
        }
        Ok(Completion::Completed)
    }
}

/// So many ranks share a device of this machine well, which may be made by software: each has a
/// pair with each other one, for each queue and for messages.
const MOST_ON_A_DEVICE: u32 = 5;

/// With how many ranks a test runs that takes any number, and usually these: over several nodes
/// with 6 on two and 18 on nine; with one of both in the short tier, and with 48 on 24 in the long
/// one too.
pub(crate) fn sizes(usual: &[u32]) -> Vec<u32> {
    let nodes = Nodes::of_this_test();
    if real_device(nodes).is_some() {
        return usual.iter().copied().filter(|size| *size <= MOST_ON_A_DEVICE).collect();
    }
    if nodes != Nodes::Several {
        return usual.to_vec();
    }
    if std::env::var_os("GASPI_TEST_FULL").is_some() {
        return vec![6, 18, 48];
    }
    let thread = std::thread::current();
    let name = thread.name().unwrap_or_default().bytes();
    let mixed = name
        .fold(next_seed(), |mixed, byte| (mixed ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    vec![if (mixed >> 32).is_multiple_of(3) { 18 } else { 6 }]
}

/// GASPI_TEST_SEEDS seeds from GASPI_TEST_SEED on.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name, default| match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}, no number")),
        Err(_) => default,
    };
    let first = number("GASPI_TEST_SEED", 1);
    first..first + number("GASPI_TEST_SEEDS", usual)
}

/// What carries messages, unless a test asks for something else: GASPI_TEST_MESSAGES.
pub(crate) fn message_carrier() -> MessageCarrier {
    match std::env::var("GASPI_TEST_MESSAGES").as_deref() {
        Err(_) | Ok("device") => MessageCarrier::Device,
        Ok("tcp") => MessageCarrier::Tcp,
        Ok(other) => panic!("GASPI_TEST_MESSAGES is {other:?}; it takes device or tcp"),
    }
}

/// The network of a job over the twin.
pub(crate) fn network(nodes: Nodes, size: u32) -> Option<Network> {
    (nodes == Nodes::Twin).then(|| Network::new(next_seed(), size))
}

/// A device of this machine, which all ranks share in place of mocked ones: GASPI_TEST_DEVICE.
/// Tests that ask something of mocked devices are left out then: see [`mocked_devices`].
pub(crate) fn real_device(nodes: Nodes) -> Option<String> {
    let has_devices = matches!(nodes, Nodes::Verbs | Nodes::VerbsPairs);
    std::env::var("GASPI_TEST_DEVICE").ok().filter(|_| has_devices)
}

/// The devices of a job, and where their library is.
pub(crate) fn devices(nodes: Nodes, size: u32, more: &str) -> Option<Devices> {
    static MOCK: OnceLock<MockCard> = OnceLock::new();
    if !matches!(nodes, Nodes::Verbs | Nodes::VerbsPairs) || real_device(nodes).is_some() {
        return None;
    }
    let mock = MOCK.get_or_init(|| MockCard::load().expect("the mock card has been built"));
    let mut options = Options::unkind(next_seed());
    options.behaviour.devices = size.into();
    options.set(more).expect("options of the mock card");
    Some((mock.fabric(&options), mock.path().as_os_str().to_owned()))
}

/// What the thread of a test ends with that cannot run here, and why.
struct NotHere(&'static str);

/// The same for a test that asks something of mocked devices. It cannot run with another one.
pub(crate) fn mocked_devices(size: u32, more: &str) -> Devices {
    let nodes = Nodes::of_this_test();
    if real_device(nodes).is_some() {
        std::panic::resume_unwind(Box::new(NotHere("it asks something of mocked devices")));
    }
    devices(nodes, size, more).expect("a layout with devices")
}

/// The devices of a job, and the library that has them.
pub(crate) type Devices = (Fabric, OsString);

/// The seed of what delays the requests of a job.
pub(crate) fn faults(nodes: Nodes) -> Option<u64> {
    (nodes == Nodes::Faulty).then(next_seed)
}

/// Each job of a test takes another course.
pub(crate) fn next_seed() -> u64 {
    SEED.replace(SEED.get().wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1))
}

/// Lists the tests of a module by the layouts that they run over. A test that is not listed is
/// dead code, which the compiler tells.
macro_rules! tests {
    ($($layouts:ident: $($name:ident),+;)+) => {
        pub(crate) fn tests() -> Vec<$crate::ranks::Test> {
            let mut all = Vec::new();
            $(for nodes in $crate::ranks::$layouts {
                $(all.push($crate::ranks::Test::new(
                    *nodes,
                    module_path!(),
                    stringify!($name),
                    $name,
                ));)+
            })+
            all
        }
    };
}

/// The main function of a test program with these modules of tests.
pub(crate) fn run_tests(modules: impl IntoIterator<Item = Vec<Test>>) -> ExitCode {
    let mut tests: Vec<Test> = modules.into_iter().flatten().collect();
    tests.sort_by(|one, other| one.name.cmp(&other.name));
    let trials =
        tests.into_iter().map(|test| Trial::ignorable_test(test.name.clone(), move || test.run()));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
