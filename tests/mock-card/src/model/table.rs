//! Objects by numbers that are not used again, so that a stale number finds nothing.

/// Objects, the first of which has the number `base`.
#[derive(Debug)]
pub(crate) struct Table<T> {
    base: u32,
    slots: Vec<Option<Box<T>>>,
}

impl<T> Table<T> {
    pub(crate) fn new(base: u32) -> Table<T> {
        Table { base, slots: Vec::new() }
    }

    pub(crate) fn insert(&mut self, object: T) -> u32 {
        self.slots.push(Some(Box::new(object)));
        self.base + (self.slots.len() - 1) as u32
    }

    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = number.checked_sub(self.base)? as usize;
        let object = self.slots.get_mut(index)?.take()?;
        Some(*object)
    }

    pub(crate) fn find(&self, number: u32) -> Option<&T> {
        self.slots.get(number.checked_sub(self.base)? as usize)?.as_deref()
    }

    pub(crate) fn find_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number.checked_sub(self.base)? as usize)?.as_deref_mut()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let numbered = (self.base..).zip(&self.slots);
        numbered.filter_map(|(number, slot)| Some((number, slot.as_deref()?)))
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        self.iter().map(|(number, _)| number).collect()
    }
}
