"""The variables of the environment, and what a single rank knows."""

import os
import subprocess
import sys
import unittest

os.environ.setdefault("TNT_FRONTEND", "none")

from tarantella import settings  # noqa: E402


class Variables(unittest.TestCase):
    """Each variable is read, checked, and named in the error."""

    def test_defaults(self) -> None:
        chosen = settings.Settings({})
        self.assertEqual(
            (
                chosen.log_level,
                chosen.seed,
                chosen.fusion_threshold_bytes,
                chosen.timeout,
                chosen.compression,
                chosen.on_failure,
                chosen.check_data,
                chosen.check_weights,
            ),
            ("WARNING", 42, 32768, 1800.0, "none", "end", "step", True),
        )
        self.assertIsNone(chosen.gpus_per_node)

    def test_booleans(self) -> None:
        for text, value in (
            ("true", True),
            ("YES", True),
            ("1", True),
            ("False", False),
            ("no", False),
            ("0", False),
        ):
            self.assertIs(
                settings.Settings({"TNT_LOG_ON_ALL_DEVICES": text}).log_on_all_devices, value
            )

    def test_values(self) -> None:
        self.assertEqual(settings.Settings({"TNT_SEED": "random"}).seed, "random")
        self.assertEqual(settings.Settings({"TNT_SEED": "7"}).seed, 7)
        self.assertEqual(settings.Settings({"TNT_FUSION_THRESHOLD": "0"}).fusion_threshold_bytes, 0)
        self.assertEqual(settings.Settings({"TNT_COMPRESSION": "BF16"}).compression, "bf16")
        self.assertFalse(settings.Settings({"TNT_CHECK_WEIGHTS": "off"}).check_weights)
        self.assertEqual(settings.Settings({"TNT_LOG_LEVEL": ""}).log_level, "WARNING")

    def test_wrong_values_are_named(self) -> None:
        wrong = {
            "TNT_LOG_LEVEL": "LOUD",
            "TNT_LOG_ON_ALL_DEVICES": "maybe",
            "TNT_OUTPUT_ON_ALL_DEVICES": "2",
            "TNT_TENSORBOARD_ON_ALL_DEVICES": "-",
            "TNT_FUSION_THRESHOLD": "-1",
            "TNT_SEED": "-3",
            "TNT_COMPRESSION": "f8",
            "TNT_ON_FAILURE": "retry",
            "TNT_MIN_RANKS": "0",
            "TNT_CHECK_DATA": "always",
            "TNT_CHECK_WEIGHTS": "sometimes",
            "TNT_SPARSE_AS_DENSE": "x",
            "TNT_FRONTEND": "torch",
            "TNT_TIMEOUT": "soon",
            "TNT_GPUS_PER_NODE": "all",
        }
        self.assertEqual(set(wrong), {variable.name for variable in settings.VARIABLES})
        for name, text in wrong.items():
            with self.assertRaisesRegex(ValueError, name):
                settings.Settings({name: text})


def python(program: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    """Runs a program in a process of its own, without TensorFlow."""
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ, TNT_FRONTEND="none", **environment),
        check=False,
    )


class OneRank(unittest.TestCase):
    """Without a launcher."""

    def test_one_rank_without_a_warning(self) -> None:
        result = python(
            "import tarantella as tnt; tnt.init(); print(tnt.get_rank(), tnt.get_size(), "
            "tnt.is_master_rank(), tnt.allreduce(3), tnt.config()['size'])"
        )
        self.assertEqual((result.stdout, result.stderr), ("0 1 True 3 1\n", ""))

    def test_import_brings_no_tensorflow(self) -> None:
        result = python("import sys, tarantella; print('tensorflow' in sys.modules)")
        self.assertEqual(result.stdout, "False\n", result.stderr)

    def test_wrong_variable_ends_the_import(self) -> None:
        result = python("import tarantella", TNT_SEED="tomorrow")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("TNT_SEED='tomorrow'", result.stderr)

    def test_missing_library_is_named(self) -> None:
        result = python("import tarantella", GASPI_LIBRARY="/nowhere/libgaspi.so.1")
        self.assertIn("/nowhere/libgaspi.so.1", result.stderr)
        self.assertIn("GASPI_LIBRARY has to name libgaspi.so.1", result.stderr)

    def test_another_library_is_refused(self) -> None:
        result = python("import tarantella", GASPI_LIBRARY="libc.so.6")
        self.assertIn("has no gaspi_", result.stderr)

    def test_errors_of_the_library_name_their_procedure_once(self) -> None:
        result = python(
            "import tarantella as tnt, numpy as np\ntry: tnt.allreduce(np.ones(2), 'and')\n"
            "except tnt.LibraryError as error: print(error)\n"
        )
        self.assertRegex(result.stdout, r"^gaspi_coll_allreduce: (?!gaspi_)", result.stderr)

    def test_groups_and_shapes_are_checked(self) -> None:
        result = python(
            "import tarantella as tnt, numpy as np\nfor wrong in (lambda: tnt.Group([5]), lambda:"
            " tnt.allreduce(1, 'xyz'), lambda: tnt.broadcast(1, root=3), lambda:"
            " tnt.Allreduce(np.ones(2)).allreduce(np.ones(3))):\n    try: wrong()\n    except"
            " ValueError as error: print(error)\n"
        )
        lines = result.stdout.splitlines()
        self.assertEqual(len(lines), 4, result.stderr)
        for line, part in zip(
            lines, ("rank 5 does not exist", "no reduction 'xyz'", "rank 3 does not exist", "(2,)")
        ):
            self.assertIn(part, line)


if __name__ == "__main__":
    unittest.main()
