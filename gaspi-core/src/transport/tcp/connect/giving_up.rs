//! What becomes of a connection that could not be made, by its purpose.

use super::dials::{Again, Dial};
use super::{AGAIN, ConnectPurpose, Connector, GRACE, TURNED_AWAY, is_keepalive};
use crate::ids::Rank;
use crate::transport::ConnectionLoss;
use crate::transport::shm::area::liveness;
use crate::transport::tcp::Tcp;
use crate::transport::tcp::connection::Connection;
use std::sync::Arc;
use std::time::Instant;

/// How often the pause doubles after which a connection is tried again.
const LONGEST_PAUSE: u32 = 5;

impl Connector {
    /// All addresses have been tried in vain.
    pub(super) fn give_up(&mut self, tcp: Tcp<'_>, id: u64) {
        let Some(dial) = self.dials.remove(id) else { return };
        let silent = self.is_silent(tcp, &dial);
        let Dial { rank, purpose, since, ended, lacking, .. } = dial;
        let reason = dial.failures.join("; ");
        let probed = matches!(purpose, ConnectPurpose::Probe);
        let patience = match purpose {
            ConnectPurpose::Data(_) => tcp.table.identity.dead_after.max(TURNED_AWAY),
            _ => tcp.table.identity.dead_after,
        };
        // Somebody else may have taken the ports of one that has refused before.
        let refused = dial.refused || dial.absent && self.has_refused(rank);
        let turned_away = ended && !refused && since.elapsed() < patience;
        if refused {
            // What the rank said before it closed has come, but may not have been heard.
            self.hear_farewell(tcp, rank);
            if self.leaves && (is_keepalive(&purpose) || probed && self.has_refused(rank)) {
                return self.needs_not_hear(rank);
            }
        }
        if turned_away || (probed && lacking) {
            // Who ends closes what others have connected to before nobody listens any more; and who
            // has too many unauthenticated peers at once turns some away. Nobody is dead because
            // this side lacks descriptors.
            let pause = if turned_away { self.pause_with(rank, &purpose) } else { AGAIN };
            self.again.push(Again { at: Instant::now() + pause, rank, purpose, since });
            return;
        }
        // It may be that of a connection which is about to be used.
        let early = matches!(purpose, ConnectPurpose::Keepalive) && self.is_early(rank, since);
        if refused && (early || tcp.table.connections.has(rank)) {
            // Nobody listens any more; how its connections end tells whether it said goodbye.
            self.again.push(Again { at: Instant::now() + AGAIN, rank, purpose, since });
            return;
        }
        let asks = matches!(purpose, ConnectPurpose::Data(_)) || is_keepalive(&purpose);
        if refused && asks && self.may_have_left(tcp, rank) {
            log::trace!("{rank} on {} may have left: {reason}", tcp.up.ranks().host_of(rank));
            self.find_out_later(rank, purpose, since);
            return;
        }
        if refused && probed && self.waits_for_earlier(tcp, rank, since) {
            return;
        } else if refused || probed {
            self.pass_on_death(tcp, rank);
            tcp.unreachable(rank, &reason);
        }
        match purpose {
            ConnectPurpose::Data(connection) => {
                self.is_unconnected(tcp, (rank, since), &connection, reason);
            }
            ConnectPurpose::KeepaliveAgain if !refused && !ended && !lacking => {
                self.fell_silent(tcp, rank);
            }
            // Its kernel answers.
            ConnectPurpose::KeepaliveAgain if !lacking => self.watch_by_another(tcp, rank),
            ConnectPurpose::KeepaliveAgain => self.watch_later(rank, GRACE),
            ConnectPurpose::Keepalive if self.is_asked_again(tcp, rank, (since, silent)) => {}
            ConnectPurpose::Keepalive => self.cannot_watch(tcp, rank, &reason),
            _ => {}
        }
    }

    /// A connection that was begun then, and was to carry frames, cannot be made. What nobody
    /// answers is sent again once one can: arrivals may be among it, for which others wait.
    fn is_unconnected(
        &mut self,
        tcp: Tcp<'_>,
        (rank, since): (Rank, Instant),
        connection: &Arc<Connection>,
        reason: String,
    ) {
        if tcp.gives_up(rank, connection, &reason) {
            let failures = tcp.table.dialing.note_unsent(rank);
            let host = tcp.up.ranks().host_of(rank);
            let level = if failures == 1 { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "connecting to {rank} on {host} failed: {reason}");
            let at = Instant::now() + GRACE * (1 << (failures - 1).min(LONGEST_PAUSE));
            self.again.push(Again { at, rank, purpose: ConnectPurpose::Unsent, since });
        }
    }

    /// Sends again what nobody answers, where no connection could be made for it before.
    pub(super) fn send_unsent(&mut self, tcp: Tcp<'_>, rank: Rank) {
        let ranks = tcp.up.ranks();
        let leaves = self.leaves || ranks.liveness(ranks.me) != liveness::JOINED;
        if tcp.table.dialing.take_unsent(rank) && !leaves && !ranks.is_leaving(rank) {
            tcp.up.send_again(rank);
        }
    }
}

impl Tcp<'_> {
    /// A connection with `rank` that was to carry frames cannot be made; whether the rank lives
    /// none the less.
    fn gives_up(self, rank: Rank, connection: &Arc<Connection>, reason: &str) -> bool {
        let lives = || self.up.ranks().liveness(rank) == liveness::JOINED;
        if lives() {
            self.table.dialing.set_last_error(rank, reason.to_owned());
        }
        self.table.drop_connection(self.up, connection);
        let lives = lives();
        if lives {
            // What waited on it will not arrive, though nobody has died. Pairs of devices lose
            // nothing by it but what was to settle them.
            let settles_pairs = connection.settles_pairs();
            self.up.lost(rank, ConnectionLoss::NotMade { settles_pairs });
        }
        lives
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::verbs::told_tests::{LIMIT, Q0, beside_mock, end, until, write};
    use gaspi_mock_card::Options;

    #[test]
    fn a_dial_in_vain_costs_the_pairs_alone_that_it_was_to_settle() {
        beside_mock(Options::kind(), |fabric, [one, other]| {
            let (tcp, table) = (one.inner().tcp(), one.inner().endpoints.verbs(one.inner()));
            let verbs = table.expect("a device");
            write(&one);
            one.wait(Q0, LIMIT).expect("done");
            fabric.hold(0, 1);
            write(&one);
            let in_vain = |settles_pairs| {
                let connection = tcp.table.connections.between_nodes(Rank(1));
                if settles_pairs {
                    connection.note_pairing();
                }
                assert!(tcp.gives_up(Rank(1), &connection, "no answer"), "it lives");
                // Whoever looks next would take pairs down.
                while verbs.poll_armed() {}
            };
            in_vain(false);
            fabric.hold(0, 0);
            one.wait(Q0, LIMIT).expect("nothing was lost");
            in_vain(true);
            until("the pair ends", || !verbs.table.reaches(Rank(1)));
            end([one, other]);
        });
    }
}
