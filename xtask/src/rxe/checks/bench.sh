# gaspi-bench's limits by verbs beside perftest, which measures the same in the same guest, and rows
# of the library beside those limits. Figures are for ratios only, and none is asserted.
export GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device"
gid=$(gid_index)

# A column of the line that perftest printed last.
perftest() {
    awk -v at="$1" '/#bytes/ { found = 1; next } found { print $at; exit }' "/tmp/client.$$"
}

# The median of a row, in microseconds: its size and variant.
median() {
    sed -n "s/.*\"p50_us\":\([^,]*\),.*\"size_bytes\":$1,.*\"variant\":\"$2\".*/\1/p" /tmp/rows
}

# Prints a limit beside a figure of perftest: what, its figure, perftest's program and figure, unit.
beside() {
    [ -n "$2" ] && [ -n "$4" ] || fail "no figure of $1 or of $3"
    echo "= $1 | $(awk "BEGIN { printf \"%.2f $5, %.2f x $3\", $2, $2 / $4 }")"
}

bench() {
    "$release/gaspi-bench" "$@" -n 2 --json > /tmp/rows ||
        { cat /tmp/rows; fail "gaspi-bench $1"; }
    grep -q '"transport":"verbs"' /tmp/rows || { cat /tmp/rows; fail "$1 did not go by verbs"; }
}

pair ib_write_lat -d "$device" -x "$gid" -s 8 -n 2000 -F
write=$(perftest 5)
pair ib_send_lat -d "$device" -x "$gid" -s 8 -n 2000 -F
send=$(perftest 5)
pair ib_read_lat -d "$device" -x "$gid" -s 8 -n 2000 -F
read=$(perftest 5)
pair ib_write_bw -d "$device" -x "$gid" -s 65536 -n 500 -F
rate=$(perftest 4)
bench limits --sizes 64K --iterations 2000
beside "raw write, memory polled, 8 B" "$(median 8 "raw write, memory polled")" ib_write_lat \
    "$write" us
beside "raw message, 8 B" "$(median 8 "raw message")" ib_send_lat "$send" us
beside "raw messages that cross, 8 B" "$(median 8 "raw messages that cross")" "raw message" \
    "$(median 8 "raw message")" us
beside "raw read, 8 B" "$(median 8 "raw read")" ib_read_lat "$read" us
flow=$(awk "BEGIN { print 65536 / 1.048576 / $(median 65536 "raw writes") }")
beside "raw writes, 64 KiB" "$flow" ib_write_bw "$rate" MB/s

# The library beside the limits: a test, sizes, and operations. Emulation moves some 20 MB/s.
while read -r test sizes operations; do
    [ "$sizes" = - ] && sizes=
    # Unquoted: two words, or none.
    bench "$test" ${sizes:+--sizes $sizes} --iterations "$operations" < /dev/null
    sed -n "s/.*\"limit\":\"\([^\"]*\)\".*\"of_limit\":\([^,]*\),.*\"p50_us\":\([^,]*\),.*\
\"size_bytes\":\([^,]*\),.*\"variant\":\"\([^\"]*\)\".*/\5|\3|\2|\1|\4/p" /tmp/rows |
        while IFS='|' read -r variant us ratio of size; do
            [ "$size" = null ] && size= || size=", $size B"
            echo "= $test, $variant$size | $(printf "%.2f us, %.2f x %s" "$us" "$ratio" "$of")"
        done
done << END
write-lat 8 2000
read-lat 8 2000
write-notify-lat 8 2000
atomic-lat - 2000
barrier - 2000
write-bw 64K 2000
write-bw 1M 60
write-bw 8M 12
read-bw 64K 2000
read-bw 1M 60
read-bw 8M 12
END
