# perftest, whose figures the harness reads from here.
gid=$(gid_index)
for program in ib_write_lat ib_send_lat ib_read_lat; do
    pair $program -d "$device" -x "$gid" -s 8 -n 200 -F
done
pair ib_write_bw -d "$device" -x "$gid" -s 65536 -n 50 -F
