//! The progress thread: serves other ranks while the program computes, and notices deaths.
//!
//! It sleeps in one poll set (listeners, connections, process descriptors, its wakeup) and never
//! waits for anything else. Where callers look after the sockets of connections themselves, it
//! leaves them alone: while callers come back it only looks, each 1 to 4 ms, whether they still do
//! ([`PollOwner`]), so that taking and giving back costs no system call per message.

use crate::bootstrap::{LauncherEvent, Membership};
use crate::error::Result as CoreResult;
use crate::ids::Rank;
use crate::os::clock::monotonic_ns;
use crate::os::event::{Event, Wakeup};
use crate::os::process::{self, Seen, Watched};
use crate::os::socket::{self, Piece};
use crate::policy::acknowledge::Flush;
use crate::policy::busy_poll::{BusyPoll, Liveliness};
use crate::policy::owner::{PollOwner, Recheck, Schedule, Turn};
use crate::policy::sleep_limit::{POLL_MS, Timers, is_poll_due};
use crate::policy::watching::Ring;
use crate::ranks::Ranks;
use crate::sync::MutexGuard;
use crate::sync::{Ordering, epoch, fence};
use crate::transport::KILLED;
use crate::transport::shm::area::{ReadEnds, liveness};
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connect::Connector;
use crate::transport::tcp::endpoint_table::EndpointTable;
use crate::transport::tcp::poll_sets::{
    ATTEMPTS, CONNECTIONS, DATA, DEVICE_EVENTS, LAUNCHER, LISTENER, PROCESSES, REMOTE_LISTENERS,
    WAKEUP,
};
use crate::transport::tcp::receive::Receiver;
use crate::transport::verbs::Verbs;
use crate::wire::frame::Frame;
use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a rank that leaves waits for those who have connected to it to prove who they are: who
/// is about to watch it would take it for dead otherwise.
const LAST_UNAUTHENTICATED: Duration = Duration::from_secs(1);
/// How long it waits for those to whom it says so to hear it.
const LAST_WORD: Duration = Duration::from_secs(1);

/// A rank, as its progress thread needs it.
pub(crate) trait Served: Send + Sync {
    /// Its endpoints, and what they tell it.
    fn tcp(&self) -> Tcp<'_>;

    /// Its device, if it has one.
    fn verbs(&self) -> Option<Verbs<'_>>;

    /// Its place with the launcher.
    fn membership(&self) -> MutexGuard<'_, Option<Membership>>;

    /// How many descriptors of processes leave enough for all connections.
    fn affordable_pidfds(&self) -> u64;
}

/// The state of the thread.
pub(crate) struct Progress {
    served: Arc<dyn Served>,
    /// Who polls the sockets, and how long this thread leaves them to callers.
    schedule: Schedule,
    /// Whether something has come soon, again and again.
    traffic: Liveliness,
    connector: Connector,
    /// Ranks that have to be looked at, and whether it was said that one cannot be seen.
    polled: Vec<(Rank, Watched)>,
    unseen: bool,
    /// Whether listeners are left alone, since not even the reserve could be had again.
    deaf: bool,
    /// When it looked last for what nobody tells.
    looked: Instant,
    /// A descriptor to give up when there are no others.
    reserve: Option<Wakeup>,
    /// Whether running out of descriptors was logged.
    complained: bool,
    later: Later,
    processes: Processes,
    handled: Handled,
}

/// Processes of this node.
#[derive(Debug)]
struct Processes {
    /// The place of this rank among those of its node, and which of the others may be watched.
    place: usize,
    others: Ring,
    /// The ranks whose processes it watches, or has watched.
    watched: HashSet<Rank>,
    /// How many descriptors of processes it may still open.
    pidfds_left: u64,
}

/// The ends that it has handled.
#[derive(Debug, Default)]
struct Handled {
    /// See `SharedArea::ends`.
    ends: u64,
    read: ReadEnds,
    /// Who of this node has died.
    dead: HashSet<Rank>,
}

/// What the last turn has left to be done by time.
#[derive(Debug, Default)]
struct Later {
    /// Replaced targets are still to be freed.
    retires: bool,
    /// When the device has to be looked after, in nanoseconds of the clock.
    device_due_ns: Option<u64>,
}

