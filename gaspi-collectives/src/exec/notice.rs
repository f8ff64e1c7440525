//! A notice of six words to all other members: the sender waits in an operation, or has failed in
//! it, with the cause.
//!
//! | word | what |
//! |---|---|
//! | 0 | which operation of the channel, from 1 |
//! | 1 | its signature |
//! | 2 | bits 0..8: waits or failed; 8..16: cause; from 16: the member that the cause is about |
//! | 3, 4 | two words about the cause |

use gaspi_core::Channel;

const WAITS: u64 = 1;
const FAILED: u64 = 2;

/// The cause of a failure, for the other members, with two words about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cause {
    pub(crate) what: What,
    pub(crate) member: usize,
    pub(crate) words: [u64; 2],
}

/// Kinds of causes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum What {
    /// Unknown; the error has the details.
    #[default]
    Unknown,
    /// The member was in another operation: its signature, and which one of the channel.
    Signature,
    /// The member's block had other bytes than expected: found, expected.
    Bytes,
    /// The member has left.
    Left,
    /// The member has died.
    Died,
    /// The member has refused something, or cannot be reached any more.
    Refused,
}

impl What {
    /// By number.
    const ALL: [What; 6] =
        [What::Unknown, What::Signature, What::Bytes, What::Left, What::Died, What::Refused];
}

/// A notice of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    pub(crate) sequence: u64,
    pub(crate) signature: u64,
    /// The cause of the failure; `None` if the member waits.
    pub(crate) failure: Option<Cause>,
}

impl Notice {
    /// The last notice of a member, if it has published one.
    pub(crate) fn of(channel: &Channel, member: usize) -> Option<Notice> {
        let mut notice = channel.read_notice(member).map(Notice::of_words)?;
        if notice.failure.is_some_and(|cause| cause.member >= channel.ranks().len()) {
            notice.failure = Some(Cause::default());
        }
        Some(notice)
    }

    /// Publishes it to all others.
    pub(crate) fn tell(&self, channel: &Channel) {
        channel.publish_notice(self.words());
    }

    fn words(&self) -> [u64; 6] {
        let (kind, [one, two]) = match self.failure {
            None => (WAITS, [0; 2]),
            Some(Cause { what, member, words }) => {
                (FAILED | (what as u64) << 8 | (member as u64) << 16, words)
            }
        };
        [self.sequence, self.signature, kind, one, two, 0]
    }

    fn of_words([sequence, signature, kind, one, two, _]: [u64; 6]) -> Notice {
        let causes = What::ALL;
        let what = causes.get((kind >> 8 & 0xff) as usize).copied().unwrap_or_default();
        let cause = Cause { what, member: (kind >> 16) as usize, words: [one, two] };
        Notice { sequence, signature, failure: (kind & 0xff == FAILED).then_some(cause) }
    }
}

/// Whether a member has published a failure in this operation or an earlier one. It does not use
/// other members' memory any more.
#[cold]
pub(crate) fn has_failed(channel: &Channel, member: usize) -> bool {
    Notice::of(channel, member).is_some_and(|notice| notice.failure.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_rides_in_six_words() {
        let cause = |what| Cause { what, member: 65_535, words: [u64::MAX, 7] };
        let causes = What::ALL;
        for failure in causes.map(|what| Some(cause(what))).into_iter().chain([None]) {
            let notice = Notice { sequence: 3, signature: u64::MAX, failure };
            assert_eq!(Notice::of_words(notice.words()), notice);
        }
    }
}
