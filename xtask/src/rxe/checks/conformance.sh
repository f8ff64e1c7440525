# Chapters of the conformance suite, with ranks that are threads and share the device. What takes long,
# or says how much time may pass, is left out.
without="write_wait_barrier crowded registering_again between_all_pairs at_every_size many_senders
    everybody_sends sizes_may_differ sums_are_exact"
for chapter in one_sided notifications passive queues segments atomics channels; do
    tests conformance "verbs/$chapter::"
done
no_test_failed
