//! The real gaspi_logger: what arrives is printed, and how it ends.

mod harness;

use harness::{GUARD, Run, ended};
use std::io::Read;
use std::net::UdpSocket;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

/// A logger on a free port, and the port.
fn logger() -> (Run, u16) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_logger"));
    command.args(["-p", "0"]).stdin(Stdio::null());
    let run = Run::start(command);
    let mut text = String::new();
    let deadline = Instant::now() + GUARD;
    while !text.ends_with('\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        let bytes = run.stderr.recv_timeout(left).expect("port");
        text.push_str(&String::from_utf8_lossy(&bytes));
    }
    let port = text.trim().rsplit(' ').next().and_then(|port| port.parse().ok());
    (run, port.unwrap_or_else(|| panic!("{text}")))
}

/// The port that a logger says.
fn port_of(logger: &mut Child) -> u16 {
    let stderr = logger.stderr.as_mut().expect("stderr");
    let mut text = Vec::new();
    while !text.ends_with(b"\n") {
        let mut byte = [0];
        stderr.read_exact(&mut byte).expect("port");
        text.push(byte[0]);
    }
    let text = String::from_utf8(text).expect("text");
    text.trim().rsplit(' ').next().and_then(|port| port.parse().ok()).expect("port")
}

fn send(from: &str, to: &str, port: u16, text: &[u8]) {
    let socket = UdpSocket::bind((from, 0)).expect("socket");
    assert_eq!(socket.send_to(text, (to, port)).expect("send"), text.len());
}

#[test]
fn what_arrives_is_printed_line_by_line() {
    let (mut run, port) = logger();
    send("127.0.0.1", "127.0.0.1", port, b"[node7:   1:1] hello\n");
    assert_eq!(run.lines(1), ["[node7:   1:1] hello"]);
    send("127.0.0.1", "127.0.0.1", port, b"no newline");
    assert_eq!(run.lines(2)[1], "no newline");
    send("127.0.0.1", "127.0.0.1", port, b"");
    send("127.0.0.1", "127.0.0.1", port, &[b'x'; 1024]);
    assert_eq!(run.lines(3)[2].len(), 1024);
    send("127.0.0.1", "127.0.0.1", port, b"bytes \xff\x00\xfe");
    run.lines(4);
    assert!(run.seen.ends_with(b"bytes \xff\x00\xfe\n"));
    send("127.0.0.1", "127.0.0.1", port, b"one\ntwo\n");
    assert_eq!(run.lines(6)[4..], ["one", "two"]);
    run.signal("TERM");
    run.finish().success();
}

#[test]
fn texts_may_come_by_ipv6() {
    if UdpSocket::bind("[::1]:0").is_err() {
        // The kernel has no IPv6, so nothing is sent by it.
        return;
    }
    let (mut run, port) = logger();
    send("::1", "::1", port, b"six\n");
    assert_eq!(run.lines(1), ["six"]);
    run.signal("INT");
    run.finish().success();
}

#[test]
fn a_port_in_use_is_told() {
    let (run, port) = logger();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_logger"));
    command.args(["-p", &port.to_string()]).stdin(Stdio::null());
    let outcome = Run::start(command).finish();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    for word in [&*port.to_string(), "in use", "-p"] {
        assert!(outcome.stderr.contains(word), "{word}: {}", outcome.stderr);
    }
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    run.signal("HUP");
    run.finish().success();
    // Also where only IPv4 is taken.
    let other = UdpSocket::bind("0.0.0.0:0").expect("socket");
    let port = other.local_addr().expect("address").port();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_logger"));
    command.args(["-p", &port.to_string()]).stdin(Stdio::null());
    assert_eq!(Run::start(command).finish().code, Some(1));
}

/// A logger whose output nobody reads yet, its output, and its port.
fn unread_logger() -> (Child, ChildStdout, u16) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_gaspi_logger"))
        .args(["-p", "0"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("gaspi_logger");
    let unread = child.stdout.take().expect("stdout");
    let port = port_of(&mut child);
    (child, unread, port)
}

/// Sends more than a pipe holds, and waits until printing has begun.
fn fill(unread: &mut ChildStdout, port: u16) {
    for _ in 0..200 {
        send("127.0.0.1", "127.0.0.1", port, &[b'x'; 1000]);
    }
    unread.read_exact(&mut [0; 1]).expect("first byte");
}

#[test]
fn a_reader_that_does_not_read_does_not_keep_it_from_ending() {
    let (child, mut unread, port) = unread_logger();
    fill(&mut unread, port);
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().expect("kill").success());
    assert_eq!(ended(child).code(), Some(0));
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    // Also where nothing comes.
    let (child, unread, _) = unread_logger();
    drop(unread);
    assert_eq!(ended(child).code(), Some(0));
    let (child, mut unread, port) = unread_logger();
    fill(&mut unread, port);
    drop(unread);
    assert_eq!(ended(child).code(), Some(0));
}

#[test]
fn help_tells_the_port() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_logger"));
    command.arg("-h").stdin(Stdio::null());
    let outcome = Run::start(command).finish().success();
    assert!(outcome.stdout.contains("17825"), "{}", outcome.stdout);
    let mut command = Command::new(env!("CARGO_BIN_EXE_gaspi_logger"));
    command.args(["-p", "70000"]).stdin(Stdio::null());
    assert_eq!(Run::start(command).finish().code, Some(2));
}
