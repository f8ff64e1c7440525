# A job over both guests by ssh, two ranks on each, started as a user would. Data goes by the devices
# between the guests and by shared memory within them; to and from a rank without a card by TCP.
[ "$guest" = 0 ] || exit 0
"$release/gaspi_run" --hosts guest0,guest1 -p || fail "the hosts do not answer"
for program in onesided notifications; do
    "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/$program" || fail "$program"
done
"$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/carriers" 2 > /tmp/carriers 2>&1 ||
    { cat /tmp/carriers; fail "carriers"; }
cat /tmp/carriers
[ "$(grep -c "by devices" /tmp/carriers)" = 8 ] || fail "4 ranks with 2 others each by devices"
# Runs a program, on rank 3 as if there were no library for cards.
without='[ "$GASPI_RANK" != 3 ] || export GASPI_IBVERBS_LIB=/nowhere; exec "$0" "$@"'
echo "rank 3 has no card:"
"$release/gaspi_run" --hosts guest0:2,guest1:2 sh -c "$without" "$programs/carriers" 2 3 \
    > /tmp/carriers 2>&1 || { cat /tmp/carriers; fail "carriers, rank 3 without a card"; }
cat /tmp/carriers
[ "$(grep -c "by TCP" /tmp/carriers)" = 4 ] || fail "2 ranks with rank 3 by TCP, both ways"
