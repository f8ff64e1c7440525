# Chapters of the conformance suite, with ranks that are threads and share the device. What needs
# more pairs than soft-RoCE carries well, or says how much time may pass, is left out.
export GASPI_TEST_DEVICE="$device"
for chapter in one_sided notifications passive queues segments atomics channels; do
    "$programs/conformance" "verbs/$chapter::" --test-threads 1 \
        --skip at_every_size --skip write_wait_barrier --skip many_senders --skip everybody_sends \
        --skip sizes_may_differ --skip crowded --skip registering_again --skip sums_are_exact \
        --skip between_all_pairs > "/tmp/$chapter" 2>&1 ||
        { cat "/tmp/$chapter"; fail "chapter $chapter by $device"; }
    grep "^test result" "/tmp/$chapter" | sed "s/^/$chapter: /"
    grep -q " [1-9][0-9]* passed" "/tmp/$chapter" || fail "chapter $chapter ran no test"
done
