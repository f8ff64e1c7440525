//! Memory that RDMA devices are told of: for channels, and for what was prepared.

use super::{ALL, Memory, call, check_sum, ranks, sum_of_all};
use gaspi_collectives::algorithms::Collective;
use gaspi_collectives::handles::{free, prepare, restart, wait};
use gaspi_core::{Rank, Runtime};
use gaspi_mock_card::Fabric;
use ranks::{LIMIT, run_with_devices};
use std::sync::Barrier;

/// Elements of an operation whose data is sent from where it lies, where it can be.
const MANY: usize = 100_000;

/// Sums until the devices of both ranks write the data of a whole operation: what this rank's has
/// written by then for the last one.
fn until_by_device(rt: &Runtime, fabric: &Fabric, both: &Barrier) -> u64 {
    let written = || [0, 1].map(|device| fabric.counter(device, "written"));
    loop {
        both.wait();
        let before = written();
        both.wait();
        sum_of_all(rt, ALL, MANY);
        both.wait();
        let after = written();
        let by_device = [0, 1].map(|device| after[device] - before[device]);
        // Half of the data goes to the other rank to be summed, and half of the sum back.
        if by_device.iter().all(|bytes| *bytes >= MANY as u64 * 8) {
            return by_device[usize::from(rt.rank().0)];
        }
    }
}

fn the_data_of_collectives_is_written_by_devices_alone() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let device = rt.rank().0.into();
        let each = until_by_device(rt, fabric, &both);
        let counters = ["written", "send"];
        let before = counters.map(|name| fabric.counter(device, name));
        both.wait();
        for _ in 0..20 {
            sum_of_all(rt, ALL, MANY);
        }
        both.wait();
        let after = counters.map(|name| fabric.counter(device, name));
        let [written, sent] = [0, 1].map(|nth| after[nth] - before[nth]);
        assert_eq!(written, 20 * each, "all of it by writes");
        // A message holds no more than 2 KiB.
        let in_messages = 20 * each / 2048;
        assert!(sent < in_messages / 4, "{sent} messages, {in_messages} would hold the data");
        both.wait();
    });
}

fn memory_of_prepared_operations_is_known_to_devices_until_they_are_freed() {
    let both = Barrier::new(2);
    run_with_devices(2, "", |rt, fabric| {
        let regions = || fabric.live(rt.rank().0.into()).regions;
        until_by_device(rt, fabric, &both);
        let mut memory = Memory::new(rt.rank(), MANY);
        let mut first = None;
        for _ in 0..10 {
            let before = regions();
            let request = memory.request(Collective::Allreduce, MANY as u64);
            // SAFETY: the memory outlives the handle.
            let handle = unsafe { prepare(rt, ALL, &request, LIMIT) }.expect("prepare");
            let prepared = regions();
            // The last one's channel goes when the next one's comes, if this rank has heard by then
            // that both have closed it: else with a later one, but not all of ten are kept.
            let first = *first.get_or_insert(prepared);
            assert!(prepared <= first + 3, "{prepared} regions, {first} at first");
            for _ in 0..5 {
                restart(rt, handle).expect("restart");
                wait(rt, handle, LIMIT).expect("wait");
            }
            check_sum(&memory.output, &[Rank(0), Rank(1)]);
            assert_eq!(regions(), prepared);
            free(rt, handle).expect("free");
            assert_eq!(regions(), prepared - 2, "what is sent from, and what is received to");
            assert!(before < prepared);
            let barrier = memory.request(Collective::Barrier, 0);
            call(rt, ALL, &barrier, LIMIT).expect("barrier");
        }
    });
}

tests! {
    VERBS:
        memory_of_prepared_operations_is_known_to_devices_until_they_are_freed,
        the_data_of_collectives_is_written_by_devices_alone;
}
