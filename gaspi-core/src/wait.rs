//! The only place that waits.
//!
//! Spin while it pays, then yield in between, then sleep on the rank's futex. Where the node's
//! ranks outnumber the usable cores nobody spins: whoever is waited for needs the core. Every wait
//! has a deadline, and a rank that waits long uses no CPU. Where ranks of other nodes may bring
//! what is waited for, the waiting thread looks after the sockets itself, and sleeps on them if no
//! other thread does.

mod long;

use crate::ids::{GroupId, Rank};
use crate::os::{cancel, clock, futex};
use crate::policy::spin::{self, BRIEF_LOOKS, BRIEF_YIELDS, Next, Spin};
use crate::statistics::Counter;
use crate::sync::{Ordering, epoch};
use crate::timeout::Deadline;
use crate::transport::shm::area::{Note, SharedArea, wake_kind};
use std::time::{Duration, Instant};

pub use long::LongWait;
use long::Reports;
pub(crate) use long::stall_warning;

/// Longest sleep between two looks.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The sockets of a rank, as somebody who waits needs them.
pub(crate) trait Sockets {
    /// The caller begins or ends to wait by sleeping: until it ends, what comes has to be told of,
    /// whoever looks meanwhile and leaves.
    fn set_sleeping(&self, sleeping: bool);

    /// Handles what has come; false if nothing has.
    fn look(&self) -> bool;

    /// Sleeps until something comes or `limit` is over, if nobody else looks after the sockets;
    /// false if somebody does. `announce` is called once the sleep can be ended by a wakeup socket;
    /// if it says so, there is no sleep.
    fn sleep(&self, limit: Duration, announce: &mut dyn FnMut() -> bool) -> bool;

    /// The caller stops waiting.
    fn leave(&self);
}

/// What is waited for, for the control page and the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiting {
    /// The procedure as a user knows it.
    pub(crate) call: Call,
    /// Segment, group, queue or rank that it was called for.
    pub(crate) object: u32,
    /// Who has to answer, where that is one rank.
    pub(crate) peer: Option<Rank>,
}

impl Waiting {
    /// What it waits for, as far as its arguments tell.
    fn of_what(self) -> String {
        if let Some(rank) = self.peer {
            return format!("an answer of {rank}");
        }
        match (self.call, self.call.object()) {
            (Call::Wait, _) => format!("requests of queue {}", self.object),
            (Call::WaitSome, _) => format!("a notification of segment {}", self.object),
            (Call::PassiveReceive, _) => "a passive message of any rank".to_owned(),
            (Call::PassiveSend, _) => format!("rank {} to receive", self.object),
            (_, Some(kind)) => format!("{kind} {}", self.object),
            (_, None) => "the other ranks".to_owned(),
        }
    }
}

/// How a call appears while it waits.
pub(crate) fn waiting(call: Call, object: impl Into<u32>) -> Waiting {
    Waiting { call, object: object.into(), peer: None }
}

/// The object of a group's call.
pub(crate) fn waiting_group(call: Call, group: GroupId) -> Waiting {
    waiting(call, group.0)
}

macro_rules! calls {
    ($($name:ident = $number:literal $text:literal,)*) => {
        /// The procedures that can wait.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u32)]
        pub(crate) enum Call { $($name = $number,)* }

        impl Call {
            pub(crate) fn name(self) -> &'static str {
                match self { $(Call::$name => $text,)* }
            }

            /// The procedure that a note speaks of.
            pub(crate) fn of_number(number: u32) -> Option<Call> {
                match number { $($number => Some(Call::$name),)* _ => None }
            }
        }
    };
}

calls! {
    Init = 1 "proc_init",
    Term = 2 "proc_term",
    Barrier = 3 "barrier",
    Collective = 4 "allreduce",
    Commit = 5 "group_commit",
    Register = 6 "segment_register",
    Create = 7 "segment_create",
    Wait = 8 "wait",
    WaitSome = 9 "notify_waitsome",
    PassiveSend = 10 "passive_send",
    PassiveReceive = 11 "passive_receive",
    Atomic = 12 "atomic",
    Ping = 13 "proc_ping",
    Kill = 14 "proc_kill",
    Connect = 15 "connect",
    MakeKnown = 16 "segment_create",
    Channel = 17 "collective",
}

