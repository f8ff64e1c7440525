# A guest is switched off while a job runs over both. The survivors' calls fail, their reasons name
# what was lost, and this within GASPI_DEAD_AFTER and some time for a slow machine.
rm -f /tmp/started /tmp/stop
if [ "$guest" = 1 ]; then
    wait_for /tmp/started
    switch_off 1
    wait_for /tmp/stop
fi
export RING_SURVIVES=1
"$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/ring" /tmp/started /tmp/stop \
    > /tmp/off 2>&1 || true
cat /tmp/off
for rank in 0 1; do
    lines=$(grep "^rank $rank: .*rank [23] .* after \|^rank $rank: .* after .*rank [23] " /tmp/off) ||
        fail "rank $rank does not name a rank that was lost"
    after=$(echo "$lines" | sed -n '1s/.* after \([0-9]*\)\.[0-9] s.*/\1/p')
    [ "$after" -le $((5 * slower)) ] || fail "rank $rank has its error after $after s"
done
grep -q "host guest1 was lost" /tmp/off || fail "gaspi_run does not name the host"
