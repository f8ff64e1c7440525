//! What is said on keepalive connections: that the speaker leaves, who else has ended, and how far
//! those who leave have come in their groups.

use super::message::{Commit, LastStep};
use crate::ids::GroupId;

/// That the speaker leaves.
const FAREWELL: u8 = 2;
/// That a rank has died; its number follows.
const DIED: u8 = 3;
/// That a rank has left; its number follows.
const LEFT: u8 = 4;
/// Where a rank is that leaves; its number, and the fields of a [`LastStep`] follow.
const STEP: u8 = 5;
/// Bytes of that in all.
const STEP_BYTES: usize = 33;
/// That the farewell of the other side has been heard.
const HEARD: u8 = 6;

/// One thing that is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeepaliveMessage {
    /// The speaker leaves the job. It may still tell of others.
    Farewell,
    /// A rank has died.
    Died(u16),
    /// A rank has left the job.
    Left(u16),
    /// Where a rank is in a group, which the speaker then says to leave.
    Step(u16, LastStep),
    /// The speaker has heard that the other side leaves, and will hear all that it says until it
    /// closes, unless the speaker bids farewell after this.
    Heard,
}

/// What nobody says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Nonsense;

impl KeepaliveMessage {
    /// Appends it.
    pub(crate) fn encode(self, to: &mut Vec<u8>) {
        let (kind, rank) = match self {
            KeepaliveMessage::Farewell => return to.push(FAREWELL),
            KeepaliveMessage::Heard => return to.push(HEARD),
            KeepaliveMessage::Died(rank) => (DIED, rank),
            KeepaliveMessage::Left(rank) => (LEFT, rank),
            KeepaliveMessage::Step(rank, _) => (STEP, rank),
        };
        to.push(kind);
        to.extend_from_slice(&rank.to_le_bytes());
        if let KeepaliveMessage::Step(_, LastStep { group, step, finished, commit, digest }) = self
        {
            to.push(group.0);
            to.extend_from_slice(&step.to_le_bytes());
            to.push(finished.into());
            to.extend_from_slice(&commit.attempt.to_le_bytes());
            to.extend_from_slice(&commit.incarnation.to_le_bytes());
            to.extend_from_slice(&digest.to_le_bytes());
        }
    }

    /// Takes the next one off the front; none while it is not complete.
    ///
    /// # Errors
    /// Nothing begins so.
    pub(crate) fn decode(from: &mut &[u8]) -> Result<Option<KeepaliveMessage>, Nonsense> {
        let (said, len) = match *from {
            [FAREWELL, ..] => (KeepaliveMessage::Farewell, 1),
            [HEARD, ..] => (KeepaliveMessage::Heard, 1),
            [DIED, low, high, ..] => (KeepaliveMessage::Died(u16::from_le_bytes([*low, *high])), 3),
            [LEFT, low, high, ..] => (KeepaliveMessage::Left(u16::from_le_bytes([*low, *high])), 3),
            [STEP, said @ ..] if said.len() + 1 >= STEP_BYTES => (decode_step(said)?, STEP_BYTES),
            [] => return Ok(None),
            [DIED | LEFT, rest @ ..] if rest.len() < 2 => return Ok(None),
            [STEP, ..] => return Ok(None),
            _ => return Err(Nonsense),
        };
        *from = &from[len..];
        Ok(Some(said))
    }
}

/// What follows [`STEP`], which is long enough.
fn decode_step(said: &[u8]) -> Result<KeepaliveMessage, Nonsense> {
    fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], Nonsense> {
        let (first, rest) = from.split_first_chunk().ok_or(Nonsense)?;
        *from = rest;
        Ok(*first)
    }
    let from = &mut &*said;
    let (rank, [group]) = (u16::from_le_bytes(take(from)?), take(from)?);
    let step = u64::from_le_bytes(take(from)?);
    let finished = match take(from)? {
        [0] => false,
        [1] => true,
        _ => return Err(Nonsense),
    };
    let attempt = u64::from_le_bytes(take(from)?);
    let incarnation = u32::from_le_bytes(take(from)?);
    let (commit, digest) = (Commit { attempt, incarnation }, u64::from_le_bytes(take(from)?));
    let last = LastStep { group: GroupId(group), step, finished, commit, digest };
    Ok(KeepaliveMessage::Step(rank, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP_OF_IT: KeepaliveMessage = KeepaliveMessage::Step(
        0x301,
        LastStep {
            group: GroupId(6),
            step: 0x0102_0304_0506_0708,
            finished: true,
            commit: Commit { attempt: 9, incarnation: 0x0a0b },
            digest: 0x0c0d,
        },
    );

    #[test]
    fn what_is_said_is_heard_however_it_is_cut() {
        let all = [
            KeepaliveMessage::Died(0),
            KeepaliveMessage::Left(513),
            KeepaliveMessage::Died(u16::MAX),
            STEP_OF_IT,
            KeepaliveMessage::Heard,
            KeepaliveMessage::Farewell,
        ];
        let mut bytes = Vec::new();
        all.iter().for_each(|said| said.encode(&mut bytes));
        let ends = [3, 0, 0, 4, 1, 2, 3, 255, 255];
        let step = [5, 1, 3, 6, 8, 7, 6, 5, 4, 3, 2, 1, 1];
        let commit = [9, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0x0a, 0, 0, 0x0d, 0x0c, 0, 0, 0, 0, 0, 0];
        assert_eq!(bytes, [&ends[..], &step, &commit, &[6, 2]].concat());
        for cut in 0..=bytes.len() {
            let (mut heard, mut kept) = (Vec::new(), Vec::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                kept.extend_from_slice(part);
                let mut left = kept.as_slice();
                while let Ok(Some(said)) = KeepaliveMessage::decode(&mut left) {
                    heard.push(said);
                }
                kept = left.to_vec();
            }
            assert_eq!((heard.as_slice(), kept.len()), (all.as_slice(), 0), "cut at {cut}");
        }
    }

    #[test]
    fn nothing_else_is_heard() {
        for first in (0..=u8::MAX).filter(|byte| !(FAREWELL..=HEARD).contains(byte)) {
            assert_eq!(
                KeepaliveMessage::decode(&mut [first, 0, 0].as_slice()),
                Err(Nonsense),
                "{first}"
            );
        }
        let mut neither = [0; STEP_BYTES];
        (neither[0], neither[12]) = (STEP, 2);
        assert_eq!(KeepaliveMessage::decode(&mut neither.as_slice()), Err(Nonsense));
    }

    #[test]
    fn mutated_messages_are_heard_or_nonsense() {
        let mut sample = Vec::new();
        for said in [KeepaliveMessage::Died(7), STEP_OF_IT, KeepaliveMessage::Left(513)] {
            said.encode(&mut sample);
        }
        KeepaliveMessage::Farewell.encode(&mut sample);
        crate::fuzzed::run("keepalive", 64 << 10, |seed| {
            let mut bytes = sample.clone();
            seed.mutate(&mut bytes);
            let mut left = bytes.as_slice();
            while let Ok(Some(said)) = KeepaliveMessage::decode(&mut left) {
                let taken = bytes.len() - left.len();
                let mut again = Vec::new();
                said.encode(&mut again);
                assert!(bytes[..taken].ends_with(&again), "{said:?}");
            }
        });
    }
}
