//! What is said on a keepalive connection, and who has said that it leaves: bytes and decisions,
//! whatever carries them.

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
    /// The other side has said its last word.
    pub(super) closed: bool,
    /// This side says nothing more.
    mute: bool,
}

impl Conversation {
    pub(super) fn new(rank: Rank) -> Conversation {
        Conversation {
            rank,
            incoming: Vec::new(),
            outgoing: Vec::new(),
            takes_leave: false,
            peer_leaves: false,
            closed: false,
            mute: false,
        }
    }

    /// Says something, unless this side has ended.
    pub(super) fn say(&mut self, what: &[KeepaliveMessage]) {
        if !self.mute {
            what.iter().for_each(|said| said.encode(&mut self.outgoing));
        }
    }

    /// Says that this rank leaves, and before that where it is in its groups.
    pub(super) fn take_leave(&mut self, steps: &[KeepaliveMessage]) {
        if !self.mute && !self.takes_leave {
            self.say(steps);
            self.say(&[KeepaliveMessage::Farewell]);
            self.takes_leave = true;
        }
    }

    /// The other side leaves. What it says until it closes is heard. Nothing is said to it any
    /// more, by which it knows that it has been heard; but where this rank leaves too, what it
    /// hears until it has closed goes to those `before` it. Whether this side ends its sending,
    /// behind what it has said.
    pub(super) fn hear_out(&mut self, before: bool) -> bool {
        self.peer_leaves = true;
        self.mute = !self.takes_leave || !before;
        !self.takes_leave
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
