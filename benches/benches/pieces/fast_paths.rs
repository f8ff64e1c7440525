//! What completes without waiting: one-sided communication with the own rank, in shared memory.

use criterion::Criterion;
use gaspi_core::{
    Config, GroupId, Init, Job, NotificationId, PendingInit, QueueId, Runtime, SegmentId, Timeout,
    Transfer,
};

const SEGMENT: SegmentId = SegmentId(0);
const QUEUE: QueueId = QueueId(0);
const NOTIFICATION: NotificationId = NotificationId(0);

pub(crate) fn measure(criterion: &mut Criterion) {
    let rt = join().expect("a job of one rank");
    let transfer = Transfer {
        local: SEGMENT,
        local_offset: 0,
        rank: rt.rank(),
        remote: SEGMENT,
        remote_offset: 1024,
        size: 8,
    };
    let set = || rt.notify(rt.rank(), SEGMENT, NOTIFICATION, 1, QUEUE, Timeout::Block);
    set().expect("the queue is empty");
    let mut group = criterion.benchmark_group("fast_path");
    // Requests fill the queue, so each is waited for.
    group.bench_function("write 8 B, wait", |bencher| {
        bencher.iter(|| {
            rt.write(&transfer, QUEUE, Timeout::Block)?;
            rt.wait(QUEUE, Timeout::Block)
        });
    });
    group.bench_function("write_notify 8 B, wait", |bencher| {
        bencher.iter(|| {
            rt.write_notify(&transfer, NOTIFICATION, 1, QUEUE, Timeout::Block)?;
            rt.wait(QUEUE, Timeout::Block)
        });
    });
    group.bench_function("notify_waitsome, set", |bencher| {
        bencher.iter(|| rt.notify_waitsome(SEGMENT, 0, 1, Timeout::Test));
    });
    group.bench_function("notify_reset", |bencher| {
        bencher.iter(|| rt.notify_reset(SEGMENT, NOTIFICATION));
    });
    rt.notify_reset(SEGMENT, NOTIFICATION).expect("the notification exists");
    group.bench_function("notify_waitsome, not set", |bencher| {
        bencher.iter(|| rt.notify_waitsome(SEGMENT, 0, 1, Timeout::Test));
    });
    group.bench_function("atomic_fetch_add", |bencher| {
        bencher.iter(|| rt.atomic_fetch_add(SEGMENT, 0, transfer.rank, 1, Timeout::Block));
    });
    group.finish();
}

fn join() -> gaspi_core::Result<Runtime> {
    let rt = PendingInit::new(Job::single(), Config::default())?.wait(Timeout::Block)?;
    rt.segment_create(SEGMENT, 4096, GroupId::ALL, Timeout::Block, Init::Zeroed)?;
    Ok(rt)
}
