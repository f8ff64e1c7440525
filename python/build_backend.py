"""Builds the wheel, as PEP 517 wants it: `pip install ./python`, `cargo xtask wheel`, or by hand

    python3 build_backend.py DIRECTORY

One wheel serves every Python from 3.9: the package is pure Python, and libgaspi, the operators for
TensorFlow and the tools are loaded or started by it, never linked to it. The tag says which glibc
they need. The same sources and compilers give the same file.

GASPI_WHEEL_GLIBC=2.28 builds for that version of glibc, by cargo-zigbuild and ziglang of this
Python.
"""

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
NAME = "tarantella"
TOOLS = ("gaspi_run", "gaspi-bench", "gaspi_cleanup")
LIBRARIES = ("libgaspi.so.1", "libtarantella_tf.so")
LICENSES = ("LICENSE-APACHE", "LICENSE-MIT")
SIZE_MAX = 10 * 1000 * 1000
WHEEL_GLIBC = "GASPI_WHEEL_GLIBC"

METADATA = """\
Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: Data-parallel training of Keras models over GASPI
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
License-File: CRATES
Classifier: Environment :: GPU :: NVIDIA CUDA
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Scientific/Engineering :: Artificial Intelligence
Requires-Python: >=3.9
Requires-Dist: numpy
Provides-Extra: tensorflow
Requires-Dist: tensorflow<2.22,>=2.10; extra == 'tensorflow'
Description-Content-Type: text/markdown

    import tarantella as tnt
    model = tnt.Model(model)

trains a Keras model on all ranks that the command `tarantella` started: Keras 2 and 3 on TensorFlow
2.10 to 2.21, with the numbers of a run on one. The wheel also holds libgaspi and the tools
gaspi_run, gaspi-bench and gaspi_cleanup.
"""

ENTRY_POINTS = """\
[console_scripts]
tarantella = tarantella_cli:main
"""


class BuildError(RuntimeError):
    """Something that the user has to change."""


def version():
    """The version of the package, which the workspace has, too."""
    with open(os.path.join(HERE, "tarantella_cli.py"), encoding="utf-8") as file:
        own = re.search(r'^VERSION = "(.*)"$', file.read(), re.M).group(1)
    with open(os.path.join(ROOT, "Cargo.toml"), encoding="utf-8") as file:
        workspace = re.search(r'^version = "(.*)"$', file.read(), re.M).group(1)
    if own != workspace:
        raise BuildError(
            "tarantella_cli.py has version {}, Cargo.toml {}; set both alike".format(own, workspace)
        )
    return own


def run(words, **more):
    """Runs a program; what it prints goes to standard error."""
    try:
        subprocess.run(words, check=True, stdout=sys.stderr, **more)
    except FileNotFoundError:
        raise BuildError(
            "{} was not found; the wheel needs cargo (Rust 1.91 or newer), a C++ compiler and "
            "binutils".format(words[0])
        ) from None
    except subprocess.CalledProcessError as error:
        raise BuildError(
            "{} ended with status {}".format(" ".join(words), error.returncode)
        ) from None


def native(out):
    """Builds all that is not Python, and puts it stripped into the directory."""
    if not os.path.isfile(os.path.join(ROOT, "gaspi-ffi", "Cargo.toml")):
        raise BuildError(
            "the sources of libgaspi are not beside {}; run pip install ./python in the root of a "
            "checkout".format(HERE)
        )
    glibc = os.environ.get(WHEEL_GLIBC)
    target = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"))
    packages = ["--release", "-p", "gaspi-ffi", "-p", "gaspi-tools"]
    environment = dict(os.environ)
    if glibc:
        triple = "{}-unknown-linux-gnu".format(platform.machine())
        folder = os.path.dirname(sys.executable)
        environment["PATH"] = folder + os.pathsep + environment.get("PATH", "")
        run(
            ["cargo-zigbuild", "zigbuild", "--target", "{}.{}".format(triple, glibc)] + packages,
            cwd=ROOT,
            env=environment,
        )
        built = os.path.join(target, triple, "release")
        zig_target = "{}-linux-gnu.{}".format(platform.machine(), glibc)
        for variable, language in (("CC", "cc"), ("CXX", "c++")):
            path = os.path.join(out, "zig-" + language)
            with open(path, "w", encoding="utf-8") as file:
                file.write(
                    '#!/bin/sh\nexec "{}" -m ziglang {} -target {} "$@"\n'.format(
                        sys.executable, language, zig_target
                    )
                )
            os.chmod(path, 0o755)
            environment[variable] = path
    else:
        run([os.environ.get("CARGO", "cargo"), "build"] + packages, cwd=ROOT)
        built = os.path.join(target, "release")
    shutil.copy(os.path.join(built, "libgaspi.so"), os.path.join(out, "libgaspi.so.1"))
    run(["sh", os.path.join(ROOT, "tarantella-tf", "build.sh"), out], env=environment)
    for tool in TOOLS:
        shutil.copy(os.path.join(built, tool), out)
        run(["strip", "--strip-all", os.path.join(out, tool)])
    for library in LIBRARIES:
        run(["strip", "--strip-unneeded", os.path.join(out, library)])


