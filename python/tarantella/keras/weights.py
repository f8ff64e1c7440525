"""The variables of a model and its optimizer across ranks: comparing, broadcasting, averaging,
checking drift.
"""

import hashlib
import zlib
from typing import Any, Iterator, List, Sequence, Tuple

import numpy as np
import tensorflow as tf

from .. import collectives, errors, operators, ranks
from .optimizers import name_of


def optimizer_variables(optimizer: Any) -> List[Any]:
    """The variables of an optimizer, of any Keras; those of an inner one too."""
    if optimizer is None:
        return []
    variables = getattr(optimizer, "variables", [])
    return list(variables() if callable(variables) else variables)


def layers_of(model: Any) -> Iterator[Any]:
    """All layers of a model, those within layers too."""
    flatten = getattr(model, "_flatten_layers", None)
    if flatten is not None:
        yield from flatten(include_self=False)


def seeds(model: Any) -> List[Any]:
    """The states of the random layers of Keras 3."""
    found = []
    for layer in layers_of(model):
        for generator in getattr(layer, "_seed_generators", None) or []:
            if all(generator.state is not other for other in found):
                found.append(generator.state)
    return found


def synchronised(model: Any) -> List[Any]:
    """What is equal on all ranks while a model trains: its weights, and the slots of its
    optimizer.
    """
    return (
        list(model.trainable_weights)
        + list(model.non_trainable_weights)
        + optimizer_variables(getattr(model, "optimizer", None))
    )


def _value_of(variable: Any) -> Any:
    return variable.value if not callable(getattr(variable, "value", None)) else variable.value()


def array_of(variable: Any) -> np.ndarray:
    """The value of a variable."""
    value = _value_of(variable)
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """An array that the collectives can move; types that they do not know (bfloat16) go as
    bytes.
    """
    array = np.array(array, order="C", copy=True)
    if array.dtype.kind in "biuf" and array.dtype.itemsize <= 8 and array.dtype.name != "bfloat16":
        return array
    return np.frombuffer(array.tobytes(), np.uint8).copy()


def broadcast(variables: Sequence[Any], root: int = 0) -> None:
    """Gives the values of one rank to all."""
    if ranks.get_size() == 1 or not variables:
        return
    originals = [array_of(variable) for variable in variables]
    copies = [_bytes_of(original) for original in originals]
    collectives.broadcast_into(copies, ranks.job_rank(root), ranks.world_group())
    if ranks.get_rank() == root:
        return
    for variable, original, copy in zip(variables, originals, copies):
        if copy.dtype != original.dtype or copy.shape != original.shape:
            copy = np.frombuffer(copy.tobytes(), original.dtype).reshape(original.shape)
        variable.assign(copy)


Description = List[Tuple[str, str]]


def describe(model: Any) -> Description:
    """What has to be equal on all ranks before they train together."""
    described = []
    for number, variable in enumerate(
        list(model.trainable_weights) + list(model.non_trainable_weights)
    ):
        described.append(
            (
                "variable {} ({})".format(number, _short_name(variable)),
                "{} {}".format(tuple(variable.shape), _dtype(variable)),
            )
        )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None:
        described.append(("optimizer", type(optimizer).__name__))
        described.append(
            ("number of optimizer variables", str(len(optimizer_variables(optimizer))))
        )
        rate = learning_rate(optimizer)
        if rate is not None:
            described.append(("learning rate", repr(rate)))
    return described


def _short_name(variable: Any) -> str:
    """The last part of a name: the first ones count how many layers were made before."""
    return name_of(variable).split("/")[-1]


def _dtype(variable: Any) -> str:
    return str(getattr(variable.dtype, "name", variable.dtype))


def learning_rate(optimizer: Any) -> Any:
    """The learning rate as a number; None where it cannot be told."""
    try:
        rate = optimizer.learning_rate
        if callable(rate) and not hasattr(rate, "assign"):
            return None
        return float(array_of(rate)) if hasattr(rate, "assign") else float(rate)
    except (AttributeError, TypeError, ValueError, NotImplementedError):
        return None


