//! Lists of requests that a device carries.

use super::budgets::until_by_device;
use super::*;
use crate::ranks::run_with_devices;
use gaspi_mock_card::Fabric;

/// What a call of the device's library gives that fails.
const EIO: i32 = 5;

/// Elements of 8 bytes each, at other places of the local and the remote S0.
struct Elements {
    segments: Vec<SegmentId>,
    local: Vec<u64>,
    remote: Vec<u64>,
    sizes: Vec<u64>,
}

impl Elements {
    fn new(count: u64) -> Elements {
        Elements {
            segments: vec![S0; count as usize],
            local: (0..count).map(|i| 8 * i).collect(),
            remote: (0..count).map(|i| 4096 + 8 * (count - 1 - i)).collect(),
            sizes: vec![8; count as usize],
        }
    }

    fn of(&self, rank: Rank) -> TransferList<'_> {
        TransferList {
            rank,
            local: &self.segments,
            local_offsets: &self.local,
            remote: &self.segments,
            remote_offsets: &self.remote,
            sizes: &self.sizes,
        }
    }
}

/// Calls of the device's function, and requests of a kind, in the quietest of some calls: others
/// may post meanwhile. Each is waited for.
fn posts(fabric: &Fabric, kind: &str, (call, wait): (impl Fn(), impl Fn())) -> (u64, u64) {
    let seen = || (fabric.counter(0, "posts"), fabric.counter(0, kind));
    let once = |_| {
        let before = seen();
        call();
        let after = seen();
        wait();
        (after.0 - before.0, after.1 - before.1)
    };
    (0..20).map(once).min().expect("some")
}

fn the_elements_of_a_list_are_posted_together() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        if rt.rank() == Rank(0) {
            until_by_device(rt, Rank(1), Q0);
            for (count, chains) in [(2, 1), (8, 1), (16, 1), (17, 2), (40, 3)] {
                let elements = Elements::new(count);
                let list = elements.of(Rank(1));
                let fill = |with: u64| (0..count).for_each(|i| put_u64(rt, S0, 8 * i, with + i));
                fill(1000 * count);
                let write = || rt.write_list(&list, Q0, LIMIT).expect("write");
                let wait = || rt.wait(Q0, LIMIT).expect("wait");
                assert_eq!(posts(fabric, "write", (&write, &wait)), (chains, count), "writes");
                fill(0);
                let read = || rt.read_list(&list, Q0, LIMIT).expect("read");
                assert_eq!(posts(fabric, "read", (&read, &wait)), (chains, count), "reads");
                for i in 0..count {
                    assert_eq!(get_u64(rt, S0, 8 * i), 1000 * count + i, "element {i} of {count}");
                }
            }
        }
        meet(rt);
    });
}

/// The notification comes behind all elements.
fn a_notification_is_posted_with_its_list() {
    run_with_devices(2, "", |rt, fabric| {
        make(rt, S0, 8192);
        let (elements, id) = (Elements::new(8), NotificationId(3));
        if rt.rank() == Rank(0) {
            until_by_device(rt, Rank(1), Q0);
            let list = elements.of(Rank(1));
            let write = |value| rt.write_list_notify(&list, S0, id, value, Q0, LIMIT);
            let wait = || rt.wait(Q0, LIMIT).expect("wait");
            let calls = posts(fabric, "write", (|| write(5).expect("write"), wait));
            assert_eq!(calls.0, 1, "a chain with its notification");
            (0..8).for_each(|i| put_u64(rt, S0, 8 * i, 70 + i));
            write(6).expect("write");
            rt.wait(Q0, LIMIT).expect("wait");
        } else {
            while rt.notify_reset(S0, id).expect("reset") != 6 {
                rt.notify_waitsome(S0, 3, 1, LIMIT).expect("a list");
            }
            assert!((0..8).all(|i| get_u64(rt, S0, 4096 + 8 * (7 - i)) == 70 + i));
        }
        meet(rt);
    });
}

/// A device that refuses a request in the middle: the list is lost, and the queue goes on behind a
/// purge.
fn a_list_that_is_refused_in_its_middle_is_an_error() {
    for nth in [1, 2, 5, 8] {
        run_with_devices(2, "", |rt, fabric| {
            make(rt, S0, 8192);
            if rt.rank() == Rank(0) {
                until_by_device(rt, Rank(1), Q0);
                let elements = Elements::new(8);
                let list = elements.of(Rank(1));
                fabric.refuse(0, "post_send", nth, EIO);
                let outcome = rt.write_list(&list, Q0, LIMIT).and_then(|()| rt.wait(Q0, LIMIT));
                fails!(outcome, Error::RequestFailed { queue: Q0, .. });
                rt.queue_purge(Q0, LIMIT).expect("purge");
                until_by_device(rt, Rank(1), Q0);
                rt.write_list(&list, Q0, LIMIT).expect("write");
                rt.wait(Q0, LIMIT).expect("wait");
            }
            meet(rt);
        });
    }
}

tests! {
    VERBS:
        a_list_that_is_refused_in_its_middle_is_an_error,
        a_notification_is_posted_with_its_list,
        the_elements_of_a_list_are_posted_together;
}
