# Failures between library and device, which tests/faulty-verbs plays over the real library: posts,
# completions, receives, objects and registrations. Each is an error of those concerned.
export GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device"
export GASPI_IBVERBS_LIB="$release/libgaspi_faulty_verbs.so"
play() {
    begin=$(date +%s)
    "$release/gaspi_run" -n 3 "$programs/faults" "$@" > /tmp/faults 2>&1 ||
        { cat /tmp/faults; fail "faults $*"; }
    grep -v '^\[' /tmp/faults
    echo "faults $*: $(($(date +%s) - begin)) s"
}
for call in alloc_pd create_comp_channel create_cq create_srq reg_mr; do
    play init $call
done
# With barriers and reductions by the device, whose requests fail too.
for seed in 4 5; do
    play random $seed 20000
done
export GASPI_IB_MESSAGES=tcp
play requests
play poll
for seed in 1 2 3; do
    play random $seed 20000
done
