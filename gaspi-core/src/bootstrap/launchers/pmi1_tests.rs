//! The conversation with a process manager, and process managers that misbehave.

use super::*;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

fn task() -> Task {
    Task { rank: crate::ids::Rank(1), size: Some(4), size_by: None }
}

/// What comes of a manager that does with its end of the connection what `act` says.
fn met<T: Send>(
    act: impl FnOnce(UnixStream) + Send,
    then: impl FnOnce(Result<(Identity, Box<dyn ProcessManager>)>) -> T + Send,
) -> T {
    let (own, other) = UnixStream::pair().expect("sockets");
    thread::scope(|scope| {
        scope.spawn(move || act(other));
        let found = then(open(own.as_raw_fd() as u64, task(), 1, false));
        drop(own);
        found
    })
}

fn refusal(act: impl FnOnce(UnixStream) + Send) -> String {
    met(act, |found| found.map(drop).expect_err("accepted").to_string())
}

/// Answers the commands in order; says which came.
fn answer(stream: UnixStream, answers: &[&str]) -> Vec<String> {
    let mut connection =
        Connection { stream: File::from(std::os::fd::OwnedFd::from(stream)), rest: Vec::new() };
    let mut commands = Vec::new();
    for answer in answers {
        let Ok(line) = connection.line("a command", None) else { break };
        commands.push(line);
        if connection.send(format!("{answer}\n").as_bytes()).is_err() {
            break;
        }
    }
    commands
}

const BEGIN: [&str; 3] = [
    "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
    "cmd=my_kvsname kvsname=kvs_1_0_ant",
];

#[test]
fn a_conversation() {
    let commands = std::sync::Mutex::new(Vec::new());
    let answers = [
        &BEGIN[..],
        &[
            "cmd=put_result rc=0 msg=success",
            "cmd=barrier_out",
            "cmd=get_result rc=0 msg=success value=gaspi1,x",
            "cmd=finalize_ack",
        ],
    ]
    .concat();
    met(
        |stream| *commands.lock().expect("lock") = answer(stream, &answers),
        |found| {
            let (identity, mut manager) = found.expect("opened");
            assert_eq!((identity.id.as_str(), identity.size), ("pmi-kvs_1_0_ant", 4));
            assert_eq!(manager.value_max(), 1023);
            manager.publish("v").expect("published");
            manager.fence().expect("met");
            assert_eq!(manager.read().expect("read"), "gaspi1,x");
            manager.close();
        },
    );
    let commands = commands.into_inner().expect("lock");
    assert_eq!(
        commands,
        [
            "cmd=init pmi_version=1 pmi_subversion=1",
            "cmd=get_maxes",
            "cmd=get_my_kvsname",
            "cmd=put kvsname=kvs_1_0_ant key=gaspi-contact value=v",
            "cmd=barrier_in",
            "cmd=get kvsname=kvs_1_0_ant key=gaspi-contact",
            "cmd=finalize",
        ]
    );
}

/// Answers each command only once it is told to, and says that it has come.
fn answer_slowly(stream: UnixStream, answers: &[&str], (came, go_on): (Sender<()>, Receiver<()>)) {
    let mut connection =
        Connection { stream: File::from(std::os::fd::OwnedFd::from(stream)), rest: Vec::new() };
    for answer in answers {
        connection.line("a command", None).expect("a command");
        came.send(()).expect("the test waits");
        go_on.recv().expect("the test goes on");
        connection.send(format!("{answer}\n").as_bytes()).expect("sent");
    }
}

