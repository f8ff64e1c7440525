"""The kinds of data that `fit`, `evaluate` and `predict` take, each as a source."""

import itertools
import random
from typing import Any, Callable, Iterator, List, Optional

import numpy as np
import tensorflow as tf

from .. import data, log, ranks
from . import arrays, sources
from .sources import Request, Source

_no_convert = tf.autograph.experimental.do_not_convert


def make(request: Request, x: Any, y: Any = None, sample_weight: Any = None) -> Source:
    """The source of what the user gave."""
    if isinstance(x, (tf.data.Dataset, data.Dataset)):
        _refuse_beside(request, x, y, sample_weight, "a tf.data.Dataset")
        return _from_dataset(request, x)
    if isinstance(x, tf.distribute.DistributedDataset):
        raise ValueError(
            "a dataset of tf.distribute cannot be used with tnt.Model, which divides the data"
            " itself; give the tf.data.Dataset, batched with the global batch size"
        )
    if sources.is_sequence(x):
        _refuse_beside(request, x, y, sample_weight, "a PyDataset")
        return _from_sequence(request, x)
    if hasattr(x, "__next__"):
        _refuse_beside(request, x, y, sample_weight, "a Python generator")
        return _from_generator(request, x)
    if request.micro_batch_size is not None:
        size = request.micro_batch_size * (ranks.get_size() if request.distribute else 1)
        if request.batch_size not in (None, size):
            raise ValueError(sources.sizes_differ(request, request.batch_size))
        request = request._replace(batch_size=size)
    return arrays.from_arrays(request, x, y, sample_weight)


def _refuse_beside(request: Request, x: Any, y: Any, sample_weight: Any, kind: str) -> None:
    for name, what, value in (
        ("y", "the targets", y),
        ("sample_weight", "the sample weights", sample_weight),
    ):
        if value is not None:
            raise ValueError(
                "When providing `x` as {}, `{}` should not be passed. Instead, {} should be"
                " included as part of it.".format(kind, name, what)
            )
    if request.batch_size is not None:
        raise ValueError(
            "The `batch_size` argument must not be specified for the given input type: `x` is {},"
            " which has the global batch size itself. Received: batch_size={}".format(
                kind, request.batch_size
            )
        )


# ==== Datasets ====


def _from_dataset(request: Request, given: Any) -> Source:
    preprocessed = given if isinstance(given, data.Dataset) else None
    dataset = given.dataset if preprocessed is not None else given
    if request.micro_batch_size is not None:
        dataset = _batched(request, dataset, preprocessed is not None)
    else:
        _refuse_unbatched(request, dataset)
    data.check_batched(dataset.element_spec)
    batch = data.static_batch(dataset.element_spec)
    after = preprocessed is not None and preprocessed.preprocess is not None
    if request.class_weight is not None and not after:
        dataset = dataset.map(_no_convert(sources.class_weights(request)))
    length = int(dataset.cardinality())
    if length == 0:
        raise ValueError(
            "the dataset of {} is empty; give it at least one batch".format(request.procedure)
        )
    source = Source(dataset, length if length > 0 else None, batch, batch)
    source.infinite = length == tf.data.INFINITE_CARDINALITY
    if source.infinite and request.steps is None:
        raise ValueError(
            "When providing an infinite dataset, you must specify the number of steps to run (if"
            " you did not intend to create an infinite dataset, make sure to not call `repeat()` on"
            " the dataset)."
        )
    if after:

        def finish(shared: tf.data.Dataset) -> tf.data.Dataset:
            shared = preprocessed.finish(shared)
            if request.class_weight is None:
                return shared
            weigh = sources.class_weights(request)
            return shared.map(_no_convert(lambda part, share: (weigh(*part), share)))

        source.finish = finish
    return source


def _input_spec(model: Any) -> Optional[Any]:
    """Shape of the model's first input with the dimension of the batch; None if it is not known."""
    try:
        inputs = tf.nest.flatten(getattr(model, "inputs", None) or [])
    except (AttributeError, ValueError):
        inputs = []
    if inputs:
        return tf.TensorShape(inputs[0].shape)
    for name in ("input_shape", "_build_input_shape"):
        try:
            shape = getattr(model, name, None)
            if (
                isinstance(shape, (list, tuple, tf.TensorShape))
                and all(
                    dimension is None or isinstance(dimension, int) for dimension in tuple(shape)
                )
                and len(shape)
            ):
                return tf.TensorShape(shape)
        except (AttributeError, RuntimeError, ValueError, TypeError):
            continue
    return None


def _first_input(spec: Any) -> Any:
    x = spec[0] if isinstance(spec, tuple) else spec
    return data.leaves(x)[0]


