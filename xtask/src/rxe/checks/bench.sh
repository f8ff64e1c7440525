# gaspi-bench's limits by verbs beside perftest, which measures the same in the same guest, and rows
# of the library beside those limits. Figures are for ratios only, and none is asserted; where a limit
# and perftest are more than 1.1 apart, what stands beside that limit says little, and the figure says
# so.
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

# Prints a figure beside another one: what, its figure, the name and figure of the other one, unit.
beside() {
    [ -n "$2" ] && [ -n "$4" ] || fail "no figure of $1 or of $3"
    echo "= $1 | $(awk "BEGIN { printf \"%.2f $5, %.2f x $3\", $2, $2 / $4 }")$6"
}

# The same for a limit and what perftest has, which should agree.
agrees() {
    wrong=
    [ -n "$2" ] && [ -n "$4" ] && awk "BEGIN { exit $2 <= 1.1 * $4 && $4 <= 1.1 * $2 }" &&
        wrong=", the limit is wrong"
    beside "$1" "$2" "$3" "$4" "$5" "$wrong"
}

# Prints rows of the library beside their limits.
rows() {
    sed -n "s/.*\"limit\":\"\([^\"]*\)\".*\"of_limit\":\([^,]*\),.*\"p50_us\":\([^,]*\),.*\
\"size_bytes\":\([^,]*\),.*\"variant\":\"\([^\"]*\)\".*/\5|\3|\2|\1|\4/p" /tmp/rows |
        while IFS='|' read -r variant us ratio of size; do
            [ "$size" = null ] && size= || size=", $size B"
            echo "= $1, $variant$size | $(printf "%.2f us, %.2f x %s" "$us" "$ratio" "$of")"
        done
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
written=$(perftest 4)
pair ib_read_bw -d "$device" -x "$gid" -s 65536 -n 500 -F
fetched=$(perftest 4)
bench limits --sizes 64K --iterations 2000
agrees "raw write, memory polled, 8 B" "$(median 8 "raw write, memory polled")" ib_write_lat \
    "$write" us
agrees "raw message, 8 B" "$(median 8 "raw message")" ib_send_lat "$send" us
beside "raw messages that cross, 8 B" "$(median 8 "raw messages that cross")" "raw message" \
    "$(median 8 "raw message")" us ""
agrees "raw read, 8 B" "$(median 8 "raw read")" ib_read_lat "$read" us
# Of so many microseconds for 64 KiB; perftest's MB are MiB.
flow() {
    [ -z "$1" ] || awk "BEGIN { print 65536 / 1.048576 / $1 }"
}
agrees "raw writes, 64 KiB" "$(flow "$(median 65536 "raw writes")")" ib_write_bw "$written" MB/s
agrees "raw reads, 64 KiB" "$(flow "$(median 65536 "raw reads")")" ib_read_bw "$fetched" MB/s

# The library beside the limits: a test, sizes, and operations. Emulation moves some 20 MB/s.
while read -r test sizes operations; do
    [ "$sizes" = - ] && sizes=
    # Unquoted: two words, or none.
    bench "$test" ${sizes:+--sizes $sizes} --iterations "$operations" < /dev/null
    rows "$test"
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
# A wait that ends with a read behind the write, beside both raw.
export GASPI_IB_WAIT=read
bench write-lat --sizes 8 --iterations 2000
rows "write-lat with GASPI_IB_WAIT=read" | grep "raw write, read behind" ||
    fail "no row with the read behind"
