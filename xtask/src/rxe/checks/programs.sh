# The release build runs: C programs of the tests, by shared memory and by TCP.
for transport in shm tcp; do
    for program in onesided notifications; do
        echo "$program by $transport"
        GASPI_TRANSPORT=$transport "$release/gaspi_run" -n 2 "$programs/$program" ||
            fail "$program by $transport"
    done
done
