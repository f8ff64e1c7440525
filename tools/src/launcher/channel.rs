//! The pipes or the socket between gaspi_run and an agent: frames in and out, without blocking.

use crate::protocol::{FRAME_MAX, Frame};
use gaspi_core::bootstrap::{Encrypted, RecordLayer, Tampered};
use gaspi_core::os::socket;
use gaspi_tools::system;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes read at a time.
const READ: usize = 64 << 10;
/// Bytes read before the loop that owns this looks at its other duties.
const READ_MAX: usize = 1 << 20;

/// Both directions of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    /// `None` once it is not listened to any more.
    from: Option<OwnedFd>,
    /// `None` once it is closed, by us or by the other side.
    to: Option<OwnedFd>,
    /// What encrypts both directions; pipes are as safe as what connects them.
    records: Option<RecordLayer>,
    incoming: Vec<u8>,
    /// Bytes of `incoming` that were taken.
    taken: usize,
    outgoing: Vec<u8>,
    /// Bytes of `outgoing` that were written.
    written: usize,
    ended: bool,
    /// What came is not what the other side has sent.
    tampered: Option<Tampered>,
}

impl Channel {
    /// Over these pipes, which no longer block from now on.
    pub(crate) fn new(from: OwnedFd, to: OwnedFd) -> io::Result<Channel> {
        system::set_nonblocking(from.as_fd())?;
        system::set_nonblocking(to.as_fd())?;
        Ok(Channel {
            from: Some(from),
            to: Some(to),
            records: None,
            incoming: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            written: 0,
            ended: false,
            tampered: None,
        })
    }

    /// Over a connection that both have made, which is encrypted.
    pub(crate) fn over(Encrypted { fd, records }: Encrypted) -> io::Result<Channel> {
        let mut channel = Channel::new(fd.try_clone()?, fd)?;
        channel.records = Some(records);
        Ok(channel)
    }

    /// To nobody.
    pub(crate) fn closed() -> Channel {
        Channel {
            from: None,
            to: None,
            records: None,
            incoming: Vec::new(),
            taken: 0,
            outgoing: Vec::new(),
            written: 0,
            ended: true,
            tampered: None,
        }
    }

