//! The integers of a GASPI call as distinct types, so that mixing them up does not compile.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl $name {
            /// The id as an index into a table.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id!(
    /// A process of the job, `0..size` (GASPI 17.1, 5.3).
    Rank(u16), "rank"
);
id!(
    /// A segment id of one rank, `0..segment_max` (GASPI 17.1, 7.2).
    SegmentId(u8), "segment"
);
id!(
    /// A group of ranks (GASPI 17.1, 6).
    GroupId(u8), "group"
);
id!(
    /// A communication queue of this rank (GASPI 17.1, 8.5).
    QueueId(u8), "queue"
);
id!(
    /// A notification of a segment, `0..notification_num` (GASPI 17.1, 8.3).
    NotificationId(u32), "notification"
);

impl GroupId {
    /// The group of all ranks, committed by `proc_init` unless the topology is `None`.
    pub const ALL: GroupId = GroupId(0);
}
