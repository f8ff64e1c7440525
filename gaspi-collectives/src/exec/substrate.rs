//! The substrate of steps: a channel, or a call on a group. Arrivals are numbered. Lines and stages
//! alternate, so that those of the arrival before can still be read.

use gaspi_core::sync::arrival_slot::{PAYLOAD_WORDS, Poll};
use gaspi_core::{Channel, GroupCall, PeerSlice, Rank};

/// Lines and stages of members; a channel also has messages and access to buffers, a group chunks.
pub(crate) trait Substrate {
    /// The members.
    fn ranks(&self) -> &[Rank];

    /// This rank's index among them.
    fn me(&self) -> usize;

    /// Whether a member has arrived, and with which stamp, which should be this one.
    fn look(&self, member: usize, arrival: u64, stamp: u64) -> Poll;

    /// What a member's arrival carries, once it has been seen and until this rank's next one.
    fn payload(&self, member: usize, arrival: u64) -> [u64; PAYLOAD_WORDS];

    /// The same in place.
    fn carried(&self, member: usize, arrival: u64) -> PeerSlice<'_>;

    /// Staging of a member for an arrival.
    fn stage(&self, member: usize, arrival: u64) -> PeerSlice<'_>;

    /// The next arrival publishes at least the first `bytes` of this rank's staging. `alike` says
    /// that all members stage as many, and nothing else.
    fn stage_used(&mut self, bytes: u64, alike: bool);

    /// Publishes this rank's line, and its staging of the same arrival.
    fn arrive(&mut self, arrival: u64, stamp: u64, payload: &[u64]);

    /// Whether it is a channel. A group has chunks for messages.
    const IS_CHANNEL: bool;

    /// The channel, for messages and access to other members' buffers.
    fn channel(&self) -> &Channel;

    /// Sends a member the chunk of this number behind the last arrival. It does not wait.
    fn send_chunk(&self, to: usize, number: u64, words: Vec<u64>);

    /// Takes the chunk of this number of a member, if it has come.
    fn take_chunk(&self, from: usize, number: u64) -> Option<Vec<u64>>;
}

impl Substrate for &Channel {
    #[inline]
    fn ranks(&self) -> &[Rank] {
        Channel::ranks(self)
    }

    #[inline]
    fn me(&self) -> usize {
        Channel::me(self)
    }

    #[inline]
    fn look(&self, member: usize, arrival: u64, _: u64) -> Poll {
        Channel::poll(self, member, arrival)
    }

    #[inline]
    fn payload(&self, member: usize, arrival: u64) -> [u64; PAYLOAD_WORDS] {
        Channel::payload(self, member, arrival)
    }

    #[inline]
    fn carried(&self, member: usize, arrival: u64) -> PeerSlice<'_> {
        Channel::carried(self, member, arrival)
    }

    #[inline]
    fn stage(&self, member: usize, arrival: u64) -> PeerSlice<'_> {
        Channel::stage(self, member, arrival)
    }

    /// Members that have lines share the whole stage.
    #[inline]
    fn stage_used(&mut self, _: u64, _: bool) {}

    #[inline]
    fn arrive(&mut self, arrival: u64, stamp: u64, payload: &[u64]) {
        Channel::arrive(self, arrival, stamp, payload);
    }

    const IS_CHANNEL: bool = true;

    #[inline]
    fn channel(&self) -> &Channel {
        self
    }

    fn send_chunk(&self, _: usize, _: u64, _: Vec<u64>) {
        unreachable!("a channel has messages")
    }

    fn take_chunk(&self, _: usize, _: u64) -> Option<Vec<u64>> {
        unreachable!("a channel has messages")
    }
}

/// Steps of the group are the arrivals. [`GroupCall::await_all`] compares the signatures in its
/// lines; an arrival that it has not seen is missing.
impl Substrate for GroupCall<'_> {
    #[inline]
    fn ranks(&self) -> &[Rank] {
        GroupCall::ranks(self)
    }

    #[inline]
    fn me(&self) -> usize {
        GroupCall::me(self)
    }

    #[inline]
    fn look(&self, _: usize, arrival: u64, stamp: u64) -> Poll {
        if self.step() >= arrival { Poll::Arrived(stamp) } else { Poll::Missing }
    }

    #[inline]
    fn payload(&self, member: usize, arrival: u64) -> [u64; PAYLOAD_WORDS] {
        GroupCall::payload(self, member, arrival)
    }

    #[inline]
    fn carried(&self, member: usize, arrival: u64) -> PeerSlice<'_> {
        GroupCall::carried(self, member, arrival)
    }

    #[inline]
    fn stage(&self, member: usize, arrival: u64) -> PeerSlice<'_> {
        GroupCall::stage(self, member, arrival)
    }

    #[inline]
    fn stage_used(&mut self, bytes: u64, alike: bool) {
        GroupCall::stage_used(self, bytes as usize, alike);
    }

    #[inline]
    fn arrive(&mut self, arrival: u64, _: u64, payload: &[u64]) {
        debug_assert_eq!(arrival, self.step() + 1, "each arrival is awaited before the next one");
        GroupCall::arrive(self, payload);
    }

    const IS_CHANNEL: bool = false;

    fn channel(&self) -> &Channel {
        unreachable!("a group has lines, stages and chunks only, and its plans need no more")
    }

    fn send_chunk(&self, to: usize, number: u64, words: Vec<u64>) {
        GroupCall::send_chunk(self, to, number as usize, words);
    }

    fn take_chunk(&self, from: usize, number: u64) -> Option<Vec<u64>> {
        GroupCall::take_chunk(self, from, number as usize)
    }
}
