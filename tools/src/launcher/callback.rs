//! The connection by which an agent calls gaspi_run back: how the agent makes it, and whether the
//! machine at its other end still answers, for both sides.
//!
//! The agent reads an invitation from standard input, which tells addresses and a key.

use crate::refusal::Refusal;
use gaspi_core::bootstrap::{Encrypted, Invitation};
use gaspi_core::os::tcp;
use gaspi_tools::remote_agent;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Questions to a silent machine before the kernel gives it up by itself, at least 1 s apart:
/// [`Liveness`] has done so before.
const PROBES: u8 = 120;
/// How long an agent tries to call that has no other way to speak.
const CALL_LIMIT: Duration = Duration::from_secs(5);
/// How long one tries that can stay with its pipes: the start of the job waits for it.
const TRY_LIMIT: Duration = Duration::from_secs(3);

/// Calls gaspi_run back. If that cannot be done, a line on standard output says so, and another way
/// is tried from there. Returns the invitation too, which may be handed on.
pub(crate) fn call() -> Result<(Encrypted, Invitation), Refusal> {
    let invitation = invitation()?;
    let called = own_number(&invitation, remote_agent::own_host().as_deref())
        .and_then(|number| invitation.call_back(number, CALL_LIMIT));
    let failed = |reason: String| {
        // Without a reader nobody waits for it.
        let _ = io::stdout().write_all(remote_agent::absent_line(&reason).as_bytes());
        Refusal::launcher(format!("agent: gaspi_run cannot be called back: {reason}"))
    };
    Ok((called.map_err(failed)?, invitation))
}

/// The same for an agent that can speak by its pipes too, which may go on behind the invitation: an
/// error, in words, says why it has to.
pub(crate) fn try_call() -> Result<Result<(Encrypted, Invitation), String>, Refusal> {
    let invitation = invitation()?;
    let called = own_number(&invitation, remote_agent::own_host().as_deref())
        .and_then(|number| invitation.call_back(number, TRY_LIMIT));
    Ok(called.map(|connection| (connection, invitation)))
}

/// What standard input begins with. Nothing behind it is taken.
fn invitation() -> Result<Invitation, Refusal> {
    let failed = |error: io::Error| Refusal::launcher(format!("agent: standard input: {error}"));
    let input = io::stdin().as_fd().try_clone_to_owned().map_err(failed)?;
    Invitation::read(File::from(input)).map_err(failed)
}

/// The number of this host, which is called so by whatever has started this process.
fn own_number(invitation: &Invitation, own: Option<&str>) -> Result<u32, String> {
    if let [(number, _)] = invitation.hosts[..] {
        return Ok(number);
    }
    let own = own.ok_or("nothing tells which host this is")?;
    let found = invitation.hosts.iter().find(|(_, name)| name.eq_ignore_ascii_case(own));
    found.map(|(number, _)| *number).ok_or_else(|| format!("gaspi_run did not ask for {own}"))
}

/// Whether the machine at the other end of such a connection answers.
#[derive(Debug)]
pub(crate) struct Liveness {
    socket: OwnedFd,
    patience: Duration,
}

impl Liveness {
    /// A machine that is silent is waited for with `patience`.
    pub(crate) fn new(socket: &OwnedFd, patience: Duration) -> io::Result<Liveness> {
        let liveness = Liveness { socket: socket.try_clone()?, patience };
        // A matter of speed.
        let _ = tcp::set_no_delay(socket.as_fd());
        liveness.ask();
        Ok(liveness)
    }

    pub(crate) fn set_patience(&mut self, patience: Duration) {
        self.patience = patience;
        self.ask();
    }

    /// Has the kernel ask the other one while there is nothing else to say.
    fn ask(&self) {
        let seconds = 1 + self.patience.as_secs() / u64::from(PROBES);
        let seconds = u16::try_from(seconds).unwrap_or(u16::MAX);
        // Without it an end is seen by what is sent.
        let _ = tcp::set_keepalive(self.socket.as_fd(), seconds, seconds, PROBES);
    }

    /// Whether it has not answered for that long.
    pub(crate) fn is_cut(&self) -> bool {
        tcp::is_unanswered(self.socket.as_fd(), self.patience).unwrap_or(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gaspi_core::bootstrap::Callbacks;

    #[test]
    fn an_agent_finds_its_number_by_the_name_of_its_host() {
        let Ok(callbacks) = Callbacks::listen() else {
            panic!("this machine has no address that others could reach");
        };
        let both = callbacks.invitation(vec![(3, "n07".to_owned()), (5, "n09".to_owned())]);
        assert_eq!(own_number(&both, Some("N09")), Ok(5));
        let stranger = own_number(&both, Some("n08")).expect_err("not asked for");
        assert_eq!(stranger, "gaspi_run did not ask for n08");
        assert!(own_number(&both, None).is_err());
        // Alone it cannot be another one, whatever it is called.
        let one = callbacks.invitation(vec![(3, "n07".to_owned())]);
        assert_eq!(own_number(&one, None), Ok(3));
    }
}