impl Processes {
    /// Those that live, but for this one.
    fn of(ranks: &Ranks, pidfds_left: u64) -> Processes {
        let (own, locals) = (ranks.cards.at(ranks.me).pid(), ranks.area.locals());
        let mut processes = Processes {
            place: locals.binary_search(&ranks.me).unwrap_or(0),
            others: Ring::new(locals.len().saturating_sub(1)),
            watched: HashSet::new(),
            pidfds_left,
        };
        for rank in locals {
            let pid = ranks.cards.at(*rank).pid();
            let ended = matches!(ranks.liveness(*rank), liveness::DEAD | liveness::LEFT);
            if pid == own || pid == 0 || ended {
                processes.end(locals, *rank);
            }
        }
        processes
    }

    /// `rank` needs not be watched any more, if it is one of these.
    fn end(&mut self, locals: &[Rank], rank: Rank) {
        let Ok(place) = locals.binary_search(&rank) else { return };
        let behind = (place + locals.len() - self.place - 1) % locals.len();
        // This rank itself is behind all others.
        if behind + 1 < locals.len() {
            self.others.end(behind);
        }
    }
}

impl Progress {
    /// Prepares to serve a rank, and opens the descriptors of the processes to watch.
    pub(crate) fn new(served: Arc<dyn Served>) -> CoreResult<Progress> {
        let processes = Processes::of(served.tcp().up.ranks(), served.affordable_pidfds());
        let mut progress = Progress {
            connector: Connector::new(served.tcp()),
            served,
            schedule: Schedule::new(),
            traffic: Liveliness::default(),
            polled: vec![],
            unseen: false,
            deaf: false,
            looked: Instant::now(),
            reserve: Some(Wakeup::new()?),
            complained: false,
            later: Later::default(),
            processes,
            handled: Handled::default(),
        };
        if let Some(launcher) = progress.served.membership().as_ref().and_then(Membership::as_fd) {
            progress.served.tcp().table.sets.poll.add(launcher, LAUNCHER)?;
        }
        progress.watch()?;
        Ok(progress)
    }

    /// Watches the processes that this rank has to, as the ranks of its node live by what it has
    /// handled. Those that were watched before still are.
    fn watch(&mut self) -> CoreResult<()> {
        let served = Arc::clone(&self.served);
        let locals = served.tcp().up.ranks().area.locals();
        for behind in self.processes.others.watched() {
            self.watch_one(&*served, locals[(self.processes.place + 1 + behind) % locals.len()])?;
        }
        Ok(())
    }

    fn watch_one(&mut self, served: &dyn Served, rank: Rank) -> CoreResult<()> {
        if !self.processes.watched.insert(rank) {
            return Ok(());
        }
        let tcp = served.tcp();
        let card = tcp.up.ranks().cards.at(rank);
        let place = tcp.up.ranks().processes.of(rank.index());
        let fd = match place.get() {
            Some(fd) => Ok(Some(fd)),
            None => pidfd(card.pid(), self.processes.pidfds_left).map(|fd| {
                fd.map(|fd| {
                    self.processes.pidfds_left -= 1;
                    place.get_or_init(|| fd)
                })
            }),
        };
        match fd {
            Ok(Some(fd)) => {
                let token = PROCESSES + u64::from(rank.0);
                tcp.table.sets.poll.add(fd.as_fd(), token)?;
            }
            Ok(None) => tcp.up.ended(rank),
            Err(reason) => {
                if self.polled.is_empty() {
                    log::info!(
                        "proc_init: deaths are noticed by looking every {POLL_MS} ms: {reason}"
                    );
                }
                self.polled.push((rank, Watched::new(card.pid(), card.start_time())));
            }
        }
        Ok(())
    }

    /// Handles ends of processes of this node that others have noticed, and watches others in the
    /// place of those that have ended.
    fn follow_ends(&mut self) {
        let served = Arc::clone(&self.served);
        let tcp = served.tcp();
        let ranks = tcp.up.ranks();
        // Watching others may bring up further ends.
        while ranks.area.ends() != self.handled.ends {
            self.handled.ends = ranks.area.ends();
            ranks.note_ends(self.handled.ends);
            for (rank, life) in ranks.area.ends_since(&mut self.handled.read) {
                self.processes.end(ranks.area.locals(), rank);
                if life == liveness::DEAD && ranks.is_local(rank) && self.handled.dead.insert(rank)
                {
                    tcp.up.ended(rank);
                }
            }
            if let Err(error) = self.watch() {
                log::error!("watching the processes of this host: {error}");
            }
        }
    }

