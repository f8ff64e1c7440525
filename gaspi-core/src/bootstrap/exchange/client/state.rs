//! What a rank has heard from its server: pure, without sockets and clocks.

use crate::bootstrap::exchange::message::Message;
use crate::bootstrap::{Cards, KEY_BYTES};
use crate::error::Result;
use crate::ids::Rank;
use std::fmt::Write;

/// What a rank has heard so far.
#[derive(Debug, Default)]
pub(super) struct ClientState {
    missing: Option<Missing>,
}

/// The ranks that have not registered yet.
#[derive(Debug)]
struct Missing {
    count: u32,
    first: Vec<Rank>,
    /// The same in words, where the job spans hosts.
    words: String,
}

/// What a message has brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More will come.
    Pending,
    /// The table has come; the shared area and the cards come beside it.
    Complete { token: [u8; 16], key: [u8; KEY_BYTES] },
    /// This exchange is over: look for the next one.
    Over,
}

impl ClientState {
    /// Takes a message of the server.
    ///
    /// # Errors
    /// The exchange has failed.
    pub(super) fn receive(&mut self, message: Message) -> Result<Progress> {
        match message {
            Message::Missing { count, first, words } => {
                self.missing = Some(Missing { count, first, words });
            }
            Message::Failed(failure) => return Err(failure.into()),
            Message::Over => return Ok(Progress::Over),
            Message::Table { token, key } => return Ok(Progress::Complete { token, key }),
            Message::Join(_)
            | Message::Kill(_)
            | Message::Leave
            | Message::Unable { .. }
            | Message::Died { .. } => {}
        }
        Ok(Progress::Pending)
    }

    /// What this rank waits for.
    pub(super) fn awaited(&self, job: &str, size: u32) -> String {
        match &self.missing {
            // The server itself does not know the missing ranks; it knows why.
            Some(Missing { count: 0, words, .. }) => {
                format!("{}; {words}", nothing_heard(job, size))
            }
            Some(Missing { words, .. }) if !words.is_empty() => {
                format!("{words} to join job {job} ({size} ranks)")
            }
            Some(Missing { count, first, .. }) => {
                let mut text = String::from(if *count == 1 { "rank" } else { "ranks" });
                for (i, rank) in first.iter().enumerate() {
                    // Writing to a string cannot fail.
                    let _ = write!(text, "{} {}", if i > 0 { "," } else { "" }, rank.0);
                }
                if *count as usize > first.len() {
                    let _ = write!(text, " and {} more", *count as usize - first.len());
                }
                format!("{text} of job {job} ({size} ranks) to call proc_init")
            }
            None => nothing_heard(job, size),
        }
    }
}

/// The cards as the rank `own` may use them; the server is the process `server_pid`, 0 where it is
/// not visible.
///
/// The server puts down the number that each process of its machine has in the server's own pid
/// namespace. In another namespace these numbers mean nothing, or other processes: a rank there
/// sees no process.
pub(super) fn seen_by(cards: Cards, own: Rank, server_pid: i32) -> Cards {
    let (machine, pid) = (cards.at(own).machine(), cards.at(own).pid());
    // Each names the other only if the other is in the same namespace or in one below.
    if server_pid != 0 && pid != 0 {
        return cards;
    }
    log::info!(
        "proc_init: the meeting was held in another pid namespace, so that the processes of the \
         other ranks cannot be seen; deaths are known where gaspi_run or a connection tells of them"
    );
    cards.without_processes_of(machine)
}

/// What a rank waits for that has not heard from its server.
pub(super) fn nothing_heard(job: &str, size: u32) -> String {
    format!("the meeting of the {size} ranks of job {job}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(count: u32, first: &[u16], words: &str) -> ClientState {
        let first = first.iter().copied().map(Rank).collect();
        let mut state = ClientState::default();
        let missing = Message::Missing { count, first, words: words.to_owned() };
        assert_eq!(state.receive(missing), Ok(Progress::Pending));
        state
    }

    #[test]
    fn missing_ranks_are_named() {
        let text = ClientState::default().awaited("j", 9);
        assert_eq!(text, "the meeting of the 9 ranks of job j");
        let text = state(0, &[], "no route").awaited("j", 9);
        assert_eq!(text, "the meeting of the 9 ranks of job j; no route");
        let text = state(1, &[4], "").awaited("j", 9);
        assert_eq!(text, "rank 4 of job j (9 ranks) to call proc_init");
        let text = state(5, &[4, 5], "").awaited("j", 9);
        assert_eq!(text, "ranks 4, 5 and 3 more of job j (9 ranks) to call proc_init");
        let text = state(1, &[4], "rank 4 on b (not seen yet)").awaited("j", 9);
        assert_eq!(text, "rank 4 on b (not seen yet) to join job j (9 ranks)");
    }
}
