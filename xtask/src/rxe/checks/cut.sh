# The link of a guest goes down for 2 s while a job runs over both, and comes up again. That is
# shorter than GASPI_DEAD_AFTER, so the job does not notice. Without devices: soft-RoCE fails requests
# at once while its link is down, where a card would try again; for devices there is lossy_cut.sh.
rm -f /tmp/started /tmp/stop
if [ "$guest" = 0 ]; then
    export GASPI_DEAD_AFTER=30 GASPI_IBVERBS_LIB=none
    "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/ring" /tmp/started /tmp/stop ||
        fail "the ring broke"
    exit 0
fi
wait_for /tmp/started
link_down
sleep 2
link_up
echo "down and up"
touch /tmp/stop
