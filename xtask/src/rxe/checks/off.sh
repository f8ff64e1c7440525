# A guest is switched off while two jobs run over both, one by TCP and one by verbs. The survivors'
# calls fail, their reasons name what was lost, and this within GASPI_DEAD_AFTER and some time for a
# slow machine.
rm -f /tmp/started.* /tmp/stop
if [ "$guest" = 1 ]; then
    wait_for /tmp/started.tcp
    wait_for /tmp/started.verbs
    switch_off 1
    wait_for /tmp/stop
fi
export RING_SURVIVES=2 GASPI_IB_DEVICE="$device"
for transport in tcp verbs; do
    GASPI_TRANSPORT=$transport "$release/gaspi_run" --hosts guest0:2,guest1:2 \
        "$programs/ring" /tmp/started.$transport /tmp/stop > /tmp/off.$transport 2>&1 &
done
wait
for transport in tcp verbs; do
    echo "by $transport:"
    cat /tmp/off.$transport
done
for transport in tcp verbs; do
    survivors_name_lost /tmp/off.$transport
    grep -q "host guest1 was lost" /tmp/off.$transport || fail "gaspi_run does not name the host"
done
