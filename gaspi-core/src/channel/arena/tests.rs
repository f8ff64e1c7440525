//! How ranges of an arena come to their end.

use super::*;
use crate::segment::leases::Lent;
use crate::segment::{Init, Shape};

/// An answer to a notification may come ahead of what the device was asked to write before.
#[test]
fn members_whose_device_writes_to_a_range_hear_of_its_end_by_the_closed_end_alone() {
    let shape = Shape { ranks: 3, notifications: ARENA_WORDS };
    let segment = Segment::new(ARENA, 1, 16 * PAGE, Init::Zeroed, shape).expect("memory");
    let arena = Arena::new(segment);
    for by_device in [false, true] {
        let mut reserved = arena.reserve(PAGE, 2, |_| false).expect("room");
        let key = MemoryKey { device: 0, key: 7, address: 4096 };
        let prepared = || Prepared { local_key: 7, key, registration: Box::new(()) };
        reserved.device = by_device.then(|| Arc::new(prepared()));
        let (lease, start, word) =
            (reserved.lease, reserved.bytes.start, reserved.words.start as u32);
        let notified = |from| arena.segment.leases.find(from, lease, start, 0);
        assert_eq!([Rank(1), Rank(2)].map(notified), [Lent::Yes; 2]);
        arena.close(reserved, vec![(Rank(1), word)]);
        let awaited = if by_device { Lent::Yes } else { Lent::Ending };
        assert_eq!([Rank(1), Rank(2)].map(notified), [awaited, Lent::Ending], "{by_device}");
    }
}
