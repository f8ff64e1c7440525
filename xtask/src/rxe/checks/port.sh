# The port of a guest goes down under a job whose data goes by the devices, and comes back some 2 s
# after a write has met that. Soft-RoCE fails requests at once then. They are errors of their queues,
# no rank is lost, and data goes by the devices again.
rm -f /tmp/started /tmp/down /tmp/met /tmp/stop
if [ "$guest" = 0 ]; then
    export GASPI_DEAD_AFTER=30 GASPI_IB_DEVICE="$device" GASPI_LOG=info
    "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/again" 2 /tmp/started \
        /tmp/down /tmp/met /tmp/stop > /tmp/port 2>&1 || { cat /tmp/port; fail "again"; }
    cat /tmp/port
    [ "$(grep -c "the port of $device.* is down" /tmp/port)" = 2 ] ||
        fail "both ranks of guest 1, and no others, tell that their port is down"
    grep -q "rounds, [1-9][0-9]* errors\|, [1-9][0-9]* bytes by TCP" /tmp/port ||
        fail "the cut has met no request"
    exit 0
fi
wait_for /tmp/started
link_down
touch /tmp/down
wait_for /tmp/met
sleep 2
link_up
echo "down and up"
touch /tmp/stop