impl Call {
    /// What the object of its [`Waiting`] is; `None` if it has none.
    pub(crate) fn object(self) -> Option<&'static str> {
        match self {
            Call::Init | Call::Term => None,
            Call::Barrier | Call::Collective | Call::Commit | Call::Create | Call::Channel => {
                Some("group")
            }
            Call::Register | Call::MakeKnown | Call::WaitSome => Some("segment"),
            Call::PassiveReceive | Call::Atomic => Some("segment"),
            Call::Wait => Some("queue"),
            Call::PassiveSend | Call::Ping | Call::Kill | Call::Connect => Some("rank"),
        }
    }

    /// Where the time of its waiting is counted, besides in the sum of all waiting.
    pub(crate) fn counter(self) -> Option<Counter> {
        match self {
            Call::Barrier => Some(Counter::TimeInBarrier),
            Call::Wait => Some(Counter::TimeInWait),
            Call::WaitSome => Some(Counter::TimeInWaitSome),
            _ => None,
        }
    }

    /// What it looks at while it waits.
    pub(crate) fn looks(self) -> Looks {
        match self {
            // A device may execute an atomic operation.
            Call::Wait | Call::Atomic | Call::Term => Looks::AtAll,
            _ => Looks::ForMessages,
        }
    }

    /// What ends its waiting.
    fn wake_kind(self) -> u32 {
        match self {
            Call::WaitSome => wake_kind::NOTIFICATION,
            Call::Barrier | Call::Collective | Call::Create | Call::Channel => wake_kind::ARRIVAL,
            _ => wake_kind::OTHER,
        }
    }
}

/// What a thread that waits looks at, where there is a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looks {
    /// What others have sent, and what has become of this rank's own requests.
    AtAll,
    /// Most often at the former alone.
    ForMessages,
}

/// How this rank waits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    spin: bool,
    on_sockets: bool,
    background: bool,
    stall_warning: Option<Duration>,
}

impl Waiter {
    /// `cores` usable by the `ranks` of this machine.
    pub(crate) fn new(ranks: u32, cores: u32) -> Waiter {
        Waiter { spin: ranks <= cores, on_sockets: false, background: false, stall_warning: None }
    }

    /// The same, where calls without a limit say what they wait for after some time.
    pub(crate) fn warning_after(self, stall_warning: Option<Duration>) -> Waiter {
        Waiter { stall_warning, ..self }
    }

    /// The same for a rank that may also wait for ranks of other nodes.
    pub(crate) fn on_sockets(self, on_sockets: bool) -> Waiter {
        Waiter { on_sockets, ..self }
    }

    /// The same for a thread of the library: while it waits it takes no time of a core from the
    /// program.
    pub(crate) fn in_background(self) -> Waiter {
        Waiter { spin: false, background: true, ..self }
    }

    /// After how long a call without a limit says what it waits for; `None`: never.
    pub(crate) fn stall_warning(self) -> Option<Duration> {
        self.stall_warning
    }

    /// A call that waits in parts, and has begun just now.
    pub(crate) fn long_wait(self, deadline: Deadline) -> LongWait {
        self.long_wait_since(clock::now(), deadline)
    }

    /// The same for one that has begun before.
    pub(crate) fn long_wait_since(self, since: Instant, deadline: Deadline) -> LongWait {
        LongWait::begin(since, deadline, self.stall_warning)
    }

    /// Whether whoever waits has to look after the sockets.
    #[inline(always)]
    pub(crate) fn looks_after_sockets(&self) -> bool {
        self.on_sockets
    }

    /// Whether it spins before it yields.
    pub(crate) fn spins(self) -> bool {
        self.spin
    }

    /// Where ranks share cores, lets another one run.
    pub(crate) fn give_way(self) {
        if !self.spin {
            std::thread::yield_now();
        }
    }

    /// Whether somebody who has waited on sockets for so long has not even yielded.
    pub(crate) fn was_brief(self, waited: Duration) -> bool {
        spin::was_brief(self.spin, waited)
    }