def _batched(request: Request, dataset: tf.data.Dataset, cheap: bool) -> tf.data.Dataset:
    """Batches what is not batched yet; the sizes of what is are checked."""
    size = request.micro_batch_size * (ranks.get_size() if request.distribute else 1)
    spec = _first_input(dataset.element_spec)
    wanted = None if cheap else _input_spec(request.model)
    if wanted is not None and wanted.rank is not None and spec.shape.rank is not None:
        batched = spec.shape.rank != wanted.rank - 1
        # Keras adds the last dimension, 1, to a batch of scalars.
        scalars = (
            not batched and spec.shape.rank == 1 and spec.shape[0] is None and wanted[1] is not None
        )
        batched = (batched or scalars) and spec.shape.rank > 0
    else:
        leading = spec.shape[0] if spec.shape.rank else 0
        batched = leading is None or leading == size
        log.logger().info(
            "the model is not built, so the shape of the data decides: %s is taken as %s",
            spec.shape,
            "batched" if batched else "single samples",
        )
    if not batched:
        return dataset.batch(size)
    fixed = data.static_batch(dataset.element_spec)
    if fixed is not None and fixed != size:
        raise ValueError(sources.sizes_differ(request, fixed))
    return dataset


def _refuse_unbatched(request: Request, dataset: tf.data.Dataset) -> None:
    wanted = _input_spec(request.model)
    spec = _first_input(dataset.element_spec)
    if wanted is None or wanted.rank is None or spec.shape.rank is None:
        return
    single = spec.shape.rank == wanted.rank - 1 and spec.shape.rank > 0
    if single and spec.shape[0] is not None and spec.shape.is_compatible_with(wanted[1:]):
        raise ValueError(
            "the dataset yields single samples of shape {}; batch it with the global batch size, "
            "dataset.batch(64), or pass {}".format(spec.shape, request.micro_batch_name)
        )


# ==== Generators, PyDataset and Sequence ====


def _item(request: Request, item: Any) -> Any:
    """A batch of a generator with arrays in place of lists, without None at its end."""
    if isinstance(item, list):
        item = tuple(item)
    if isinstance(item, tuple):
        while len(item) > 1 and item[-1] is None:
            item = item[:-1]

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: convert(entry) for key, entry in value.items()}
        if isinstance(value, (list, tuple)) and not arrays.is_scalars(value):
            return tuple(convert(entry) for entry in value)
        if isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
            return value
        array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        return (
            array.astype(arrays.floatx(request), copy=False)
            if np.issubdtype(array.dtype, np.floating)
            else array
        )

    return convert(item)


def _signature(items: List[Any]) -> Any:
    """The specification of batches: dimensions that differ, and the first one, are free."""

    def merge(*values: Any) -> Any:
        specs = [tf.type_spec_from_value(value) for value in values]
        if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
            return specs[0]
        if specs[0].shape.rank == 0:
            raise ValueError(
                "a generator has to yield batches, each with one sample per row; it yielded a"
                " scalar"
            )
        dimensions = [None] + [
            sizes[0] if len(set(sizes)) == 1 else None
            for sizes in zip(*(spec.shape[1:] for spec in specs))
        ]
        return tf.TensorSpec(dimensions, specs[0].dtype)

    return tf.nest.map_structure(merge, *items)


def _streamed(
    request: Request,
    items: List[Any],
    make_iterator: Callable[[], Iterator[Any]],
    steps: Optional[int],
) -> Source:
    signature = _signature(items)

    def made(iterator: Callable[[], Iterator[Any]], length: Optional[int]) -> Source:
        dataset = tf.data.Dataset.from_generator(iterator, output_signature=signature)
        if length is not None:
            dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
        if request.micro_batch_size is not None:
            dataset = _batched(request, dataset, False)
        if request.class_weight is not None:
            dataset = dataset.map(_no_convert(sources.class_weights(request)))
        source = Source(dataset, length)
        source.read_ahead = False
        return source

    source = made(make_iterator, steps)
    source.preview = lambda: made(lambda: iter(items), None)
    return source


def _from_generator(request: Request, generator: Iterator[Any]) -> Source:
    first = [_item(request, item) for item in itertools.islice(generator, 2)]
    if not first:
        raise ValueError(
            "the generator of {} is empty; it has to yield at least one batch".format(
                request.procedure
            )
        )
    rest = itertools.chain(first, (_item(request, item) for item in generator))
    # One stream for all iterations, as a generator cannot be begun again.
    return _streamed(request, first, lambda: rest, None)


def _from_sequence(request: Request, sequence: Any) -> Source:
    length = getattr(sequence, "num_batches", None) if request.keras3 else len(sequence)
    if length == 0:
        raise ValueError(
            "the data of {} are empty: the {} has no batch".format(
                request.procedure, type(sequence).__name__
            )
        )
    if length is None and request.steps is None:
        raise ValueError(
            "When providing an infinite PyDataset, you must specify the number of steps to run."
        )
    shuffle = bool(request.shuffle) and length is not None
    order = random.Random(request.drawn) if shuffle else None
    endless = length is None or (request.steps is not None and request.procedure == "fit")

    def items() -> Iterator[Any]:
        while True:
            numbers = itertools.count() if length is None else list(range(length))
            if order is not None:
                order.shuffle(numbers)
            for number in numbers:
                yield _item(request, sequence[number])
            if not endless:
                return

    first = [
        _item(request, sequence[number])
        for number in range(2 if length is None or length > 1 else 1)
    ]
    source = _streamed(request, first, items, None if endless else length)
    # Keras 2 does not tell of a begin.
    if request.keras3:
        source.begin_epoch = getattr(sequence, "on_epoch_begin", source.begin_epoch)
    source.end_epoch = sequence.on_epoch_end
    return source
