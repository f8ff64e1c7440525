//! Decoders of what comes from outside, for cargo-fuzz: only compiled with `--cfg fuzzing`, which
//! that tool sets. Each function takes what the fuzzer made up and panics if something is wrong.

use crate::bootstrap::cards::Image;
use crate::bootstrap::exchange::message::Message;
use crate::bootstrap::exchange::relay_protocol::{self, RelayDecoder, RelayFrame};
use crate::bootstrap::{Cards, Invitation};
use crate::wire::frame::{Frame, PREFIX};
use crate::wire::handshake::{Client, JOB, Peer, Purpose, SECRET, Secret, Server, State};

/// The frame of a peer that has proved who it is, behind its length.
pub fn frame(bytes: &[u8]) {
    if let Some(frame) = Frame::decode(bytes) {
        let again = frame.encode();
        assert_eq!(Frame::decode(&again[PREFIX..]), Some(frame));
    }
}

/// A message of a rank or of its meeting.
pub fn message(bytes: &[u8]) {
    let Some((flag, rest)) = bytes.split_first() else { return };
    let bytes = with_length(*flag, rest);
    if let Ok(Some((message, len))) = Message::decode(&bytes) {
        assert!(len <= bytes.len());
        assert_eq!(Message::decode(&message.encode()), Ok(Some((message.clone(), len))));
    }
}

/// The image of all cards that the server of a machine hands out.
pub fn cards(bytes: &[u8]) {
    let Ok(cards) = Cards::new(Image::Own(bytes.into())) else { return };
    for card in cards.iter() {
        let _ = (card.pid(), card.node(), card.host(), card.listener());
        let _ = (card.cpus().count(), card.endpoints().count(), card.networks().count());
    }
}

/// What an agent of gaspi_run reads to learn how to call back.
pub fn invitation(bytes: &[u8]) {
    let Some((flag, rest)) = bytes.split_first() else { return };
    let bytes = with_length(*flag, rest);
    if let Ok(invitation) = Invitation::read(&bytes[..]) {
        assert!(bytes.starts_with(&invitation.encode()), "it was read otherwise than written");
    }
}

/// What comes over a link between two meetings, behind the greeting.
pub fn envelopes(bytes: &[u8]) {
    let Some((flag, rest)) = bytes.split_first() else { return };
    let bytes = with_length(*flag, rest);
    let piece = 1 + usize::from(flag >> 2);
    if flag & 2 == 0 {
        let hello = relay_protocol::ToHub::Hello { version: relay_protocol::VERSION }.encode();
        unpack::<relay_protocol::ToHub>(&hello, &bytes, piece);
    } else {
        let hello = relay_protocol::ToRelay::Hello { version: relay_protocol::VERSION }.encode();
        unpack::<relay_protocol::ToRelay>(&hello, &bytes, piece);
    }
}

fn unpack<T: RelayFrame>(hello: &[u8], bytes: &[u8], piece: usize) {
    let mut decoder = RelayDecoder::default();
    for piece in std::iter::once(hello).chain(bytes.chunks(piece)) {
        decoder.feed(piece);
        loop {
            match decoder.next::<T>() {
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// The bytes behind a length that fits, where the flag wants that, so that the fields are looked
/// at.
fn with_length(flag: u8, bytes: &[u8]) -> Vec<u8> {
    if flag & 1 == 0 {
        return bytes.to_vec();
    }
    let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    [&len.to_le_bytes(), bytes].concat()
}

/// A stranger's words to either side, and a true handshake with changes on its way.
pub fn handshake(bytes: &[u8]) {
    let Some((flag, rest)) = bytes.split_first() else { return };
    let secret = Secret { job: [1; JOB], key: [2; SECRET] };
    let purposes = [Purpose::Data, Purpose::Keepalive, Purpose::Probe, Purpose::Meeting];
    let purpose = purposes[usize::from(flag & 3)];
    let mut client = Client::new(&secret, 1, Peer { rank: 5, purpose }, [3; SECRET]);
    let mut server = Server::new(&secret, 5, 8, [4; SECRET]);
    let piece = 1 + usize::from(flag >> 3);
    if flag & 4 == 0 {
        for piece in rest.chunks(piece) {
            client.receive(piece);
            server.receive(piece);
        }
        assert!(!matches!(server.state(), State::Done(_)), "a stranger was believed");
        assert!(!matches!(client.state(), State::Done(_)), "a stranger was believed");
        let _ = (client.ended(), server.ended());
        return;
    }
    let mut changes = rest.iter();
    let mut changed = false;
    for turn in 0..3 {
        let mut said = if turn == 1 { server.output().to_vec() } else { client.output().to_vec() };
        for (byte, change) in said.iter_mut().zip(&mut changes) {
            *byte ^= change;
            changed |= *change != 0;
        }
        for piece in said.chunks(piece) {
            if turn == 1 {
                client.receive(piece);
            } else {
                server.receive(piece);
            }
        }
        if turn == 0 {
            client.sent(said.len());
        }
    }
    let _ = (client.ended(), server.ended());
    let believed = matches!(server.state(), State::Done(_));
    assert_eq!(believed, !changed, "a changed handshake was believed, or a true one was not");
}