    /// Looks once, and where it pays a few hundred nanoseconds longer.
    #[inline]
    pub(crate) fn poll_briefly<T>(self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        if let Some(value) = attempt() {
            return Some(value);
        }
        if self.spin {
            for _ in 1..BRIEF_LOOKS {
                std::hint::spin_loop();
                if let Some(value) = attempt() {
                    return Some(value);
                }
            }
        }
        None
    }

    /// The same, and where ranks share cores a few times more, giving way to others in between:
    /// what is waited for comes from a rank that needs the core.
    #[inline]
    pub(crate) fn poll_giving_way<T>(self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let found = self.poll_briefly(&mut attempt);
        if found.is_some() || self.spin {
            return found;
        }
        Waiter::poll_after_yields(attempt)
    }

    /// Out of line: what has come already should not pay for it.
    #[cold]
    #[inline(never)]
    fn poll_after_yields<T>(mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        (0..BRIEF_YIELDS).find_map(|_| {
            std::thread::yield_now();
            attempt()
        })
    }

    /// Repeats `attempt` until it gives something or the deadline has passed, and says how long
    /// that took, to within some looks. The attempt is made at least once, and once more after the
    /// deadline.
    #[cold]
    pub(crate) fn until<T>(
        self,
        area: &SharedArea,
        sockets: Option<&dyn Sockets>,
        deadline: Deadline,
        waiting: Waiting,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> (Option<T>, Duration) {
        epoch::may_wait(waiting.call.name());
        let _uncancelled = cancel::hold_off();
        let started = Instant::now();
        let (found, waited) = self.awake(sockets, started, deadline, &mut attempt);
        if found.is_some() {
            return (found, waited);
        }
        if deadline.passed() {
            return (attempt(), waited);
        }
        let since = long::since().unwrap_or(started);
        let noted = area.take_note().map(|note| NoteGuard::new(note, waiting, since));
        let says = deadline == Deadline::Never && !self.background;
        let reports = Reports::new(since, self.stall_warning.filter(|_| says));
        let sleeper = Sleeper { waiter: self, area, sockets, deadline, waiting, reports };
        let found = sleeper.sleep(attempt);
        drop(noted);
        (found, started.elapsed())
    }

    /// Repeats `attempt` without sleeping, for as long as that pays: traffic on the sockets makes
    /// it pay again, until the deadline.
    fn awake<T>(
        self,
        sockets: Option<&dyn Sockets>,
        started: Instant,
        deadline: Deadline,
        attempt: &mut impl FnMut() -> Option<T>,
    ) -> (Option<T>, Duration) {
        let mut spin = match self.background {
            true => Spin::in_background(sockets.is_some()),
            false => Spin::new(self.spin, sockets.is_some()),
        };
        loop {
            let mut busy = false;
            for _ in 0..spin.looks() {
                if let Some(value) = attempt() {
                    return (Some(value), started.elapsed());
                }
                match sockets {
                    Some(sockets) => busy |= sockets.look(),
                    None => std::hint::spin_loop(),
                }
            }
            let next = spin.after_looks(started.elapsed(), busy);
            if busy && deadline.passed() {
                break;
            }
            if next != Next::Look {
                std::thread::yield_now();
            }
            if next == Next::Sleep {
                break;
            }
        }
        (None, started.elapsed())
    }
}

/// A thread that has waited long enough to sleep.
struct Sleeper<'a> {
    waiter: Waiter,
    area: &'a SharedArea,
    sockets: Option<&'a dyn Sockets>,
    deadline: Deadline,
    waiting: Waiting,
    reports: Reports,
}

