//! `gaspi_printf` and `gaspi_printf_to`: one datagram to the logger on a rank's host.
//!
//! Stable Rust cannot define variadic functions, so the exported names are stubs that jump into
//! `printf.c`, which formats and calls [`deliver`] back.

use crate::config;
use crate::logging;
use crate::runtime;
use gaspi_core::os::cancel;
use gaspi_core::{Rank, Runtime};
use std::arch::naked_asm;
use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Where `gaspi_logger` listens.
const PORT: u16 = 17825;
/// Bytes of the largest datagram, its opening included.
const DATAGRAM_BYTES: usize = 1024;
/// After so long a host that had no address is asked for again.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

unsafe extern "C" {
    /// Defined in printf.c; variadic, reached by a jump only.
    fn gaspiffi_printf();
    /// Defined in printf.c; variadic, reached by a jump only.
    fn gaspiffi_printf_to();
    /// Defined in printf.c: C's standard output.
    fn gaspiffi_print(text: *const u8, size: usize);
}

/// The instruction that goes to a symbol and leaves all registers as they are.
#[cfg(target_arch = "x86_64")]
macro_rules! go_to {
    () => {
        "jmp {}"
    };
}
#[cfg(target_arch = "aarch64")]
macro_rules! go_to {
    () => {
        "b {}"
    };
}

/// A stub that leaves all argument registers as they are.
macro_rules! jump {
    ($name:literal, $target:ident) => {
        const _: () = {
            /// See the header.
            #[unsafe(naked)]
            #[unsafe(export_name = $name)]
            unsafe extern "C" fn stub() {
        naked_asm!(go_to!(), sym $target);
            }
        };
    };
}

jump!("gaspi_printf", gaspiffi_printf);
jump!("pgaspi_printf", gaspiffi_printf);
jump!("gaspi_printf_to", gaspiffi_printf_to);
jump!("pgaspi_printf_to", gaspiffi_printf_to);

// The way back from C. A name made by the assembler is visible to the linker but not exported from
// the shared library, which a `no_mangle` function would be.
std::arch::global_asm!(
    ".globl gaspiffi_deliver",
    ".hidden gaspiffi_deliver",
    ".type gaspiffi_deliver, @function",
    "gaspiffi_deliver:",
    go_to!(),
    sym deliver_from_c,
);

/// Called by printf.c with a formatted text, for a rank that its caller has named or not.
unsafe extern "C" fn deliver_from_c(is_named: i32, rank: u32, text: *const u8, size: usize) {
    // SAFETY: printf.c passes its buffer, which holds `size` bytes and which nobody else knows.
    let text = unsafe { std::slice::from_raw_parts(text, size) };
    // The error cannot be reported: the C procedure returns nothing.
    let call = if is_named == 0 { "printf" } else { "printf_to" };
    let _ = catch_unwind(AssertUnwindSafe(|| deliver(call, rank as u16, text)));
}

/// Sends a text to the logger of a rank, or prints it where there is no job. `call` is the
/// procedure that an error names.
pub(crate) fn deliver(call: &str, rank: u16, text: &[u8]) {
    let _uncancelled = cancel::hold_off();
    if runtime::refuse_fork().is_err() || !config::logger() {
        return;
    }
    let Ok(rt) = runtime::hold() else {
        print_bytes(text);
        return;
    };
    if let Err(reason) = send(&rt, Rank(rank), text) {
        logging::report(call, &reason);
    }
}

/// Prints a text to C's standard output, in order with what the program prints.
pub(crate) fn print(text: &str) {
    print_bytes(text.as_bytes());
}

fn print_bytes(text: &[u8]) {
    // SAFETY: the text has that many bytes.
    unsafe { gaspiffi_print(text.as_ptr(), text.len()) };
}

fn send(rt: &Runtime, to: Rank, text: &[u8]) -> Result<(), String> {
    let host = rt.host_of(to).map_err(|error| error.to_string())?;
    let address = if host == rt.host() {
        IpAddr::V4(Ipv4Addr::LOCALHOST)
    } else {
        resolve(host).ok_or_else(|| format!("host {host} of {to} has no address"))?
    };
    let datagram = datagram(rt.host(), rt.rank().0, rt.local_rank(), text);
    let own: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // A socket per text: cheap enough, and none is left behind in the program.
    UdpSocket::bind(SocketAddr::new(own, 0))
        .and_then(|socket| {
            socket.set_nonblocking(true)?;
            socket.send_to(&datagram, SocketAddr::new(address, PORT))
        })
        .map(drop)
        .map_err(|error| format!("sending to the logger of {to} on {host}: {error}"))
}

/// Opening and text, cut to what a datagram holds.
fn datagram(host: &str, rank: u16, local_rank: u16, text: &[u8]) -> Vec<u8> {
    let mut datagram = format!("[{host}:{rank:4}:{local_rank}] ").into_bytes();
    datagram.extend_from_slice(text);
    datagram.truncate(DATAGRAM_BYTES);
    datagram
}

/// The address of a host, asked for once; again after a while if there was none.
fn resolve(host: &str) -> Option<IpAddr> {
    /// What was found, and when.
    type Found = (Option<IpAddr>, Instant);
    static KNOWN: Mutex<Option<HashMap<String, Found>>> = Mutex::new(None);
    let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((address, since)) = known().get_or_insert_default().get(host).copied()
        && (address.is_some() || since.elapsed() < ASKED_AGAIN)
    {
        return address;
    }
    // Outside of the lock: a name server may take its time.
    let mut addresses: Vec<IpAddr> = (bare_name(host), PORT)
        .to_socket_addrs()
        .map_or(vec![], |found| found.map(|a| a.ip()).collect());
    addresses.sort_by_key(IpAddr::is_ipv6);
    let address = addresses.first().copied();
    known().get_or_insert_default().insert(host.to_owned(), (address, Instant::now()));
    address
}

/// The name or address in what gaspi_run was given for a host: USER@HOST, or [ADDRESS].
fn bare_name(host: &str) -> &str {
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name)
}

#[cfg(test)]
pub(crate) const VARIADIC: [(&str, &str); 2] = [
    ("printf", "void {}(char const *, ...)"),
    ("printf_to", "void {}(gaspi_rank_t, char const *, ...)"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datagram_opens_with_its_sender_and_is_bounded() {
        assert_eq!(datagram("node7", 12, 3, b"hello\n"), b"[node7:  12:3] hello\n");
        let long = datagram("node7", 12345, 3, &[b'x'; 5000]);
        assert_eq!(long.len(), DATAGRAM_BYTES);
        assert!(long.starts_with(b"[node7:12345:3] xxx"));
    }

    #[test]
    fn addresses_are_found_once() {
        assert_eq!(resolve("127.0.0.1"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(resolve("127.0.0.1"), Some(Ipv4Addr::LOCALHOST.into()));
        assert_eq!(resolve("no such host"), None);
    }

    #[test]
    fn hosts_are_found_as_they_were_given_to_the_launcher() {
        for host in ["127.0.0.1", "me@127.0.0.1"] {
            assert_eq!(resolve(host), Some(Ipv4Addr::LOCALHOST.into()), "{host}");
        }
        for host in ["::1", "[::1]", "me@[::1]"] {
            assert_eq!(resolve(host), Some(Ipv6Addr::LOCALHOST.into()), "{host}");
        }
    }
}
