//! The open connections of a rank, by name and by peer: what one event costs does not depend on how
//! many there are.

use crate::ids::Rank;
use crate::transport::numbers::NumberMap;
use crate::transport::tcp::connection::Connection;
use std::sync::Arc;

/// Open connections.
#[derive(Debug, Default)]
pub(super) struct Open {
    by_token: NumberMap<u64, Arc<Connection>>,
    /// The names of those whose peer is known.
    of_peer: NumberMap<Rank, Vec<u64>>,
}

impl Open {
    pub(super) fn insert(&mut self, connection: &Arc<Connection>) {
        let former = self.by_token.insert(connection.token, Arc::clone(connection));
        if let Some(peer) = connection.peer().filter(|_| former.is_none()) {
            self.of_peer.entry(Rank(peer)).or_default().push(connection.token);
        }
    }

    pub(super) fn remove(&mut self, connection: &Connection) {
        let removed = self.by_token.remove(&connection.token);
        if let Some(peer) = removed.and_then(|removed| removed.peer()) {
            self.forget_peer(Rank(peer), connection.token);
        }
    }

    /// The peer of a connection, which may be open, has said who it is.
    pub(super) fn set_peer(&mut self, connection: &Connection, peer: Rank) {
        let former = connection.peer().map(Rank);
        connection.set_peer(peer);
        if former != Some(peer) && self.by_token.contains_key(&connection.token) {
            former.into_iter().for_each(|former| self.forget_peer(former, connection.token));
            self.of_peer.entry(peer).or_default().push(connection.token);
        }
    }

    fn forget_peer(&mut self, peer: Rank, token: u64) {
        if let Some(of_it) = self.of_peer.get_mut(&peer) {
            of_it.retain(|one| *one != token);
            if of_it.is_empty() {
                self.of_peer.remove(&peer);
            }
        }
    }

    #[inline]
    pub(super) fn get(&self, token: u64) -> Option<&Arc<Connection>> {
        self.by_token.get(&token)
    }

    /// Those with `peer`.
    pub(super) fn with(&self, peer: Rank) -> impl Iterator<Item = &Arc<Connection>> {
        let of_it = self.of_peer.get(&peer).into_iter().flatten();
        of_it.filter_map(|token| self.by_token.get(token))
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.by_token.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::socket;

    #[test]
    fn connections_are_found_by_their_peer_as_long_as_they_are_open() {
        let mut open = Open::default();
        let tokens = |open: &Open, peer| -> Vec<u64> {
            open.with(Rank(peer)).map(|connection| connection.token).collect()
        };
        let [one, other] = [1, 2].map(|token| Arc::new(Connection::new(token, 7, true)));
        let unknown = Arc::new(Connection::accepted(socket::pair().expect("sockets").0, 3));
        for connection in [&one, &other, &unknown, &one] {
            open.insert(connection);
        }
        assert_eq!((tokens(&open, 7), tokens(&open, 8)), (vec![1, 2], vec![]));
        open.set_peer(&unknown, Rank(7));
        assert_eq!(tokens(&open, 7), [1, 2, 3]);
        open.set_peer(&one, Rank(8));
        assert_eq!((tokens(&open, 7), tokens(&open, 8)), (vec![2, 3], vec![1]));
        for connection in [&one, &other, &other] {
            open.remove(connection);
        }
        // One that is not open is not found by its peer either.
        open.set_peer(&other, Rank(8));
        assert_eq!((tokens(&open, 7), tokens(&open, 8)), (vec![3], vec![]));
        assert_eq!(open.all().count(), 1);
        open.remove(&unknown);
        assert!(open.of_peer.is_empty() && open.get(3).is_none());
    }
}