#[test]
fn a_slow_manager_holds_nobody_beyond_the_timeout() {
    const GUARD: Duration = Duration::from_secs(60);
    let contact = format!("gaspi1,{},{},192.0.2.1", "a5".repeat(32), "0".repeat(16));
    let found = format!("cmd=get_result rc=0 value={contact}");
    let answers = [&BEGIN[..], &["cmd=barrier_out", &found, "cmd=finalize_ack"]].concat();
    let (own, other) = UnixStream::pair().expect("sockets");
    let ((came, comes), (go_on, wait)) = (mpsc::channel(), mpsc::channel());
    thread::scope(|scope| {
        scope.spawn(|| answer_slowly(other, &answers, (came, wait)));
        // A failure of this test ends that thread too.
        let go_on = go_on;
        let (place, fd) = (session::Place::new(), own.as_raw_fd() as u64);
        let start = |limit| {
            let deadline = Deadline::Never.at_most(limit);
            place.session(("the manager", deadline), move || open(fd, task(), 1, false))
        };
        // Each of the first three questions outlives a start, and is not asked again.
        for _ in BEGIN {
            let error = start(Duration::from_millis(1)).expect_err("no answer yet");
            assert!(error.is_timeout() && error.to_string().contains("the manager"), "{error}");
            comes.recv_timeout(GUARD).expect("a question");
            assert!(start(Duration::from_millis(1)).expect_err("none yet").is_timeout());
            go_on.send(()).expect("the manager waits");
        }
        let session = start(GUARD).expect("it has answered");
        // Nor does the wait for the other ranks hold anybody, or what is read after it.
        for _ in &answers[BEGIN.len()..] {
            assert_eq!(session.poll().expect("under way"), None);
            comes.recv_timeout(GUARD).expect("a question");
            assert_eq!(session.poll().expect("under way"), None);
            go_on.send(()).expect("the manager waits");
        }
        system::wait(&[(session.as_fd(), false)], Deadline::Never.at_most(GUARD), None);
        assert!(session.poll().expect("an answer").is_some(), "where the ranks meet");
        assert!(comes.recv_timeout(GUARD).is_err(), "asked again");
    });
}

#[test]
fn managers_that_are_none() {
    for (answers, why) in [
        (&["nonsense"][..], "answered \"nonsense\" where response_to_init was due"),
        (&["cmd=response_to_init rc=-1 msg=version"], "refused (response_to_init, rc=-1): version"),
        (&[BEGIN[0], "cmd=maxes vallen_max=12"], "values of 12 bytes"),
        (&[BEGIN[0], "cmd=maxes"], "values of 0 bytes"),
        (&[BEGIN[0], BEGIN[1], "cmd=my_kvsname"], "does not tell the name of the job"),
    ] {
        let text = refusal(|stream| drop(answer(stream, answers)));
        assert!(text.contains(why) && text.contains("gaspi_run"), "{answers:?}: {text}");
    }
    let text = refusal(drop);
    assert!(text.contains("cannot be asked (init)") || text.contains("has closed"), "{text}");
    // A line without an end.
    let text = refusal(|mut stream| {
        let _ = stream.write_all(&vec![b'x'; 10 << 20]);
    });
    assert!(text.contains("more than 16384 bytes"), "{text}");
}

#[test]
fn descriptors_that_are_none() {
    let refused = |fd| open(fd, task(), 0, false).map(drop).expect_err("accepted").to_string();
    let file = File::open("/proc/self/exe").expect("file");
    let text = refused(file.as_raw_fd() as u64);
    assert!(text.contains("it is no socket"), "{text}");
    for (fd, why) in [(1_000_000, "Bad file descriptor"), (u64::MAX, "no file descriptor")] {
        let text = refused(fd);
        assert!(text.contains(why) && text.contains(&fd.to_string()), "{text}");
    }
}

#[test]
fn a_reason_of_the_process_manager_is_told() {
    let answers = [&BEGIN[..], &["cmd=get_result rc=-1 msg=key_not_found value=unknown"]].concat();
    met(
        |stream| drop(answer(stream, &answers)),
        |found| {
            let (_, mut manager) = found.expect("opened");
            let text = manager.read().expect_err("there is none");
            assert!(text.contains("key_not_found"), "{text}");
        },
    );
}

#[test]
fn mutated_answers_end_in_an_answer_or_an_error() {
    crate::fuzzed::run("answer of PMI", 64 << 10, |seed| {
        let mut bytes = BEGIN[seed.below(3) as usize].as_bytes().to_vec();
        seed.mutate(&mut bytes);
        if let Ok(answer) = Answer::parse(&String::from_utf8_lossy(&bytes), "maxes") {
            assert_eq!(answer.value("cmd"), Some("maxes"));
            let _ = answer.number("vallen_max");
        }
    });
}
