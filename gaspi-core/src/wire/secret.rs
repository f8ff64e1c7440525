//! The keys by which processes of a job know each other, and the names of jobs.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

/// Bytes of a job's secret, of a nonce, and of a mac.
pub(crate) const SECRET: usize = 32;
/// Bytes that name a job in a hello.
pub(crate) const JOB: usize = 16;

/// What both sides of a connection have to know alike.
#[derive(Clone)]
pub(crate) struct Secret {
    /// Names the job: [`job_name`] of its id, or random bytes that its ranks share.
    pub(crate) job: [u8; JOB],
    /// Known to its ranks only.
    pub(crate) key: [u8; SECRET],
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the key.
        f.debug_struct("Secret").field("job", &self.job).finish_non_exhaustive()
    }
}

impl Secret {
    /// The mac of these, to be finished or compared.
    pub(super) fn mac(&self, label: &[u8], parts: [&[u8]; 2]) -> Hmac<Sha256> {
        let mut mac = keyed(&self.key);
        mac.update(label);
        mac.update(parts[0]);
        mac.update(parts[1]);
        mac
    }
}

/// HMAC takes keys of any length, so this one too.
fn keyed(key: &[u8; SECRET]) -> Hmac<Sha256> {
    let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
    block[..SECRET].copy_from_slice(key);
    Hmac::new(&block)
}

/// What names the job `id` in a hello.
pub(crate) fn job_name(id: &str) -> [u8; JOB] {
    let digest: [u8; 32] = Sha256::new_with_prefix(b"gaspi job").chain_update(id).finalize().into();
    std::array::from_fn(|i| digest[i])
}

/// The key of a job, made from a secret that its user keeps and what names the job.
pub(crate) fn derived_key(secret: &[u8], job: &[u8; JOB]) -> [u8; SECRET] {
    let digest: [u8; SECRET] = Sha256::digest(secret).into();
    keyed(&digest).chain_update(b"gaspi job key").chain_update(job).finalize().into_bytes().into()
}
