#!/bin/busybox sh
# The first process of a guest. It loads the modules, shows the shared directories, and then runs
# scripts that the host names on the second serial line: "NUMBER SECONDS" runs /host/NUMBER.sh for
# at most that long. Its output comes back as "NUMBER|TEXT", its status as "NUMBER:STATUS".
# Variables from the kernel's command line: guest (this guest's number), guests, limit (seconds).
export PATH=/bin HOME=/tmp
/bin/busybox mkdir -p /proc /sys /dev /tmp /release /programs /host /etc /run
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t devpts pts /dev/pts
ln -s /proc/self/fd /dev/fd
# Whatever becomes of the host.
(sleep "$limit"; poweroff -f) &
for module in /modules/*.ko; do
    insmod "$module" || echo "cannot load $module"
done
hostname "guest$guest"
echo "127.0.0.1 localhost" > /etc/hosts
n=0
while [ "$n" -lt "$guests" ]; do
    echo "10.7.0.$((n + 1)) guest$n" >> /etc/hosts
    n=$((n + 1))
done
/usr/sbin/ip link set lo up
ulimit -l unlimited
options=trans=virtio,version=9p2000.L,ro,msize=262144
for directory in release programs host; do
    mount -t 9p -o $options $directory /$directory || echo "cannot show /$directory"
done

if [ "$guests" -gt 1 ]; then
    # ssh refuses keys that others can read.
    chmod 600 /etc/ssh/host_key /etc/ssh/user_key
    mkdir -p /run/sshd
    /usr/sbin/sshd || echo "no ssh server"
fi

exec 3<>/dev/ttyS1
stty -F /dev/ttyS1 raw -echo
# Sends text to the host: one writer at a time, so that lines stay whole.
cat > /bin/say << 'END'
#!/bin/sh
until mkdir /tmp/line 2> /dev/null; do usleep 10000; done
cat > /dev/ttyS1
rmdir /tmp/line
END
chmod +x /bin/say
task() {
    setsid sh "/host/$1.sh" < /dev/null > "/tmp/$1.out" 2>&1 &
    script=$!
    (sleep "$2"; echo "TIME: killed after $2 s" >> "/tmp/$1.out"; kill -KILL -$script) &
    guard=$!
    wait $script
    status=$?
    kill $guard 2> /dev/null
    # What it left running.
    kill -KILL -$script 2> /dev/null
    { sed "s/^/$1|/" "/tmp/$1.out"; echo; echo "$1:$status"; } | say
}
echo "ready" | say
while read -r number seconds <&3; do
    task "$number" "$seconds" 3>&- &
done
poweroff -f
