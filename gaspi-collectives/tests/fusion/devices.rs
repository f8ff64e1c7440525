//! Fused buffers whose data goes by devices that do not go on.

use super::stall::said;
use super::*;
use ranks::run_with_devices;
use std::time::Duration;

/// Rank 1 has submitted all, and its device sends nothing, its library's answers included.
fn a_rank_whose_device_stands_still_is_named_and_the_bucket_ends_when_it_goes_on() {
    let counts = [5000, 7];
    let all = ranks::Barrier::new(2);
    run_with_devices(2, "time_scale=0", |rt, fabric| {
        let me = rt.rank().index();
        let fusion = create(rt, &floats(&counts), &Options::default());
        fusion.warn_of_stalls_after(Some(Duration::from_millis(20)));
        let hand = |step: usize| {
            for (tensor, count) in counts.into_iter().enumerate() {
                submit(&fusion, tensor, &contribution(me, tensor, step, count));
            }
        };
        hand(0);
        assert_eq!(wait(&fusion, 0, counts[0]), sum(2, 0, 0, counts[0]));
        all.wait();
        if me == 1 {
            fabric.hold(1, 1);
        }
        all.wait();
        hand(1);
        if me == 1 {
            let words = ["bucket 0 of a fused buffer", "step 2: rank 1 on ", "does not answer"];
            said(0, 1, &words);
            fabric.hold(1, 0);
        }
        for (tensor, count) in counts.into_iter().enumerate() {
            assert_eq!(wait(&fusion, tensor, count), sum(2, tensor, 1, count));
        }
    });
}

tests! {
    BY_DEVICE:
        a_rank_whose_device_stands_still_is_named_and_the_bucket_ends_when_it_goes_on;
}
