# The link of a guest goes down for longer than GASPI_DEAD_AFTER while a job runs over both by verbs.
# Calls fail on both sides, and their reasons name what was lost.
ring_until_lost link_down link_up
