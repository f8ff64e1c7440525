# The network of a guest drops all that it sends for longer than GASPI_DEAD_AFTER while a job runs over
# both by verbs. Its port stays up. Calls fail on both sides, and their reasons name what was lost.
ring_until_lost drop_all drop_none
