"""What goes into the wheel, and the tag that it gets; building it is tested by installing it."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
import zipfile

PYTHON = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, PYTHON)

import build_backend  # noqa: E402


class Wheel(unittest.TestCase):
    def setUp(self):
        self.place = tempfile.TemporaryDirectory()
        self.addCleanup(self.place.cleanup)

    def path(self, name, content=b""):
        path = os.path.join(self.place.name, name)
        with open(path, "wb") as file:
            file.write(content)
        return path

    def test_the_tag_is_that_of_the_newest_symbol(self):
        old = self.path("old", b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.17\0GLIBC_2.28\0")
        new = self.path("new", b"\0GLIBC_2.3.4\0GLIBC_2.34\0")
        text = self.path("text", b"a text about GLIBC_2.99 is no symbol\0")
        machine = os.uname().machine
        self.assertEqual(build_backend.tag([old, text]), "manylinux_2_28_" + machine)
        self.assertEqual(build_backend.tag([old, new]), "manylinux_2_34_" + machine)
        self.assertEqual(build_backend.tag([text]), "manylinux_2_17_" + machine)

    def test_the_tag_agrees_with_objdump(self):
        binary = os.path.realpath(sys.executable)
        said = subprocess.run(
            ["objdump", "-p", binary], stdout=subprocess.PIPE, check=True, text=True
        ).stdout
        newest = max([17] + [int(number) for number in re.findall(r" GLIBC_2\.(\d+)", said)])
        self.assertEqual(
            build_backend.tag([binary]), "manylinux_2_{}_{}".format(newest, os.uname().machine)
        )

    def test_every_module_is_in_it_and_nothing_else(self):
        found = build_backend.python_files()
        self.assertIn("tarantella_cli.py", found)
        self.assertIn("tarantella/__init__.py", found)
        self.assertIn("tarantella/keras/model.py", found)
        self.assertFalse(
            [name for name in found if "pycache" in name or not name.endswith((".py", ".typed"))]
        )
        there = subprocess.run(
            ["find", "tarantella", "-name", "*.py"],
            cwd=PYTHON,
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        ).stdout.split()
        # The command's modules stand beside the package, as does what builds the wheel.
        commands = [name for name in os.listdir(PYTHON) if name.startswith("tarantella_")]
        self.assertEqual(sorted(found), sorted(there + commands))

    def test_the_record_lists_everything_and_bytes_repeat(self):
        contents = []
        for name in ("a.whl", "b.whl"):
            path = os.path.join(self.place.name, name)
            wheel = build_backend.Wheel(path)
            wheel.add("one.py", "x = 1\n")
            wheel.add("bin/tool", b"\0\1", 0o755)
            wheel.close("x.dist-info/RECORD")
            with zipfile.ZipFile(path) as archive:
                record = archive.read("x.dist-info/RECORD").decode().splitlines()
                self.assertEqual([line.split(",")[0] for line in record], archive.namelist())
                self.assertEqual(archive.getinfo("bin/tool").external_attr >> 16, 0o100755)
            with open(path, "rb") as file:
                contents.append(file.read())
        self.assertEqual(contents[0], contents[1])

    def test_metadata(self):
        text = build_backend.metadata()
        self.assertIn("License-Expression: MIT OR Apache-2.0\n", text)
        self.assertIn("Requires-Python: >=3.9\n", text)
        self.assertEqual(
            re.findall(r"Requires-Dist: (.*)", text),
            ["numpy", "tensorflow<2.22,>=2.10; extra == 'tensorflow'"],
        )
        with self.assertRaisesRegex(build_backend.BuildError, "no source distribution"):
            build_backend.build_sdist(self.place.name)


if __name__ == "__main__":
    unittest.main()