impl Sleeper<'_> {
    /// Announce, look, sleep, until found or the deadline has passed.
    fn sleep<T>(&self, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
        let Sleeper { area, deadline, waiting, ref reports, .. } = *self;
        let wakeup = area.own_wakeup();
        let _sleeping = self.sockets.map(SleepingGuard::new);
        loop {
            let mut found = None;
            let next = deadline.remaining().or(reports.left());
            let limit = next.map_or(SLEEP_MAX, |left| left.min(SLEEP_MAX));
            let on_sockets = self.sockets.is_some_and(|sockets| {
                sockets.sleep(limit, &mut || {
                    wakeup.announce(waiting.call.wake_kind(), || area.heavy_fence());
                    found = attempt();
                    found.is_some() || deadline.passed()
                })
            });
            if !on_sockets {
                let ticket = wakeup.ticket();
                wakeup.announce(waiting.call.wake_kind(), || area.heavy_fence());
                found = attempt();
                if found.is_none() && !deadline.passed() {
                    futex::wait(wakeup.sequence, ticket, Some(limit));
                }
            } else if found.is_none() {
                // Something has come: more may follow.
                let now = Instant::now();
                found = self.waiter.awake(self.sockets, now, deadline, &mut attempt).0;
            }
            if found.is_some() {
                return found;
            }
            if let Some(value) = attempt() {
                return Some(value);
            }
            if deadline.passed() {
                return None;
            }
            reports.tell(waiting.call.name(), || waiting.of_what());
        }
    }
}

/// A thread that sleeps while it waits.
struct SleepingGuard<'a>(&'a dyn Sockets);

impl<'a> SleepingGuard<'a> {
    fn new(sockets: &'a dyn Sockets) -> SleepingGuard<'a> {
        sockets.set_sleeping(true);
        SleepingGuard(sockets)
    }
}

impl Drop for SleepingGuard<'_> {
    fn drop(&mut self) {
        self.0.set_sleeping(false);
    }
}

/// Shows in the control page what this thread waits for.
struct NoteGuard<'a>(&'a Note);

impl<'a> NoteGuard<'a> {
    fn new(note: &'a Note, waiting: Waiting, since: Instant) -> NoteGuard<'a> {
        let waited_ms = since.elapsed().as_millis() as u64;
        note.object.store(waiting.object, Ordering::Relaxed);
        note.since_ms.store(clock::monotonic_ms().saturating_sub(waited_ms), Ordering::Relaxed);
        note.call.store(waiting.call as u32, Ordering::Release);
        NoteGuard(note)
    }
}

impl Drop for NoteGuard<'_> {
    fn drop(&mut self) {
        // Release: pairs with the Acquire of the next thread that takes the note.
        self.0.call.store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{affinity, limits};

    /// Sockets on which something comes all the time.
    struct Busy;

    impl Sockets for Busy {
        fn set_sleeping(&self, _sleeping: bool) {}

        fn look(&self) -> bool {
            true
        }

        fn sleep(&self, _limit: Duration, _announce: &mut dyn FnMut() -> bool) -> bool {
            true
        }

        fn leave(&self) {}
    }

    #[test]
    fn traffic_does_not_keep_a_call_beyond_its_deadline() {
        let area = SharedArea::single(1).expect("an area");
        let waiting = waiting(Call::Wait, 0_u32);
        let limit = Duration::from_millis(50);
        let (tell, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let deadline = Deadline::Never.at_most(limit);
            let waiter = Waiter { spin: true, ..Waiter::new(1, 1) };
            let found = waiter.until(&area, Some(&Busy), deadline, waiting, || None::<()>);
            // Nobody listens if it took too long.
            let _ = tell.send(found);
        });
        let (found, _) = ended.recv_timeout(Duration::from_secs(10)).expect("it ends");
        assert!(found.is_none());
    }

    fn spins(masks: &[[u64; 1]]) -> bool {
        let cores = affinity::usable_cores(masks.iter().copied());
        Waiter::new(masks.len() as u32, cores).spin
    }

    #[test]
    fn ranks_spin_if_there_is_a_core_for_each_of_them_whether_bound_or_not() {
        let enough = limits::cpu_quota().is_none_or(|quota| quota >= 2);
        assert_eq!(spins(&[[0b01], [0b10]]), enough);
        assert_eq!(spins(&[[0b11], [0b11]]), enough);
        assert!(!spins(&[[0b01], [0b01]]));
        assert!(!spins(&[[0b01], [0b10], [0b01], [0b10]]));
        assert!(!spins(&[[0b11]; 4]));
    }
}
