//! Handshakes of the two sides with each other, in pieces of any size, and with unauthenticated
//! peers.

use super::*;
use crate::fuzzed::Seed;
use proptest::prelude::*;

const SIZE: u32 = 8;
const DATA: Purpose = Purpose::Data;

fn secret(job: u8, key: u8) -> Secret {
    Secret { job: [job; JOB], key: [key; SECRET] }
}

fn client(secret: &Secret, from: u32, to: u32, purpose: Purpose) -> Client {
    Client::new(secret, from, Peer { rank: to, purpose }, [3; SECRET])
}

fn server(secret: &Secret, rank: u32) -> Server {
    Server::new(secret, rank, SIZE, [4; SECRET])
}

/// Passes what both say in pieces of the sizes that `piece` gives, until nothing more comes.
fn talk(client: &mut Client, server: &mut Server, mut piece: impl FnMut() -> usize) {
    loop {
        let mut quiet = true;
        while !client.output().is_empty() && server.wants() > 0 {
            let count = piece().max(1).min(client.output().len());
            let taken = server.receive(&client.output()[..count]);
            client.sent(taken);
            quiet = false;
        }
        while !server.output().is_empty() && client.wants() > 0 {
            let count = piece().max(1).min(server.output().len());
            let taken = client.receive(&server.output()[..count]);
            server.sent(taken);
            quiet = false;
        }
        if quiet {
            return;
        }
    }
}

fn outcome(client: &mut Client, server: &mut Server) -> (State, State) {
    talk(client, server, || usize::MAX);
    (client.state().clone(), server.state().clone())
}

fn reason(state: &State) -> &str {
    match state {
        State::Refused(reason) => reason,
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn the_server_refuses_in_words_what_only_it_can_know() {
    let ours = secret(1, 2);
    type Case<'a> = (Client, Server, &'a str, &'a str);
    let cases: [Case<'_>; 4] = [
        (
            client(&secret(9, 2), 1, 5, DATA),
            server(&ours, 5),
            "a process of another job listens there",
            "it belongs to another job",
        ),
        (
            client(&ours, 1, 4, DATA),
            server(&ours, 5),
            "another rank of the job listens there",
            "it looks for rank 4, and this is rank 5",
        ),
        (
            client(&ours, SIZE, 5, DATA),
            server(&ours, 5),
            "another rank of the job",
            "it says to be rank 8, and the job has ranks 0 to 7",
        ),
        (
            client(&ours, 1, 5, DATA),
            server(&ours, HUB),
            "another rank of the job",
            "it looks for rank 5, and this is the host of the meeting",
        ),
    ];
    for (mut client, mut server, at_client, at_server) in cases {
        let (c, s) = outcome(&mut client, &mut server);
        let other_job = at_client.contains("another job");
        assert_eq!(client.met(), if other_job { Met::OtherJob } else { Met::SameJob });
        assert!(reason(&c).contains(at_client), "{c:?}");
        assert!(reason(&s).contains(at_server), "{s:?}");
    }
}

#[test]
fn another_key_is_seen_by_the_client_first() {
    let (mut client, mut server) = (client(&secret(1, 2), 1, 5, DATA), server(&secret(1, 3), 5));
    let (c, s) = outcome(&mut client, &mut server);
    assert!(reason(&c).contains("does not know the key of this job"), "{c:?}");
    assert_eq!(client.met(), Met::SameJob);
    assert_eq!(client.output(), b"", "nothing that helps to find the key");
    assert_eq!(s, State::Pending);
    // The client closes.
    assert_eq!(server.ended(), "who says to be rank 1 did not prove to know the key of this job");
}

#[test]
fn a_client_without_the_key_is_seen_by_the_server() {
    let ours = secret(1, 2);
    let (mut client, mut server) = (client(&ours, 1, 5, DATA), server(&ours, 5));
    server.receive(client.output());
    client.receive(server.output());
    let mut proof = client.output().to_vec();
    proof[31] ^= 1;
    server.receive(&proof);
    assert!(reason(server.state()).contains("did not prove"), "{:?}", server.state());
}

#[test]
fn another_version_is_told_to_both() {
    let ours = secret(1, 2);
    let (mut client, mut server) = (client(&ours, 1, 5, DATA), server(&ours, 5));
    let mut hello = client.output().to_vec();
    hello[4] = 200;
    // A hello of another length than ours.
    server.receive(&hello[..20]);
    assert!(reason(server.state()).contains("speaks version 200"), "{:?}", server.state());
    let mut refusal = server.output().to_vec();
    refusal[4] = 200;
    client.receive(&refusal);
    assert_eq!(client.met(), Met::OtherVersion);
    let text = reason(client.state());
    assert!(text.contains("version 200") && text.contains(&format!("version {VERSION}")), "{text}");
}

#[test]
fn strangers_cost_a_few_bytes() {
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 500], b"SSH-2.0-OpenSSH_9.2\r\n"] {
        let mut server = server(&secret(1, 2), 5);
        assert!(server.receive(bytes) <= HELLO);
        assert_eq!(reason(server.state()), "it is no gaspi process");
        assert_eq!((server.output(), server.wants()), (&b""[..], 0));
        let mut client = client(&secret(1, 2), 1, 5, DATA);
        client.receive(bytes);
        assert_eq!(client.met(), Met::Nobody);
        assert_eq!(reason(client.state()), "whoever listens there is no gaspi process");
    }
    assert_eq!(server(&secret(1, 2), 5).ended(), "it did not say anything");
    assert!(size_of::<Server>() + size_of::<Client>() < 1024);
}

