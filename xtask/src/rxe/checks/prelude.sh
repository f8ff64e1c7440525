# What every check begins with. A check runs on each of its guests at the same time, or on this
# machine beside a real card. It ends with status 0 if all was well.
# guest, guests: this guest's number and how many there are. device: the card.
# release, programs: the release build and the compiled programs of tests.
set -eu
guest=${guest:-0} guests=${guests:-1} device=${device:-rxe0}
release=${release:-/release} programs=${programs:-/programs}
ip=/usr/sbin/ip tc=/usr/sbin/tc
# Emulation on a busy machine: a promised time may take so many times as long.
slower=4
export LD_LIBRARY_PATH="$release"

# Both ends of perftest poll. The guest's kernel was seen to leave them on one of its cores, where
# a message takes 4 ms, the time until the other end gets its turn.
on_first="taskset 1" on_second="taskset 2"
[ -e /programs ] || on_first="" on_second=""

fail() {
    echo "FAILED: $*"
    exit 1
}

# The index of the card's GID of RoCE v2 and IPv4; of the first GID if there is none.
gid_index() {
    port=/sys/class/infiniband/$device/ports/1
    index=0
    while [ -e "$port/gids/$index" ]; do
        case "$(cat "$port/gid_attrs/types/$index" 2> /dev/null) $(cat "$port/gids/$index")" in
        "RoCE v2 0000:0000:0000:0000:0000:ffff:"*)
            echo $index
            return
            ;;
        esac
        index=$((index + 1))
    done
    echo 0
}

# Switches another guest off, as by pulling its plug.
switch_off() {
    echo "off $1" | say
}

# Cuts this guest off from the other one: its link goes down, or its port stays up and all that it
# sends is dropped.
link_down() {
    $ip link set eth0 down
}
link_up() {
    $ip link set eth0 up
}
drop_all() {
    $tc qdisc add dev eth0 root netem loss 100%
}
# Fails unless there was something to drop.
drop_none() {
    $tc -s qdisc show dev eth0
    dropped=$($tc -s qdisc show dev eth0 | sed -n 's/.*dropped \([0-9]*\),.*/\1/p')
    $tc qdisc del dev eth0 root
    [ "$dropped" -gt 0 ] || fail "nothing was dropped"
}

# Runs a ring over both guests by verbs, and cuts guest 1 off by $1 until all its ranks have given up;
# $2 ends that. Fails unless the ranks of guest 0 name what was lost.
ring_until_lost() {
    rm -f /tmp/started /tmp/stop
    export GASPI_DEAD_AFTER=3 GASPI_TRANSPORT=verbs GASPI_IB_DEVICE="$device" RING_SURVIVES=2
    if [ "$guest" = 0 ]; then
        "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/ring" /tmp/started /tmp/stop \
            > /tmp/cut 2>&1 || true
        cat /tmp/cut
        survivors_name_lost /tmp/cut
        return
    fi
    wait_for /tmp/started
    $1
    tries=0
    while ps | grep -q "[p]rograms/ring"; do
        tries=$((tries + 1))
        [ $tries -lt $((300 * slower)) ] || { $2; fail "ranks of the side that was cut off do not end"; }
        sleep 0.1
    done
    $2
    echo "cut off until all had ended"
}

# Runs a program as server and client: both here, or the server on guest 0 and the client on
# guest 1.
port=18515
pair() {
    port=$((port + 1))
    server=127.0.0.1
    [ "$guests" = 1 ] || server=10.7.0.1
    echo "## $1"
    if [ "$guests" = 1 ]; then
        $on_first "$@" -p $port > "/tmp/server.$$" 2>&1 &
        behind=$!
        client $on_second "$@" || { cat "/tmp/server.$$"; fail "$1"; }
        wait $behind || { cat "/tmp/server.$$"; fail "the server of $1"; }
    elif [ "$guest" = 0 ]; then
        $on_second "$@" -p $port > "/tmp/server.$$" 2>&1 || { cat "/tmp/server.$$"; fail "$1"; }
    else
        client $on_second "$@" || fail "$1"
    fi
}

# Tries until the server listens; the check's own guard ends it.
client() {
    while ! "$@" -p $port $server > "/tmp/client.$$" 2>&1; do
        grep -qi "couldn't connect" "/tmp/client.$$" || { cat "/tmp/client.$$"; return 1; }
        sleep 0.2
    done
    cat "/tmp/client.$$"
}

# Runs the tests of a program whose names begin so, over the device, without those that have one of
# the words of $without in their names. Those that ask something of mocked devices end as ignored, and
# sizes above 5 ranks are left out by the program: together they are more pairs than soft-RoCE carries
# well.
without="" failed="" passed=0
tests() {
    skips=
    for word in $without; do skips="$skips --skip $word"; done
    begin=$(date +%s)
    # Unquoted: several words, or none.
    GASPI_TEST_DEVICE="$device" GASPI_TEST_TIME_SCALE=$slower "$programs/$1" "$2" \
        --test-threads 1 $skips > /tmp/tests 2>&1 || { cat /tmp/tests; failed="$failed $1:$2"; }
    result=$(sed -n 's/^test result: //p' /tmp/tests)
    echo "$1 $2 $result, $(($(date +%s) - begin)) s"
    count=$(echo "$result" | sed -n 's/.* \([0-9]*\) passed.*/\1/p')
    ignored=$(echo "$result" | sed -n 's/.* \([0-9]*\) ignored.*/\1/p')
    [ $((${count:-0} + ${ignored:-0})) -gt 0 ] || failed="$failed $1:$2 (none ran)"
    passed=$((passed + ${count:-0}))
}

# All that a program has for each of these layouts, chapter by chapter.
all_chapters() {
    program=$1
    shift
    for layout in "$@"; do
        chapters=$("$programs/$program" --list |
            sed -n "s|^\($layout/[a-z_]*::\).*|\1|p; s|^\($layout/[a-z_]*\): test\$|\1|p" | sort -u)
        [ -n "$chapters" ] || fail "$program has no tests of $layout/"
        for chapter in $chapters; do
            tests "$program" "$chapter"
        done
    done
}

no_test_failed() {
    [ -z "$failed" ] || fail "tests of$failed"
    [ "$passed" -gt 0 ] || fail "no test ran"
}

# Waits for a file that a program of the check makes.
wait_for() {
    while [ ! -e "$1" ]; do sleep 0.1; done
}

# Fails unless both ranks of guest 0 had an error in time that names a rank of guest 1, by what the
# program `ring` wrote to a file.
survivors_name_lost() {
    for rank in 0 1; do
        names="^rank $rank: .*rank [23] .* after \|^rank $rank: .* after .*rank [23] "
        lines=$(grep "$names" "$1") || fail "$1: rank $rank does not name a rank that was lost"
        after=$(echo "$lines" | sed -n '1s/.* after \([0-9]*\)\.[0-9] s.*/\1/p')
        [ "$after" -le $((5 * slower)) ] || fail "$1: rank $rank has its error after $after s"
    done
}
