# Memory that the device reads and writes: reserved huge pages up to the last one's end, and what the
# kernel lets a process pin (ulimit -l).
export GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device"
pages=/proc/sys/vm/nr_hugepages
if [ -w $pages ] && echo 16 > $pages && [ "$(cat $pages)" = 16 ]; then
    "$release/gaspi_run" -n 2 "$programs/memory" huge || fail "reserved huge pages"
    echo 0 > $pages
else
    fail "no reserved huge pages: $(cat $pages)"
fi
for mode in limit segment; do
    "$release/gaspi_run" -n 2 "$programs/memory" $mode > /tmp/memory 2>&1 ||
        { cat /tmp/memory; fail "memory $mode"; }
    cat /tmp/memory
done
