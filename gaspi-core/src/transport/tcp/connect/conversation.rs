//! What is said on a keepalive connection, and who has said that it leaves: bytes and decisions,
//! whatever carries them.
//!
//! A rank that leaves goes once another one hears all that it says until it closes, and passes that
//! on. One that stays does so once it has said [`Heard`](KeepaliveMessage::Heard). Of two that
//! leave, the one does that is before the other in the tree. So one that has said it would hear
//! another one, which is before it, and then leaves itself, says so: from then on it counts on that
//! one, if that is still there and says `Heard` in its turn.
//!
//! Invariant: of two ranks that leave only the one behind counts on the other, and only the one
//! before waits for the other to close: they never wait in a circle, and never count on each other.

use crate::ids::Rank;
use crate::wire::keepalive::{KeepaliveMessage, Nonsense};

/// One side of a keepalive connection.
#[derive(Debug)]
pub(super) struct Conversation {
    /// The rank on the other side.
    pub(super) rank: Rank,
    /// What has come of something that is said, and what is still to be sent.
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// This rank has said that it leaves.
    pub(super) takes_leave: bool,
    /// The other side has said so.
    pub(super) peer_leaves: bool,
    /// The other side has heard that this rank leaves, and hears all that it says until it closes.
    is_heard: bool,
    /// The other side has said its last word.
    pub(super) closed: bool,
    /// Nothing is said to the other side any more, behind so many of all that has been told.
    mute_from: Option<usize>,
}

impl Conversation {
    pub(super) fn new(rank: Rank) -> Conversation {
        Conversation {
            rank,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            takes_leave: false,
            peer_leaves: false,
            is_heard: false,
            closed: false,
            mute_from: None,
        }
    }

    /// Says something, unless the other side needs not hear it.
    pub(super) fn say(&mut self, what: &[KeepaliveMessage]) {
        if self.mute_from.is_none() {
            what.iter().for_each(|said| said.encode(&mut self.outgoing));
        }
    }

    /// Says that this rank leaves, and before that where it is in its groups. If the other side
    /// leaves already, and this rank has heard it, that one counts on this one, which goes on
    /// waiting for it to close. Only if that one is `before` this rank, it is the other way round
    /// from now on: then this rank says what it has not said of all that was `told`.
    pub(super) fn take_leave(
        &mut self,
        steps: &[KeepaliveMessage],
        before: bool,
        told: &[KeepaliveMessage],
    ) {
        if self.takes_leave || self.peer_leaves && !before {
            return;
        }
        if let Some(from) = self.mute_from.take() {
            self.say(&told[from..]);
        }
        self.say(steps);
        self.say(&[KeepaliveMessage::Farewell]);
        self.takes_leave = true;
    }

    /// Takes note of what the other side says about itself, which is `before` this rank or behind
    /// it. So many ends have been `told`.
    pub(super) fn hear(&mut self, said: &[KeepaliveMessage], before: bool, told: usize) {
        for said in said {
            match said {
                KeepaliveMessage::Heard => self.is_heard = self.takes_leave,
                KeepaliveMessage::Farewell => self.hear_farewell(before, told),
                _ => {}
            }
        }
    }

    /// The other side leaves. If this rank stays, or leaves too and is before it, this rank hears
    /// all until it closes. It says so, unless the other side knows, since both have said that they
    /// leave at once; and it says nothing more: all goes to others.
    fn hear_farewell(&mut self, before: bool, told: usize) {
        self.peer_leaves = true;
        if self.takes_leave && before {
            self.is_heard = true;
            return;
        }
        // Who has said to hear this rank does so no more.
        if !self.takes_leave || std::mem::take(&mut self.is_heard) {
            self.say(&[KeepaliveMessage::Heard]);
        }
        self.mute_from.get_or_insert(told);
    }

    /// Whether this side can still be heard by this very rank.
    pub(super) fn reaches(&self, rank: Rank) -> bool {
        self.rank == rank && !self.closed
    }

    /// Whether the other side hears all that this rank says, which leaves, and tells others.
    pub(super) fn is_heard(&self) -> bool {
        self.is_heard && !self.closed
    }

    /// Whether this rank, which leaves, needs to wait no more for what the other side says, or for
    /// it to take what is said.
    pub(super) fn is_done(&self) -> bool {
        self.closed || self.is_heard && self.is_sent()
    }

    /// Takes what has come, and adds what is said in it.
    ///
    /// # Errors
    /// Nobody says such things, whatever was said before.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        all: &mut Vec<KeepaliveMessage>,
    ) -> Result<(), Nonsense> {
        self.incoming.extend_from_slice(bytes);
        let mut left = self.incoming.as_slice();
        while let Some(said) = KeepaliveMessage::decode(&mut left)? {
            all.push(said);
        }
        self.incoming = left.to_vec();
        Ok(())
    }

    /// What is still to be sent.
    pub(super) fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    /// Whether all has been sent.
    pub(super) fn is_sent(&self) -> bool {
        self.outgoing.is_empty()
    }
}
