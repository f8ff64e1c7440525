//! One machine under several names: which of the machines that answer are one and the same, so that
//! their ranks share memory.

use super::Running;
use crate::assignment::Assignment;
use crate::local_ranks::LocalRanks;
use crate::refusal::Refusal;
use crate::remote::{Remote, Step};
use crate::{identity, plan};
use gaspi_core::Rank;

impl Running {
    /// Hands out what there is to do, once all other machines have said which they are.
    pub(super) fn hand_out(&mut self) -> Result<(), Refusal> {
        let is_open = |remote: &Remote| remote.step == Step::Up && remote.plan.is_some();
        let is_reached = |remote: &Remote| !matches!(remote.step, Step::Reaching | Step::Carrying);
        let all = self.remotes.iter().all(is_reached) && self.failure.is_none();
        if self.plan.only_ping || !all || !self.remotes.iter().any(is_open) {
            return Ok(());
        }
        self.merge_into_own()?;
        self.merge_others();
        let others = self.remotes.iter().filter(|remote| remote.plan.is_some()).count();
        let machines = others + usize::from(!self.plan.own.ranks.is_empty());
        self.plan.own.machines = machines as u32;
        self.local_ranks = LocalRanks::new(self.plan.own.clone());
        for remote in self.remotes.iter_mut().filter(|remote| remote.plan.is_some()) {
            let ranks: Vec<Rank> = remote.ranks.iter().map(|rank| Rank(*rank as u16)).collect();
            remote.assign(self.host.add_relay(&ranks), machines as u32);
        }
        Ok(())
    }

    /// What others are this machine.
    fn merge_into_own(&mut self) -> Result<(), Refusal> {
        let own = identity::look_up();
        let before = self.plan.own.ranks.clone();
        let is_own = |remote: &&mut Remote| own.is_some() && remote.machine == own;
        for remote in self.remotes.iter_mut().filter(is_own) {
            let Some(plan) = remote.dismiss() else { continue };
            if self.plan.own.host.is_empty() {
                self.plan.own.host.clone_from(&plan.host);
            }
            add(&mut self.plan.own, &plan);
        }
        let ranks = &self.plan.own.ranks;
        if ranks.len() == before.len() {
            return Ok(());
        }
        // The printer writes the files of those that have been added.
        let files = self.plan.files_beside(before.len());
        plan::check_descriptors(ranks.len(), self.remotes.len(), self.plan.way.as_ref(), files)?;
        self.plan.own.check_programs()?;
        let mut files = std::mem::take(&mut self.files).into_iter();
        let file_of = |rank: &u32| match before.binary_search(rank) {
            Ok(_) => files.next().flatten(),
            Err(_) => None,
        };
        self.files = ranks.iter().map(file_of).collect();
        if ranks.first() == Some(&0) {
            self.input = None;
        }
        Ok(())
    }

    /// What others are the same as another one before them.
    fn merge_others(&mut self) {
        for later in 1..self.remotes.len() {
            let (before, rest) = self.remotes.split_at_mut(later);
            let Some(again) = rest.first_mut() else { return };
            let same = |remote: &&mut Remote| {
                remote.plan.is_some() && remote.machine.is_some() && remote.machine == again.machine
            };
            let Some(first) = before.iter_mut().find(same) else { continue };
            if let (Some(plan), Some(whole)) = (again.dismiss(), &mut first.plan) {
                add(whole, &plan);
                first.ranks.clone_from(&whole.ranks);
            }
        }
    }
}

/// Gives a machine the ranks of another one too.
fn add(to: &mut Assignment, plan: &Assignment) {
    to.ranks.extend_from_slice(&plan.ranks);
    to.ranks.sort_unstable();
}
