# Data of queues goes by the device, ranks of one guest being nodes of their own.
export GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device" GASPI_LOG=info
for program in onesided notifications atomics passive queues segments groups threads; do
    "$release/gaspi_run" -n 2 "$programs/$program" > "/tmp/$program" 2>&1 ||
        { cat "/tmp/$program"; fail "$program by verbs"; }
    grep -q "data between nodes goes by $device" "/tmp/$program" ||
        { cat "/tmp/$program"; fail "$program did not use the device"; }
    echo "$program by $device"
done
GASPI_IB_DEVICE=nothing "$release/gaspi_run" -n 2 "$programs/onesided" > /tmp/wrong 2>&1 &&
    fail "a device that does not exist"
grep -q 'no RDMA device "nothing"' /tmp/wrong || { cat /tmp/wrong; fail "the reason"; }
