//! How the use of a connection ends: by a goodbye, by release, by both sides letting it go, or by a
//! break.

use super::{Connection, Outgoing};
use crate::os::event::Epoll;
use crate::os::socket;
use crate::sync::Ordering;
use crate::wire::frame::Frame;
use crate::wire::message::{GroupMessage, LastStep, Message, Stream};

impl Connection {
    /// Says goodbye behind all that has been sent so far, and before it where this rank is in its
    /// groups: whoever reads the one has read the other.
    pub(crate) fn say_goodbye(&self, poll: &Epoll, steps: &[LastStep]) {
        let mut out = self.out();
        if out.usage.is_ending() {
            return;
        }
        for last in steps {
            let leaving = Message::Group(GroupMessage::Leaving(*last));
            out.push_control(Outgoing::new(&leaving));
        }
        out.usage.begin_goodbye();
        out.acks.hurry();
        // Where it is broken there is nobody to tell.
        let _ = self.flush_locked(poll, &mut out);
    }

    /// Says that this rank asks for nothing more, unless something is under way; whether it did.
    pub(crate) fn release(&self, poll: &Epoll, awaits_answers: impl FnOnce() -> bool) -> bool {
        let mut out = self.out();
        if !out.asks_nothing() || awaits_answers() {
            return false;
        }
        out.usage.release();
        out.acks.hurry();
        // Should it have broken, its end is dealt with like any other's.
        let _ = self.send_locked(poll, &mut out, Outgoing::new(&Frame::Release));
        true
    }

    /// Ends sending if nothing is under way, nor anything that awaits an answer; whether it did.
    pub(crate) fn let_go(&self, poll: &Epoll, awaits_answers: impl FnOnce() -> bool) -> bool {
        let mut out = self.out();
        // With the lock, so that nothing is asked for in between.
        if out.usage.is_ending() || !out.asks_nothing() || awaits_answers() {
            return false;
        }
        if !out.usage.is_let_go() {
            // The peer, which has released it, knows by this that all has been read.
            out.push_control(Outgoing::new(&Frame::Release));
        }
        out.usage.let_go();
        // Where it is broken it ends anyway.
        let _ = self.flush_locked(poll, &mut out);
        true
    }

    /// Whether this rank may ask for more on it.
    pub(crate) fn is_usable(&self) -> bool {
        let out = self.out();
        !out.usage.is_broken() && !out.usage.is_let_go()
    }

    /// Whether one of both sides has done with it, so that its end is no surprise.
    pub(crate) fn is_over(&self) -> bool {
        let out = self.out();
        out.usage.is_over()
    }

    /// Whether this rank has stopped to ask on it, and it has ended without a sign that the peer
    /// has read all of it.
    pub(crate) fn may_lack_the_end(&self) -> bool {
        let is_read = self.is_released_by_peer() && self.read_out.load(Ordering::Relaxed);
        let usage = &self.out().usage;
        usage.is_let_go() && (usage.is_broken() || !is_read)
    }

    /// Ends the connection for both sides; gives the streams of puts that were not acknowledged.
    pub(crate) fn shut_down(&self) -> Vec<(Stream, u32)> {
        let mut out = self.out();
        out.usage.forget();
        // Behind that: a socket that comes later is found broken by whoever brings it.
        if let Some(fd) = self.fd() {
            socket::shut_down(fd);
        }
        out.give_up()
    }

    /// Whether this rank has asked for something on it, which may be late.
    pub(crate) fn has_asked(&self) -> bool {
        self.out().usage.has_asked()
    }

    /// Sends nothing more; gives the streams of puts that were not acknowledged. What the peer has
    /// sent is still read, up to its end.
    pub(crate) fn give_up(&self) -> Vec<(Stream, u32)> {
        let mut out = self.out();
        out.usage.note_broken();
        if let Some(fd) = self.fd() {
            socket::shut_down(fd);
        }
        out.give_up()
    }

    /// Whether no request of this rank is under way on it.
    pub(crate) fn asks_nothing(&self) -> bool {
        self.out().asks_nothing()
    }

    /// Whether its end has been dealt with.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.out().usage.is_forgotten()
    }
}
