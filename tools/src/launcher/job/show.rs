//! Collecting the hang table: other machines have a moment to send their rows.

use super::Running;
use crate::hang::{self, Row};
use crate::protocol::Down;
use std::time::{Duration, Instant};

/// How long other machines may take.
const COLLECT: Duration = Duration::from_secs(2);

/// A table that has been asked for.
#[derive(Debug)]
pub(super) struct Show {
    /// By rank.
    rows: Vec<Option<Row>>,
    until: Instant,
    /// The job is ended behind it, for this reason.
    then_end: Option<String>,
}

impl Show {
    /// When it is shown with what has come.
    pub(super) fn until(&self) -> Instant {
        self.until
    }
}

impl Running {
    /// Collects the table; when it is there the job is ended, if there is a reason.
    pub(super) fn show_calls(&mut self, then_end: Option<String>) {
        if let Some(show) = &mut self.show {
            show.then_end = show.then_end.take().or(then_end);
            return;
        }
        let rows = vec![None; self.plan.ranks];
        self.show = Some(Show { rows, until: Instant::now() + COLLECT, then_end });
        self.remotes.iter_mut().for_each(|remote| remote.say(&Down::Show));
        let own = self.local_ranks.rows(&self.host);
        self.take_rows(own);
        self.finish_show();
    }

    pub(super) fn take_rows(&mut self, rows: Vec<(u32, Row)>) {
        let Some(show) = &mut self.show else { return };
        for (rank, row) in rows {
            if let Some(place) = show.rows.get_mut(rank as usize) {
                *place = Some(row);
            }
        }
    }

    /// Shows the table once all that can come has come.
    pub(super) fn finish_show(&mut self) {
        let Some(show) = &self.show else { return };
        let has_come = |rank: &u32| show.rows[*rank as usize].is_some();
        let is_awaited = |remote: &crate::remote::Remote| {
            !remote.is_over() && !remote.ranks.iter().all(has_come)
        };
        if self.remotes.iter().any(is_awaited) && Instant::now() < show.until {
            return;
        }
        let Some(show) = self.show.take() else { return };
        let known = show.rows.into_iter().enumerate();
        let rows: Vec<Row> = known
            .map(|(rank, row)| row.unwrap_or_else(|| self.records.row_of_absent(rank)))
            .collect();
        let hosts: Vec<&str> = self.plan.hosts.iter().map(String::as_str).collect();
        let several = (self.plan.own.machines > 1).then_some(hosts.as_slice());
        let table = hang::table(&rows, several);
        self.printer.say(&table);
        // Something else may have ended the job meanwhile.
        if let Some(reason) = show.then_end.filter(|_| !self.shutdown.is_ordered()) {
            self.end_job(&reason);
        }
    }
}