    /// Serves until the runtime stops it.
    pub(crate) fn run(mut self) {
        // All that it does is done for others, who wait for it.
        let _handling = epoch::handling();
        let _loudly = EndsLoudly;
        // Deaths that were told along with the table have been received with it: nothing comes on
        // the socket that would announce them.
        self.hear_launcher();
        self.follow_ends();
        if self.served.tcp().table.remote {
            self.connector.turn(self.served.tcp());
        }
        let mut events = Vec::new();
        while !self.served.tcp().table.polling.is_stopped() {
            self.turn(&mut events);
        }
        if self.served.tcp().up.ranks().liveness(self.served.tcp().up.ranks().me) == liveness::LEFT
        {
            for index in 0..self.served.tcp().table.sets.remote_listeners().len() {
                self.accept_remote(index as u64);
            }
            let until = Instant::now() + LAST_UNAUTHENTICATED;
            while self.connector.has_unauthenticated() && Instant::now() < until {
                self.turn(&mut events);
            }
            self.connector.say_farewell(self.served.tcp());
            // It may have nobody to tell as yet, of whom something would wake this thread.
            self.connector.turn(self.served.tcp());
            let until = Instant::now() + LAST_WORD;
            while self.connector.has_to_stay() && Instant::now() < until {
                self.turn(&mut events);
            }
        }
        // Before those that have connected see the end of it: they may try again at once, and are
        // to be refused then.
        self.served.tcp().table.sets.stop_listening();
        self.connector.shut_down();
    }

    /// Waits once, and serves what has come.
    fn turn(&mut self, events: &mut Vec<Event>) {
        events.clear();
        let asleep = Instant::now();
        self.served.tcp().table.sets.poll.wait(events, self.limit_ms());
        let data = events.iter().any(|event| event.token == DATA);
        self.traffic.on_wake(asleep.elapsed(), data);
        if self.has_to_look() && is_poll_due(self.looked.elapsed()) {
            self.looked = Instant::now();
            self.look_for_ends();
            self.listen_again();
        }
        for event in &*events {
            match event.token {
                WAKEUP => self.served.tcp().table.sets.wakeup.clear(),
                LISTENER => self.accept(),
                LAUNCHER => self.hear_launcher(),
                DEVICE_EVENTS => {
                    if let Some(verbs) = self.served.verbs() {
                        verbs.heed_events();
                    }
                }
                DATA => {}
                token @ PROCESSES..ATTEMPTS => {
                    self.process_ended(Rank((token - PROCESSES) as u16));
                }
                token @ REMOTE_LISTENERS..CONNECTIONS => {
                    self.accept_remote(token - REMOTE_LISTENERS)
                }
                _ => self.connector.serve(self.served.tcp(), event),
            }
        }
        self.follow_ends();
        if self.served.tcp().table.remote {
            self.connector.turn(self.served.tcp());
        }
        self.attend();
        self.later.retires = !self.served.tcp().up.ranks().retired.free();
    }

    /// Whether there is something that nobody tells.
    fn has_to_look(&self) -> bool {
        self.deaf || !self.polled.is_empty()
    }

    fn limit_ms(&self) -> i32 {
        let ticking = self.served.tcp().table.polling.owner() == PollOwner::Timer;
        let timers = Timers {
            tick_ms: ticking.then(|| self.schedule.tick_ms()),
            retires: self.later.retires,
            connects: self.connector.is_busy(),
            polls: self.has_to_look(),
            device_in_ms: self.later.device_due_ns.map(ms_until),
        };
        timers.limit_ms()
    }

