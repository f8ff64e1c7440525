"""Arrays and tensors as a source, their order and their parts.

The order of samples is the one that Keras itself would take with the same seeds.
"""

import math
import random
from typing import Any, List, Optional, Tuple

import numpy as np
import tensorflow as tf

from .. import data, ranks
from . import sources
from .sources import Request, Source

_no_convert = tf.autograph.experimental.do_not_convert


def floatx(request: Request) -> str:
    """The type that Keras gives to floating-point data."""
    return request.keras.backend.floatx()


def _tensor(request: Request, value: Any) -> Any:
    """A tensor on the host, as Keras makes it of an array."""
    if value is None or isinstance(value, (tf.Tensor, tf.RaggedTensor)):
        return value
    if isinstance(value, tf.Variable):
        return tf.convert_to_tensor(value)
    if isinstance(value, tf.SparseTensor) or hasattr(value, "tocoo"):
        raise ValueError(
            "sparse matrices cannot be gathered row by row; give "
            "tf.data.Dataset.from_tensor_slices((x, y)).batch(64)"
        )
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
        if value.ndim == 1 and not request.keras3:
            value = value[:, None]
    array = np.asarray(value)
    if array.dtype == object and all(isinstance(entry, (str, bytes)) for entry in array.flat):
        return tf.constant(array.tolist())
    if array.dtype == object:
        raise ValueError(
            "expected arrays, tensors or structures of them; received an object of type {}".format(
                type(value).__name__
            )
        )
    if np.issubdtype(array.dtype, np.floating):
        array = array.astype(floatx(request), copy=False)
    return tf.convert_to_tensor(array)


def is_scalars(value: Any) -> bool:
    """Whether a list holds numbers or words, in lists of any depth."""
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(
            isinstance(entry, (int, float, str, bytes, np.generic)) or is_scalars(entry)
            for entry in value
        )
    )


