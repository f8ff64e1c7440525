"""Where the command `tarantella` puts ranks: on GPUs, by a stand-in for libcuda, and on hosts, by
one for ssh.
"""

import os
import subprocess
import unittest

from command import Case

# In the place of ssh: runs its command on this machine, in an empty environment as a login would.
SSH = """\
#!/bin/sh
while [ $# -gt 0 ]; do
  case $1 in -o|-p|-i) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1; shift
env -i PATH="$PATH" HOME=/far SSH_FAR="$host" GASPI_MACHINE="$host" SHELL=/bin/sh sh -c "$*"
"""

CUDA = """\
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("FAKE_BROKEN") ? 100 : (int)flags; }
int cuDeviceGetCount(int *count) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    *count = atoi(getenv("FAKE_GPUS"));
    if (visible) {
        int named = *visible != 0 && *visible != '-';
        for (const char *at = visible; named && *at; ++at) named += *at == ',';
        *count = named < *count ? named : *count;
    }
    return 0;
}
"""


class Devices(Case):
    """GPUs by a stand-in for libcuda.so.1."""

    def setUp(self):
        super().setUp()
        source = os.path.join(self.place, "cuda.c")
        with open(source, "w", encoding="ascii") as file:
            file.write(CUDA)
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", os.path.join(self.place, "libcuda.so.1"), source],
            check=True,
        )

    def gpus(self, count, **more):
        return dict({"LD_LIBRARY_PATH": self.place, "FAKE_GPUS": str(count)}, **more)

    def test_a_rank_for_each_gpu(self):
        self.assertEqual(
            self.values(names="CUDA_VISIBLE_DEVICES,TNT_GPUS_PER_NODE", **self.gpus(3)),
            [["0", "3"], ["1", "3"], ["2", "3"]],
        )
        self.assertEqual(
            self.values("-n", "2", names="CUDA_VISIBLE_DEVICES", **self.gpus(3)), [["0"], ["1"]]
        )

    def test_the_users_own_list(self):
        gpus = self.gpus(8, CUDA_VISIBLE_DEVICES="5,GPU-8ab3")
        self.assertEqual(self.values(names="CUDA_VISIBLE_DEVICES", **gpus), [["5"], ["GPU-8ab3"]])
        gpus = self.gpus(8, CUDA_VISIBLE_DEVICES="")
        self.assertEqual(self.values("--no-gpu", names="CUDA_VISIBLE_DEVICES", **gpus), [["-1"]])

    def test_more_ranks_than_gpus_use_cpus(self):
        out, err = self.run_it("-n", "3", "show.py", "CUDA_VISIBLE_DEVICES", **self.gpus(2))
        self.assertEqual(out.count('["-1"]'), 3)
        self.assertEqual(err.count("3 ranks on this host are more than its 2 GPUs"), 1, err)

    def test_no_gpu_and_a_broken_driver(self):
        out, err = self.run_it("--no-gpu", "show.py", "CUDA_VISIBLE_DEVICES", **self.gpus(2))
        self.assertEqual((out.count('["-1"]'), err), (1, ""))
        _, err = self.run_it("show.py", "x", **self.gpus(2, FAKE_BROKEN="1"))
        self.assertIn("no GPU was found", err)


class Hosts(Case):
    """Several hosts by a stand-in for ssh."""

    def setUp(self):
        super().setUp()
        self.ssh = self.write("ssh", SSH, 0o755)
        self.write("hosts", "240.0.0.1 # first\n240.0.0.2\n")

    def test_ranks_are_filled_host_by_host(self):
        for words, expected in (
            (["-n", "3"], ["1", "1", "2"]),
            (["--n-per-node", "2"], ["1", "1", "2", "2"]),
            (["-n", "3", "--n-per-node=2"], ["1", "1", "2"]),
            (["--no-gpu"], ["1", "2"]),
            (["-n", "1"], ["1"]),
        ):
            for option in ("--hostfile", "-m", "--machinefile"):
                with self.subTest(words=words, option=option):
                    found = self.values(
                        option,
                        "hosts",
                        "--no-gpu",
                        *[w for w in words if w != "--no-gpu"],
                        names="SSH_FAR",
                        GASPI_SSH=self.ssh,
                    )
                    self.assertEqual([each[0][-1] for each in found], expected)

    def test_hosts_are_asked_for_their_gpus(self):
        cuda = os.path.join(self.place, "cuda.c")
        with open(cuda, "w", encoding="ascii") as file:
            file.write(
                CUDA.replace('getenv("FAKE_GPUS")', 'strstr(getenv("SSH_FAR"), ".0.2") ? "2" : "1"')
            )
        subprocess.run(
            ["cc", "-shared", "-fPIC", "-o", os.path.join(self.place, "libcuda.so.1"), cuda],
            check=True,
        )
        found = self.values(
            "--hostfile",
            "hosts",
            names="SSH_FAR,CUDA_VISIBLE_DEVICES",
            GASPI_SSH=self.ssh,
            LD_LIBRARY_PATH=self.place,
            SSH_FAR="240.0.0.1",
        )
        self.assertEqual(found, [["240.0.0.1", "0"], ["240.0.0.2", "0"], ["240.0.0.2", "1"]])

    def test_environment_and_directory_go_along(self):
        found = self.ranks(
            "--hostfile=hosts",
            "--no-gpu",
            "-x",
            "HOME=/mine",
            names="HOME,TNT_SEED",
            GASPI_SSH=self.ssh,
            TNT_SEED="7",
        )
        self.assertEqual(found, [[["/mine", "7"], [], os.path.realpath(self.directory)]] * 2)

    def test_a_host_that_does_not_answer(self):
        broken = self.write("broken", "#!/bin/sh\necho connection refused >&2\nexit 255\n", 0o755)
        _, err = self.run_it(
            "--hostfile", "hosts", "--no-gpu", "show.py", "x", status=255, GASPI_SSH=broken
        )
        self.assertRegex(err, "host 240.0.0.[12]: .*connection refused")
        _, err = self.run_it("--hostfile", "hosts", "show.py", "x", status=2, GASPI_SSH=broken)
        self.assertIn("could not be asked for their GPUs", err)


if __name__ == "__main__":
    unittest.main()
