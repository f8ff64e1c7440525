//! How two processes of a job prove to each other that they know its key, before anything else is
//! said on a connection: pure bytes and state, without sockets or clocks.
//!
//! ```text
//! client  hello      magic u32 | version u16 | purpose u8 | 0 u8 | job 16 B | from u32 |
//!                    to u32 | nonce 32 B
//! server  challenge  magic u32 | version u16 | 1 u8 | 0 u8 | nonce 32 B |
//!                    mac("gaspi server" | hello | nonce)
//!      or refusal    magic u32 | version u16 | 2 u8 | code u8
//! client  proof      mac("gaspi client" | hello | challenge)
//! ```
//!
//! mac is HMAC-SHA-256 with the key of the job; numbers are little-endian. Both macs cover who
//! speaks to whom, for what, in which job, and the fresh nonces of both sides, so that nothing can
//! be replayed, reflected or passed on to another rank. What follows the proof is the caller's;
//! between servers of an exchange it is encrypted ([`super::record_layer`]), with keys that are
//! macs of "gaspi sealed by client" or "gaspi sealed by server", hello and challenge.
//!
//! Invariant: neither side keeps more than [`HELLO`] and [`CHALLENGE`] bytes of what an
//! unauthenticated peer says, and nobody reads past the handshake: [`Handshake::wants`] tells
//! how much to read.

use super::codec::{Decoded, Fixed, Output, Reader, Writer};
use super::record_layer::RecordLayer;
pub(crate) use super::secret::{JOB, SECRET, Secret, derived_key, job_name};
use hmac::{Hmac, Mac};
use sha2::Sha256;

/// The version of connections between hosts: the handshake and the frames that follow it.
pub(crate) const VERSION: u16 = 20;
/// In the place of a rank: the process that hosts the meeting of the job.
pub(crate) const HUB: u32 = u32::MAX;

const MAGIC: [u8; 4] = *b"GASP";
const HELLO: usize = 4 + 2 + 1 + 1 + JOB + 4 + 4 + SECRET;
const ANSWER: usize = 4 + 2 + 1 + 1;
const CHALLENGE: usize = ANSWER + SECRET + SECRET;
const KIND_CHALLENGE: u8 = 1;
const KIND_REFUSAL: u8 = 2;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Purpose {
    /// Frames.
    Data,
    /// Lifetime idle: its end tells that the peer's process or host has ended.
    Keepalive,
    /// Finds out whether an address can be reached, then ends.
    Probe,
    /// Ranks of another host join the meeting.
    Meeting,
}

impl Purpose {
    const ALL: [Purpose; 4] = [Purpose::Data, Purpose::Keepalive, Purpose::Probe, Purpose::Meeting];

    fn code(self) -> u8 {
        match self {
            Purpose::Data => 1,
            Purpose::Keepalive => 2,
            Purpose::Probe => 3,
            Purpose::Meeting => 4,
        }
    }

    fn from_code(code: u8) -> Option<Purpose> {
        Purpose::ALL.into_iter().find(|purpose| purpose.code() == code)
    }
}

/// How far a handshake is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// It goes on.
    Pending,
    /// Both have proved to know the key. What [`Client::output`] still holds has to be sent first.
    Done(Peer),
    /// It has failed, for this reason. What [`Server::output`] still holds tells the other side.
    Refused(String),
}

/// Whom a completed handshake is with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Peer {
    /// The rank, or [`HUB`].
    pub(crate) rank: u32,
    /// What it wants.
    pub(crate) purpose: Purpose,
}

impl Secret {
    fn of_server(&self, hello: &[u8; HELLO], nonce: &[u8]) -> Hmac<Sha256> {
        self.mac(b"gaspi server", [hello, nonce])
    }

    fn of_client(&self, hello: &[u8; HELLO], challenge: &[u8]) -> Hmac<Sha256> {
        self.mac(b"gaspi client", [hello, challenge])
    }
}

/// Why a server refuses, as its refusal says it: no more than an unauthenticated peer may know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Code {
    Version,
    Job,
    Rank,
    Purpose,
}

impl Code {
    const ALL: [Code; 4] = [Code::Version, Code::Job, Code::Rank, Code::Purpose];
}

/// What a client says first.
#[derive(Debug)]
struct Hello {
    purpose: u8,
    job: [u8; JOB],
    from: u32,
    to: u32,
    nonce: [u8; SECRET],
}

impl Hello {
    fn encode(&self) -> [u8; HELLO] {
        let mut bytes = Fixed::<HELLO>::new();
        let mut writer = Writer::new(&mut bytes);
        writer.array(&MAGIC).u16(VERSION).u8(self.purpose).u8(0).array(&self.job);
        writer.u32(self.from).u32(self.to).array(&self.nonce);
        *bytes.bytes()
    }

