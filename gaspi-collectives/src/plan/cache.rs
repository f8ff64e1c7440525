//! Plans that were used last.

use std::sync::Arc;

use gaspi_core::Result;

use super::Plan;

/// Number of plans in a cache.
const CACHED_PLANS: usize = 16;

/// The plans that were used last, by what they depend on.
#[derive(Debug)]
pub(crate) struct PlanCache<K>(Vec<(K, Arc<Plan>)>);

impl<K> Default for PlanCache<K> {
    fn default() -> PlanCache<K> {
        PlanCache(Vec::new())
    }
}

impl<K: PartialEq> PlanCache<K> {
    /// The plan of a key, cached or made.
    pub(crate) fn get(
        &mut self,
        key: K,
        make: impl FnOnce(&K) -> Result<Arc<Plan>>,
    ) -> Result<Arc<Plan>> {
        let plans = &mut self.0;
        if let Some(found) = plans.iter().position(|(known, _)| *known == key) {
            // The most recently used plan comes first.
            plans[..=found].rotate_right(1);
            return Ok(Arc::clone(&plans[0].1));
        }
        let plan = make(&key)?;
        plans.truncate(CACHED_PLANS - 1);
        plans.insert(0, (key, Arc::clone(&plan)));
        Ok(plan)
    }
}
