//! Puts that are on the wire and that the peer has not acknowledged.

use crate::wire::message::Stream;
use std::collections::VecDeque;

/// Which puts they are, in the order in which they were sent.
///
/// Invariant: acknowledgements count all puts of a connection, so the first puts here are those
/// behind `acknowledged`.
#[derive(Debug, Default)]
pub(in crate::transport::tcp) struct Unacknowledged {
    /// Neighbours of a stream together.
    puts: VecDeque<(Stream, u32)>,
    /// Puts acknowledged so far.
    acknowledged: u64,
}

impl Unacknowledged {
    pub(super) fn is_empty(&self) -> bool {
        self.puts.is_empty()
    }

    /// The last part of a put goes on the wire.
    #[inline]
    pub(super) fn push(&mut self, stream: Stream) {
        match self.puts.back_mut() {
            Some((back, count)) if *back == stream => *count += 1,
            _ => self.puts.push_back((stream, 1)),
        }
    }

    /// Takes note that `puts` puts have been completed in all; gives the streams that they belong
    /// to.
    #[inline]
    pub(in crate::transport::tcp) fn acknowledge(
        &mut self,
        puts: u64,
    ) -> impl Iterator<Item = (Stream, u32)> + use<> {
        let mut left = puts.saturating_sub(self.acknowledged);
        self.acknowledged += left;
        // Most are of one stream, for which no memory is needed.
        let (mut first, mut others) = (None, Vec::new());
        while left > 0 {
            let Some((stream, count)) = self.puts.front_mut() else { break };
            let taken = u64::from(*count).min(left) as u32;
            match &mut first {
                None => first = Some((*stream, taken)),
                Some(_) => others.push((*stream, taken)),
            }
            *count -= taken;
            left -= u64::from(taken);
            if *count == 0 {
                self.puts.pop_front();
            }
        }
        first.into_iter().chain(others)
    }

    /// The streams of those that will not be acknowledged any more, with how many.
    pub(super) fn give_up(&mut self) -> Vec<(Stream, u32)> {
        self.puts.drain(..).collect()
    }
}
