//! Who runs, what arrives next, and what time it is.

use super::port::PortState;
use crate::ids::{QueueId, Rank};
use crate::os::clock::virtual_time::Clock;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::transport::Upcalls;
use crate::transport::payload::Payload;
use crate::transport::random::Random;
use crate::wire::frame::Frame;
use crate::wire::message::Stream;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a wait may last before its thread looks again, though nothing has come.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// What a look that may not wait takes.
pub(super) const LOOK: Duration = Duration::from_micros(10);
/// What a pause takes.
const PAUSE: Duration = Duration::from_micros(20);
/// When all ranks have waited for so long and nothing has come, they wait for ever.
const HANG_NS: u64 = 10_000 * 1_000_000_000;

/// What keeps its order on the way from one rank to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Lane {
    /// Messages and calls.
    Control,
    /// Requests of a queue.
    Queue(QueueId),
    /// Answers to the requests of a queue.
    Data(QueueId),
    /// Acknowledgements, refusals and answers to calls.
    Answers,
}

/// Bytes that go along with a frame.
#[derive(Debug)]
pub(super) enum Body {
    Nothing,
    Bytes(Vec<u8>),
    /// Taken from memory when they arrive, behind some that are here.
    Later {
        head: Vec<u8>,
        payload: Payload,
        size: u64,
    },
}

/// What arrives.
#[derive(Debug)]
pub(super) enum News {
    Frame(Frame, Body),
    /// A put of this stream has been completed.
    Acknowledged(Stream),
    /// The sender has left, or died.
    Ended {
        died: bool,
    },
}

#[derive(Debug)]
struct Event {
    from: Rank,
    to: Rank,
    news: News,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Doing {
    /// May run.
    Ready,
    Running,
    /// Waits for news of its rank, at the latest until then.
    Waiting {
        until_ns: u64,
    },
    /// Goes on then.
    Pausing {
        until_ns: u64,
    },
    /// Has ended.
    Ended,
}

#[derive(Debug)]
struct Thread {
    rank: Rank,
    doing: Doing,
    turn: Arc<Condvar>,
}

/// A rank that has joined.
struct Member {
    up: Weak<dyn Upcalls>,
    port: Arc<PortState>,
    left: bool,
}

/// How long something is on its way: mostly microseconds, sometimes milliseconds.
fn delay_ns(random: &mut Random) -> u64 {
    let limit_us = match random.below(256) {
        0 => 5_000,
        1..16 => 200,
        _ => 20,
    };
    1_000 + random.below(limit_us * 1_000)
}

#[derive(Debug)]
struct State {
    random: Random,
    /// By time and number.
    events: BTreeMap<(u64, u64), Event>,
    /// How many there were.
    numbered: u64,
    /// When the last one of a lane arrives.
    lanes: HashMap<(Rank, Rank, Lane), u64>,
    members: Vec<Option<Member>>,
    threads: Vec<Thread>,
    running: Option<usize>,
    /// When something came last.
    news_ns: u64,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("left", &self.left).finish_non_exhaustive()
    }
}

#[derive(Debug)]
pub(super) struct Shared {
    clock: Arc<Clock>,
    state: Mutex<State>,
}

thread_local! {
    /// The network that this thread belongs to, and its place there.
    static PLACE: RefCell<Option<(Arc<Shared>, usize)>> = const { RefCell::new(None) };
}

/// A network for the ranks of one job.
#[derive(Debug, Clone)]
pub struct Network(pub(super) Arc<Shared>);

impl PartialEq for Network {
    fn eq(&self, other: &Network) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Network {}

/// The place of a thread that is about to begin.
#[derive(Debug)]
pub struct Ticket {
    shared: Arc<Shared>,
    place: usize,
}

/// A thread belongs to the network as long as this lives.
#[derive(Debug)]
pub struct Entered(());

impl Network {
    /// A network for `size` ranks, whose course the seed decides.
    pub fn new(seed: u64, size: u32) -> Network {
        let state = State {
            random: Random::new(seed),
            events: BTreeMap::new(),
            numbered: 0,
            lanes: HashMap::new(),
            members: (0..size).map(|_| None).collect(),
            threads: Vec::new(),
            running: None,
            news_ns: 0,
        };
        Network(Arc::new(Shared { clock: Clock::new(), state: Mutex::new(state) }))
    }

