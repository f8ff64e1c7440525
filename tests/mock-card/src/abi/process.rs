//! Cards of other processes: each process has one card, and a socket in the directory that
//! GASPI_MOCK_DIR names. As within a process a card mixes requests of its pairs and places bytes
//! late, if options say so; but an answer comes as soon as its request has been carried out, and
//! what a read has to follow is placed when it is answered.
//!
//! Frames to a card go through a thread of their own, which connects at the first one. What comes
//! is carried out by the thread that reads it. A frame that cannot be delivered is dropped, as
//! packets are: the sending pair gives up after its retries.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread;

use super::running::Fabric;
use crate::model::pair::Request;
use crate::model::remote::{Frame, Verdict};
use crate::model::transfer::Arriving;

/// Cards that a directory has room for.
const CARDS: u32 = 4096;
/// The largest frame that is read: a message, and what is in front of it.
const LARGEST: u64 = (1 << 30) + 4096;

/// The place of this process among others.
#[derive(Debug)]
pub(super) struct Place {
    folder: PathBuf,
    pub(super) card: u32,
    /// Locked as long as the process lives: the number belongs to it.
    _lock: File,
}

impl Place {
    /// Takes the lowest number that no living process has.
    pub(super) fn take(folder: &Path) -> io::Result<Place> {
        for card in 0..CARDS {
            let lock = File::create(folder.join(format!("card{card}.lock")))?;
            // SAFETY: no pointers.
            if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
                return Ok(Place { folder: folder.to_path_buf(), card, _lock: lock });
            }
        }
        Err(io::Error::other(format!("{} has {CARDS} cards", folder.display())))
    }

    /// Listens to other processes from now on.
    pub(super) fn listen(&self, fabric: &Arc<Fabric>) -> io::Result<()> {
        let path = socket(&self.folder, self.card);
        if path.exists() {
            fs::remove_file(&path)?;
        }
        let (listener, fabric) = (UnixListener::bind(path)?, fabric.clone());
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let fabric = fabric.clone();
                thread::spawn(move || receive(stream, &fabric));
            }
        };
        thread::Builder::new().name("mock card accept".into()).spawn(accept).map(|_| ())
    }

    /// A way to another card.
    pub(super) fn way(&self, card: u32) -> mpsc::Sender<Frame> {
        let (way, frames) = mpsc::channel::<Frame>();
        let path = socket(&self.folder, card);
        thread::spawn(move || {
            let mut stream = None;
            for frame in frames {
                if stream.is_none() {
                    stream = UnixStream::connect(&path).ok();
                }
                let sent = stream.as_mut().map(|stream| stream.write_all(&encode(&frame)));
                if !matches!(sent, Some(Ok(()))) {
                    stream = None;
                }
            }
        });
        way
    }
}

fn socket(folder: &Path, card: u32) -> PathBuf {
    folder.join(format!("card{card}.sock"))
}

/// Reads frames until the other process ends.
fn receive(mut stream: UnixStream, fabric: &Fabric) {
    while let Ok(frame) = read(&mut stream) {
        fabric.receive(frame);
    }
}

/// Length, kind and fields, each of 8 bytes, then the data.
fn encode(frame: &Frame) -> Vec<u8> {
    let (fields, data) = match frame {
        Frame::Request { target, arriving, data } => {
            let Arriving { card, pair, psn, mtu, reads, request } = *arriving;
            let Request { id, opcode, flags, immediate, remote, key, length, operands } = request;
            let mut fields = vec![0];
            fields.extend([*target, card, pair, psn, mtu].map(u64::from));
            fields.push(reads as u64);
            fields.extend([opcode, flags, immediate, key].map(u64::from));
            fields.extend([id, remote, length, operands[0], operands[1]]);
            (fields, data)
        }
        Frame::Answer { target, psn, said, data } => {
            let said = match *said {
                Verdict::Done => [0, 0],
                Verdict::NotReady(timer) => [1, u64::from(timer)],
                Verdict::Refused(status) => [2, u64::from(status)],
            };
            (vec![1, u64::from(*target), u64::from(*psn), said[0], said[1]], data)
        }
    };
    let mut bytes = Vec::with_capacity(8 * (fields.len() + 1) + data.len());
    bytes.extend((8 * fields.len() as u64 + data.len() as u64).to_le_bytes());
    fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
    bytes.extend(data);
    bytes
}

fn read(stream: &mut impl Read) -> io::Result<Frame> {
    let mut length = [0; 8];
    stream.read_exact(&mut length)?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes)?;
    decode(&bytes).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn decode(bytes: &[u8]) -> Option<Frame> {
    let mut rest = bytes;
    let mut next = || {
        let (field, more) = rest.split_first_chunk::<8>()?;
        rest = more;
        Some(u64::from_le_bytes(*field))
    };
    match next()? {
        0 => {
            let target = next()? as u32;
            let (card, pair, psn) = (next()? as u32, next()? as u32, next()? as u32);
            let (mtu, reads) = (next()? as u32, next()? as usize);
            let (opcode, flags) = (next()? as u32, next()? as u32);
            let (immediate, key) = (next()? as u32, next()? as u32);
            let (id, remote, length) = (next()?, next()?, next()?);
            let operands = [next()?, next()?];
            let request = Request { id, opcode, flags, immediate, remote, key, length, operands };
            let arriving = Arriving { card, pair, psn, mtu, reads, request };
            Some(Frame::Request { target, arriving, data: rest.to_vec() })
        }
        1 => {
            let (target, psn) = (next()? as u32, next()? as u32);
            let said = match (next()?, next()?) {
                (0, _) => Verdict::Done,
                (1, timer) => Verdict::NotReady(timer as u8),
                (_, status) => Verdict::Refused(status as u32),
            };
            Some(Frame::Answer { target, psn, said, data: rest.to_vec() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Frame {
        let request = Request {
            id: 1,
            opcode: 2,
            flags: 3,
            immediate: 4,
            remote: 5,
            key: 6,
            length: 7,
            operands: [8, 9],
        };
        let arriving = Arriving { card: 10, pair: 11, psn: 12, mtu: 13, reads: 14, request };
        Frame::Request { target: 15, arriving, data: vec![16; 7] }
    }

    #[test]
    fn frames_survive_their_way() {
        let answers = [Verdict::Done, Verdict::NotReady(3), Verdict::Refused(10)]
            .map(|said| Frame::Answer { target: 1, psn: 2, said, data: vec![3] });
        for frame in answers.into_iter().chain([request()]) {
            let bytes = encode(&frame);
            let found = read(&mut bytes.as_slice()).unwrap();
            assert_eq!(format!("{found:?}"), format!("{frame:?}"));
        }
    }

    #[test]
    fn cut_frames_are_refused() {
        let bytes = encode(&request());
        assert!((8..8 + 15 * 8).all(|end| decode(&bytes[8..end]).is_none()));
        assert!(read(&mut [0xff_u8; 16].as_slice()).is_err());
    }
}
