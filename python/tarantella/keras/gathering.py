"""What predict gives: the outputs of all ranks, gathered in the order of the data."""

from typing import Any, List, Tuple

import numpy as np
import tensorflow as tf

from .. import collectives, data, ranks


def gathered(call: Any, outputs: Any, sliced: bool, gather: str) -> Any:
    """The outputs of all ranks in the order of the data."""
    size, rank = ranks.get_size(), ranks.get_rank()
    own = _lengths(call, outputs)
    if sliced and outputs is not None:
        real = [data.bounds(length, size, rank)[1] for length in own]
        outputs = _without_stand_ins(outputs, [max(count, 1) for count in real], real)
        own = real
    if gather == "none":
        return outputs
    if size == 1:
        return outputs
    template = None if outputs is None else tf.nest.map_structure(_description, outputs)
    of_all = collectives.allgather_object((own, template))
    known = [each[1] for each in of_all if each[1] is not None]
    if not known:
        raise ValueError("the data of predict are empty; give at least one batch")
    structure = next(each for each in (template, known[0]) if each is not None)
    if outputs is None:
        outputs = tf.nest.map_structure(
            lambda description: np.zeros((0,) + description.shape, description.dtype), structure
        )
    counts = [each[0] for each in of_all]
    merged = tf.nest.map_structure(lambda leaf: merge(leaf, counts), outputs)
    return merged if gather == "all" or ranks.is_master_rank() else None


class _Description:
    """Shape of a sample and type of an output. A class, so that it is a leaf of a structure."""

    def __init__(self, shape: Tuple[int, ...], dtype: Any) -> None:
        self.shape = shape
        self.dtype = dtype


def _description(leaf: Any) -> _Description:
    if not isinstance(leaf, np.ndarray):
        raise ValueError(
            'predict gathers arrays only, and an output is a {}; pass tnt_gather="none" to get the'
            " part of this rank".format(type(leaf).__name__)
        )
    return _Description(tuple(leaf.shape[1:]), leaf.dtype)


def _lengths(call: Any, outputs: Any) -> List[int]:
    """Samples of each batch that this rank has met, as far as its outputs go."""
    if outputs is None:
        return []
    rows = len(tf.nest.flatten(outputs)[0])
    lengths: List[int] = []
    total = 0
    size, rank = ranks.get_size(), ranks.get_rank()
    sliced = call.micro_batch_size is not None and call.distribute
    while total < rows:
        batch = call.watch.batch_at(len(lengths))
        total += max(1, data.bounds(batch, size, rank)[1]) if sliced else batch
        lengths.append(batch)
    if total != rows:
        raise ValueError(
            "predict cannot put the outputs in order: they have {} rows for {} samples; pass "
            'tnt_gather="none" to get the part of this rank'.format(rows, total)
        )
    return lengths


def _without_stand_ins(outputs: Any, met: List[int], real: List[int]) -> Any:
    if met == real:
        return outputs
    keep = np.concatenate([np.arange(count) < wanted for count, wanted in zip(met, real)])
    return tf.nest.map_structure(lambda leaf: leaf[keep], outputs)


def merge(leaf: np.ndarray, counts: List[List[int]]) -> np.ndarray:
    """Batches of all ranks in turn: the first of each, then the second of each."""
    if leaf.dtype == object:
        whole = np.concatenate(collectives.allgather_object(leaf))
    else:
        whole = np.asarray(collectives.allgatherv(leaf))
    begins = np.cumsum([0] + [sum(own) for own in counts])
    parts = []
    places = list(begins[:-1])
    for turn in range(max(len(own) for own in counts)):
        for rank, own in enumerate(counts):
            if turn < len(own):
                parts.append(whole[places[rank] : places[rank] + own[turn]])
                places[rank] += own[turn]
    return np.concatenate(parts)