    /// A place for a thread of `rank` that is about to begin. All those of the begin are made
    /// before the first one [enters](Ticket::enter).
    pub fn ticket(&self, rank: Rank) -> Ticket {
        let mut state = self.0.state.lock();
        state.threads.push(Thread { rank, doing: Doing::Ready, turn: Arc::default() });
        Ticket { shared: Arc::clone(&self.0), place: state.threads.len() - 1 }
    }
}

impl Ticket {
    /// A place for another thread of the calling one's rank, where that belongs to a network.
    pub fn of_this_rank() -> Option<Ticket> {
        let (shared, place) = PLACE.with_borrow(Clone::clone)?;
        let rank = shared.state.lock().threads[place].rank;
        Some(Network(shared).ticket(rank))
    }

    /// The calling thread takes the place, and goes on when it is its turn.
    pub fn enter(self) -> Entered {
        let Ticket { shared, place } = self;
        Clock::follow(Some(Arc::clone(&shared.clock)));
        PLACE.set(Some((Arc::clone(&shared), place)));
        let state = shared.state.lock();
        shared.await_turn(state, place);
        Entered(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let Some((shared, place)) = PLACE.take() else { return };
        Clock::follow(None);
        let mut state = shared.state.lock();
        state.threads[place].doing = Doing::Ended;
        state.running = None;
        shared.pass_on(state, None);
    }
}

/// Lets others run, and time pass, where the calling thread belongs to a network; false where not.
pub fn pause() -> bool {
    let Some((shared, _)) = PLACE.with_borrow(Clone::clone) else { return false };
    shared.pause_here(PAUSE);
    true
}

/// The present, by the clock of the calling thread.
pub fn now() -> Instant {
    crate::os::clock::now()
}

impl Shared {
    /// The calling thread waits until there is news for its rank, at most for so long. Other
    /// threads of its rank look again where it has `acted` since it waited last.
    pub(super) fn wait_here(&self, limit: Option<Duration>, acted: bool) {
        let until_ns = self.in_ns(limit.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN));
        self.stop_here(Doing::Waiting { until_ns }, acted);
    }

    /// The calling thread goes on after so long.
    pub(super) fn pause_here(&self, pause: Duration) {
        self.stop_here(Doing::Pausing { until_ns: self.in_ns(pause) }, true);
    }

    fn in_ns(&self, limit: Duration) -> u64 {
        self.clock.passed_ns() + limit.as_nanos() as u64
    }

    fn stop_here(&self, doing: Doing, acted: bool) {
        let place = PLACE.with_borrow(|place| place.as_ref().map(|(_, place)| *place));
        let place = place.expect("a thread of the network");
        let mut state = self.state.lock();
        state.threads[place].doing = doing;
        if acted {
            let rank = state.threads[place].rank;
            state.wake(rank, Some(place));
        }
        state.running = None;
        self.pass_on(state, Some(place));
    }

    /// Waits for the turn of a thread that is ready.
    fn await_turn<'a>(&'a self, state: MutexGuard<'a, State>, place: usize) {
        if state.running.is_none() {
            self.pass_on(state, Some(place));
        } else {
            self.sleep(state, place);
        }
    }

    fn sleep(&self, mut state: MutexGuard<'_, State>, place: usize) {
        let turn = Arc::clone(&state.threads[place].turn);
        while state.running != Some(place) {
            state = turn.wait(state);
        }
    }

