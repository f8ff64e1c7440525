# The link of a guest goes down for longer than GASPI_DEAD_AFTER while a job runs over both by verbs.
# Calls fail on both sides, and their reasons name what was lost.
rm -f /tmp/started /tmp/stop
export GASPI_DEAD_AFTER=3 GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device" RING_SURVIVES=2
if [ "$guest" = 0 ]; then
    "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/ring" /tmp/started /tmp/stop \
        > /tmp/cut 2>&1 || true
    cat /tmp/cut
    survivors_name_lost /tmp/cut
    exit 0
fi
wait_for /tmp/started
$ip link set eth0 down
# Until the ranks of this side have given up.
tries=0
while ps | grep -q "[p]rograms/ring"; do
    tries=$((tries + 1))
    [ $tries -lt $((300 * slower)) ] || fail "ranks of the side that was cut off do not end"
    sleep 0.1
done
$ip link set eth0 up
echo "down until all had ended, and up"
