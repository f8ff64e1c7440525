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
    line=$(grep "^rank $rank: .* after " /tmp/off) || fail "rank $rank has no error"
    after=$(echo "$line" | sed 's/.* after \([0-9]*\)\..*/\1/')
    [ "$after" -le $((5 * slower)) ] || fail "rank $rank has its error after $after s"
done
grep -Eq "rank(s)? (2|3).*guest1|guest1.*rank" /tmp/off || fail "no message names rank and host"