    /// Has some thread run, after what arrives before. Returns when `own` runs, or at once where
    /// there is none.
    fn pass_on<'a>(&'a self, mut state: MutexGuard<'a, State>, own: Option<usize>) {
        loop {
            let now = self.clock.passed_ns();
            if state.events.first_key_value().is_some_and(|((at, _), _)| *at <= now) {
                let Some((_, event)) = state.events.pop_first() else { continue };
                state = self.deliver(state, event, now);
                continue;
            }
            if let Some(next) = state.choose(now) {
                state.threads[next].doing = Doing::Running;
                state.running = Some(next);
                if own == Some(next) {
                    return;
                }
                state.threads[next].turn.notify_one();
                if let Some(own) = own {
                    self.sleep(state, own);
                }
                return;
            }
            match state.next_ns() {
                Some(next) => self.clock.set(next),
                // All have ended, or will come back by themselves.
                None => return,
            }
            assert!(
                self.clock.passed_ns() - state.news_ns < HANG_NS,
                "all threads of all ranks wait, and nothing is under way: {:?}",
                state.threads
            );
        }
    }

    /// Has a rank handle what has arrived.
    fn deliver<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        event: Event,
        now: u64,
    ) -> MutexGuard<'a, State> {
        let Event { from, to, news } = event;
        state.news_ns = now;
        state.wake(to, None);
        let member = state.members[to.index()].as_ref().filter(|member| !member.left);
        let Some(port) = member.map(|member| Arc::clone(&member.port)) else { return state };
        let up = member.and_then(|member| member.up.upgrade());
        drop(state);
        if let Some(up) = &up {
            port.arrived(self, &**up, from, news);
        }
        // Not with the lock: it may be the last one that keeps the rank.
        drop(up);
        self.state.lock()
    }

    /// Sends something on its way.
    pub(super) fn post(&self, from: Rank, to: Rank, lane: Lane, news: News) {
        let mut state = self.state.lock();
        let arrival = self.clock.passed_ns() + delay_ns(&mut state.random);
        let last = state.lanes.entry((from, to, lane)).or_default();
        let arrival = arrival.max(*last + 1);
        *last = arrival;
        state.insert(arrival, Event { from, to, news });
    }

    /// Something that is true once in `times`.
    pub(super) fn chance(&self, times: u64) -> bool {
        self.state.lock().random.once_in(times)
    }

    /// A number below `limit`.
    pub(super) fn below(&self, limit: u64) -> u64 {
        self.state.lock().random.below(limit)
    }

    /// A rank takes part; returns once all do.
    pub(super) fn join(&self, me: Rank, up: Weak<dyn Upcalls>, port: &Arc<PortState>) {
        let member = Member { up, port: Arc::clone(port), left: false };
        self.state.lock().members[me.index()] = Some(member);
        while self.state.lock().members.iter().any(Option::is_none) {
            self.wait_here(None, true);
        }
    }

    /// A rank leaves, or dies: then some of what it has sent does not arrive.
    pub(super) fn leave(&self, me: Rank, died: bool) {
        let mut state = self.state.lock();
        match &mut state.members[me.index()] {
            Some(member) if !member.left => member.left = true,
            _ => return,
        }
        let now = self.clock.passed_ns();
        let cut = now + state.random.below(10_000_000);
        if died {
            state.events.retain(|(at, _), event| event.from != me || *at <= cut);
        }
        let others = (0..state.members.len()).map(|rank| Rank(rank as u16));
        for to in others.filter(|to| *to != me).collect::<Vec<_>>() {
            let sent = state.lanes.iter().filter(|((from, at, _), _)| (*from, *at) == (me, to));
            let last = sent.map(|(_, at)| *at).max().unwrap_or(0);
            let behind = if died { cut } else { last.max(now) };
            let arrival = behind + delay_ns(&mut state.random);
            state.insert(arrival, Event { from: me, to, news: News::Ended { died } });
        }
    }

    /// Whether something of `from` has not arrived at `to`.
    pub(super) fn is_under_way(&self, from: Rank, to: Rank) -> bool {
        let state = self.state.lock();
        state.events.values().any(|event| (event.from, event.to) == (from, to))
    }
}

impl State {
    fn insert(&mut self, arrival: u64, event: Event) {
        self.numbered += 1;
        self.events.insert((arrival, self.numbered), event);
    }

    /// The threads of a rank look again, but for one.
    fn wake(&mut self, rank: Rank, but: Option<usize>) {
        for (place, thread) in self.threads.iter_mut().enumerate() {
            let waits = matches!(thread.doing, Doing::Waiting { .. });
            if thread.rank == rank && Some(place) != but && waits {
                thread.doing = Doing::Ready;
            }
        }
    }

    /// A thread that can go on.
    fn choose(&mut self, now: u64) -> Option<usize> {
        let can = |thread: &Thread| match thread.doing {
            Doing::Ready => true,
            Doing::Waiting { until_ns } | Doing::Pausing { until_ns } => until_ns <= now,
            Doing::Running | Doing::Ended => false,
        };
        let count = self.threads.iter().filter(|thread| can(thread)).count();
        let nth = self.random.below(count as u64) as usize;
        let able = |(_, thread): &(usize, &Thread)| can(thread);
        self.threads.iter().enumerate().filter(able).nth(nth).map(|(place, _)| place)
    }

    /// When something happens next.
    fn next_ns(&self) -> Option<u64> {
        let arrival = self.events.keys().map(|(at, _)| *at).next();
        let ends = self.threads.iter().filter_map(|thread| match thread.doing {
            Doing::Waiting { until_ns } | Doing::Pausing { until_ns } => Some(until_ns),
            _ => None,
        });
        ends.chain(arrival).min()
    }
}
