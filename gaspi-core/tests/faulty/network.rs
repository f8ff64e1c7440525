//! A network between the ranks of a test that delays, holds back and cuts what passes, by a seed.
//!
//! Other ranks are told addresses of this network instead of a rank's own. Each connection is
//! passed on by two threads, one for each direction; how it ends is passed on too. The kernel of a
//! rank behind it is the network's: it answers as long as the network is there, as that of a
//! stopped process does.

use gaspi_core::{Rank, TestProxy};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Numbers that look random, the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// Whether something happens that does so one time in `times`.
    pub(crate) fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// What the network does to what passes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// The longest delay of a piece, of which there are up to some hundred in a megabyte.
    pub(crate) delay: Duration,
    /// One piece in 64 is held back for as long as this.
    pub(crate) hold: Duration,
    /// Bytes that a direction of a connection carries before it is cut, on average; 0: it is never.
    pub(crate) cut_bytes: u64,
    /// After so many rounds of rank 0 all connections are cut; 0: they never are.
    pub(crate) cut_rounds: u64,
}

/// Bytes of the largest piece.
const PIECE: usize = 64 * 1024;

/// A connection that passes.
#[derive(Debug)]
struct Passage {
    number: u64,
    /// Who has connected, and to whom.
    client: TcpStream,
    server: TcpStream,
    /// It has been cut for one side, and what that one has said is still on its way.
    late: AtomicBool,
}

impl Passage {
    /// Ends it for both sides, which read what has passed.
    fn end(&self) {
        for side in [&self.client, &self.server] {
            // Somebody who has gone needs to be told nothing.
            let _ = side.shutdown(Shutdown::Both);
        }
    }

    /// Has the connection reset for both sides as soon as both directions have ended, and ends
    /// them.
    fn reset(&self) {
        for side in [&self.client, &self.server] {
            let linger = libc::linger { l_onoff: 1, l_linger: 0 };
            let size = size_of::<libc::linger>() as libc::socklen_t;
            let (fd, level, name) = (side.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER);
            // SAFETY: the option is a struct of that size.
            unsafe { libc::setsockopt(fd, level, name, (&raw const linger).cast(), size) };
            // Ends reading here, and says nothing to the other side.
            let _ = side.shutdown(Shutdown::Read);
        }
    }
}

/// Where one rank is reached.
#[derive(Debug)]
struct Door {
    rank: Rank,
    listener: TcpListener,
    passages: Vec<Weak<Passage>>,
}

#[derive(Debug)]
struct Shared {
    faults: Faults,
    seed: u64,
    doors: Mutex<Vec<Door>>,
    /// Nothing passes while it is shut.
    shut: Mutex<bool>,
    opened: Condvar,
    /// No delays and no cuts any more.
    calm: AtomicBool,
    /// Connections of lower numbers are cut late as soon as they carry something.
    cut_below: AtomicU64,
    connections: AtomicU64,
    cuts: AtomicU64,
    /// How many ends of connections that were cut are still on their way.
    late: AtomicU64,
}

