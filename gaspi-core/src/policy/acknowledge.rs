//! When completed puts are acknowledged: delayed, and piggybacked where possible.
//!
//! The acknowledgement of a connection is a running total, so one frame settles all puts before it.
//! It travels with whatever is sent on the connection next. A frame of its own costs the sender a
//! system call and the receiver a wake, so the policy delays it while something else is likely to
//! be sent soon, and sends it at once where the peer has nothing to do but wait.

/// A peer that answers at intervals below this is likely to answer again soon, in nanoseconds. Two
/// ticks of the progress thread: an acknowledgement that misses its answer leaves with one.
const ANSWER_NS: u64 = 2_000_000;

/// Behind a pause of this length a rank has slept, and will sleep again before its next post, in
/// nanoseconds: a sleep counts as a tick, and callers that share cores begin to sleep after 100 us.
const PAUSE_NS: u64 = 200_000;

/// Payloads from this size on are bulk data, in bytes: more of it often follows, so that one
/// acknowledgement serves all. Below it a put without a notification is acknowledged at once: its
/// sender has nothing to wait for but this.
const BULK: u64 = 64 * 1024;

/// So many messages of channels, for whose end nobody waits, are acknowledged together: their
/// sender only has to keep its list of them short.
const TOGETHER: u64 = 8;

/// A put that was completed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Completed {
    /// A put of a queue of the program: a wait on the queue needs its acknowledgement.
    OfQueue {
        /// It set a notification, which the program is likely to answer by a put of its own.
        notified: bool,
        /// Bytes.
        size: u64,
    },
    /// A message of a channel, which counts for itself.
    OfChannel {
        /// It set a notification.
        notified: bool,
        /// The sender keeps its memory as it is until the acknowledgement comes.
        in_flight: bool,
        /// The sender is about to wait for that.
        awaited: bool,
    },
    /// A put that was refused, of which the peer is told at once.
    Refused,
}

/// What was completed on one connection since the last account of it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Puts.
    pub(crate) puts: u64,
    /// One of them is acknowledged at once.
    pub(crate) urgent: bool,
    /// One of them had no notification: plain data is not answered.
    plain: bool,
    /// A peer may wait for one of them.
    awaited: bool,
}

impl Batch {
    /// Counts a put.
    #[inline]
    pub(crate) fn add(&mut self, put: Completed) {
        self.puts += 1;
        match put {
            Completed::OfQueue { notified, size } => {
                self.awaited = true;
                self.plain |= !notified;
                self.urgent |= !notified && size < BULK;
            }
            Completed::OfChannel { notified, in_flight, awaited } => {
                self.awaited |= in_flight;
                self.plain |= !notified;
                self.urgent |= awaited;
            }
            Completed::Refused => self.urgent = true,
        }
    }
}

/// Which acknowledgements to send now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flush {
    /// All that are pending.
    All,
    /// Those for which a peer may wait.
    Awaited,
    /// Those that probably will not go along with something else.
    Undelayed {
        /// A tick of the progress thread, or a sleep on the sockets: at the second one without a
        /// post in between nothing is delayed any longer.
        tick: bool,
    },
}

/// The acknowledgements of one connection.
#[derive(Debug, Default)]
pub(crate) struct AckDelay {
    /// Puts of the peer completed so far, and how many of them it has been told of.
    completed: u64,
    acknowledged: u64,
    /// A peer may wait for one that it has not been told of.
    awaited: bool,
    /// Nothing has been posted since the last put was completed.
    unanswered: bool,
    /// Recent acknowledgements went along with posts.
    piggybacks: bool,
    /// The pending one has been delayed at a tick.
    ticked: bool,
    /// The pending one is sent now.
    due: bool,
}

impl AckDelay {
    /// Puts of the peer were completed.
    pub(crate) fn on_completed(&mut self, batch: Batch) {
        self.completed += batch.puts;
        self.awaited |= batch.awaited;
        self.due |= batch.urgent;
        self.unanswered = !batch.plain;
        self.piggybacks &= !batch.plain;
    }

    /// Something is posted to the peer, so long after the post before.
    #[inline]
    pub(crate) fn on_post(&mut self, interval_ns: u64) {
        if std::mem::take(&mut self.unanswered) {
            self.piggybacks = interval_ns < ANSWER_NS;
            self.ticked = false;
        }
        // Else a frame of its own would follow, since no other post does before the next ticks.
        self.due |= interval_ns >= PAUSE_NS && self.is_pending();
    }

    /// All that is pending goes along with the next frame.
    pub(crate) fn hurry(&mut self) {
        self.due = self.is_pending();
    }

    /// Whether the peer has not been told of all its completed puts.
    pub(crate) fn is_pending(&self) -> bool {
        self.acknowledged != self.completed
    }

    /// Whether one goes along with the next frame.
    #[inline]
    pub(crate) fn goes_along(&self) -> bool {
        let pending = self.completed - self.acknowledged;
        pending >= TOGETHER || pending > 0 && (self.due || self.awaited)
    }

    /// Takes the total to send along, if there is one.
    pub(crate) fn take(&mut self) -> Option<u64> {
        if !self.goes_along() {
            return None;
        }
        self.acknowledged = self.completed;
        (self.awaited, self.due) = (false, false);
        Some(self.completed)
    }

