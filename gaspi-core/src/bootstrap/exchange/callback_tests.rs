//! Calls of processes that were invited, and of strangers, over loopback.

use super::*;
use std::io::Write;
use std::net::TcpStream;
use std::thread;

/// Far beyond what anything here takes.
const GUARD: Duration = Duration::from_secs(20);
/// How long a caller tries.
const CALL_LIMIT: Duration = Duration::from_secs(5);

fn callbacks() -> Callbacks {
    Callbacks::listen_for(Audience::ThisHost).expect("a listener")
}

fn hosts() -> Vec<(u32, String)> {
    vec![(0, "ant".to_owned()), (7, "bee".to_owned())]
}

/// What comes of connections next.
fn next(callbacks: &mut Callbacks) -> Callback {
    let end = Instant::now() + GUARD;
    while Instant::now() < end {
        if let Some(found) = callbacks.serve().pop() {
            return found;
        }
        let fds: Vec<_> = callbacks.watches().collect();
        system::wait(&fds, Timeout::from(GUARD).deadline(), Some(Duration::from_millis(100)));
    }
    panic!("nothing came");
}

fn refusal(callbacks: &mut Callbacks) -> String {
    match next(callbacks) {
        Callback::Refused { reason, from } if from.ip().is_loopback() => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_was_invited_is_let_in_by_its_number() {
    let mut callbacks = callbacks();
    let bytes = callbacks.invitation(hosts()).encode();
    let more = [&bytes[..], b"more"].concat();
    let mut stream = &more[..];
    let invitation = Invitation::read(&mut stream).expect("an invitation");
    assert!(stream == b"more" && invitation.hosts == hosts());
    for number in [7, 0] {
        let invitation = invitation.clone();
        let caller = thread::spawn(move || invitation.call_back(number, CALL_LIMIT));
        let Callback::Came { host, connection } = next(&mut callbacks) else { panic!("refused") };
        assert_eq!(host, number);
        let mut called = caller.join().expect("thread").expect("connection");
        let mut bytes = Vec::new();
        called.records.seal(b"what follows", &mut bytes);
        TcpStream::from(called.fd).write_all(&bytes).expect("write");
        let Encrypted { fd, mut records } = connection;
        let mut stream = TcpStream::from(fd);
        stream.set_nonblocking(false).expect("blocking");
        let (mut came, mut said) = (Vec::new(), Vec::new());
        stream.read_to_end(&mut came).expect("what follows");
        assert!(!came.windows(4).any(|window| window == b"what"), "in clear");
        records.open(&came, &mut said).expect("what follows");
        assert_eq!(said, b"what follows");
    }
}

#[test]
fn strangers_are_refused_and_told_why() {
    let mut callbacks = callbacks();
    let mut invitation = callbacks.invitation(hosts());
    // One refusal each.
    invitation.endpoints.truncate(1);
    invitation.secret.key[3] ^= 1;
    let other_key = invitation.clone();
    let caller = thread::spawn(move || other_key.call_back(0, CALL_LIMIT));
    let reason = refusal(&mut callbacks);
    assert!(reason.contains("did not prove to know the key"), "{reason}");
    let words = caller.join().expect("thread").expect_err("let in");
    assert!(words.contains("does not know the key of this job"), "{words}");
    invitation.secret.job[0] ^= 1;
    let other_job = invitation.clone();
    let caller = thread::spawn(move || other_job.call_back(0, CALL_LIMIT));
    assert!(refusal(&mut callbacks).contains("belongs to another job"));
    let words = caller.join().expect("thread").expect_err("let in");
    assert!(words.contains("a process of another job listens there"), "{words}");
    let at = callbacks.endpoints[0];
    let mut scan = TcpStream::connect(at).expect("connection");
    scan.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("write");
    assert!(refusal(&mut callbacks).contains("it is no gaspi process"));
    drop(TcpStream::connect(at).expect("connection"));
    assert!(refusal(&mut callbacks).contains("it did not say anything"));
}

#[test]
fn a_launcher_that_is_not_there_is_named_with_its_addresses() {
    let callbacks = callbacks();
    let (invitation, at) = (callbacks.invitation(hosts()), callbacks.endpoints[0]);
    drop(callbacks);
    let words = invitation.call_back(0, CALL_LIMIT).expect_err("nobody");
    assert!(words.contains(&at.to_string()) && words.contains("refused"), "{words}");
}

#[test]
fn an_answering_kernel_is_no_silence() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("listener");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("client");
    let is_unanswered = |stream: &TcpStream| {
        tcp::is_unanswered(stream.as_fd(), Duration::ZERO).expect("what the kernel knows")
    };
    assert!(!is_unanswered(&client));
    // Nobody reads: the window is full, but the kernel answers.
    client.set_nonblocking(true).expect("not blocking");
    while (&client).write(&[0; 65536]).is_ok() {}
    assert!(!is_unanswered(&client));
}

#[test]
fn mutated_invitations_are_refused_or_read_but_never_more() {
    let secret = Secret { job: [1; JOB], key: [2; SECRET] };
    let endpoints = vec![
        SocketAddr::from(([192, 0, 2, 1], 20480)),
        SocketAddr::from(([0xfd77, 0, 0, 0, 0, 0, 0, 1], 20480)),
    ];
    let sample = Invitation { secret, endpoints, hosts: hosts() }.encode();
    crate::fuzzed::run("invitation", 1 << 16, |seed| {
        let mut bytes = sample.clone();
        seed.mutate(&mut bytes);
        let read = Invitation::read(&bytes[..]);
        if let Ok(Some(decoded)) = Invitation::decode(&bytes) {
            let again = decoded.encode();
            assert_eq!(again, bytes[..again.len()], "it was read otherwise than written");
            assert!(read.is_ok());
        } else {
            assert!(read.is_err());
        }
    });
}