/// The network of a job.
#[derive(Debug)]
pub(crate) struct Network(Arc<Shared>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Network {
    pub(crate) fn new(seed: u64, faults: Faults) -> Network {
        Network(Arc::new(Shared {
            faults,
            seed,
            doors: Mutex::default(),
            shut: Mutex::new(false),
            opened: Condvar::new(),
            calm: AtomicBool::new(false),
            cut_below: AtomicU64::new(0),
            connections: AtomicU64::new(0),
            cuts: AtomicU64::new(0),
            late: AtomicU64::new(0),
        }))
    }

    /// What others are told of the addresses of `rank`.
    pub(crate) fn proxy(&self, rank: Rank) -> TestProxy {
        let shared = Arc::clone(&self.0);
        TestProxy::new(move |at| shared.open_door(rank, at).expect("a free port"))
    }

    /// Lets nothing pass from now on until [`open`](Network::open). Connections stay.
    pub(crate) fn shut(&self) {
        *lock(&self.0.shut) = true;
    }

    /// Lets pass what has come meanwhile, and all that follows.
    pub(crate) fn open(&self) {
        *lock(&self.0.shut) = false;
        self.0.opened.notify_all();
    }

    /// No delays and no cuts from now on.
    pub(crate) fn calm(&self) {
        self.0.calm.store(true, Ordering::Relaxed);
        self.open();
    }

    /// Cuts all connections that there are.
    pub(crate) fn cut_all(&self) {
        let doors = lock(&self.0.doors);
        let open = |passage: &Weak<Passage>| passage.upgrade();
        for passage in doors.iter().flat_map(|door| &door.passages).filter_map(open) {
            passage.end();
            self.0.cuts.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Cuts each connection that there is as soon as somebody says something on it, for that one
    /// only. What it says arrives later.
    pub(crate) fn cut_for_speakers(&self) {
        self.0.cut_below.store(self.0.connections.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Lets arrive what was said on connections that were cut for who said it.
    pub(crate) fn deliver(&self) {
        let shut = lock(&self.0.shut);
        self.0.cut_below.store(0, Ordering::Relaxed);
        drop(shut);
        self.0.opened.notify_all();
        while self.is_late() {
            std::thread::yield_now();
        }
    }

    /// How many connections have been cut.
    pub(crate) fn cuts(&self) -> u64 {
        self.0.cuts.load(Ordering::Relaxed)
    }

    /// Whether something is on its way in a connection that has been cut.
    pub(crate) fn is_late(&self) -> bool {
        self.0.late.load(Ordering::Relaxed) > 0
    }

    /// The host of `rank` answers as one does where the rank's process has ended: nobody listens
    /// any more, and its connections end.
    pub(crate) fn end_of(&self, rank: Rank) {
        let mut doors = lock(&self.0.doors);
        for door in doors.extract_if(.., |door| door.rank == rank) {
            door.close();
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.calm();
        for door in lock(&self.0.doors).drain(..) {
            door.close();
        }
    }
}

impl Door {
    fn close(&self) {
        // The thread that accepts is told by it.
        // SAFETY: the listener is open.
        unsafe { libc::shutdown(self.listener.as_raw_fd(), libc::SHUT_RDWR) };
        self.passages.iter().filter_map(Weak::upgrade).for_each(|passage| passage.end());
    }
}

impl Shared {
    fn open_door(self: &Arc<Self>, rank: Rank, at: SocketAddr) -> std::io::Result<SocketAddr> {
        let listener = TcpListener::bind((at.ip(), 0))?;
        let address = listener.local_addr()?;
        let (shared, accepting) = (Arc::clone(self), listener.try_clone()?);
        lock(&self.doors).push(Door { rank, listener, passages: Vec::new() });
        std::thread::spawn(move || {
            while let Ok((client, _)) = accepting.accept() {
                // Where nobody listens any more, the client is told by the end of its connection.
                let _ = shared.pass(rank, client, at);
            }
        });
        Ok(address)
    }

    /// Passes a connection on.
    fn pass(
        self: &Arc<Self>,
        rank: Rank,
        client: TcpStream,
        at: SocketAddr,
    ) -> std::io::Result<()> {
        let server = TcpStream::connect(at)?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let number = self.connections.fetch_add(1, Ordering::Relaxed);
        let passage = Arc::new(Passage { number, client, server, late: AtomicBool::new(false) });
        match lock(&self.doors).iter_mut().find(|door| door.rank == rank) {
            Some(door) => {
                door.passages.retain(|passage| passage.strong_count() > 0);
                door.passages.push(Arc::downgrade(&passage));
            }
            None => return Ok(()),
        }
        for forth in [true, false] {
            let (shared, passage) = (Arc::clone(self), Arc::clone(&passage));
            let seed =
                self.seed ^ (2 * number + u64::from(forth)).wrapping_mul(0x2545_f491_4f6c_dd1d);
            std::thread::spawn(move || shared.carry(&passage, forth, Numbers::new(seed)));
        }
        Ok(())
    }

    /// Carries what goes in one direction, until it ends or is cut.
    fn carry(&self, passage: &Passage, forth: bool, mut numbers: Numbers) {
        let (client, server) = (&passage.client, &passage.server);
        let (mut from, mut to) = if forth { (client, server) } else { (server, client) };
        let mut left = match self.faults.cut_bytes {
            0 => u64::MAX,
            // Some are cut while they are being made.
            _ if numbers.once_in(8) => numbers.below(200),
            average => numbers.below(2 * average),
        };
        let mut bytes = vec![0; PIECE];
        loop {
            let bits = 4 + numbers.below(13);
            let size = 1 + numbers.below(1 << bits) as usize;
            let size = match from.read(&mut bytes[..size.min(PIECE)]) {
                Ok(0) => break drop(to.shutdown(Shutdown::Write)),
                Ok(size) => size,
                Err(_) => break passage.end(),
            };
            if passage.number < self.cut_below.load(Ordering::Relaxed) {
                break self.cut_for_speaker(passage, from, to, &bytes[..size]);
            }
            self.delay(&mut numbers);
            let calm = self.calm.load(Ordering::Relaxed);
            let passes = if calm { size } else { size.min(left as usize) };
            left = left.saturating_sub(passes as u64);
            if passes < size {
                self.cuts.fetch_add(1, Ordering::Relaxed);
                break self.cut(passage, from, to, &bytes[..passes], &mut numbers);
            }
            if to.write_all(&bytes[..size]).is_err() {
                break passage.end();
            }
        }
    }

    /// Cuts a connection; `rest` is the last that was to pass.
    fn cut(
        &self,
        passage: &Passage,
        from: &TcpStream,
        mut to: &TcpStream,
        rest: &[u8],
        numbers: &mut Numbers,
    ) {
        match numbers.below(4) {
            0 => {
                let _ = to.write_all(rest);
                passage.end();
            }
            1 => passage.reset(),
            2 => {
                let _ = to.write_all(rest);
                passage.reset();
            }
            _ => {
                // The sender knows at once, while the rest is still on its way.
                self.late.fetch_add(1, Ordering::Relaxed);
                let _ = from.shutdown(Shutdown::Both);
                std::thread::sleep(Duration::from_millis(numbers.below(50)));
                let _ = to.write_all(rest);
                passage.end();
                self.late.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Cuts a connection for who has just said something on it, which arrives later.
    fn cut_for_speaker(
        &self,
        passage: &Passage,
        mut from: &TcpStream,
        mut to: &TcpStream,
        first: &[u8],
    ) {
        if passage.late.swap(true, Ordering::Relaxed) {
            // The other side has been quicker: what this one says is lost.
            return;
        }
        self.late.fetch_add(1, Ordering::Relaxed);
        self.cuts.fetch_add(1, Ordering::Relaxed);
        let _ = from.shutdown(Shutdown::Both);
        let mut words = first.to_vec();
        // What has come is still there to be read.
        let _ = from.read_to_end(&mut words);
        let is_early = |_: &mut bool| self.cut_below.load(Ordering::Relaxed) != 0;
        drop(self.opened.wait_while(lock(&self.shut), is_early));
        let _ = to.write_all(&words);
        passage.end();
        self.late.fetch_sub(1, Ordering::Relaxed);
    }

    fn delay(&self, numbers: &mut Numbers) {
        let shut = lock(&self.shut);
        let (delay, hold) = (numbers.below(4), numbers.once_in(64));
        drop(self.opened.wait_while(shut, |shut| *shut));
        if self.calm.load(Ordering::Relaxed) {
            return;
        }
        let longest = if hold { self.faults.hold } else { self.faults.delay };
        // Most are quick.
        if hold || delay == 0 {
            let us = numbers.below(longest.as_micros() as u64 + 1);
            std::thread::sleep(Duration::from_micros(us));
        }
    }
}
