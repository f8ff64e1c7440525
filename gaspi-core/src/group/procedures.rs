//! The procedures of groups (GASPI 17.1, 6).

use super::{Cell, Members};
use crate::error::{Error, Result};
use crate::ids::{GroupId, Rank};
use crate::runtime::Runtime;
use crate::sync::Ordering;
use crate::timeout::Timeout;

impl Runtime {
    /// Makes an empty group and returns the lowest free id (GASPI 17.1, 6.3.1).
    ///
    /// # Errors
    /// [`Error::TooManyGroups`].
    pub fn group_create(&self) -> Result<GroupId> {
        self.inner().check_open()?;
        let groups = &self.inner().control.groups;
        // Id 0 is the group of all ranks, also where it does not exist.
        for (id, cell) in groups.cells.iter().enumerate().skip(1) {
            let mut members = cell.members.lock();
            if !members.exists {
                *members = Members { exists: true, ..Members::default() };
                return Ok(GroupId(id as u8));
            }
        }
        Err(Error::TooManyGroups { limit: groups.cells.len() as u32 })
    }

    /// Deletes a group. Local.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`], also for the group of all ranks; [`Error::ActiveCollective`] while
    /// another thread is in a collective of the group.
    pub fn group_delete(&self, group: GroupId) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        drop(inner.control.groups.members(group)?);
        if group == GroupId::ALL {
            let reason = "the group of all ranks cannot be deleted".to_owned();
            return Err(Error::InvalidGroup { group, reason });
        }
        let mut state = inner.control.groups.claim(group)?;
        inner.note_joined(group, &state);
        inner.withdraw(group);
        // Also where a commit was under way: others may have committed that use.
        inner.ranks.area.give_up_all(group.index());
        state.retire();
        inner.control.groups.cell(group)?.incarnation.store(0, Ordering::Release);
        let mut members = inner.control.groups.members(group)?;
        *members = Members::default();
        // Before another thread can make a group of this id.
        drop(state);
        Ok(())
    }

    /// Adds a rank to a group that is not committed.
    ///
    /// # Errors
    /// [`Error::InvalidRank`] also if it is a member already; [`Error::InvalidGroup`];
    /// [`Error::ActiveCollective`] while another thread commits it.
    pub fn group_add(&self, group: GroupId, rank: Rank) -> Result<()> {
        let inner = self.inner();
        inner.check_open()?;
        let mut members = inner.control.groups.members(group)?;
        inner.ranks.check_rank(rank)?;
        match members.ranks.binary_search(&rank) {
            Ok(_) => {
                let reason = format!("it is a member of {group} already");
                Err(Error::InvalidRank { rank, reason })
            }
            Err(_) if members.committed => {
                let reason = "it is committed; its members cannot change any more".to_owned();
                Err(Error::InvalidGroup { group, reason })
            }
            Err(_) if members.commits => {
                let active = "a commit of another thread".to_owned();
                Err(Error::ActiveCollective { group, active })
            }
            Err(place) => {
                members.ranks.insert(place, rank);
                Ok(())
            }
        }
    }

    /// Commits a group together with all its members (GASPI 17.1, 6.3.3), which then can use it for
    /// collectives. After a timeout, call again to continue.
    ///
    /// # Errors
    /// [`Error::Timeout`] says which ranks are missing; [`Error::Mismatch`] if lists differ;
    /// [`Error::InvalidGroup`] also if this rank is not a member; [`Error::RankDied`],
    /// [`Error::RankLeft`].
    pub fn group_commit(&self, group: GroupId, timeout: Timeout) -> Result<()> {
        self.inner().commit(group, timeout)
    }

    /// Groups of this rank, that of all ranks included.
    pub fn group_num(&self) -> u32 {
        let exists = |cell: &&Cell| cell.members.lock().exists;
        let count = self.inner().control.groups.cells.iter().filter(exists).count() as u32;
        // Without a topology id 0 is reserved, and counts.
        count + u32::from(!self.has_group_all())
    }

    /// Members of a group.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`].
    pub fn group_size(&self, group: GroupId) -> Result<u32> {
        Ok(self.inner().control.groups.members(group)?.ranks.len() as u32)
    }

    /// The members of a group, ascending.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`].
    pub fn group_ranks(&self, group: GroupId) -> Result<Vec<Rank>> {
        Ok(self.inner().control.groups.members(group)?.ranks.clone())
    }

    /// Whether all members share memory.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if there is no such group, [`Error::NotInitialised`].
    pub fn group_is_one_node(&self, group: GroupId) -> Result<bool> {
        let ranks = self.group_ranks(group)?;
        let node = |rank: &Rank| self.inner().ranks.cards.at(*rank).node();
        Ok(ranks.iter().all(|rank| node(rank) == node(&ranks[0])))
    }

    /// Tells the uses of a group's id apart: another number after each commit.
    ///
    /// # Errors
    /// [`Error::InvalidGroup`] if it is not committed, [`Error::NotInitialised`].
    pub fn group_use(&self, group: GroupId) -> Result<u64> {
        self.inner().check_open()?;
        let groups = &self.inner().control.groups;
        match groups.cell(group)?.incarnation.load(Ordering::Acquire) {
            0 => Err(groups.not_committed(group)),
            incarnation => Ok(incarnation.into()),
        }
    }

    /// Groups that may exist at once.
    pub fn group_max(&self) -> u32 {
        self.inner().config.group_max
    }
}
