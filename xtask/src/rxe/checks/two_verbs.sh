# Jobs over both guests whose data goes by the devices: C programs that compare what they move, and
# gaspi-bench with a raw pair between the guests.
[ "$guest" = 0 ] || exit 0
export GASPI_IB_DEVICE="$device"
GASPI_LOG=warn "$release/gaspi_run" --hosts guest0:1,guest1:1 "$programs/memory" fallback \
    > /tmp/memory 2>&1 || { cat /tmp/memory; fail "memory fallback"; }
cat /tmp/memory
grep -q "segment 1 is reached by TCP.*ulimit -l" /tmp/memory ||
    fail "no warning that the segment goes by TCP"
export GASPI_TRANSPORT=verbs
for program in onesided notifications; do
    begin=$(date +%s)
    "$release/gaspi_run" --hosts guest0:1,guest1:1 "$programs/$program" > "/tmp/$program" 2>&1 ||
        { cat "/tmp/$program"; fail "$program"; }
    echo "$program: $(($(date +%s) - begin)) s"
done
"$release/gaspi_run" --hosts guest0:1,guest1:1 "$release/gaspi-bench" limits --sizes 64K \
    --iterations 50 --check > /tmp/rows 2>&1 || { cat /tmp/rows; fail "gaspi-bench limits"; }
cat /tmp/rows
grep -q "transport verbs" /tmp/rows || fail "the limits did not go by verbs"
