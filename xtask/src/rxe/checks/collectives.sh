# The suites of the collective operations, with ranks that are threads and share the device.
for program in operations standard stable fusion trouble; do
    all_chapters $program verbs verbs-pairs
done
no_test_failed
