"""The environment variables of the package, read once and checked.

`tarantella --help` and docs/training.md list them. A wrong value is a ValueError that names the
variable. This module imports neither NumPy nor TensorFlow.
"""

import os
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional

_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")


def parse_bool(name: str, text: str) -> bool:
    """true/false, 1/0, yes/no in any case."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError(
        "{}={!r} is neither true nor false; use true or false, 1 or 0, yes or no".format(name, text)
    )


def _choice(*words: str) -> Callable[[str, str], str]:
    def parse(name: str, text: str) -> str:
        word = text.strip()
        for known in words:
            if word.lower() == known.lower():
                return known
        raise ValueError("{}={!r} is not known; use one of {}".format(name, text, ", ".join(words)))

    return parse


def _whole(least: int, most: Optional[int] = None) -> Callable[[str, str], int]:
    def parse(name: str, text: str) -> int:
        try:
            number = int(text.strip())
        except ValueError:
            raise ValueError("{}={!r} is not a whole number".format(name, text)) from None
        if number < least or (most is not None and number > most):
            bounds = "at least {}".format(least) if most is None else "{} to {}".format(least, most)
            raise ValueError("{}={} is out of range; it has to be {}".format(name, number, bounds))
        return number

    return parse


def _seconds(name: str, text: str) -> float:
    try:
        number = float(text.strip())
    except ValueError:
        raise ValueError("{}={!r} is not a number of seconds".format(name, text)) from None
    if not 0 <= number < float("inf"):
        raise ValueError(
            "{}={} is out of range; give seconds, or 0 for no limit".format(name, text)
        )
    return number


def _kilobytes(name: str, text: str) -> float:
    try:
        number = float(text.strip())
    except ValueError:
        raise ValueError("{}={!r} is not a number of kilobytes".format(name, text)) from None
    if not 0 <= number <= 1 << 40:
        raise ValueError(
            "{}={} is out of range; give kilobytes, or 0 for no fusion".format(name, text)
        )
    return number


def _seed(name: str, text: str) -> Any:
    word = text.strip().lower()
    if word in ("random", "none"):
        return word
    try:
        number = int(word)
    except ValueError:
        raise ValueError(
            "{}={!r} is neither a number, nor random, nor none".format(name, text)
        ) from None
    if not 0 <= number < 1 << 32:
        raise ValueError("{}={} is out of range; it has to be 0 to 4294967295".format(name, number))
    return number


def _on_off(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in ("on", "off"):
        return word == "on"
    return parse_bool(name, text)


class Variable(NamedTuple):
    """A variable of the environment: its name, its default and how its text is read."""

    name: str
    default: Any
    parse: Callable[[str, str], Any]
    meaning: str


VARIABLES = (
    Variable("TNT_GPUS_PER_NODE", None, _whole(0), "GPUs of each host that ranks use"),
    Variable(
        "TNT_LOG_LEVEL",
        "WARNING",
        _choice("DEBUG", "INFO", "WARNING", "ERROR"),
        "least level that is logged",
    ),
    Variable("TNT_LOG_ON_ALL_DEVICES", False, parse_bool, "every rank logs, not only the master"),
    Variable("TNT_OUTPUT_ON_ALL_DEVICES", False, parse_bool, "every rank prints what Keras prints"),
    Variable(
        "TNT_TENSORBOARD_ON_ALL_DEVICES", False, parse_bool, "every rank writes for TensorBoard"
    ),
    Variable(
        "TNT_FUSION_THRESHOLD",
        32.0,
        _kilobytes,
        "least size of a bucket of gradients in kB; 0: no fusion",
    ),
    Variable("TNT_SEED", 42, _seed, "seed of TensorFlow: a number, random or none"),
    Variable(
        "TNT_COMPRESSION",
        "none",
        _choice("none", "bf16", "f16"),
        "type in which f32 gradients travel",
    ),
    Variable(
        "TNT_ON_FAILURE", "end", _choice("end", "continue"), "what the others do when a rank dies"
    ),
    Variable("TNT_MIN_RANKS", 1, _whole(1), "ranks below which a job that may lose ranks ends"),
    Variable(
        "TNT_CHECK_DATA",
        "step",
        _choice("step", "epoch", "off"),
        "when batches of the ranks are compared",
    ),
    Variable("TNT_CHECK_WEIGHTS", True, _on_off, "compare weights at epoch ends"),
    Variable("TNT_SPARSE_AS_DENSE", False, parse_bool, "sum sparse gradients as dense ones"),
    Variable(
        "TNT_FRONTEND", "tensorflow", _choice("tensorflow", "none"), "what the import brings in"
    ),
    Variable(
        "TNT_TIMEOUT",
        1800.0,
        _seconds,
        "seconds after which a rank stops waiting for others; 0: never",
    ),
)


class Settings:
    """What the environment says; attributes are the names without TNT_, in lower case."""

    gpus_per_node: Optional[int]
    log_level: str
    log_on_all_devices: bool
    output_on_all_devices: bool
    tensorboard_on_all_devices: bool
    fusion_threshold: float
    seed: Any
    compression: str
    on_failure: str
    min_ranks: int
    check_data: str
    check_weights: bool
    sparse_as_dense: bool
    frontend: str
    timeout: float

    def __init__(self, environment: Optional[Mapping[str, str]] = None) -> None:
        environment = os.environ if environment is None else environment
        self.sources: Dict[str, str] = {}
        for variable in VARIABLES:
            text = environment.get(variable.name)
            given = text is not None and text.strip() != ""
            value = variable.parse(variable.name, text) if given else variable.default
            setattr(self, variable.name[len("TNT_") :].lower(), value)
            self.sources[variable.name] = "environment" if given else "default"

    @property
    def fusion_threshold_bytes(self) -> int:
        """The least size of a bucket in bytes."""
        return int(self.fusion_threshold * 1024)

    def as_dict(self) -> Dict[str, Any]:
        """Each variable with its value and where that comes from."""
        return {
            variable.name: {
                "value": getattr(self, variable.name[len("TNT_") :].lower()),
                "from": self.sources[variable.name],
            }
            for variable in VARIABLES
        }


_settings: Optional[Settings] = None


def get() -> Settings:
    """The settings of this process, read when first asked for."""
    global _settings
    if _settings is None:
        _settings = Settings()
    return _settings
