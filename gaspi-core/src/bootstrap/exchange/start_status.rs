//! Where the ranks of a job over several hosts run, and how far the start of each has come: what an
//! incomplete start says.

use crate::ids::Rank;
use std::fmt::Write;
use std::sync::Arc;

/// Groups of ranks that one text names.
const GROUPS_MAX: usize = 8;
/// Ranges of ranks that one group names.
const RANGES_MAX: usize = 6;

/// How far the launcher has come with the start of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StartStage {
    /// Its host is being reached.
    Reaching,
    /// The launcher's agent on its host answers.
    AgentUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reached {
    /// Nobody has told; in a job by hand nobody will.
    Unseen,
    Stage(StartStage),
    /// As this process.
    Started(i32),
}

/// The hosts and stages of all ranks.
#[derive(Debug)]
pub(crate) struct StartStatus {
    hosts: Arc<[Arc<str>]>,
    reached: Vec<Reached>,
    /// Ranks on which the launcher is still at work: a start asks that for each rank that joins.
    at_work: usize,
}

impl StartStatus {
    /// Of the ranks on `hosts`, by rank.
    pub(crate) fn new(hosts: Arc<[Arc<str>]>) -> StartStatus {
        let reached = vec![Reached::Unseen; hosts.len()];
        StartStatus { hosts, reached, at_work: 0 }
    }

    pub(crate) fn stage(&mut self, rank: Rank, stage: StartStage) {
        self.set(rank, Reached::Stage(stage));
    }

    pub(crate) fn started(&mut self, rank: Rank, pid: i32) {
        self.set(rank, Reached::Started(pid));
    }

    fn set(&mut self, rank: Rank, to: Reached) {
        let Some(reached) = self.reached.get_mut(rank.index()) else { return };
        let is_at_work = |reached: Reached| usize::from(matches!(reached, Reached::Stage(_)));
        self.at_work = self.at_work + is_at_work(to) - is_at_work(*reached);
        *reached = to;
    }

    /// The process that the launcher started as `rank`.
    pub(crate) fn process(&self, rank: Rank) -> Option<i32> {
        match self.reached.get(rank.index()) {
            Some(Reached::Started(pid)) => Some(*pid),
            _ => None,
        }
    }

    /// The host of `rank`.
    pub(crate) fn host(&self, rank: Rank) -> &str {
        self.hosts.get(rank.index()).map_or("", |host| host)
    }

    /// Whether the launcher is still at work on a rank.
    pub(crate) fn is_starting(&self) -> bool {
        self.at_work > 0
    }

    /// The `missing` ranks with their hosts and how far each has come, and that `others` are
    /// missing too.
    pub(crate) fn words(&self, missing: &[Rank], mut others: usize) -> String {
        let mut groups: Vec<(&str, Reached, Vec<u16>)> = Vec::new();
        for rank in missing {
            let (host, mut reached) = (self.host(*rank), self.reached[rank.index()]);
            if let Reached::Started(_) = reached {
                reached = Reached::Started(0);
            }
            let known = groups.iter().position(|group| (group.0, group.1) == (host, reached));
            match known {
                Some(known) => groups[known].2.push(rank.0),
                None if groups.len() < GROUPS_MAX => groups.push((host, reached, vec![rank.0])),
                None => others += 1,
            }
        }
        let mut text = String::new();
        for (number, (host, reached, ranks)) in groups.iter().enumerate() {
            let how = match (reached, ranks.as_slice()) {
                (Reached::Unseen, _) => "not seen yet".to_owned(),
                (Reached::Stage(StartStage::Reaching), _) => {
                    "the host has not answered yet".to_owned()
                }
                (Reached::Stage(StartStage::AgentUp), _) => {
                    "the host answers, the process has not started yet".to_owned()
                }
                (Reached::Started(_), [rank]) => {
                    let pid = self.process(Rank(*rank)).unwrap_or(0);
                    format!("process {pid} has not called proc_init")
                }
                (Reached::Started(_), _) => "started, have not called proc_init".to_owned(),
            };
            let comma = if number > 0 { ", " } else { "" };
            let place = if host.is_empty() { String::new() } else { format!(" on {host}") };
            // Writing to a string cannot fail.
            let _ = write!(text, "{comma}{}{place} ({how})", listed(ranks));
        }
        if others > 0 {
            let _ = write!(text, " and {others} more");
        }
        text
    }
}

/// "rank 3" or "ranks 0-2, 5", for ranks in ascending order.
fn listed(ranks: &[u16]) -> String {
    let mut ranges: Vec<(u16, u16)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if u32::from(*last) + 1 == u32::from(*rank) => *last = *rank,
            _ => ranges.push((*rank, *rank)),
        }
    }
    let mut text = String::from(if ranks.len() == 1 { "rank" } else { "ranks" });
    for (number, (first, last)) in ranges.iter().take(RANGES_MAX).enumerate() {
        let comma = if number > 0 { "," } else { "" };
        // Writing to a string cannot fail.
        let _ = match (first, last) {
            _ if first == last => write!(text, "{comma} {first}"),
            _ => write!(text, "{comma} {first}-{last}"),
        };
    }
    let named = ranges.iter().take(RANGES_MAX).map(|(first, last)| usize::from(last - first) + 1);
    let rest = ranks.len() - named.sum::<usize>();
    if rest > 0 {
        let _ = write!(text, " and {rest} more");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_are_named_with_host_and_stage() {
        let hosts = ["a", "a", "b", "b", "b", "c"].map(Arc::from).into();
        let mut start_status = StartStatus::new(hosts);
        let missing: Vec<Rank> = (1..6).map(Rank).collect();
        assert_eq!(
            start_status.words(&missing, 0),
            "rank 1 on a (not seen yet), ranks 2-4 on b (not seen yet), rank 5 on c (not seen yet)"
        );
        for rank in 2..5 {
            start_status.stage(Rank(rank), StartStage::Reaching);
        }
        assert!(start_status.is_starting());
        assert!(
            start_status
                .words(&missing, 0)
                .contains("ranks 2-4 on b (the host has not answered yet)")
        );
        start_status.stage(Rank(3), StartStage::AgentUp);
        start_status.started(Rank(2), 71);
        start_status.started(Rank(4), 72);
        assert_eq!(
            start_status.words(&missing[1..4], 0),
            "ranks 2, 4 on b (started, have not called proc_init), rank 3 on b (the host answers, \
             the process has not started yet)"
        );
        assert_eq!(
            start_status.words(&[Rank(4)], 0),
            "rank 4 on b (process 72 has not called proc_init)"
        );
        start_status.started(Rank(3), 73);
        assert!(!start_status.is_starting());
        assert_eq!(start_status.process(Rank(3)), Some(73));
    }

    #[test]
    fn the_text_of_a_large_job_is_short() {
        let hosts = (0..65535).map(|rank| format!("node{}", rank / 16).into()).collect();
        let start_status = StartStatus::new(hosts);
        let odd: Vec<Rank> = (0..65535).filter(|rank| rank % 2 == 1).map(Rank).collect();
        let text = start_status.words(&odd, 0);
        assert!(text.len() < 1000, "{text}");
        assert!(text.starts_with("ranks 1, 3, 5, 7, 9, 11 and 2 more on node0"), "{text}");
        assert!(text.ends_with("and 32703 more"), "{text}");
    }
}
