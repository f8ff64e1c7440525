# The network of a guest drops all that it sends for 2 s while a job runs over both by verbs. Its port
# stays up, so that nothing tells of it. The devices try again for as long as GASPI_DEAD_AFTER says:
# nothing is lost, and no call fails.
rm -f /tmp/started /tmp/stop
if [ "$guest" = 0 ]; then
    export GASPI_DEAD_AFTER=30 GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device" GASPI_LOG=info
    "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/ring" /tmp/started /tmp/stop \
        > /tmp/cut 2>&1 || { cat /tmp/cut; fail "the ring broke"; }
    cat /tmp/cut
    exit 0
fi
wait_for /tmp/started
drop_all
sleep 2
drop_none
touch /tmp/stop
