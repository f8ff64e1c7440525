# All chapters of the conformance suite, with ranks that are threads and share the device: each a node
# of its own, and two and two.
all_chapters conformance verbs verbs-pairs
no_test_failed
