# The ranks of a guest are killed while a job runs over both by verbs. The survivors' calls fail, and
# their reasons name what was lost.
rm -f /tmp/started /tmp/stop
if [ "$guest" = 1 ]; then
    wait_for /tmp/started
    # Unquoted: several numbers.
    kill -KILL $(pidof ring)
    exit 0
fi
export GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device" RING_SURVIVES=2
"$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/ring" /tmp/started /tmp/stop \
    > /tmp/killed 2>&1 || true
cat /tmp/killed
survivors_name_lost /tmp/killed
grep -q "rank [23] .*signal 9" /tmp/killed || fail "gaspi_run does not tell of the signal"
