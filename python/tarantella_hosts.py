"""What the command `tarantella` looks up: GPUs and cores of this host and of others, tools, host
files.

As a program this file prints what `probe` asks each host for.
"""

import os
import re
import sys

# Marks the line with which a host answers `probe`.
ANSWER = "tarantella-probe"


class BadUse(Exception):
    """Something that the user has to change."""


def visible_gpus():
    """The GPUs that CUDA shows this process, as CUDA_VISIBLE_DEVICES names them."""
    import ctypes

    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int(0)
        if cuda.cuInit(0) != 0 or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
            return []
    except (OSError, AttributeError):
        return []
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [str(number) for number in range(count.value)]
    return [name.strip() for name in listed.split(",") if name.strip()][: count.value]


def usable_cores():
    """Cores that ranks of this host may keep busy at once."""
    cores = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="ascii") as file:
            quota, period = file.read().split()
        if quota != "max":
            cores = min(cores, max(1, -(-int(quota) // int(period))))
    except (OSError, ValueError):
        pass
    return cores


def find_tool(name):
    """The path of gaspi_run or gaspi_cleanup: of this installation, else of PATH."""
    named = os.environ.get("GASPI_TOOLS")
    beside = [os.path.dirname(os.path.abspath(sys.argv[0])), os.path.dirname(sys.executable or "")]
    own = os.path.dirname(os.path.abspath(__file__))
    folders = [named] if named else beside + [os.path.join(own, "bin")] + os.get_exec_path()
    for folder in folders:
        path = os.path.join(folder, name)
        if folder and os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    where = "in GASPI_TOOLS={}".format(named) if named else "beside this command or in PATH"
    raise BadUse(
        "{} is not {}; install the wheel again, or have GASPI_TOOLS name its folder".format(
            name, where
        )
    )


def read_hosts(path):
    """The hosts of a host file, in its order."""
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise BadUse("host file {}: {}".format(path, reason)) from None
    hosts = {}
    for number, line in enumerate(lines, 1):
        name = line.partition("#")[0].strip()
        if not name:
            continue
        if re.search(r"[\s,]", name) or name.startswith("-"):
            raise BadUse(
                "host file {}, line {}: {!r} is no host name; each line has one, and the number of"
                " ranks is given by -n or --n-per-node".format(path, number, name)
            )
        if name.lower() in hosts:
            raise BadUse(
                "host file {}: lines {} and {} both name {}; name each host once, and give the"
                " number of ranks on each by --n-per-node".format(
                    path, hosts[name.lower()][0], number, name
                )
            )
        hosts[name.lower()] = (number, name)
    if not hosts:
        raise BadUse("host file {} names no host; write one host in each line".format(path))
    return [name for _, name in hosts.values()]


def probe(hosts, interpreter):
    """Asks each host for its GPUs and cores, by this file as a program on one rank of each."""
    import subprocess

    command = [
        find_tool("gaspi_run"),
        "--hosts",
        joined([(host, 1) for host in hosts]),
        "--label=rank",
    ]
    command += ["--kill-on-failure", "--bind", "none"]
    command += interpreter + [os.path.abspath(__file__)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    lines = [line.split() for line in done.stdout.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if len(line) == 5 and line[2] == ANSWER]
    if done.returncode != 0 or len(lines) != len(hosts):
        raise BadUse(
            "the hosts could not be asked for their GPUs, see above; this command has to be"
            " installed in the same place on all of them, or give --n-per-node, with --no-gpu where"
            " there are none"
        )
    found = {int(line[1].rstrip("]")): (int(line[3]), int(line[4])) for line in lines}
    return [found[number] for number in range(len(hosts))]


def joined(counts):
    """The list of hosts as gaspi_run takes it."""
    bracketed = [
        ("[{}]".format(host) if host.count(":") > 1 and not host.startswith("[") else host, count)
        for host, count in counts
    ]
    return ",".join("{}:{}".format(host, count) for host, count in bracketed)


if __name__ == "__main__":
    print(ANSWER, len(visible_gpus()), usable_cores())
