//! Groups of ranks (GASPI 17.1, 6).

use crate::runtime::timeout;
use crate::types::*;
use gaspi_core::{GroupId, Rank};

procedures! {
    /// GASPI.h: makes an empty group.
    fn group_create(group: *mut gaspi_group_t) with rt {
        out!(group).give(rt.group_create()?.0)
    }

    /// GASPI.h: deletes a group.
    fn group_delete(group: gaspi_group_t) holding rt {
        Ok(rt.group_delete(GroupId(group))?)
    }

    /// GASPI.h: adds a rank to a group.
    fn group_add(group: gaspi_group_t, rank: gaspi_rank_t) with rt {
        Ok(rt.group_add(GroupId(group), Rank(rank))?)
    }

    /// GASPI.h: makes a group usable.
    fn group_commit(group: gaspi_group_t, milliseconds: gaspi_timeout_t) holding rt {
        Ok(rt.group_commit(GroupId(group), timeout(milliseconds))?)
    }

    /// GASPI.h: the number of groups.
    fn group_num(group_num: *mut gaspi_number_t) with rt {
        out!(group_num).give(rt.group_num())
    }

    /// GASPI.h: the number of ranks of a group.
    fn group_size(group: gaspi_group_t, group_size: *mut gaspi_number_t) with rt {
        out!(group_size).give(rt.group_size(GroupId(group))?)
    }

    /// GASPI.h: the ranks of a group, ascending.
    fn group_ranks(group: gaspi_group_t, group_ranks: *mut gaspi_rank_t) with rt {
        let out = out!(group_ranks);
        out.fill(rt.group_ranks(GroupId(group))?.into_iter().map(|rank| rank.0));
        Ok(())
    }

    /// GASPI.h: how many groups there can be.
    fn group_max(group_max: *mut gaspi_number_t) with rt {
        out!(group_max).give(rt.group_max())
    }
}