def tag(files):
    """The platform that the binaries need: the newest version of glibc that they name."""
    newest = 17
    for path in files:
        with open(path, "rb") as file:
            found = re.findall(
                rb"\0GLIBC_2\.(\d+)(?:\.\d+)?\0", file.read().replace(b"\0", b"\0\0")
            )
        newest = max([newest] + [int(number) for number in found])
    return "manylinux_2_{}_{}".format(newest, platform.machine())


def crates():
    """The crates that are linked into the binaries, with their licences."""
    words = [
        os.environ.get("CARGO", "cargo"),
        "tree",
        "-e",
        "normal,no-proc-macro",
        "--prefix",
        "none",
        "--no-dedupe",
        "--format",
        "{p} ({l})",
        "-p",
        "gaspi-ffi",
        "-p",
        "gaspi-tools",
    ]
    done = subprocess.run(words, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    lines = {line for line in done.stdout.decode().splitlines() if line and "(/" not in line}
    return (
        "The library and the tools contain these crates, under the licences that each names; where"
        " a choice is\ngiven, Apache-2.0:\n\n" + "\n".join(sorted(lines)) + "\n"
    )


def python_files():
    """The modules, by their names in the wheel."""
    found = ["tarantella_cli.py", "tarantella_hosts.py"]
    for folder, folders, names in os.walk(os.path.join(HERE, NAME)):
        folders[:] = sorted(each for each in folders if each not in ("__pycache__", "lib"))
        found += [
            os.path.relpath(os.path.join(folder, name), HERE)
            for name in sorted(names)
            if name.endswith((".py", ".typed"))
        ]
    return found


class Wheel:
    """A wheel that is being written, with its record."""

    def __init__(self, path):
        self.archive = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = []

    def add(self, name, content, mode=0o644):
        """Adds a file."""
        if isinstance(content, str):
            content = content.encode("utf-8")
        about = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        about.external_attr = (0o100000 | mode) << 16
        about.compress_type = zipfile.ZIP_DEFLATED
        self.archive.writestr(about, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record.append("{},sha256={},{}\n".format(name, digest, len(content)))

    def close(self, record):
        """Writes the record, which comes last."""
        name, self.record = "".join(self.record), []
        self.add(record, name + record + ",,\n")
        self.archive.close()


def read(path):
    """The content of a file."""
    with open(path, "rb") as file:
        return file.read()


def metadata():
    """The text of METADATA."""
    return METADATA.format(name=NAME, version=version())


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: writes the wheel and returns its name."""
    del config_settings, metadata_directory
    info = "{}-{}.dist-info".format(NAME, version())
    scripts = "{}-{}.data/scripts".format(NAME, version())
    with tempfile.TemporaryDirectory() as out:
        native(out)
        binaries = [os.path.join(out, name) for name in TOOLS + LIBRARIES]
        platform_tag = tag(binaries)
        name = "{}-{}-py3-none-{}.whl".format(NAME, version(), platform_tag)
        path = os.path.join(wheel_directory, name)
        wheel = Wheel(path)
        for file in python_files():
            wheel.add(file, read(os.path.join(HERE, file)))
        for library in LIBRARIES:
            wheel.add("{}/lib/{}".format(NAME, library), read(os.path.join(out, library)), 0o755)
        for tool in TOOLS:
            wheel.add("{}/{}".format(scripts, tool), read(os.path.join(out, tool)), 0o755)
        for text in LICENSES:
            wheel.add("{}/licenses/{}".format(info, text), read(os.path.join(ROOT, text)))
        wheel.add("{}/licenses/CRATES".format(info), crates())
        wheel.add("{}/METADATA".format(info), metadata())
        wheel.add("{}/entry_points.txt".format(info), ENTRY_POINTS)
        wheel.add(
            "{}/WHEEL".format(info),
            "Wheel-Version: 1.0\nGenerator: build_backend of {}\n"
            "Root-Is-Purelib: false\nTag: py3-none-{}\n".format(NAME, platform_tag),
        )
        wheel.close("{}/RECORD".format(info))
    size = os.path.getsize(path)
    if size > SIZE_MAX:
        raise BuildError("{} has {} bytes, more than {}".format(name, size, SIZE_MAX))
    return name


def build_sdist(sdist_directory, config_settings=None):
    """PEP 517: there is none, since the sources are those of the whole checkout."""
    raise BuildError(
        "there is no source distribution: the wheel is built from a checkout, by pip install"
        " ./python"
    )


def get_requires_for_build_wheel(config_settings=None):
    """PEP 517: nothing."""
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    """PEP 517: the metadata without a build."""
    info = "{}-{}.dist-info".format(NAME, version())
    folder = os.path.join(metadata_directory, info)
    os.makedirs(folder)
    for name, text in (("METADATA", metadata()), ("entry_points.txt", ENTRY_POINTS)):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(text)
    return info


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: build_backend.py DIRECTORY")
    os.makedirs(sys.argv[1], exist_ok=True)
    try:
        print(os.path.join(sys.argv[1], build_wheel(sys.argv[1])))
    except BuildError as problem:
        sys.exit("build_backend: {}".format(problem))