def compare(model: Any) -> None:
    """LayoutMismatch on all ranks, which names the first difference, unless their models are
    alike.
    """
    if ranks.get_size() == 1:
        return
    own = describe(model)
    digest = np.frombuffer(hashlib.blake2b(repr(own).encode(), digest_size=8).digest(), np.int64)[0]
    digests = collectives.allgather(np.int64(digest))
    if (digests == digests[0]).all():
        return
    all_descriptions = collectives.allgather_object(own)
    other = int(np.flatnonzero(digests != digests[0])[0])
    first, second = all_descriptions[0], all_descriptions[other]
    for mine, theirs in zip(first, second):
        if mine != theirs:
            raise errors.LayoutMismatch(
                "the models of ranks 0 and {} differ: {} is {}, and {} is {}; build and compile the"
                " same model on all ranks".format(other, mine[0], mine[1], theirs[0], theirs[1])
            )
    raise errors.LayoutMismatch(
        "the models of ranks 0 and {} have {} and {} variables; build the same model on all "
        "ranks".format(other, len(first), len(second))
    )


def _digest(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _digests(variables: Sequence[Any]) -> np.ndarray:
    """A number for the bits of each variable."""
    values = [tf.convert_to_tensor(_value_of(variable)) for variable in variables]
    if values and all(operators.is_plain(value) for value in values):
        return operators.digests(values)
    return np.array([_digest(array_of(variable)) for variable in variables], np.int64)


def check_drift(model: Any) -> None:
    """DriftError on all ranks unless weights and learning rates are equal, bit by bit."""
    if ranks.get_size() == 1:
        return
    variables = list(model.trainable_weights) + list(model.non_trainable_weights)
    rate = (
        learning_rate(getattr(model, "optimizer", None))
        if getattr(model, "optimizer", None) is not None
        else None
    )
    rate_bits = np.array([np.nan if rate is None else rate], np.float64).view(np.int64)[0]
    own = np.append(_digests(variables), rate_bits)
    total = collectives.allgather(np.int64(_digest(own)))
    if (total == total[0]).all():
        return
    gathered = collectives.allgather(own)
    other = int(np.flatnonzero(total != total[0])[0])
    differing = [
        name_of(variables[at])
        for at in range(len(variables))
        if gathered[0, at] != gathered[other, at]
    ]
    parts = []
    if differing:
        shown = ", ".join(differing[:5])
        parts.append(
            shown + (" and {} more".format(len(differing) - 5) if len(differing) > 5 else "")
        )
    if gathered[0, -1] != gathered[other, -1]:
        rates = gathered[:, -1].copy().view(np.float64)
        parts.append("learning rate {:g} and {:g}".format(rates[0], rates[other]))
    raise errors.DriftError(
        "ranks 0 and {} drifted apart: {}; change weights and learning rates alike on all ranks (in"
        " callbacks: without asking for the rank), or set TNT_CHECK_WEIGHTS=off".format(
            other, "; ".join(parts)
        )
    )


def moving_statistics(model: Any) -> List[Any]:
    """The non-trainable floating point variables that layers change while they train."""
    return [
        variable
        for variable in model.non_trainable_weights
        if _dtype(variable) in ("float16", "bfloat16", "float32", "float64")
        and _changes(model, variable)
    ]


def _changes(model: Any, variable: Any) -> bool:
    """Weights of frozen layers are not trainable either, but nothing changes them."""
    return not any(variable is weight for layer in layers_of(model) for weight in _frozen(layer))


def _frozen(layer: Any) -> List[Any]:
    if getattr(layer, "trainable", True):
        return []
    own = (
        getattr(layer, "_trainable_variables", None)
        or getattr(layer, "_trainable_weights", None)
        or []
    )
    return list(own)


def average(variables: Sequence[Any], samples: float) -> None:
    """Averages variables over the ranks, weighted by the samples that each has seen."""
    if ranks.get_size() == 1 or not variables:
        return
    arrays = [array_of(variable) for variable in variables]
    summed = collectives.allreduce(
        [array.astype(np.float64) * samples for array in arrays] + [np.array([samples], np.float64)]
    )
    if summed[-1][0] == 0:
        return
    for variable, array, total in zip(variables, arrays, summed):
        variable.assign((total / summed[-1][0]).astype(array.dtype))
