//! Registered memory of a card: keys, ranges and rights.

use super::codes::access;
use super::memory::Piece;

/// One registered region.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) domain: u32,
    pub(crate) memory: Piece,
    /// The address that requests use for the first byte.
    pub(crate) iova: u64,
    pub(crate) access: u32,
    pub(crate) local_key: u32,
    pub(crate) remote_key: u32,
}

/// What was asked of a region, and is refused: the one reason that the caller words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied;

/// All regions of a card.
///
/// A key is an index and 8 bits that change with each use of it. Local and remote keys of a region
/// differ, so that no program mistakes one for the other unnoticed.
#[derive(Debug, Default)]
pub(crate) struct Regions {
    slots: Vec<Option<Region>>,
    free: Vec<usize>,
    uses: u32,
    pub(crate) live: u64,
    pub(crate) bytes: u64,
}

impl Regions {
    /// Sets the keys and keeps the region. Returns its index.
    pub(crate) fn insert(&mut self, mut region: Region) -> usize {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        self.uses += 1;
        region.local_key = ((index as u32 + 1) << 8) | (self.uses & 0x7f);
        region.remote_key = region.local_key | 0x80;
        self.live += 1;
        self.bytes += region.memory.length;
        self.slots[index] = Some(region);
        index
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Region> {
        self.slots.get(index)?.as_ref()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<Region> {
        let region = self.slots.get_mut(index)?.take()?;
        self.free.push(index);
        self.live -= 1;
        self.bytes -= region.memory.length;
        Some(region)
    }

    pub(crate) fn uses_domain(&self, domain: u32) -> bool {
        self.slots.iter().flatten().any(|region| region.domain == domain)
    }

    /// The memory of a piece named by a local key.
    pub(crate) fn local(
        &self,
        domain: u32,
        key: u32,
        address: u64,
        length: u64,
        rights: u32,
    ) -> Result<Piece, Denied> {
        let region = self.by_key(key).filter(|region| region.local_key == key).ok_or(Denied)?;
        region.piece(domain, address, length, rights)
    }

    /// The memory of a range named by a remote key.
    pub(crate) fn remote(
        &self,
        domain: u32,
        key: u32,
        address: u64,
        length: u64,
        rights: u32,
    ) -> Result<Piece, Denied> {
        let region = self.by_key(key).filter(|region| region.remote_key == key).ok_or(Denied)?;
        region.piece(domain, address, length, rights)
    }

    fn by_key(&self, key: u32) -> Option<&Region> {
        self.get(((key >> 8) as usize).checked_sub(1)?)
    }
}

impl Region {
    fn piece(&self, domain: u32, address: u64, length: u64, rights: u32) -> Result<Piece, Denied> {
        let offset = address.checked_sub(self.iova).ok_or(Denied)?;
        let end = offset.checked_add(length).ok_or(Denied)?;
        let allowed = self.access & rights == rights;
        if self.domain != domain || end > self.memory.length || !allowed {
            return Err(Denied);
        }
        Ok(Piece { address: self.memory.address + offset, length })
    }
}

/// Whether these rights can be asked for together.
pub(crate) fn rights_are_valid(rights: u32) -> bool {
    let writes = access::REMOTE_WRITE | access::REMOTE_ATOMIC;
    rights & !access::KNOWN == 0 && (rights & writes == 0 || rights & access::LOCAL_WRITE != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(access: u32) -> Region {
        let memory = Piece { address: 0x1000, length: 0x100 };
        Region { domain: 1, memory, iova: 0x9000, access, local_key: 0, remote_key: 0 }
    }

    #[test]
    fn only_the_right_key_range_and_domain_lead_to_memory() {
        let mut regions = Regions::default();
        let index = regions.insert(region(access::LOCAL_WRITE | access::REMOTE_READ));
        let Region { local_key, remote_key, .. } = *regions.get(index).unwrap();
        let found = regions.remote(1, remote_key, 0x9010, 0xf0, access::REMOTE_READ);
        assert_eq!(found, Ok(Piece { address: 0x1010, length: 0xf0 }));
        for (domain, key, address, length, rights) in [
            (2, remote_key, 0x9010, 1, access::REMOTE_READ),
            (1, local_key, 0x9010, 1, access::REMOTE_READ),
            (1, remote_key ^ 1, 0x9010, 1, access::REMOTE_READ),
            (1, remote_key, 0x8fff, 1, access::REMOTE_READ),
            (1, remote_key, 0x9010, 0xf1, access::REMOTE_READ),
            (1, remote_key, 0x9010, u64::MAX, access::REMOTE_READ),
            (1, remote_key, 0x9010, 1, access::REMOTE_WRITE),
        ] {
            assert_eq!(regions.remote(domain, key, address, length, rights), Err(Denied));
        }
        assert!(regions.local(1, remote_key, 0x9000, 1, 0).is_err());
        assert!(regions.local(1, local_key, 0x9000, 1, access::LOCAL_WRITE).is_ok());
    }

    #[test]
    fn a_key_ends_with_its_region() {
        let mut regions = Regions::default();
        let index = regions.insert(region(access::LOCAL_WRITE));
        let key = regions.remove(index).map(|_| 0x101).unwrap();
        assert_eq!(regions.insert(region(access::LOCAL_WRITE)), index);
        assert_eq!(regions.local(1, key, 0x9000, 1, 0), Err(Denied));
        assert_eq!((regions.live, regions.bytes), (1, 0x100));
    }

    #[test]
    fn remote_writes_need_local_ones() {
        assert!(!rights_are_valid(access::REMOTE_WRITE));
        assert!(!rights_are_valid(access::REMOTE_ATOMIC));
        assert!(!rights_are_valid(access::ON_DEMAND));
        assert!(rights_are_valid(access::REMOTE_READ | access::RELAXED_ORDERING));
    }
}
