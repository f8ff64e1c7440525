"""Which GPU a rank takes at the import, with a TensorFlow that only notes what it is told."""

import os
import sys
import types
import unittest
import unittest.mock

os.environ.setdefault("TNT_FRONTEND", "none")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from tarantella import keras, ranks, settings  # noqa: E402

sys.path.pop(0)


class Devices(unittest.TestCase):
    """Ranks that share a host, under any launcher."""

    def chosen(self, gpus, rank, size, in_use=False, **variables):
        """GPUs that TensorFlow may see and those whose memory grows, CUDA_VISIBLE_DEVICES
        afterwards, and warnings.
        """
        physical = ["GPU {}".format(number) for number in range(gpus)]
        told = {"visible": physical, "grown": []}

        def see(devices, kind):
            self.assertEqual(kind, "GPU")
            if in_use:
                raise RuntimeError("Visible devices cannot be modified after being initialized")
            told["visible"] = devices

        def grow(device, grows):
            if in_use:
                raise RuntimeError("Physical devices cannot be modified after being initialized")
            told["grown"] += [device] if grows else []

        config = types.SimpleNamespace(
            list_physical_devices=lambda kind: list(physical),
            set_visible_devices=see,
            experimental=types.SimpleNamespace(set_memory_growth=grow),
        )
        kept = {name: text for name, text in os.environ.items() if not name.startswith("CUDA_")}
        patch = unittest.mock.patch
        with patch.dict(os.environ, dict(kept, **variables), clear=True), patch.object(
            ranks, "get_local_rank", lambda: rank
        ), patch.object(ranks, "get_local_size", lambda: size), patch.object(
            settings, "_settings", settings.Settings(variables)
        ), patch.object(keras.log, "logger") as logger:
            keras._choose_devices(types.SimpleNamespace(config=config))
            warnings = [call.args[0] for call in logger().warning.call_args_list]
            return told["visible"], told["grown"], os.environ.get("CUDA_VISIBLE_DEVICES"), warnings

    def test_each_rank_of_a_host_takes_one(self):
        for rank in range(3):
            own = "GPU {}".format(rank)
            self.assertEqual(self.chosen(4, rank, 3), ([own], [own], str(rank), []))

    def test_one_rank_sees_all(self):
        both = ["GPU 0", "GPU 1"]
        self.assertEqual(self.chosen(2, 0, 1), (both, both, None, []))

    def test_what_the_user_or_the_command_has_set_stays(self):
        both = ["GPU 0", "GPU 1"]
        for text in ("0,1", "3", ""):
            found = self.chosen(2, 1, 2, CUDA_VISIBLE_DEVICES=text)
            self.assertEqual(found, (both, both, text, []))
        self.assertEqual(self.chosen(2, 1, 2, CUDA_VISIBLE_DEVICES="-1"), (both, [], "-1", []))

    def test_more_ranks_than_gpus_use_cpus(self):
        for more in ({}, {"TNT_GPUS_PER_NODE": "2"}):
            visible, grown, listed, warnings = self.chosen(2 if not more else 4, 0, 3, **more)
            self.assertEqual((visible, grown, listed), ([], [], "-1"))
            self.assertEqual(len(warnings), 1)
        # As the user wants it.
        self.assertEqual(self.chosen(4, 0, 3, TNT_GPUS_PER_NODE="0"), ([], [], "-1", []))

    def test_a_tensorflow_in_use_is_told_of(self):
        self.assertEqual(len(self.chosen(2, 1, 2, in_use=True)[3]), 1)
        self.assertEqual(self.chosen(0, 1, 2, in_use=True)[2:], (None, []))


if __name__ == "__main__":
    unittest.main()
