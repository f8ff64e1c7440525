//! What the words behind `--` choose of the stage `training`: `[ENVIRONMENT/][RANKS/]NAME`.
//!
//! ENVIRONMENT is the name of one, so that one of the full tier runs without the others; RANKS
//! stands in place of the numbers of the table; NAME is a part of the name of a job, a unit test or
//! an example, `JOB.CASE` for cases of a job, or empty for all.

use crate::result::Result;

/// One of these words.
#[derive(Debug, PartialEq)]
pub(crate) struct Filter {
    pub(super) environment: Option<String>,
    pub(super) ranks: Option<usize>,
    pub(super) name: String,
}

impl Filter {
    /// Reads a word; `environments` are the names that there are.
    pub(super) fn parse(word: &str, environments: &[&str]) -> Result<Filter> {
        let mut parts: Vec<&str> = word.split('/').collect();
        let name = parts.pop().unwrap_or_default().to_owned();
        let mut parts = parts.into_iter().peekable();
        let environment = parts.next_if(|part| environments.contains(part)).map(str::to_owned);
        let ranks = match parts.next() {
            None => None,
            Some(part) => Some(part.parse().ok().filter(|ranks| *ranks > 0).ok_or_else(|| {
                format!(
                    "{word:?} is not [ENVIRONMENT/][RANKS/]NAME: {part:?} is no number of ranks, \
                     and no environment of {}",
                    environments.join(", ")
                )
            })?),
        };
        match parts.next() {
            None => Ok(Filter { environment, ranks, name }),
            Some(more) => Err(format!(
                "{word:?} is not [ENVIRONMENT/][RANKS/]NAME: {more:?} is too much in it"
            )),
        }
    }

    /// What it chooses of a job, as `all_jobs.py` takes it: the job or cases of it.
    pub(super) fn of_job(&self, job: &str) -> Option<String> {
        if job.contains(self.name.trim_end_matches(".py")) {
            return Some(job.to_owned());
        }
        let (beginning, case) = self.name.split_once('.')?;
        (beginning == job).then(|| format!("{job}.{case}"))
    }

    /// Whether it chooses what has this name and no number of ranks.
    pub(super) fn takes(&self, name: &str) -> bool {
        self.ranks.is_none() && name.contains(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 2] = ["tf-2.10", "tf-2.21"];

    fn parsed(word: &str) -> (Option<String>, Option<usize>, String) {
        let filter = Filter::parse(word, &NAMES).unwrap();
        (filter.environment, filter.ranks, filter.name)
    }

    #[test]
    fn environment_and_ranks_may_be_left_out() {
        let environment = Some("tf-2.10".to_owned());
        let job = "job_data".to_owned();
        assert_eq!(parsed("tf-2.10/4/job_data"), (environment.clone(), Some(4), job.clone()));
        assert_eq!(parsed("tf-2.10/job_data"), (environment.clone(), None, job.clone()));
        assert_eq!(parsed("4/job_data"), (None, Some(4), job.clone()));
        assert_eq!(parsed("job_data"), (None, None, job));
        assert_eq!(parsed("tf-2.10/"), (environment, None, String::new()));
    }

    #[test]
    fn mistakes_name_the_environments() {
        for word in ["tf-2.9/job_data", "tf-2.10/0/job_data", "tf-2.10/x/job_data"] {
            let reason = Filter::parse(word, &NAMES).unwrap_err();
            assert!(reason.contains("tf-2.10, tf-2.21"), "{reason}");
        }
        let reason = Filter::parse("tf-2.10/2/job_data/3", &NAMES).unwrap_err();
        assert!(reason.contains("too much"), "{reason}");
        assert!(Filter::parse("2/4/job_data", &NAMES).is_err());
    }

    #[test]
    fn a_job_is_chosen_whole_or_by_its_cases() {
        let chosen = |word, job| Filter::parse(word, &NAMES).unwrap().of_job(job);
        assert_eq!(chosen("data", "job_data").as_deref(), Some("job_data"));
        assert_eq!(chosen("2/", "job_data").as_deref(), Some("job_data"));
        assert_eq!(chosen("job_data.py", "job_data").as_deref(), Some("job_data"));
        assert_eq!(chosen("2/job_data.last", "job_data").as_deref(), Some("job_data.last"));
        assert_eq!(chosen("job_data.last", "job_metrics"), None);
        assert_eq!(chosen("job_metrics", "job_data"), None);
    }

    #[test]
    fn what_has_no_ranks_is_not_chosen_by_them() {
        let takes = |word| Filter::parse(word, &NAMES).unwrap().takes("declarations");
        assert!(takes("tf-2.21/") && takes("tf-2.10/declarations"));
        assert!(!takes("tf-2.21/2/") && !takes("job_data"));
    }
}
