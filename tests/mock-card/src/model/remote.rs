//! Cards of other processes: requests and answers as frames. What carries them is outside.
//!
//! A request that its target has no receive for is sent again after the time that the target
//! names, with all that was sent behind it.

use super::card::Gid;
use super::codes::{opcode, status};
use super::memory::{self, Piece};
use super::network::Network;
use super::pair::{Outcome, Payload};
use super::transfer::{Answer, Arriving, Launch};

/// What one card sends to another one.
#[derive(Debug)]
pub(crate) enum Frame {
    /// For a pair of the receiver.
    Request { target: u32, arriving: Arriving, data: Vec<u8> },
    /// For the pair that asked.
    Answer { target: u32, psn: u32, said: Verdict, data: Vec<u8> },
}

/// An answer on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    NotReady(u8),
    Refused(u32),
    Done,
}

/// Frames that leave this process, each for a card.
#[derive(Debug)]
pub(crate) struct Outbox {
    /// The card that is here.
    pub(crate) own: u32,
    pub(crate) frames: Vec<(u32, Frame)>,
}

impl Network {
    /// Whether a card is one of this process.
    pub(crate) fn is_here(&self, card: u32) -> bool {
        self.outbox.as_ref().is_none_or(|outbox| outbox.own == card)
    }

    /// The card of another process that has this GID, as all have them at first.
    pub(crate) fn card_elsewhere(&self, gid: &Gid, lid: u16) -> Option<u32> {
        self.outbox.as_ref()?;
        match (gid, lid) {
            ([.., high, low], 0) => Some(u32::from(*high) << 8 | u32::from(*low)),
            (_, lid) => Some(u32::from(lid) - 1),
        }
    }

    pub(crate) fn transmit(
        &mut self,
        card: u32,
        target: u32,
        arriving: &Arriving,
        pieces: &[Piece],
    ) -> Launch {
        let mut data = Vec::new();
        for piece in pieces.iter().filter(|_| !arriving.request.is_read()) {
            // SAFETY: checked range. It was looked up in its region just now.
            unsafe { memory::gather(*piece, &mut data) };
        }
        if let Some(pair) = self.pairs.find_mut(arriving.pair) {
            pair.sending.psn = (arriving.psn + 1) & 0xff_ffff;
        }
        if let Some(outbox) = &mut self.outbox {
            outbox.frames.push((card, Frame::Request { target, arriving: *arriving, data }));
        }
        Launch::Sent
    }

    /// A frame has come from another process.
    pub(crate) fn receive(&mut self, frame: Frame) {
        match frame {
            Frame::Request { target, arriving, data } => self.answer(target, &arriving, &data),
            Frame::Answer { target, psn, said, data } => {
                self.hear(target, psn, said, &data);
                self.drive(target);
            }
        }
    }

    /// Whether something that a pair has posted has no answer yet.
    pub(crate) fn awaits_answers(&self, number: u32) -> bool {
        let pair = self.pairs.find(number);
        pair.is_some_and(|pair| !pair.sending.halted && !pair.sending.entries.is_empty())
    }

    fn answer(&mut self, target: u32, arriving: &Arriving, data: &[u8]) {
        let Some(own) = self.outbox.as_ref().map(|outbox| outbox.own) else { return };
        if !self.can_reach(own, arriving.card) {
            return;
        }
        let piece = Piece { address: data.as_ptr() as u64, length: data.len() as u64 };
        let mut back = Vec::new();
        let said = match self.respond(own, target, arriving, &[piece]) {
            Answer::Silence => return,
            Answer::NotReady(timer) => Verdict::NotReady(timer),
            Answer::Refused(status) => Verdict::Refused(status),
            Answer::Done { mark, read, old } => {
                if arriving.request.is_read() {
                    let by_pair = self.options.behaviour.by_pair != 0;
                    self.card(own).flush(mark, by_pair.then_some(target));
                }
                if let Some(read) = read {
                    // SAFETY: checked range. It was looked up in its region just now.
                    unsafe { memory::gather(read, &mut back) };
                } else if arriving.request.opcode > opcode::READ {
                    back.extend(old.to_ne_bytes());
                }
                Verdict::Done
            }
        };
        let (to, psn) = (arriving.card, arriving.psn);
        let frame = Frame::Answer { target: arriving.pair, psn, said, data: back };
        if let Some(outbox) = &mut self.outbox {
            outbox.frames.push((to, frame));
        }
    }

    /// The oldest request that was sent and not answered, if the answer is for it.
    fn awaited(&self, number: u32, psn: u32) -> Option<usize> {
        let sending = &self.pairs.find(number)?.sending;
        let sent = sending.entries.iter().take(sending.launched);
        let waiting = sent.clone().filter(|entry| entry.outcome.is_none()).count() as u32;
        let expected = sending.psn.wrapping_sub(waiting) & 0xff_ffff;
        sent.clone().position(|entry| entry.outcome.is_none()).filter(|_| expected == psn)
    }

    fn hear(&mut self, number: u32, psn: u32, said: Verdict, data: &[u8]) {
        let Some(at) = self.awaited(number, psn) else { return };
        let Some(pair) = self.pairs.find_mut(number) else { return };
        let card = pair.parts.card;
        pair.sending.retry_at = None;
        let status = match said {
            Verdict::NotReady(timer) => {
                (pair.sending.launched, pair.sending.psn) = (at, psn);
                self.need_receive(number, timer);
                return;
            }
            Verdict::Refused(status) => status,
            Verdict::Done => status::SUCCESS,
        };
        pair.sending.rnr_at = None;
        pair.sending.halted |= status != status::SUCCESS;
        let waits = pair.sending.entries.iter().take(pair.sending.launched).skip(at + 1).len() > 0;
        let entry = &mut pair.sending.entries[at];
        let request = entry.request;
        entry.outcome = Some(Outcome { status, ..Outcome::default() });
        let payload = std::mem::replace(&mut entry.payload, Payload::Gone);
        if request.is_read()
            && status == status::SUCCESS
            && let Ok(into) = self.local_pieces(number, &request, payload.source())
        {
            let from = Piece { address: data.as_ptr() as u64, length: data.len() as u64 };
            let own_mark = self.scatter(card, number, true, Some(from), &into);
            let pair = self.pairs.find_mut(number);
            if let Some(entry) = pair.and_then(|pair| pair.sending.entries.get_mut(at)) {
                entry.outcome = Some(Outcome { status, own_mark, ..Outcome::default() });
            }
        }
        if waits {
            self.need_answer(number);
        }
    }
}
