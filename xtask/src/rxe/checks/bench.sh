# gaspi-bench runs, beside perftest.
"$release/gaspi-bench" barrier -n 2 || fail "gaspi-bench barrier"
