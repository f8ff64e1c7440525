//! A fabric as the C interface has it: the model behind a lock, the objects of programs that the
//! model names by numbers, and a thread that goes on while programs sleep.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::device::Device;
use super::events::Events;
use super::process::Place;
use crate::model::codes::event;
use crate::model::network::{Network, Signal};
use crate::model::remote::{Frame, Outbox};
use crate::options::Options;

/// How long bytes are held between two looks of the engine, when nothing else is to be done.
const HELD: Duration = Duration::from_micros(50);

/// How long a post waits for answers at most.
const ANSWERED: Duration = Duration::from_secs(1);

/// Where a signal about an object goes.
#[derive(Clone, Debug)]
pub(super) struct Ear {
    pub(super) events: Arc<Events>,
    /// The object, as the program knows it.
    pub(super) object: usize,
}

/// What is behind the lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) net: Network,
    /// Completion queues that have a channel.
    pub(super) channels: HashMap<u32, Ear>,
    /// Objects that asynchronous events can be about, by the kind of event and their number.
    pub(super) subjects: HashMap<(u32, u32), Ear>,
    /// Open contexts: card, address, events.
    pub(super) contexts: Vec<(u32, Ear)>,
    devices: HashMap<u32, Arc<Device>>,
    /// Among other processes: where this one is, and the ways to cards of others.
    place: Option<Place>,
    ways: HashMap<u32, mpsc::Sender<Frame>>,
    ended: bool,
    /// The engine sleeps.
    idle: bool,
}

/// A fabric.
#[derive(Debug)]
pub(crate) struct Fabric {
    pub(crate) index: u32,
    pub(crate) unkind: bool,
    pub(super) awaits_answers: bool,
    state: Mutex<State>,
    wake: Condvar,
    answered: Condvar,
    released: Condvar,
    /// Whether a card has ever kept a thread.
    has_kept: AtomicBool,
    start: Instant,
    scale: u64,
    advanced_ns: AtomicU64,
    engine: Mutex<Option<JoinHandle<()>>>,
}

impl Fabric {
    fn new(index: u32, options: Options) -> Arc<Fabric> {
        let state = State {
            net: Network::new(index, options),
            channels: HashMap::new(),
            subjects: HashMap::new(),
            contexts: Vec::new(),
            devices: HashMap::new(),
            place: None,
            ways: HashMap::new(),
            ended: false,
            idle: false,
        };
        let fabric = Arc::new(Fabric {
            index,
            unkind: options.behaviour.shuffle != 0,
            awaits_answers: options.behaviour.await_answers != 0,
            state: Mutex::new(state),
            wake: Condvar::new(),
            answered: Condvar::new(),
            released: Condvar::new(),
            has_kept: AtomicBool::new(false),
            start: Instant::now(),
            scale: options.behaviour.time_scale,
            advanced_ns: AtomicU64::new(0),
            engine: Mutex::new(None),
        });
        let engine = fabric.clone();
        let name = format!("mock card {index}");
        let thread = std::thread::Builder::new().name(name).spawn(move || engine.run());
        *lock(&fabric.engine) = thread.ok();
        fabric
    }