#[test]
fn what_was_said_once_proves_nothing_again() {
    let ours = secret(1, 2);
    let (mut first, mut heard) = (client(&ours, 1, 5, DATA), server(&ours, 5));
    let hello = first.output().to_vec();
    heard.receive(&hello);
    first.receive(heard.output());
    let proof = first.output().to_vec();
    heard.receive(&proof);
    assert!(matches!(heard.state(), State::Done(_)));
    // The same words to a server with a fresh nonce.
    let mut again = Server::new(&ours, 5, SIZE, [5; SECRET]);
    again.receive(&hello);
    again.receive(&proof);
    assert!(matches!(again.state(), State::Refused(_)));
    // A server's own challenge sent back is no proof: the labels differ.
    let mut mirror = Server::new(&ours, 5, SIZE, [5; SECRET]);
    mirror.receive(&hello);
    let mac = mirror.output()[ANSWER + SECRET..].to_vec();
    mirror.receive(&mac);
    assert!(matches!(mirror.state(), State::Refused(_)));
}

#[test]
fn keys_differ_by_secret_and_job() {
    let (a, b) = (job_name("a"), job_name("b"));
    assert_ne!(a, b);
    assert_ne!(derived_key(b"s", &a), derived_key(b"s", &b));
    assert_ne!(derived_key(b"s", &a), derived_key(b"t", &a));
    assert_eq!(derived_key(b"s", &a), derived_key(b"s", &a));
    assert!(!format!("{:?}", secret(1, 222)).contains("222"), "a key is never shown");
}

proptest! {
    #[test]
    fn both_sides_agree_whatever_the_pieces(
        pieces in prop::collection::vec(1usize..80, 1..40),
        (from, rank) in (0..SIZE, 0..SIZE),
        purpose in 0usize..4,
        behind in any::<Vec<u8>>(),
    ) {
        let ours = secret(1, 2);
        let purpose = Purpose::ALL[purpose];
        let (mut client, mut server) = (client(&ours, from, rank, purpose), server(&ours, rank));
        let mut sizes = pieces.iter().copied().cycle();
        talk(&mut client, &mut server, || sizes.next().unwrap_or(1));
        prop_assert_eq!(client.state(), &State::Done(Peer { rank, purpose }));
        prop_assert_eq!(server.state(), &State::Done(Peer { rank: from, purpose }));
        // Whatever follows is not the handshake's.
        prop_assert_eq!(server.receive(&behind) + client.receive(&behind), 0);
    }

    #[test]
    fn one_changed_bit_ends_it(
        which in 0usize..3,
        at in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let ours = secret(1, 2);
        let (mut client, mut server) = (client(&ours, 1, 5, DATA), server(&ours, 5));
        for step in 0..3 {
            let from_client = step != 1;
            let mut said =
                if from_client { client.output().to_vec() } else { server.output().to_vec() };
            if step == which {
                let at = at.index(said.len());
                // Bytes without a meaning count too: the macs cover them.
                said[at] ^= 1 << bit;
            }
            if from_client {
                let taken = server.receive(&said);
                client.sent(taken);
            } else {
                client.receive(&said);
            }
        }
        prop_assert!(!matches!(server.state(), State::Done(_)), "{:?}", server.state());
    }
}

