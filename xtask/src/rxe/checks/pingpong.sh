# The example of libibverbs: a reliable connection carries messages both ways.
pair ibv_rc_pingpong -d "$device" -g "$(gid_index)" -n 100