    /// Of this version: magic and version have been looked at.
    fn decode(bytes: &[u8; HELLO]) -> Decoded<Hello> {
        let mut reader = Reader::new(bytes);
        let (_magic, _version) = (reader.array::<4>()?, reader.u16()?);
        let (purpose, _zero) = (reader.u8()?, reader.u8()?);
        let (job, from, to) = (reader.array()?, reader.u32()?, reader.u32()?);
        Ok(Hello { purpose, job, from, to, nonce: reader.array()? })
    }
}

/// How an answer of the server begins.
#[derive(Debug)]
struct Answer {
    magic: [u8; 4],
    version: u16,
    kind: u8,
    code: u8,
}

impl Answer {
    fn new(kind: u8, code: u8) -> Answer {
        Answer { magic: MAGIC, version: VERSION, kind, code }
    }

    fn write<O: Output>(&self, writer: &mut Writer<O>) {
        writer.array(&self.magic).u16(self.version).u8(self.kind).u8(self.code);
    }

    /// An error while it has not come whole.
    fn read(reader: &mut Reader<'_>) -> Decoded<Answer> {
        Ok(Answer {
            magic: reader.array()?,
            version: reader.u16()?,
            kind: reader.u8()?,
            code: reader.u8()?,
        })
    }
}

/// Bytes to send.
#[derive(Debug, Clone)]
struct Out {
    bytes: Fixed<CHALLENGE>,
    sent: usize,
}

impl Out {
    const EMPTY: Out = Out { bytes: Fixed::new(), sent: 0 };

    /// Only these, all of them still to be sent.
    fn of(bytes: &[u8]) -> Out {
        let mut out = Out::EMPTY;
        out.bytes.put(bytes);
        out
    }

    fn rest(&self) -> &[u8] {
        &self.bytes.bytes()[self.sent..self.bytes.len()]
    }

    fn sent(&mut self, count: usize) {
        self.sent = (self.sent + count).min(self.bytes.len());
    }
}

/// Bytes that have come.
#[derive(Debug, Clone)]
struct In(Fixed<CHALLENGE>);

impl In {
    const EMPTY: In = In(Fixed::new());

    fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> &[u8] {
        &self.0.bytes()[..self.len()]
    }

    /// Takes from `bytes` until `wanted` have come; how many it took.
    fn take(&mut self, bytes: &[u8], wanted: usize) -> usize {
        let count = bytes.len().min(wanted.saturating_sub(self.len()));
        self.0.put(&bytes[..count]);
        count
    }
}

/// Whom a client has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Met {
    /// No process of this library, or none that answered.
    Nobody,
    /// One of another version, whose job is not known.
    OtherVersion,
    /// One of another job.
    OtherJob,
    /// One that has or claims the name of the same job.
    SameJob,
}

/// One side of a handshake: [`Client`] or [`Server`].
#[derive(Debug)]
pub(crate) struct Handshake<S> {
    secret: Secret,
    hello: [u8; HELLO],
    out: Out,
    came: In,
    state: State,
    side: S,
}

/// What differs between the sides.
pub(crate) trait Side: Sized {
    /// How many bytes the peer's present message has, after `came` of them have come.
    fn expects(&self, came: usize) -> usize;
    /// Looks at the bytes that have come.
    fn look(handshake: &mut Handshake<Self>);
    /// Why a handshake that is not over fails, if the peer closes the connection now.
    fn unfinished(handshake: &Handshake<Self>) -> String;
    /// What the server has said, once the handshake is over.
    fn challenge(handshake: &Handshake<Self>) -> &[u8];
    /// What goes before the keys that this side sends and receives with.
    const LABELS: [&[u8]; 2];
}

/// What goes before the key of what the client sends, and of what the server sends.
const SEALED_BY_CLIENT: &[u8] = b"gaspi sealed by client";
const SEALED_BY_SERVER: &[u8] = b"gaspi sealed by server";

impl<S: Side> Handshake<S> {
    fn start(secret: &Secret, hello: [u8; HELLO], out: Out, side: S) -> Handshake<S> {
        let secret = secret.clone();
        Handshake { secret, hello, out, came: In::EMPTY, state: State::Pending, side }
    }

    /// Bytes to send now, also after a refusal: it tells the client why.
    pub(crate) fn output(&self) -> &[u8] {
        self.out.rest()
    }