    /// To be read from; `None` after its end.
    pub(crate) fn readable(&self) -> Option<BorrowedFd<'_>> {
        self.from.as_ref().filter(|_| !self.ended).map(|from| from.as_fd())
    }

    /// To be written to, if something waits for that.
    pub(crate) fn writable(&self) -> Option<BorrowedFd<'_>> {
        let pending = self.pending();
        self.to.as_ref().filter(|_| pending).map(|to| to.as_fd())
    }

    /// Whether something waits to be written.
    pub(crate) fn pending(&self) -> bool {
        self.to.is_some() && self.written < self.outgoing.len()
    }

    /// Whether the other side has closed.
    pub(crate) fn ended(&self) -> bool {
        self.ended
    }

    /// Why nothing more is heard, if the other side has not closed.
    pub(crate) fn wrong(&self) -> Option<String> {
        self.tampered.map(|tampered| tampered.to_string())
    }

    /// Reads what has come, and says how many bytes.
    pub(crate) fn fill(&mut self) -> usize {
        let mut read = 0;
        while !self.ended && read < READ_MAX {
            match self.piece() {
                Ok(0) => self.ended = true,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.ended = true,
            }
        }
        read
    }

    fn piece(&mut self) -> io::Result<usize> {
        let Some(from) = &self.from else { return Ok(0) };
        let Some(records) = &mut self.records else {
            return system::read_onto(from.as_fd(), &mut self.incoming, READ);
        };
        let mut came = Vec::new();
        let read = system::read_onto(from.as_fd(), &mut came, READ)?;
        self.tampered = records.open(&came, &mut self.incoming).err();
        Ok(if self.tampered.is_some() { 0 } else { read })
    }

    /// The bytes that have come and are no frames yet.
    pub(crate) fn take_bytes(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.incoming);
        bytes.drain(..std::mem::take(&mut self.taken));
        bytes
    }

    /// Puts back what was behind them.
    pub(crate) fn put_back(&mut self, bytes: Vec<u8>) {
        self.incoming = bytes;
        self.taken = 0;
    }

    /// The next frame that has come whole; an error says what is wrong.
    pub(crate) fn next<T: Frame>(&mut self) -> Result<Option<T>, String> {
        let found = T::decode(&self.incoming[self.taken..]);
        match found.map_err(|malformed| malformed.0.to_owned())? {
            Some((frame, len)) => {
                self.taken += len;
                Ok(Some(frame))
            }
            None => {
                self.incoming.drain(..self.taken);
                self.taken = 0;
                debug_assert!(self.incoming.len() <= FRAME_MAX + 4 + READ_MAX + READ);
                Ok(None)
            }
        }
    }

    /// Says a frame; [`Channel::flush`] writes it.
    pub(crate) fn say(&mut self, frame: &impl Frame) {
        self.queue(&frame.encode());
    }

    /// Queues bytes.
    pub(crate) fn queue(&mut self, bytes: &[u8]) {
        match &mut self.records {
            _ if self.to.is_none() => {}
            Some(records) => records.seal(bytes, &mut self.outgoing),
            None => self.outgoing.extend_from_slice(bytes),
        }
    }

    /// Writes what there is room for.
    pub(crate) fn flush(&mut self) {
        while self.pending()
            && let Some(to) = &self.to
        {
            match system::write(to.as_fd(), &self.outgoing[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) => match error.kind() {
                    io::ErrorKind::Interrupted => {}
                    io::ErrorKind::WouldBlock => break,
                    _ => self.close(),
                },
            }
        }
        if !self.pending() {
            self.outgoing.clear();
            self.written = 0;
        } else if self.written > READ_MAX {
            self.outgoing.drain(..self.written);
            self.written = 0;
        }
    }

    /// Neither says nor hears anything any more.
    pub(crate) fn hang_up(&mut self) {
        self.close();
        self.from = None;
        self.ended = true;
    }

    /// Says nothing any more, which the other side sees.
    pub(crate) fn close(&mut self) {
        if let Some(to) = self.to.take() {
            // A socket has another descriptor still; for a pipe this means nothing.
            socket::end_sending(to.as_fd());
        }
        self.outgoing.clear();
        self.written = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Down;

    /// Both ends of a connection, and a descriptor of it that neither knows of.
    fn encrypted() -> (Channel, Channel, OwnedFd) {
        let (one, two) = socket::pair().expect("sockets");
        let third = one.try_clone().expect("descriptor");
        let (there, back) = ([1; 32], [2; 32]);
        let over = |fd, sent, received| {
            let records = RecordLayer::new(sent, received);
            Channel::over(Encrypted { fd, records }).expect("channel")
        };
        (over(one, &there, &back), over(two, &back, &there), third)
    }

    fn pair() -> (Channel, Channel) {
        let (from_one, to_two) = io::pipe().expect("pipe");
        let (from_two, to_one) = io::pipe().expect("pipe");
        let one = Channel::new(from_one.into(), to_one.into()).expect("channel");
        (one, Channel::new(from_two.into(), to_two.into()).expect("channel"))
    }

    #[test]
    fn more_than_a_pipe_holds_arrives_in_order() {
        arrives_in_order(pair());
        let (one, two, _third) = encrypted();
        arrives_in_order((one, two));
    }

    #[test]
    fn what_the_other_end_has_not_sent_ends_the_connection() {
        let (mut one, mut two, third) = encrypted();
        one.say(&Down::Start);
        one.flush();
        two.fill();
        assert_eq!((two.next(), two.ended()), (Ok(Some(Down::Start)), false));
        assert_eq!(two.wrong(), None);
        system::write(third.as_fd(), &Down::Start.encode().repeat(10)).expect("write");
        two.fill();
        assert_eq!((two.next::<Down>(), two.ended()), (Ok(None), true));
        assert!(two.wrong().is_some_and(|wrong| wrong.contains("was not encrypted")));
    }

    fn arrives_in_order((mut one, mut two): (Channel, Channel)) {
        let sent: Vec<Down> = (0..200).map(|n| Down::Input(vec![n; 5000])).collect();
        sent.iter().for_each(|frame| one.say(frame));
        let mut got = Vec::new();
        while got.len() < sent.len() {
            one.flush();
            two.fill();
            while let Some(frame) = two.next::<Down>().expect("frame") {
                got.push(frame);
            }
        }
        assert!(got == sent && !one.pending());
        one.close();
        two.fill();
        assert!(two.ended() && two.next::<Down>() == Ok(None));
    }

    #[test]
    fn a_side_that_has_gone_is_no_error() {
        let (mut one, two) = pair();
        drop(two);
        one.say(&Down::Start);
        one.flush();
        assert!(!one.pending());
        one.fill();
        assert!(one.ended());
    }
}
