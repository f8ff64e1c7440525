"""The comparison of `python -m tarantella.bench`: its table, its records and its pictures, from
made-up figures.
"""

import importlib.util
import os
import sys
import types
import unittest
import xml.etree.ElementTree as ElementTree
from unittest import mock

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tarantella")


def load(name):
    """A module, not by the package, whose import brings in TensorFlow."""
    path = os.path.join(FOLDER, name + ".py")
    spec = importlib.util.spec_from_file_location(name + "_of_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


bench, checks, plots = load("bench"), load("bench_checks"), load("bench_plots")


def figures(wall, cpu):
    """What one process tells."""
    return {
        "first_step": 1.0,
        "size": 1,
        "fit": {"wall": wall, "cpu": cpu},
        "evaluate": {"wall": wall / 4, "cpu": 1},
        "predict": {"wall": wall / 5, "cpu": 1},
    }


FOUND = {
    ("lenet", "plain", 1): [figures(4.0, 4.0), figures(3.0, 4.0), figures(9.0, 4.0)],
    ("lenet", "tarantella", 1): [figures(4.1, 4.1)] * 3,
    ("lenet", "tarantella", 2): [figures(2.0, 5.0), figures(2.0, 4.0), figures(7.0, 7.0)],
    ("lenet", "apart", 2): [figures(1.5, 2.0), figures(1.8, 2.0), figures(6.3, 2.0)],
    ("lenet", "horovod", 2): [figures(2.5, 6.8)] * 3,
}


class Comparison(unittest.TestCase):
    def setUp(self):
        self.records = list(bench.rows(FOUND))

    def test_everything_is_set_beside_one_plain_process(self):
        of = {(record["variant"], record["ranks"]): record for record in self.records}
        self.assertEqual(of["tarantella", 2]["throughput_by_plain"], 2.0)
        self.assertEqual(of["tarantella", 2]["cpu_by_plain"], 1.25)
        self.assertEqual(of["tarantella", 2]["cpu_by_plain_spread"], [1.0, 1.75])
        self.assertEqual(of["plain", 1]["cpu_by_plain"], 1.0)
        self.assertEqual(of["horovod", 2]["cpu_by_plain"], 1.7)
        self.assertEqual(of["tarantella", 2]["evaluate_throughput_by_plain"], 2.0)

    def test_the_exposed_part_is_what_processes_apart_do_not_take(self):
        of = {(record["variant"], record["ranks"]): record for record in self.records}
        self.assertAlmostEqual(of["tarantella", 2]["exposed"], 0.1)
        self.assertAlmostEqual(of["tarantella", 2]["exposed_spread"][1], 0.25)
        self.assertNotIn("exposed", of["tarantella", 1])
        self.assertNotIn("exposed", of["apart", 2])

    def test_of_processes_at_the_same_time_the_slowest_counts(self):
        found = bench.of_all([figures(2.0, 1.5), figures(3.0, 1.0)])
        self.assertEqual(found["fit"], {"wall": 3.0, "cpu": 2.5})
        self.assertEqual(found["evaluate"], {"wall": 0.75, "cpu": 2})

    def test_the_table_has_goals_beside_two_ranks(self):
        lines = bench.table(self.records).splitlines()
        self.assertEqual(len(lines), 6)
        row = next(line for line in lines if line.split()[1:3] == ["tarantella", "2"])
        self.assertEqual(row.split()[3:9], ["2.00", "5.00", "2.00x", "1.25x", "1.00-1.75", "2.00x"])
        self.assertTrue(row.endswith("10 %  CPU-s 1.35, throughput 1.7, exposed 0.05"), row)

    def test_pictures_are_well_formed_and_inside_their_frame(self):
        for picture, words in (
            (
                plots.speed_up(self.records),
                ("lenet", "lenet, horovod", "ideal", "ranks", "2.00 x", "1.60 x"),
            ),
            (
                plots.cpu_seconds(self.records),
                ("horovod x 2", "tarantella x 2", "1.25 x, 5.00 s", "1.00 x, 4.00 s"),
            ),
        ):
            root = ElementTree.fromstring(picture)
            texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
            for word in words:
                self.assertIn(word, texts)
            width, height = float(root.get("width")), float(root.get("height"))
            for element in root.iter():
                for name, limit in (("x", width), ("y", height), ("cx", width), ("cy", height)):
                    if element.get(name):
                        self.assertTrue(
                            0 <= float(element.get(name)) <= limit, ElementTree.tostring(element)
                        )

    def test_words_of_pictures_are_clear_of_each_other(self):
        longest = [dict(record, model="preprocessing") for record in self.records]
        for picture in (plots.speed_up(longest), plots.cpu_seconds(longest)):
            lines = {}
            for element in ElementTree.fromstring(picture).iter("{http://www.w3.org/2000/svg}text"):
                # A letter of a wide font, of the size 12, takes 7 on average.
                x, width = float(element.get("x")), 7 * len(element.text)
                begin = x - {"middle": width / 2, "end": width}.get(element.get("text-anchor"), 0)
                lines.setdefault(element.get("y"), []).append((begin, begin + width, element.text))
            for words in lines.values():
                words.sort()
                self.assertGreaterEqual(words[0][0], 0, words)
                self.assertLessEqual(words[-1][1], 760, words)
                for one, next_one in zip(words, words[1:]):
                    self.assertLess(one[1], next_one[0], words)

    def test_pictures_are_readable_on_dark_pages(self):
        for picture in (plots.speed_up(self.records), plots.cpu_seconds(self.records)):
            first = ElementTree.fromstring(picture).find("{http://www.w3.org/2000/svg}rect")
            self.assertEqual((first.get("width"), first.get("fill")), ("100%", "white"))

    def test_each_rank_is_bound_to_one_core(self):
        for variables, cores, core in (
            ({}, {2, 3}, 2),
            # Ranks with shares of their own, and ones that share all cores.
            ({"GASPI_BIND": "core:4-7", "GASPI_SOCKET": "1"}, {4, 5, 6, 7}, 4),
            ({"GASPI_BIND": "none", "GASPI_SOCKET": "1"}, {0, 1}, 1),
            ({"GASPI_BIND": "none", "GASPI_SOCKET": "2"}, {0, 1}, 0),
            ({"HOROVOD_LOCAL_RANK": "3"}, set(range(8)), 3),
        ):
            with (
                mock.patch.dict(os.environ, variables),
                mock.patch.object(os, "sched_getaffinity", return_value=cores),
                mock.patch.object(os, "sched_setaffinity") as bound,
            ):
                bench.bind()
            bound.assert_called_once_with(0, [core])

    def test_ranks_stay_on_this_host(self):
        hosts = types.SimpleNamespace(find_tool=lambda name: "/tools/" + name)
        with mock.patch.dict(sys.modules, tarantella_hosts=hosts):
            for variant in ("tarantella", "apart"):
                words = bench.command(variant, 2)
                self.assertEqual(words[0], "/tools/gaspi_run")
                self.assertIn("--here", words[: words.index(sys.executable)])

    def test_wrong_options_are_told(self):
        for words in (
            ["--models", "vgg"],
            ["--rivals", "mpi"],
            ["--ranks", "two"],
            ["--ranks", "0"],
            # A part of each batch would be empty, or parts would differ.
            ["--ranks", "100"],
            ["--ranks", "1,3"],
            ["--rounds", "0"],
            ["--epochs", "0"],
            ["--epochs", "-2"],
        ):
            with (
                self.assertRaises(SystemExit) as ended,
                open(os.devnull, "w", encoding="ascii") as null,
            ):
                import contextlib

                with contextlib.redirect_stderr(null):
                    bench.parse(words)
            self.assertEqual(ended.exception.code, 2)


class Checks(unittest.TestCase):
    """What the check of data and the control line take."""

    def test_turns_are_compared_one_by_one(self):
        # The machine is slower in the second turn; the third is disturbed.
        found = {
            "both": [5e-3, 9e-3, 6e-3],
            "line": [4e-3, 8e-3, 4e-3],
            "neither": [3.5e-3, 7.5e-3, 3e-3],
            "lenet": [0.1, 0.25, 0.1],
        }
        told = checks.record(found)
        for name, value in (
            ("data_check_cpu_s", 1e-3),
            ("control_line_cpu_s", 0.5e-3),
            ("both_cpu_s", 1.5e-3),
            ("lenet_step_cpu_s", 0.1),
            ("part_of_lenet", 0.015),
        ):
            self.assertAlmostEqual(told[name], value, msg=name)
        self.assertAlmostEqual(told["part_of_lenet_spread"][0], 0.006)
        self.assertAlmostEqual(told["part_of_lenet_spread"][1], 0.03)
        self.assertEqual(
            checks.text(told),
            "data check 1000 us and control line 500 us of CPU time a step on all ranks, 1.5 % of"
            " a step of LeNet (0.6 to 3.0; goal 1 %)",
        )


if __name__ == "__main__":
    unittest.main()
