# The card comes up: link, state, and a GID of RoCE v2 with the IPv4 address.
if [ "$guests" -gt 1 ]; then
    netdev=eth0
    $ip addr add "10.7.0.$((guest + 1))/24" dev $netdev
    $ip link set $netdev up
else
    # rxe does not work on a device of the kind "dummy".
    netdev=veth0
    $ip link add veth0 type veth peer name veth1
    $ip addr add 10.7.0.1/24 dev veth0
    $ip link set veth1 up
    $ip link set veth0 up
fi
rdma link add "$device" type rxe netdev $netdev || { dmesg | tail; fail "rdma link add"; }
rdma link show
tries=0
until rdma link show | grep -q "link $device/1 state ACTIVE"; do
    tries=$((tries + 1))
    [ $tries -lt 100 ] || fail "the port is not active"
    sleep 0.2
done
ibv_devinfo -v -d "$device" > /tmp/devinfo
grep -E "state:|active_mtu|max_qp:|max_qp_wr|atomic_cap|max_msg_sz|GID\[" /tmp/devinfo
index=$(gid_index)
grep -q "ffff:0a07:000$((guest + 1))" "/sys/class/infiniband/$device/ports/1/gids/$index" ||
    fail "no GID of RoCE v2 with the IPv4 address"
echo "GID index $index: $(cat "/sys/class/infiniband/$device/ports/1/gids/$index")"