def _tensors(request: Request, value: Any) -> Any:
    """Lists become tuples, which a dataset takes for structures, not for data."""
    if isinstance(value, dict):
        return {key: _tensors(request, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and not is_scalars(value):
        return tuple(_tensors(request, entry) for entry in value)
    with tf.device("CPU:0"):
        return _tensor(request, value)


def _packed(x: Any, y: Any, sample_weight: Any) -> Any:
    if y is None:
        return (x,) if isinstance(x, tuple) else x
    return (x, y) if sample_weight is None else (x, y, sample_weight)


def _array_weights(request: Request, y: Any, sample_weight: Any) -> Any:
    """Sample weights as Keras makes them of class weights or of one array for several outputs."""
    if request.class_weight is not None:
        if tf.nest.is_nested(y):
            raise ValueError("`class_weight` is only supported for Models with a single output.")
        if y is None:
            raise ValueError("`class_weight` needs targets: pass `y`")
        if request.keras3:
            if sample_weight is not None:
                raise ValueError("You cannot `class_weight` and `sample_weight` at the same time.")
            numbers = np.asarray(y)
            if numbers.ndim > 1:
                numbers = numbers.argmax(-1) if numbers.shape[-1] != 1 else numbers.squeeze(-1)
            numbers = np.round(numbers).astype("int64").reshape(-1)
            weights = [request.class_weight.get(int(number), 1.0) for number in numbers]
            return tf.constant(weights, floatx(request))
        element = (None, y) if sample_weight is None else (None, y, sample_weight)
        return sources.class_weights(request)(*element)[2]
    if sample_weight is not None and tf.nest.is_nested(y) and not tf.nest.is_nested(sample_weight):
        return tf.nest.map_structure(lambda _: sample_weight, y)
    return sample_weight


def from_arrays(request: Request, x: Any, y: Any, sample_weight: Any) -> Source:
    """The source of arrays, in batches of indices."""
    if x is None:
        raise ValueError("{} needs data: `x` is None".format(request.procedure))
    x, y = _tensors(request, x), _tensors(request, y)
    sample_weight = _array_weights(request, y, _tensors(request, sample_weight))
    arrays = _packed(x, y, sample_weight)
    lengths = [int(leaf.shape[0]) if leaf.shape.rank else None for leaf in data.leaves(arrays)]
    if not lengths or None in lengths:
        raise ValueError(
            "`x` of {} has to be an array, a tensor, a structure of them, a tf.data.Dataset, a"
            " generator or a PyDataset, with one sample per row".format(request.procedure)
        )
    if len(set(lengths)) > 1:
        raise ValueError(
            "Data cardinality is ambiguous. Make sure all arrays contain the same number of"
            " samples; they have {}.".format(", ".join(str(length) for length in lengths))
        )
    samples = lengths[0]
    if samples == 0:
        raise ValueError(
            "the data of {} are empty; give at least one sample".format(request.procedure)
        )
    batch = request.batch_size or (int(math.ceil(samples / request.steps)) if request.steps else 32)
    if batch < 1:
        raise ValueError("batch_size is {}; it has to be at least 1".format(batch))
    steps = int(math.ceil(samples / batch))

    @_no_convert
    def rows(indices: tf.Tensor) -> Any:
        return tf.nest.map_structure(
            lambda array: None if array is None else tf.gather(array, indices, axis=0), arrays
        )

    # Keras 2 keeps one iterator for all epochs; data of each rank's own may be cut in every epoch.
    kept = request.distribute or ranks.get_size() == 1
    repeated = not request.keras3 and request.procedure == "fit" and request.epochs > 1 and kept
    source = Source(
        _index_batches(request, samples, batch, request.epochs if repeated else 1),
        steps,
        min(batch, samples),
        samples % batch or batch,
    )
    source.transform = rows
    source.compared = _no_convert(lambda indices: (indices, rows(indices[:1])))
    source.keras_steps = steps if repeated else None
    return source


def _index_batches(request: Request, samples: int, batch: int, epochs: int) -> tf.data.Dataset:
    """Batches of indices. The operators in `permute` are those of Keras, for the same seeds give
    the same order.
    """
    shuffle = request.shuffle.lower() if isinstance(request.shuffle, str) else request.shuffle
    full, rest = divmod(samples, batch)
    agreed = None if request.order_seed is None else np.random.default_rng(request.order_seed)

    @_no_convert
    def permute(_: tf.Tensor) -> tf.Tensor:
        indices = tf.range(samples, dtype=tf.int64)
        if shuffle and shuffle != "batch":
            if agreed is None:
                return tf.random.shuffle(indices)
            return tf.ensure_shape(
                tf.numpy_function(lambda: agreed.permutation(samples), [], tf.int64), [samples]
            )
        return indices

    @_no_convert
    def batches(indices: tf.Tensor) -> tf.data.Dataset:
        dataset = tf.data.Dataset.from_tensor_slices(
            tf.reshape(indices[: full * batch], [full, batch])
        )
        if rest:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(indices[full * batch :]))
        if shuffle == "batch" and not request.keras3:
            dataset = dataset.shuffle(
                1024, seed=None if agreed is None else int(agreed.integers(1 << 31))
            )
        return dataset

    dataset = tf.data.Dataset.range(1).repeat(epochs) if epochs > 1 else tf.data.Dataset.range(1)
    dataset = dataset.map(permute).prefetch(1).flat_map(batches)
    if shuffle == "batch" and request.keras3:
        dataset = dataset.map(_no_convert(lambda indices: tf.random.shuffle(indices)))
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    length = (full + bool(rest)) * epochs
    return dataset.with_options(options).apply(tf.data.experimental.assert_cardinality(length))


def order_seed(told: List[Tuple[Optional[int], int]]) -> Optional[int]:
    """None if the ranks have one seed of TensorFlow, whose order they then share; else a number of
    rank 0.

    `told` has each rank's seed of TensorFlow, None for none, and a number that it drew.
    """
    if len(told) == 1 or (told[0][0] is not None and all(seed == told[0][0] for seed, _ in told)):
        return None
    return told[0][1]


def draw(x: Any, shuffle: Any) -> Tuple[Optional[int], int]:
    """What a rank tells the others before data are put in an order."""
    seed = tf.compat.v1.get_seed(0)[0]
    # Keras shuffles sequences by Python's generator, so its seed decides.
    drawn = (
        random.getrandbits(63)
        if shuffle and sources.is_sequence(x)
        else random.SystemRandom().getrandbits(63)
    )
    return (None if seed is None else int(seed)), drawn


def slice_of(request: Request, x: Any, y: Any, sample_weight: Any) -> Tuple[Any, Any]:
    """This rank's slice of arrays that are one global batch, and its share."""
    if x is None:
        raise ValueError("{} needs data: `x` is None".format(request.procedure))
    x, y = _tensors(request, x), _tensors(request, y)
    element = _packed(x, y, _array_weights(request, y, _tensors(request, sample_weight)))
    spec = tf.nest.map_structure(
        lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf), element
    )
    data.check_batched(spec)
    if data.static_batch(spec) == 0:
        raise ValueError(
            "the batch of {} is empty; give at least one sample".format(request.procedure)
        )
    return data.cut(element, ranks.get_size(), ranks.get_rank())


def split(
    arrays: Tuple[Any, Any, Any], fraction: float
) -> Tuple[Tuple[Any, Any, Any], Tuple[Any, Any, Any]]:
    """The last part of arrays as validation data, as Keras takes it."""
    if not 0 < fraction < 1:
        raise ValueError("validation_split is {}; it has to be between 0 and 1".format(fraction))
    flat = [leaf for leaf in tf.nest.flatten(arrays) if leaf is not None]
    for leaf in flat:
        if not (hasattr(leaf, "shape") and hasattr(leaf, "__getitem__") and len(leaf.shape)):
            raise ValueError(
                "`validation_split` is only supported for Tensors or NumPy arrays, found following"
                " types in the input: {}".format(type(leaf).__name__)
            )
    length = int(flat[0].shape[0])
    at = int(math.floor(length * (1.0 - fraction)))
    if at in (0, length):
        raise ValueError(
            "Training data contains {} samples, which is not sufficient to split it into a"
            " validation and training set as specified by `validation_split={}`. Either provide"
            " more data, or a different value for the `validation_split` argument.".format(
                length, fraction
            )
        )

    def part(begin: int, end: int) -> Any:
        def cut(leaf: Any) -> Any:
            if leaf is None:
                return None
            return leaf.iloc[begin:end] if hasattr(leaf, "iloc") else leaf[begin:end]

        return tf.nest.map_structure(cut, arrays)

    return part(0, at), part(at, length)