    /// Looks after the sockets unless a caller does, and settles who does from now on.
    fn attend(&mut self) {
        let served = Arc::clone(&self.served);
        let tcp = served.tcp();
        let endpoints = tcp.table;
        self.later.device_due_ns = served.verbs().and_then(Verbs::attend);
        let corked = endpoints.flush_corked(tcp.up);
        let ticked = endpoints.polling.owner() == PollOwner::Timer;
        // What goes along with something else, by all appearances, has until the next tick, unless
        // that is far.
        let undelayed = Flush::Undelayed { tick: true };
        let flush = if ticked && !self.schedule.is_slow() { undelayed } else { Flush::All };
        let (mut acks_delayed, receiver) = (false, try_receiver(endpoints));
        let held = receiver.is_none();
        if let Some(mut receiver) = receiver {
            // What callers have received is not lively.
            receiver.take_bulk();
            receiver.turn(tcp, 0, || ());
            if self.traffic.should_poll_on(receiver.take_bulk()) {
                busy_poll(tcp, &mut receiver);
            }
            receiver.flush_acks(tcp, flush);
            acks_delayed = receiver.has_unsent_acks();
            endpoints.polling.set_acks_delayed(acks_delayed);
        }
        acks_delayed |= served.verbs().is_some_and(|verbs| verbs.flush_acks(flush));
        if endpoints.remote {
            let polls = endpoints.polling.caller_polls();
            let sleeper = endpoints.polling.has_sleeper();
            let brief = endpoints.polling.take_brief();
            let turn = Turn { ticked, corked, acks_delayed, polls, sleeper, held, brief };
            self.settle_poll_owner(turn);
            fence(Ordering::SeqCst);
            tcp.wake_who_leaves();
        }
    }

    /// Settles who looks after the sockets from now on, after what this turn has found.
    fn settle_poll_owner(&mut self, turn: Turn) {
        let endpoints = self.served.tcp().table;
        let polling = &endpoints.polling;
        let mut next = self.schedule.after(turn);
        if next != PollOwner::Timer && !endpoints.rejoin_epoll() {
            next = PollOwner::Timer;
        }
        polling.set_ticks_slowly(self.schedule.is_slow());
        polling.set_owner(&endpoints.sets, next);
        // A caller that leaves says so first and looks then at what this thread does: one of both
        // sees the other.
        fence(Ordering::SeqCst);
        let now = Recheck {
            polls: polling.caller_polls(),
            sleeper: polling.has_sleeper(),
            corked: endpoints.has_corked(),
            needs_timer: polling.needs_timer(),
        };
        if self.schedule.reconsider(next, now) {
            polling.set_owner(&endpoints.sets, PollOwner::Timer);
        }
    }

    /// The launcher tells of deaths on all hosts. A job does not outlive it.
    fn hear_launcher(&self) {
        let news = || self.served.membership().as_mut().and_then(Membership::next_event);
        while let Some(news) = news() {
            match news {
                LauncherEvent::Died { rank, .. } => self.served.tcp().up.ended(rank),
                LauncherEvent::LauncherEnded => process::exit_now(KILLED),
            }
        }
    }

    /// Looks after processes for which there is no descriptor.
    fn look_for_ends(&mut self) {
        let (tcp, unseen) = (self.served.tcp(), &mut self.unseen);
        self.polled.retain_mut(|(rank, process)| match process.look() {
            Seen::Running => true,
            Seen::Ended => {
                tcp.up.ended(*rank);
                false
            }
            Seen::Unknown(reason) => {
                if !std::mem::replace(unseen, true) {
                    log::warn!(
                        "watching {rank}: {reason}: it counts as alive until its end is certain"
                    );
                }
                true
            }
        });
    }

    fn process_ended(&mut self, rank: Rank) {
        if let Some(fd) = self.served.tcp().up.ranks().processes.of(rank.index()).get() {
            self.served.tcp().table.sets.poll.remove(fd.as_fd());
        }
        self.handled.dead.insert(rank);
        let served = Arc::clone(&self.served);
        self.connector.pass_on_death(served.tcp(), rank);
        served.tcp().up.ended(rank);
    }

    fn accept(&mut self) {
        let served = Arc::clone(&self.served);
        let tcp = served.tcp();
        let Some(listener) = tcp.table.sets.listener() else { return };
        loop {
            match socket::accept(listener.as_fd()) {
                Ok(Some(fd)) => self.admit(fd),
                Ok(None) => return,
                Err(error) => {
                    if !self.refuse(listener, true, &error) {
                        return;
                    }
                }
            }
        }
    }

    /// Takes connections of other nodes.
    fn accept_remote(&mut self, index: u64) {
        let served = Arc::clone(&self.served);
        let tcp = served.tcp();
        let Some(listener) = tcp.table.sets.remote_listeners().get(index as usize) else { return };
        while let Err(error) = self.connector.accept(tcp, listener) {
            if !self.refuse(listener, false, &error) {
                return;
            }
        }
    }