/// Says one handshake with something wrong in it, and returns whether the server believed that.
fn mutated(seed: &mut Seed) -> bool {
    let ours = secret(1, 2);
    let purpose = Purpose::ALL[seed.below(4) as usize];
    let from = if seed.below(8) == 0 { HUB } else { seed.below(u64::from(SIZE)) as u32 };
    let (mut client, mut server) = (client(&ours, from, 5, purpose), server(&ours, 5));
    let (step, kind) = (seed.below(3), seed.below(5));
    let mut changed = false;
    for turn in 0..3 {
        let mut said = if turn == 1 { server.output().to_vec() } else { client.output().to_vec() };
        if turn == step {
            let original = said.clone();
            mutate(&mut said, kind, seed);
            // The random bytes may be those that were there.
            changed = !said.starts_with(&original);
        }
        let piece = 1 + seed.below(120) as usize;
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
    changed && matches!(server.state(), State::Done(_))
}

fn mutate(said: &mut Vec<u8>, kind: u64, seed: &mut Seed) {
    let at = seed.below(said.len().max(1) as u64) as usize;
    match kind {
        0 => said.truncate(at),
        1 => said.iter_mut().skip(at).for_each(|byte| *byte = seed.next_u64() as u8),
        2 => said.insert(at, seed.next_u64() as u8),
        3 => drop(said.drain(at..said.len().min(at + 1))),
        _ => said.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 + seed.below(255) as u8),
    }
}

#[test]
fn mutated_handshakes_are_never_believed() {
    crate::fuzzed::run("handshake", 4096, |seed| assert!(!mutated(seed), "it was believed"));
}

/// Every message of a handshake, byte for byte: both sides may come from different builds.
#[test]
fn bytes_on_the_wire_stay_the_same() {
    let ours = secret(1, 2);
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut said = Vec::new();
    let (mut one, mut other) =
        (client(&ours, 0x0102, 5, DATA), Server::new(&ours, 5, 0x0200, [4; SECRET]));
    assert!(one.records().is_none() && other.records().is_none(), "nothing is proved");
    said.push(hex(one.output()));
    other.receive(one.output());
    one.sent(HELLO);
    said.push(hex(other.output()));
    one.receive(other.output());
    said.push(hex(one.output()));
    other.receive(one.output());
    assert_eq!(other.state(), &State::Done(Peer { rank: 0x0102, purpose: DATA }));
    let (mut ends, mut opened) = ([one.records(), other.records()].map(Option::unwrap), Vec::new());
    for (from, to) in [(0, 1), (1, 0)] {
        let mut sealed = Vec::new();
        ends[from].seal(b"gaspi", &mut sealed);
        ends[to].open(&sealed, &mut opened).expect("the other side's key");
        said.push(hex(&sealed));
    }
    assert_eq!(opened, b"gaspigaspi");
    for (at, byte) in [(4, 200), (6, 77), (8, 9), (28, 6)] {
        let mut hello = client(&ours, 1, 5, Purpose::Meeting).output().to_vec();
        hello[at] = byte;
        let mut server = server(&ours, 5);
        server.receive(&hello);
        assert!(matches!(server.state(), State::Refused(_)));
        said.push(hex(server.output()));
    }
    let expected: Vec<&str> = include_str!("handshake_golden.txt").lines().collect();
    assert_eq!(said, expected, "\n{}", said.join("\n"));
}
