//! What /proc/PID/maps of any process shows, in which gaspi_cleanup looks for its job and rank.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let maps = String::from_utf8_lossy(bytes);
    if let Some((job, _)) = gaspi_core::labelled_job(&maps) {
        assert!(job.len() < maps.len());
    }
});