    /// Takes a connection from one of this user's processes, for whom the kernel vouches.
    fn admit(&mut self, fd: OwnedFd) {
        let known = socket::credentials(fd.as_fd()).is_ok_and(|peer| peer.uid == socket::own_uid());
        if known {
            // Without a place for it the peer sees it end.
            let _ = self.served.tcp().table.accepted(fd);
        }
    }

    /// Without a free descriptor: accepts and closes one connection in the place of the reserve, so
    /// that the listener does not stay ready for ever. False if that is not possible, or none is
    /// there.
    fn refuse(&mut self, listener: &OwnedFd, local: bool, error: &std::io::Error) -> bool {
        let served = Arc::clone(&self.served);
        let tcp = served.tcp();
        let making = tcp.table.connections.making();
        let had_reserve = self.reserve.take().is_some();
        let refused = if had_reserve { socket::accept(listener.as_fd()) } else { Ok(None) };
        let is_refused = matches!(refused, Ok(Some(_)));
        let somebody = !had_reserve || !matches!(refused, Ok(None));
        if let (Ok(Some(fd)), true) = (refused, local) {
            turn_away(&fd);
        }
        self.reserve = Wakeup::new().ok();
        drop(making);
        if self.reserve.is_none() {
            tcp.table.sets.poll.remove(listener.as_fd());
            self.deaf = true;
        }
        if somebody && !std::mem::replace(&mut self.complained, true) {
            log::error!(
                "accepting a connection: {error}, so that peers cannot reach this rank; raise the \
                 limit of open files with ulimit -n"
            );
        }
        is_refused
    }

    /// Takes connections again once there is a reserve.
    fn listen_again(&mut self) {
        if !self.deaf {
            return;
        }
        self.reserve = self.reserve.take().or_else(|| Wakeup::new().ok());
        if self.reserve.is_some() {
            self.deaf = false;
            self.served.tcp().table.sets.listen_again();
        }
    }
}

/// How many milliseconds are left, rounded up.
fn ms_until(due_ns: u64) -> i32 {
    let left_ms = due_ns.saturating_sub(monotonic_ns()).div_ceil(1_000_000);
    i32::try_from(left_ms).unwrap_or(i32::MAX)
}

/// A descriptor of a process, where so many may be had; `None` if it has ended, else the reason why
/// not: none is left, or there are none of this kind (valgrind, seccomp, old kernels).
fn pidfd(pid: i32, left: u64) -> Result<Option<OwnedFd>, String> {
    if left == 0 {
        return Err("the limit of open files leaves no pidfd; raise it with ulimit -n".to_owned());
    }
    // The number is given to nobody else before the process has ended: when it was started does not
    // matter.
    process::open(pid, 0)
        .map_err(|error| format!("{error}; allow pidfd_open in the container's seccomp profile"))
}

/// Tells a rank of this node why its connection ends.
fn turn_away(fd: &OwnedFd) {
    let reason = "it has too many open files; raise the limit with ulimit -n".to_owned();
    let mut bytes = Vec::new();
    Frame::TurnedAway { reason }.append_to(&mut bytes);
    // SAFETY: slices that live across the call. A fresh socket has room; who has gone needs no
    // word.
    let _ = unsafe { socket::send(fd.as_fd(), [Piece::of(&bytes), Piece::of(&[])], &[]) };
}

/// A rank without a progress thread would neither answer nor die.
struct EndsLoudly;

impl Drop for EndsLoudly {
    fn drop(&mut self) {
        if std::thread::panicking() {
            epoch::end_loudly("the progress thread has panicked");
        }
    }
}

/// Looks after the sockets until nothing comes for a while, or a caller wants to.
fn busy_poll(tcp: Tcp<'_>, receiver: &mut Receiver) {
    let endpoints = tcp.table;
    endpoints.polling.set_receiver_wanted(false);
    let begin = Instant::now();
    let mut poll = BusyPoll::default();
    while !endpoints.polling.is_receiver_wanted() {
        // Without a yield in between, after which a program that computes would have the core for
        // milliseconds.
        let busy = receiver.look(tcp);
        if !poll.goes_on(begin.elapsed(), busy) {
            return;
        }
    }
}

/// The sockets, if nobody looks after them.
pub(crate) fn try_receiver(endpoints: &EndpointTable) -> Option<MutexGuard<'_, Receiver>> {
    endpoints.receiver.try_lock()
}
