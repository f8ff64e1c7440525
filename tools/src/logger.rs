//! gaspi_logger: prints what `gaspi_printf` of the ranks sends to this machine.
//!
//! One datagram is one text, printed at once and in one piece. Bytes stay as they are, but a
//! terminal gets no control characters, since any sender that reaches the port could control it.

use clap::Parser;
use gaspi_tools::signals::Signals;
use gaspi_tools::system::{self, Watch};
use std::io::{self, IsTerminal};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

/// Where ranks send to.
const PORT: u16 = 17825;
/// Bytes of the largest datagram that UDP carries; ranks send at most 1024.
const DATAGRAM_BYTES: usize = 65536;
/// Bytes of texts that the kernel keeps while the printing is slow.
const BUFFER_BYTES: i32 = 4 << 20;
/// Texts that are printed between two looks for signals.
const TEXTS_AT_A_TIME: usize = 4096;
/// What a pipe that is ready for writing takes without blocking (PIPE_BUF).
const PIECE: usize = 4096;

/// Prints the texts that GASPI programs send with gaspi_printf and gaspi_printf_to.
///
/// Start it on the host of rank 0, and for gaspi_printf_to on the hosts of the other ranks that are
/// written to, before the job. It prints until it is interrupted.
#[derive(Debug, Parser)]
#[command(name = "gaspi_logger", version, after_help = AFTER_HELP)]
struct Arguments {
    /// Listen on UDP port PORT instead of the one that programs send to; 0 takes a free one.
    #[arg(short = 'p', long = "port", value_name = "PORT", default_value_t = PORT,
          allow_negative_numbers = true)]
    port: u16,
}

const AFTER_HELP: &str = "\
Each text begins with its sender: [host:rank:number of the rank on its host]. Texts that nobody
listens for are lost; the sender does not wait. What is printed goes to standard output at once,
which port is listened on is said on standard error.

The exit status is 0 after an interrupt (Ctrl-C, SIGTERM, SIGHUP) or when the reader of the output
has gone, 1 if the port cannot be had, 2 for a wrong command line.

Examples:
  gaspi_logger                     print to this terminal
  gaspi_logger > log &             collect in a file";

/// A socket for IPv4 and IPv6 on all interfaces, for IPv4 only where there is no other.
fn listen(port: u16) -> io::Result<UdpSocket> {
    match listen_on_both(port) {
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL)) =>
        {
            UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))
        }
        result => result,
    }
}

fn listen_on_both(port: u16) -> io::Result<UdpSocket> {
    // SAFETY: makes a new descriptor.
    let fd = unsafe { libc::socket(libc::AF_INET6, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0)?;
    // SAFETY: all zeroes is a valid address: any interface.
    let mut address: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
    address.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    address.sin6_port = port.to_be();
    let size = size_of_val(&address) as libc::socklen_t;
    // SAFETY: reads the address, which has this size.
    if unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(UdpSocket::from(fd))
}

fn set_option(fd: BorrowedFd<'_>, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = size_of_val(&value) as libc::socklen_t;
    // SAFETY: reads an integer of this size.
    let set =
        unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), size) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What is printed for a datagram: whole lines, and for a terminal no control characters.
fn printable(text: &[u8], terminal: bool) -> Vec<u8> {
    let mut shown = Vec::with_capacity(text.len() + 1);
    for byte in text {
        match byte {
            0..32 | 127 if terminal && !matches!(byte, b'\n' | b'\t') => {
                shown.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
            }
            _ => shown.push(*byte),
        }
    }
    if !shown.is_empty() && !shown.ends_with(b"\n") {
        shown.push(b'\n');
    }
    shown
}

/// Prints what arrives until a signal asks for the end or the reader has gone.
fn print(socket: &UdpSocket, signals: &Signals, output: BorrowedFd<'_>) -> io::Result<()> {
    let terminal = output.is_terminal();
    let mut buffer = vec![0; DATAGRAM_BYTES];
    let watches = [Watch::input(signals.as_fd()), Watch::input(socket.as_fd()), Watch::end(output)];
    loop {
        let ready = system::wait(&watches, None);
        if ready[1] {
            for _ in 0..TEXTS_AT_A_TIME {
                let Ok((size, _)) = socket.recv_from(&mut buffer) else { break };
                if !write(&printable(&buffer[..size], terminal), signals, output)? {
                    return Ok(());
                }
            }
        }
        if ready[2] || signals.read().is_some() {
            return Ok(());
        }
    }
}

/// Writes a text; false if a signal came while there was no room for it.
fn write(mut text: &[u8], signals: &Signals, output: BorrowedFd<'_>) -> io::Result<bool> {
    let (signal, room) = (Watch::input(signals.as_fd()), Watch::room(output));
    while !text.is_empty() {
        if !system::ready(room) {
            system::wait(&[signal, room], None);
            if system::ready(signal) {
                return Ok(false);
            }
        }
        match system::write(output, &text[..text.len().min(PIECE)]) {
            Ok(written) => text = &text[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn run(arguments: &Arguments) -> Result<(), String> {
    let signals = Signals::take([libc::SIGINT, libc::SIGTERM, libc::SIGHUP])
        .map_err(|error| format!("taking signals: {error}"))?;
    let port = arguments.port;
    let socket = listen(port).map_err(|error| match error.raw_os_error() {
        Some(libc::EADDRINUSE) => format!(
            "UDP port {port} is in use, probably by another gaspi_logger on this machine; end that \
             one, or listen on another port with -p"
        ),
        Some(libc::EACCES) => {
            format!("UDP port {port} is for the administrator only; choose one from 1024 on")
        }
        _ => format!("listening on UDP port {port}: {error}"),
    })?;
    // Less room only loses texts earlier.
    let _ = set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, BUFFER_BYTES);
    let address = socket.set_nonblocking(true).and_then(|()| socket.local_addr());
    let port = address.as_ref().map_or(port, SocketAddr::port);
    eprintln!("gaspi_logger: listening on UDP port {port}");
    match print(&socket, &signals, io::stdout().as_fd()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(format!("writing to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("gaspi_logger: {message}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_lines() {
        assert_eq!(printable(b"[h:   0:0] one\ntwo", false), b"[h:   0:0] one\ntwo\n");
        assert_eq!(printable(b"done\n", true), b"done\n");
        assert_eq!(printable(b"", false), b"");
        assert_eq!(printable(b"\xff\x00\x1b[2J", false), b"\xff\x00\x1b[2J\n");
    }

    #[test]
    fn a_terminal_is_not_controlled() {
        assert_eq!(
            printable(b"a\tb\x1b[2J\x07\xc3\xa4\r\n", true),
            b"a\tb\\x1b[2J\\x07\xc3\xa4\\x0d\n"
        );
    }
}
