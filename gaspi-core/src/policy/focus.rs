//! Which connections a look is at: the kernel's set of all, or the liveliest one alone.
//!
//! A look at the set is an epoll_wait and, if something has come, a receive; a look at one
//! connection is the receive alone. Where all traffic comes on one connection, most looks are at
//! it. If that lasts, its socket leaves the set and is polled directly: each arrival on a socket in
//! a set costs the sender's side of the loopback, or the interrupt, a call into the set.

/// One look of so many is at all connections, where all that comes comes on one.
pub(crate) const LOOKS: u32 = 8;
/// So many times in a row something has to come on one connection before its socket leaves the set:
/// leaving and rejoining take as long as the kernel's calls of the set for some messages.
const DIRECT: u32 = 32;
/// Looks in vain after which acknowledgements are sent that a peer may wait for: by all appearances
/// nothing follows that they could go along with.
const IDLE: u32 = 2;

/// Where to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// At the connection on which something came last.
    Focused,
    /// At all of them.
    All,
}

/// Where the looks of a rank go.
#[derive(Debug, Default)]
pub(crate) struct Focus {
    /// Looks at the focused connection alone since all were looked at.
    looks: u32,
    /// Looks in vain in a row.
    idle: u32,
    /// How often something has come on it since something came on another one.
    served: u32,
    /// The same since it last left the set or rejoined it.
    streak: u32,
}

impl Focus {
    /// Where the next look goes. `possible`: there is a focused connection, and nothing waits for
    /// room in its socket, which is seen in the set only.
    pub(crate) fn next(&mut self, possible: bool) -> Look {
        self.looks += 1;
        if possible && self.looks <= self.served.min(LOOKS - 1) {
            return Look::Focused;
        }
        self.looks = 0;
        Look::All
    }

    /// The focused connection was looked at.
    pub(crate) fn on_focused(&mut self, busy: bool) {
        self.served = self.served.saturating_add(u32::from(busy));
        self.streak = self.streak.saturating_add(u32::from(busy));
    }

    /// Something came on another connection, which is the focused one from now on.
    pub(crate) fn on_moved(&mut self) {
        (self.served, self.streak) = (0, 0);
    }

    /// A look has ended. Whether acknowledgements that a peer may wait for are sent now.
    pub(crate) fn on_looked(&mut self, busy: bool) -> bool {
        self.idle = if busy { 0 } else { self.idle.saturating_add(1) };
        self.idle == IDLE
    }

    /// Whether the focused socket should leave the set now and be polled directly; asked again
    /// after as many arrivals.
    pub(crate) fn should_poll_directly(&mut self) -> bool {
        let long = self.streak >= DIRECT;
        if long {
            self.streak = 0;
        }
        long
    }

    /// Its socket has rejoined the set.
    pub(crate) fn on_rejoined(&mut self) {
        self.streak = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of looks at the focused connection before one at all.
    fn focused(focus: &mut Focus, possible: bool) -> usize {
        std::iter::from_fn(|| (focus.next(possible) == Look::Focused).then_some(())).count()
    }

    #[test]
    fn the_more_comes_on_one_connection_the_more_looks_are_at_it_alone() {
        let mut focus = Focus::default();
        assert_eq!(focused(&mut focus, true), 0);
        focus.on_focused(true);
        focus.on_focused(false);
        assert_eq!(focused(&mut focus, true), 1);
        (0..100).for_each(|_| focus.on_focused(true));
        assert_eq!(focused(&mut focus, true), LOOKS as usize - 1);
        assert_eq!(focused(&mut focus, false), 0, "room is seen in the set only");
        focus.on_moved();
        assert_eq!(focused(&mut focus, true), 0);
    }

    #[test]
    fn a_socket_leaves_the_set_after_a_streak_and_not_at_once_again() {
        let mut focus = Focus::default();
        (1..DIRECT).for_each(|_| focus.on_focused(true));
        assert!(!focus.should_poll_directly());
        focus.on_focused(true);
        assert!(focus.should_poll_directly() && !focus.should_poll_directly());
        (0..DIRECT).for_each(|_| focus.on_focused(true));
        focus.on_rejoined();
        assert!(!focus.should_poll_directly());
    }

    #[test]
    fn acknowledgements_are_sent_at_the_second_look_in_vain_and_once() {
        let mut focus = Focus::default();
        let looks = [false, true, false, false, false].map(|busy| focus.on_looked(busy));
        assert_eq!(looks, [false, false, false, true, false]);
    }
}