    /// So many of them were sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.out.sent(count);
    }

    /// How many bytes to read at most; 0 once the handshake is over.
    pub(crate) fn wants(&self) -> usize {
        match self.state {
            State::Pending => self.side.expects(self.came.len()) - self.came.len(),
            _ => 0,
        }
    }

    /// Takes bytes that have come, at most [`Handshake::wants`] at a time, and returns how many it
    /// took: the rest belongs to whatever follows.
    pub(crate) fn receive(&mut self, bytes: &[u8]) -> usize {
        let mut taken = 0;
        while taken < bytes.len() && self.wants() > 0 {
            let wanted = self.came.len() + self.wants();
            taken += self.came.take(&bytes[taken..], wanted);
            S::look(self);
        }
        taken
    }

    /// What encrypts the connection, with a key for each direction that only both sides can make;
    /// none unless the handshake is [done](State::Done).
    pub(crate) fn records(&self) -> Option<RecordLayer> {
        let State::Done(_) = self.state else { return None };
        let key = |label| {
            let key = self.secret.mac(label, [&self.hello, S::challenge(self)]);
            key.finalize().into_bytes().into()
        };
        let [sent, received] = S::LABELS.map(key);
        Some(RecordLayer::new(&sent, &received))
    }

    /// How far it is.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// Why it failed, if the other side closed the connection now, or did not go on in time.
    pub(crate) fn ended(&self) -> String {
        match &self.state {
            State::Refused(reason) => reason.clone(),
            _ => S::unfinished(self),
        }
    }
}

/// The side that connects.
pub(crate) type Client = Handshake<Connecting>;

/// What the side that connects knows.
#[derive(Debug)]
pub(crate) struct Connecting {
    to: Peer,
}

impl Client {
    /// A connection of rank `from` to the one that `to` names. `nonce` is fresh and random.
    pub(crate) fn new(secret: &Secret, from: u32, to: Peer, nonce: [u8; SECRET]) -> Client {
        let (purpose, job) = (to.purpose.code(), secret.job);
        let hello = Hello { purpose, job, from, to: to.rank, nonce }.encode();
        Handshake::start(secret, hello, Out::of(&hello), Connecting { to })
    }

    /// Whom it has met, as far as the answer tells.
    pub(crate) fn met(&self) -> Met {
        match Answer::read(&mut Reader::new(self.came.bytes())) {
            Ok(Answer { magic, version, kind, code }) if magic == MAGIC => match kind {
                KIND_REFUSAL if code == Code::Job as u8 => Met::OtherJob,
                KIND_REFUSAL if code == Code::Version as u8 => Met::OtherVersion,
                _ if version != VERSION => Met::OtherVersion,
                _ => Met::SameJob,
            },
            _ => Met::Nobody,
        }
    }

    fn look_at_answer(&mut self) {
        let mut reader = Reader::new(self.came.bytes());
        let Ok(answer) = Answer::read(&mut reader) else { return };
        if answer.magic != MAGIC {
            let reason = "whoever listens there is no gaspi process";
            self.state = State::Refused(reason.to_owned());
        } else if answer.kind == KIND_REFUSAL {
            self.state = State::Refused(refusal(answer.code, answer.version));
        } else if answer.version != VERSION || answer.kind != KIND_CHALLENGE {
            self.state = State::Refused(other_version(answer.version));
        } else if let (Ok(nonce), Ok(mac)) = (reader.array::<SECRET>(), reader.array::<SECRET>()) {
            if self.secret.of_server(&self.hello, &nonce).verify_slice(&mac).is_err() {
                let reason = "whoever listens there does not know the key of this job";
                self.state = State::Refused(reason.to_owned());
                return;
            }
            let challenge = self.came.bytes();
            let proof = self.secret.of_client(&self.hello, challenge).finalize().into_bytes();
            // The hello has been answered, so it was sent.
            self.out = Out::of(&proof);
            self.state = State::Done(self.side.to);
        }
    }
}

impl Side for Connecting {
    const LABELS: [&[u8]; 2] = [SEALED_BY_CLIENT, SEALED_BY_SERVER];

    fn challenge(client: &Client) -> &[u8] {
        client.came.bytes()
    }

    fn expects(&self, came: usize) -> usize {
        if came < ANSWER { ANSWER } else { CHALLENGE }
    }

    fn look(client: &mut Client) {
        client.look_at_answer();
    }

    fn unfinished(_: &Client) -> String {
        "whoever listens there closed the connection during the handshake: no rank of this job, \
         or one that is ending or has too many connections"
            .to_owned()
    }
}

fn other_version(version: u16) -> String {
    format!(
        "the other side speaks version {version} of connections between hosts, this one version \
         {VERSION}; use one version of the library on all hosts"
    )
}

/// What a refusal tells the client.
fn refusal(code: u8, version: u16) -> String {
    match Code::ALL.into_iter().find(|known| *known as u8 == code) {
        Some(Code::Version) => other_version(version),
        Some(Code::Job) => "a process of another job listens there".to_owned(),
        Some(Code::Rank) => "another rank of the job listens there".to_owned(),
        Some(Code::Purpose) | None => format!("it was refused (code {code})"),
    }
}

/// The side that listens.
pub(crate) type Server = Handshake<Listening>;

