//! Plans that are kept.

use std::sync::Arc;

use gaspi_core::Result;

use crate::task::Plan;

/// Plans that are kept in one place.
const KEPT: usize = 16;

/// The plans that were used last, by what they depend on.
#[derive(Debug)]
pub(crate) struct Kept<K>(Vec<(K, Arc<Plan>)>);

impl<K> Default for Kept<K> {
    fn default() -> Kept<K> {
        Kept(Vec::new())
    }
}

impl<K: PartialEq> Kept<K> {
    /// The plan, kept or made.
    pub(crate) fn get(
        &mut self,
        key: K,
        make: impl FnOnce(&K) -> Result<Arc<Plan>>,
    ) -> Result<Arc<Plan>> {
        let plans = &mut self.0;
        if let Some(found) = plans.iter().position(|(known, _)| *known == key) {
            // The last ones used stand first.
            plans[..=found].rotate_right(1);
            return Ok(Arc::clone(&plans[0].1));
        }
        let plan = make(&key)?;
        plans.truncate(KEPT - 1);
        plans.insert(0, (key, Arc::clone(&plan)));
        Ok(plan)
    }
}