    /// The model, until the guard is dropped: then signals go out, and the engine goes on.
    pub(crate) fn enter(&self) -> Entered<'_> {
        Entered { fabric: self, state: lock(&self.state) }
    }

    /// A frame of another process.
    pub(super) fn receive(&self, frame: Frame) {
        self.enter().net().receive(frame);
        self.answered.notify_all();
    }

    /// Waits until a pair has nothing under way that could still be answered.
    pub(super) fn await_answers(&self, pair: u32) {
        let (mut state, start) = (lock(&self.state), Instant::now());
        while start.elapsed() < ANSWERED && state.net.awaits_answers(pair) {
            let waited = self.answered.wait_timeout(state, ANSWERED);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Stays as long as the card of a completion queue keeps those that take from it.
    pub(super) fn stay(&self, queue: u32) {
        if !self.has_kept.load(Ordering::Acquire) {
            return;
        }
        let mut state = lock(&self.state);
        let Some(card) = state.net.queues.find(queue).map(|queue| queue.card) else { return };
        let keeps = |state: &mut State| state.net.card(card).faults.keeps && !state.ended;
        if keeps(&mut state) {
            state.net.card(card).faults.kept += 1;
        }
        while keeps(&mut state) {
            state = self.released.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Some have to stay from now on, or may go on.
    pub(crate) fn look_for_kept(&self) {
        // Release: pairs with the Acquire in `stay`.
        self.has_kept.store(true, Ordering::Release);
        self.released.notify_all();
    }

    fn now_ns(&self) -> u64 {
        let real = self.start.elapsed().as_nanos() as u64;
        // Percent of the real time.
        let scaled = u128::from(real) * u128::from(self.scale) / 100;
        scaled as u64 + self.advanced_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn advance(&self, ns: u64) {
        self.advanced_ns.fetch_add(ns, Ordering::Relaxed);
        let mut entered = self.enter();
        entered.net().set_now(self.now_ns());
    }

    /// Steps until only time or a program can go on.
    pub(crate) fn settle(&self) {
        let mut entered = self.enter();
        entered.net().set_now(self.now_ns());
        entered.net().settle();
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        while !state.ended {
            state.net.set_now(self.now_ns());
            let busy = !state.net.active.is_empty();
            let stepped = state.net.step();
            state.tell();
            if stepped && busy {
                // Programs get the lock between two steps.
                drop(state);
                std::thread::yield_now();
                state = lock(&self.state);
                continue;
            }
            state.idle = true;
            state = match self.pause(&state.net, stepped) {
                Some(pause) => {
                    let waited = self.wake.wait_timeout(state, pause);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.idle = false;
        }
    }

    /// How long nothing is to be done, if that is known.
    fn pause(&self, net: &Network, holds: bool) -> Option<Duration> {
        if holds {
            return Some(HELD);
        }
        let until = net.next_timer()?.saturating_sub(net.now_ns);
        let real = u128::from(until) * 100 / u128::from(self.scale.max(1));
        (self.scale > 0).then(|| Duration::from_nanos(real as u64) + HELD)
    }

    pub(super) fn device(&self, card: u32) -> Arc<Device> {
        let mut entered = self.enter();
        entered.net().need_card(card);
        let traits = entered.net().card(card).traits;
        let index = self.index;
        let made = || Arc::new(Device::new(index, card, &traits));
        entered.state.devices.entry(card).or_insert_with(made).clone()
    }

    /// Stops the engine.
    pub(crate) fn end(&self) {
        {
            let mut state = lock(&self.state);
            state.ended = true;
            state.net.cards.iter_mut().for_each(|card| card.forget_held());
        }
        self.wake.notify_all();
        self.released.notify_all();
        let engine = lock(&self.engine).take();
        if let Some(engine) = engine {
            // A panic of the engine has been printed.
            let _ = engine.join();
        }
    }
}

impl State {
    /// Brings signals to the programs that they are for, and frames to other processes.
    fn tell(&mut self) {
        if let (Some(place), Some(outbox)) = (&self.place, &mut self.net.outbox) {
            for (card, frame) in outbox.frames.drain(..) {
                let way = self.ways.entry(card).or_insert_with(|| place.way(card));
                // A way whose thread has ended drops what it is given, as a link may.
                let _ = way.send(frame);
            }
        }
        for signal in self.net.take_signals() {
            match signal {
                Signal::Completion { queue, .. } => {
                    if let Some(ear) = self.channels.get(&queue) {
                        ear.events.push(0, ear.object);
                    }
                }
                Signal::Event { card, kind, subject } if is_about_card(kind) => {
                    for (_, ear) in self.contexts.iter().filter(|(of, _)| *of == card) {
                        ear.events.push(kind, subject as usize);
                    }
                }
                Signal::Event { kind, subject, .. } => {
                    // Pairs have one ear for all that is told of them.
                    let all =
                        if kind == event::QP_FATAL { event::QP_LAST_WQE_REACHED } else { kind };
                    if let Some(ear) = self.subjects.get(&(all, subject)) {
                        ear.events.push(kind, ear.object);
                    }
                }
            }
        }
    }
}

pub(super) fn is_about_card(kind: u32) -> bool {
    !matches!(
        kind,
        event::CQ_ERR | event::SRQ_LIMIT_REACHED | event::QP_LAST_WQE_REACHED | event::QP_FATAL
    )
}

/// Access to a fabric's state.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    fabric: &'a Fabric,
    pub(super) state: MutexGuard<'a, State>,
}

impl Entered<'_> {
    pub(crate) fn net(&mut self) -> &mut Network {
        &mut self.state.net
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.state.tell();
        if self.state.idle && self.state.net.has_work() {
            self.fabric.wake.notify_one();
        }
    }
}

/// Locks, whatever happened to a thread that held it.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// All fabrics of this process, by their numbers.
static FABRICS: Mutex<Vec<Option<Arc<Fabric>>>> = Mutex::new(Vec::new());
/// The fabric of threads that did not choose one, and the card of this process.
static DEFAULT: OnceLock<Result<(u32, Option<u32>), String>> = OnceLock::new();

thread_local! {
    /// The fabric of this thread, and its card if it sees only one.
    static CHOSEN: Cell<Option<(u32, Option<u32>)>> = const { Cell::new(None) };
}

pub(crate) fn create(options: Options) -> u32 {
    let mut fabrics = lock(&FABRICS);
    let index = fabrics.len() as u32;
    fabrics.push(Some(Fabric::new(index, options)));
    index
}

pub(crate) fn find(index: u32) -> Option<Arc<Fabric>> {
    lock(&FABRICS).get(index as usize)?.clone()
}

pub(crate) fn remove(index: u32) -> Option<Arc<Fabric>> {
    lock(&FABRICS).get_mut(index as usize)?.take()
}

pub(crate) fn choose(fabric: u32, card: Option<u32>) {
    CHOSEN.set(Some((fabric, card)));
}

/// The fabric of this thread, and the cards that it sees.
pub(super) fn chosen() -> Option<(Arc<Fabric>, Vec<u32>)> {
    let (index, card) = match CHOSEN.get() {
        Some(chosen) => chosen,
        None => default_fabric()?,
    };
    let fabric = find(index)?;
    let cards = match card {
        Some(card) => vec![card],
        None => (0..fabric.enter().net().options.behaviour.devices as u32).collect(),
    };
    let mut entered = fabric.enter();
    let mut seen = cards;
    seen.retain(|card| {
        entered.net().need_card(*card);
        !entered.net().card(*card).faults.removed
    });
    drop(entered);
    Some((fabric, seen))
}

/// Made at the first need, by GASPI_MOCK_OPTIONS, GASPI_MOCK_SEED and GASPI_MOCK_DIR.
fn default_fabric() -> Option<(u32, Option<u32>)> {
    if let Ok(number) = std::env::var("GASPI_MOCK_FABRIC") {
        return Some((number.parse().ok()?, None));
    }
    match DEFAULT.get_or_init(from_environment) {
        Ok(made) => Some(*made),
        Err(reason) => {
            eprintln!("mock card: {reason}");
            None
        }
    }
}

fn from_environment() -> Result<(u32, Option<u32>), String> {
    let mut options = Options::default();
    if let Ok(text) = std::env::var("GASPI_MOCK_OPTIONS") {
        options.set(&text)?;
    }
    if let Ok(seed) = std::env::var("GASPI_MOCK_SEED") {
        options.set(&format!("seed={seed}"))?;
    }
    let Some(folder) = std::env::var_os("GASPI_MOCK_DIR") else {
        return Ok((create(options), None));
    };
    let refused = |error| format!("GASPI_MOCK_DIR: {error}");
    let place = Place::take(folder.as_ref()).map_err(refused)?;
    // Each process takes another course.
    options.behaviour.seed = options.behaviour.seed.wrapping_add(u64::from(place.card) << 32);
    let (index, card) = (create(options), place.card);
    let fabric = find(index).ok_or("no fabric")?;
    place.listen(&fabric).map_err(refused)?;
    let mut entered = fabric.enter();
    entered.net().outbox = Some(Outbox { own: card, frames: Vec::new() });
    entered.state.place = Some(place);
    drop(entered);
    Ok((index, Some(card)))
}