/// What the side that listens knows.
#[derive(Debug)]
pub(crate) struct Listening {
    rank: u32,
    size: u32,
    nonce: [u8; SECRET],
    /// The peer as its hello names it, once that has come.
    peer: Option<Peer>,
    challenge: [u8; CHALLENGE],
}

impl Server {
    /// Whether the other side has named this job and one of its ranks, which nothing proves yet.
    pub(crate) fn has_greeted(&self) -> bool {
        self.side.peer.is_some()
    }

    /// Somebody has connected to `rank` (or [`HUB`]) of a job of `size` ranks. `nonce` is fresh and
    /// random.
    pub(crate) fn new(secret: &Secret, rank: u32, size: u32, nonce: [u8; SECRET]) -> Server {
        let side = Listening { rank, size, nonce, peer: None, challenge: [0; CHALLENGE] };
        Handshake::start(secret, [0; HELLO], Out::EMPTY, side)
    }

    /// Whether it has named the job, rightly.
    pub(crate) fn knows_job(&self) -> bool {
        self.side.peer.is_some()
    }

    fn look_at_hello(&mut self) {
        let came = self.came.bytes();
        let expected = &MAGIC[..came.len().min(MAGIC.len())];
        if !came.starts_with(expected) {
            // A port scan, or another protocol: nobody would understand an answer.
            self.state = State::Refused("it is no gaspi process".to_owned());
            return;
        }
        // The version comes first, so that hellos of other versions may have another length.
        let mut reader = Reader::new(&came[expected.len()..]);
        if let Ok(version) = reader.u16()
            && version != VERSION
        {
            return self.refuse(Code::Version, other_version(version));
        }
        let Ok(bytes) = came.try_into() else { return };
        self.hello = bytes;
        let Ok(hello) = Hello::decode(&self.hello) else { return };
        let Hello { purpose, job, from, to, .. } = hello;
        if job != self.secret.job {
            return self.refuse(Code::Job, "it belongs to another job".to_owned());
        }
        if to != self.side.rank {
            let reason =
                format!("it looks for {}, and this is {}", Named(to), Named(self.side.rank));
            return self.refuse(Code::Rank, reason);
        }
        if from != HUB && from >= self.side.size {
            let reason = format!(
                "it says to be {}, and the job has ranks 0 to {}",
                Named(from),
                self.side.size.saturating_sub(1)
            );
            return self.refuse(Code::Rank, reason);
        }
        let Some(purpose) = Purpose::from_code(purpose) else {
            return self.refuse(Code::Purpose, format!("it wants something unknown ({purpose})"));
        };
        self.came = In::EMPTY;
        self.side.peer = Some(Peer { rank: from, purpose });
        self.challenge();
    }

    /// Asks for a proof, and gives one.
    fn challenge(&mut self) {
        let mac = self.secret.of_server(&self.hello, &self.side.nonce).finalize().into_bytes();
        let mut writer = Writer::new(&mut self.out.bytes);
        Answer::new(KIND_CHALLENGE, 0).write(&mut writer);
        writer.array(&self.side.nonce).raw(&mac);
        self.side.challenge = *self.out.bytes.bytes();
    }

    fn refuse(&mut self, code: Code, reason: String) {
        Answer::new(KIND_REFUSAL, code as u8).write(&mut Writer::new(&mut self.out.bytes));
        self.state = State::Refused(reason);
    }

    fn look_at_proof(&mut self, peer: Peer) {
        let expected = self.secret.of_client(&self.hello, &self.side.challenge);
        self.state = match expected.verify_slice(self.came.bytes()) {
            Ok(()) => State::Done(peer),
            Err(_) => State::Refused(self.ended()),
        };
    }
}

impl Side for Listening {
    const LABELS: [&[u8]; 2] = [SEALED_BY_SERVER, SEALED_BY_CLIENT];

    fn challenge(server: &Server) -> &[u8] {
        &server.side.challenge
    }

    fn expects(&self, _came: usize) -> usize {
        if self.peer.is_none() { HELLO } else { SECRET }
    }

    fn look(server: &mut Server) {
        match server.side.peer {
            None => server.look_at_hello(),
            Some(peer) if server.came.len() == SECRET => server.look_at_proof(peer),
            Some(_) => {}
        }
    }

    fn unfinished(server: &Server) -> String {
        match server.side.peer {
            None if server.came.len() == 0 => "it did not say anything".to_owned(),
            None => "it did not say who it is".to_owned(),
            Some(peer) => format!(
                "who says to be {} did not prove to know the key of this job",
                Named(peer.rank)
            ),
        }
    }
}

/// A side of a connection, in words.
struct Named(u32);

impl std::fmt::Display for Named {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            HUB => write!(f, "the host of the meeting"),
            rank => write!(f, "rank {rank}"),
        }
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
