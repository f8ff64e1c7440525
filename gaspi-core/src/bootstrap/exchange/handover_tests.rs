//! How ranks come to the cards that those of a machine share: what they map, and what they say of
//! servers that hand over something else, or end before all is there.

use super::local_connection::LocalConnection;
use super::message::Message;
use super::tests::{GUARD, client, inode, launched, unique};
use crate::bootstrap::cards::tests::{all, mapped};
use crate::bootstrap::{Job, Table, cards};
use crate::error::{Error, Result};
use crate::ids::Rank;
use crate::os::{memory, sealed, socket};
use crate::timeout::Deadline;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread;

/// Ranks that share memory, or each on a node of its own.
fn meet(nodes: Option<u64>) -> Vec<Table> {
    let id = unique("cards");
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..3u16)
            .map(|rank| {
                let job = Job::in_process(&id, Rank(rank), 3);
                let mut card = super::tests::card(&job);
                card.node += nodes.map_or(0, |step| step * u64::from(rank));
                scope.spawn(move || {
                    let client = super::client::Client::new(&job, &Default::default(), card);
                    client.expect("client").poll(GUARD.deadline()).expect("table")
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().expect("rank")).collect()
    })
}

#[test]
fn ranks_of_a_machine_map_one_copy_of_the_cards_for_reading() {
    // By TCP each is a node of its own, and yet they have one server.
    for nodes in [None, Some(1)] {
        let tables = meet(nodes);
        let first = mapped(&tables[0].cards);
        assert!(first.file.starts_with("/memfd:gaspi-cards"), "{first:?}");
        for table in &tables {
            assert_eq!(all(&table.cards), all(&tables[0].cards));
            let found = mapped(&table.cards);
            assert_eq!(found.inode, first.inode);
            assert_eq!((found.access.as_str(), found.anonymous), ("r--p", 0), "{found:?}");
        }
        let areas: Vec<u64> = tables.iter().map(|table| inode(&table.area)).collect();
        assert_eq!(areas[0] == areas[1], nodes.is_none());
    }
}

/// A server that answers the first rank who comes with the first `len` bytes of a table and these
/// descriptors, and ends.
fn answered(descriptors: Vec<OwnedFd>, len: usize) -> Result<Table> {
    let name = unique("gaspi-server");
    let listener = socket::listen(&name).expect("listener");
    let mut rank = client(&launched(&name, "j", 0, 2));
    assert!(rank.poll(Deadline::Now).expect_err("not served").is_timeout());
    let peer = socket::accept(listener.as_fd()).expect("accept").expect("a rank waits");
    let mut server = LocalConnection::new(peer);
    let table = Message::Table { token: [1; 16], key: [2; 32] }.encode();
    let descriptors = descriptors.into_iter().map(Arc::new).collect();
    server.queue(table[..len.min(table.len())].into(), descriptors);
    assert!(server.flush());
    drop(server);
    rank.poll(GUARD.deadline())
}

/// The cards of so many ranks.
fn image(ranks: u16) -> Vec<u8> {
    let card = |rank| super::tests::card(&Job::in_process("j", Rank(rank), ranks.into()));
    cards::encode(&(0..ranks).map(card).collect::<Vec<_>>())
}

fn area() -> OwnedFd {
    memory::create(c"test", memory::PAGE, false).expect("area")
}

fn file_of(bytes: &[u8]) -> OwnedFd {
    sealed::create(c"test", bytes).expect("cards")
}

#[test]
fn cards_that_can_change_or_are_none_are_refused() {
    let words = |cards| {
        let error = answered(vec![area(), cards], usize::MAX).expect_err("it is refused");
        error.to_string()
    };
    // Sealed in size only, as areas are.
    let text = words(area());
    assert!(text.contains("it is not sealed against changes"), "{text}");
    let image = image(2);
    for wrong in [&image[..image.len() - 1], &[0; 64]] {
        let text = words(file_of(wrong));
        assert!(text.contains("use one version of the library and of gaspi_run"), "{text}");
    }
    let text = words(file_of(&self::image(3)));
    assert!(text.contains("it has 3 cards"), "{text}");
    let table = answered(vec![area(), file_of(&image)], usize::MAX).expect("table");
    assert_eq!(table.cards.len(), 2);
}

#[test]
fn a_descriptor_that_does_not_come_is_told() {
    for descriptors in [vec![], vec![area()]] {
        let error = answered(descriptors, usize::MAX).expect_err("one is missing");
        assert!(matches!(error, Error::TooManyFiles { .. }), "{error}");
    }
}

#[test]
fn a_server_that_ends_while_it_hands_over_is_told() {
    for len in [1, 20, 52] {
        let descriptors = vec![area(), file_of(&image(2))];
        let error = answered(descriptors, len).expect_err("it has ended");
        assert!(error.to_string().contains("has ended during init"), "{error}");
    }
}