    /// Whether the pending acknowledgement is sent now, in a frame of its own if need be.
    pub(crate) fn is_due(&mut self, flush: Flush) -> bool {
        let due = self.is_pending()
            && match flush {
                Flush::All => true,
                Flush::Awaited => self.awaited || self.due,
                Flush::Undelayed { tick } => {
                    let may_wait = !self.due && (self.piggybacks || !self.awaited);
                    !may_wait || (tick && std::mem::replace(&mut self.ticked, true))
                }
            };
        if due {
            // Nothing went along with: the next one is not delayed for that.
            (self.piggybacks, self.ticked) = (false, false);
            self.due = true;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWERED: Completed = Completed::OfQueue { notified: true, size: 8 };
    const DATA: Completed = Completed::OfQueue { notified: false, size: BULK };
    const MESSAGE: Completed =
        Completed::OfChannel { notified: true, in_flight: false, awaited: false };

    fn batch(puts: &[Completed]) -> Batch {
        let mut batch = Batch::default();
        puts.iter().for_each(|put| batch.add(*put));
        batch
    }

    #[test]
    fn small_data_and_refusals_are_urgent_and_the_rest_is_not() {
        assert!(batch(&[Completed::OfQueue { notified: false, size: BULK - 1 }]).urgent);
        assert!(batch(&[Completed::Refused]).urgent);
        let awaited = Completed::OfChannel { notified: true, in_flight: true, awaited: true };
        assert!(batch(&[MESSAGE, awaited]).urgent);
        assert!(!batch(&[ANSWERED, DATA, MESSAGE]).urgent);
    }

    #[test]
    fn an_acknowledgement_is_the_total_and_is_sent_once() {
        let mut delay = AckDelay::default();
        assert_eq!(delay.take(), None);
        delay.on_completed(batch(&[DATA, DATA]));
        assert_eq!(delay.take(), Some(2));
        assert_eq!((delay.is_pending(), delay.take()), (false, None));
        delay.on_completed(batch(&[DATA]));
        assert_eq!(delay.take(), Some(3));
    }

    #[test]
    fn messages_for_which_nobody_waits_are_acknowledged_together() {
        let mut delay = AckDelay::default();
        for _ in 1..TOGETHER {
            delay.on_completed(batch(&[MESSAGE]));
            assert_eq!((delay.take(), delay.is_pending()), (None, true));
        }
        delay.on_completed(batch(&[MESSAGE]));
        assert_eq!((delay.take(), delay.is_pending()), (Some(TOGETHER), false));
        // One that is asked for, that is urgent, or for which somebody waits, is not kept back.
        let refused = batch(&[Completed::Refused]);
        for flush in [Flush::Awaited, Flush::Undelayed { tick: false }, Flush::All] {
            let mut urgent = AckDelay::default();
            urgent.on_completed(refused);
            assert!(urgent.is_due(flush));
            assert_eq!((urgent.take(), urgent.is_due(flush)), (Some(1), false));
        }
        delay.on_completed(batch(&[MESSAGE]));
        assert!(delay.is_due(Flush::All));
        assert_eq!(delay.take(), Some(TOGETHER + 1));
        delay.on_completed(batch(&[MESSAGE, ANSWERED]));
        assert_eq!(delay.take(), Some(TOGETHER + 3));
        // Nor behind a pause, nor where the connection is given up.
        delay.on_completed(batch(&[MESSAGE]));
        delay.on_post(PAUSE_NS);
        assert_eq!(delay.take(), Some(TOGETHER + 4));
        delay.on_completed(batch(&[MESSAGE]));
        delay.on_post(PAUSE_NS - 1);
        assert_eq!(delay.take(), None);
        delay.hurry();
        assert_eq!(delay.take(), Some(TOGETHER + 5));
    }

    #[test]
    fn answers_within_two_ticks_carry_the_next_acknowledgements() {
        let mut delay = AckDelay::default();
        delay.on_completed(batch(&[ANSWERED]));
        assert!(delay.is_due(Flush::Undelayed { tick: false }), "nothing has been answered yet");
        delay.on_post(ANSWER_NS - 1);
        delay.take();
        delay.on_completed(batch(&[ANSWERED]));
        assert!(!delay.is_due(Flush::Undelayed { tick: false }));
        assert!(!delay.is_due(Flush::Undelayed { tick: true }), "the first tick waits");
        assert!(delay.is_due(Flush::Undelayed { tick: true }), "the second does not");
        delay.take();
        delay.on_completed(batch(&[ANSWERED]));
        assert!(delay.is_due(Flush::Undelayed { tick: false }), "it missed its answer before");
    }

    #[test]
    fn slow_answers_and_plain_data_end_the_delay() {
        let mut delay = AckDelay::default();
        delay.on_completed(batch(&[ANSWERED]));
        delay.on_post(ANSWER_NS);
        assert!(delay.is_due(Flush::Undelayed { tick: false }));
        delay.on_post(0);
        delay.on_completed(batch(&[ANSWERED, DATA]));
        assert!(delay.is_due(Flush::Undelayed { tick: false }), "nobody answers to mere data");
    }

    #[test]
    fn what_nobody_waits_for_is_sent_at_the_second_tick_at_the_latest() {
        let mut delay = AckDelay::default();
        delay.on_completed(batch(&[MESSAGE]));
        assert!(!delay.is_due(Flush::Awaited));
        assert!(!delay.is_due(Flush::Undelayed { tick: false }));
        assert!(!delay.is_due(Flush::Undelayed { tick: true }));
        assert!(delay.is_due(Flush::Undelayed { tick: true }));
        // Together with something that is awaited it is not delayed.
        delay.on_completed(batch(&[DATA]));
        assert!(delay.is_due(Flush::Awaited));
        assert!(delay.is_due(Flush::All));
    }
}
