# A job over both guests by ssh and TCP, two ranks on each, started as a user would.
[ "$guest" = 0 ] || exit 0
"$release/gaspi_run" --hosts guest0,guest1 -p || fail "the hosts do not answer"
for program in onesided notifications; do
    "$release/gaspi_run" --hosts guest0:2,guest1:2 "$programs/$program" || fail "$program"
done
