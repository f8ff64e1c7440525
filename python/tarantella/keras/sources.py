"""The kinds of data that `fit`, `evaluate` and `predict` take, each as a dataset of global batches.

A `Source` gives the dataset that Keras is handed in their place: `divided` for training and
evaluation, `undivided` where each rank feeds its own data, `dealt` for predict. The order of
batches and samples is the one that Keras itself would take with the same seeds.
"""

import itertools
import math
import random
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Tuple

import numpy as np
import tensorflow as tf

from .. import data, log, ranks
from ..data import Watch
from . import regroup

_no_convert = tf.autograph.experimental.do_not_convert
UNKNOWN = tf.data.UNKNOWN_CARDINALITY
INFINITE = tf.data.INFINITE_CARDINALITY


class Request(NamedTuple):
    """What a call of fit, evaluate or predict says about its data."""

    keras: Any
    keras3: bool
    procedure: str
    model: Any = None
    batch_size: Optional[int] = None
    steps: Optional[int] = None
    epochs: int = 1
    shuffle: Any = False
    class_weight: Any = None
    micro_batch_size: Optional[int] = None
    distribute: bool = True
    micro_batch_name: str = "tnt_micro_batch_size"
    workers: int = 1
    # Seed of the order where the ranks have different seeds of TensorFlow; and one that rank 0 drew
    # for sequences.
    order_seed: Optional[int] = None
    drawn: int = 0


class Source:
    """Data in global batches. `steps` per epoch is None if unknown, `batch` and `last` likewise."""

    def __init__(
        self,
        dataset: tf.data.Dataset,
        steps: Optional[int],
        batch: Optional[int] = None,
        last: Optional[int] = None,
    ) -> None:
        self.dataset = dataset
        self.steps = steps
        self.batch = batch
        self.last = last
        # Applied to the slice of a rank: rows of arrays, a user's preprocessing.
        self.transform: Optional[Callable] = None
        self.compared: Optional[Callable] = None
        self.finish: Callable[[tf.data.Dataset], tf.data.Dataset] = lambda dataset: dataset
        self.read_ahead = True
        self.infinite = False
        # Steps per epoch that Keras is told although the user gave none.
        self.keras_steps: Optional[int] = None

    def divided(self, watch: Watch, compare: str, late: bool = False) -> tf.data.Dataset:
        """The slices of this rank as `(element, share)`.

        `late`: where the job may lose ranks, whole batches, which the step cuts by the ranks that
        there are then.
        """
        late = late and regroup.may_lose_ranks()
        num_ranks, rank = (1, 0) if late else (ranks.get_size(), ranks.get_rank())
        dataset = data.divide(
            self.dataset, num_ranks, rank, watch, compare, self.transform, self.compared
        )
        if late:
            dataset = dataset.map(
                _no_convert(lambda part, share: (part, dict(share, whole=share["global"])))
            )
        return self._ahead(self.finish(dataset))

    def undivided(self, watch: Watch, steps: Optional[int] = None) -> tf.data.Dataset:
        """All of this rank's own data as `(element, share)`, at most `steps` batches."""
        dataset = self.dataset if steps is None else self.dataset.take(steps)
        if self.transform is not None:
            dataset = dataset.map(
                _no_convert(lambda *parts: self.transform(parts if len(parts) > 1 else parts[0]))
            )
        return self._ahead(self.finish(data.undivided(dataset, watch)))

    def dealt(self, watch: Watch) -> tf.data.Dataset:
        """Whole batches, those of this rank in turn, as `(element, share)`."""
        dataset = data.deal(self.dataset, ranks.get_size(), ranks.get_rank())
        return self._ahead(self.finish(data.divide(dataset, 1, 0, watch, transform=self.transform)))

    def _ahead(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        return dataset.prefetch(tf.data.AUTOTUNE) if self.read_ahead else dataset

    def element_spec(self) -> Any:
        """Specification of an element after the cut."""
        return self.divided(Watch(), "off").element_spec[0]


def as_element(part: Any) -> Any:
    """What predict is given of an element."""
    return part if isinstance(part, tuple) else (part,)


# ==== Which kind ====


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
    if _is_sequence(x):
        _refuse_beside(request, x, y, sample_weight, "a PyDataset")
        return _from_sequence(request, x)
    if hasattr(x, "__next__"):
        _refuse_beside(request, x, y, sample_weight, "a Python generator")
        return _from_generator(request, x)
    if request.micro_batch_size is not None:
        size = request.micro_batch_size * (ranks.get_size() if request.distribute else 1)
        if request.batch_size not in (None, size):
            raise ValueError(_sizes_differ(request, request.batch_size))
        request = request._replace(batch_size=size)
    return _from_arrays(request, x, y, sample_weight)


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


def _is_sequence(x: Any) -> bool:
    return (
        hasattr(x, "__getitem__")
        and hasattr(x, "on_epoch_end")
        and (hasattr(x, "__len__") or hasattr(x, "num_batches"))
    )


def _sizes_differ(request: Request, batch: int) -> str:
    size = ranks.get_size()
    return (
        "the data are batched by {}, but {}={} on {} ranks needs batches of {}; change one of the"
        " two, or leave {} away".format(
            batch,
            request.micro_batch_name,
            request.micro_batch_size,
            size,
            request.micro_batch_size * size,
            request.micro_batch_name,
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
        dataset = dataset.map(_no_convert(_class_weights(request)))
    length = int(dataset.cardinality())
    if length == 0:
        raise ValueError(
            "the dataset of {} is empty; give it at least one batch".format(request.procedure)
        )
    source = Source(dataset, length if length > 0 else None, batch, batch)
    source.infinite = length == INFINITE
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
            weigh = _class_weights(request)
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
        raise ValueError(_sizes_differ(request, fixed))
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


def check_first(request: Request, batch: int) -> None:
    """What the first batch of an iteration has to be."""
    size = ranks.get_size()
    if (
        request.micro_batch_size is not None
        and request.distribute
        and batch != request.micro_batch_size * size
    ):
        # The only batch of a short data set may be smaller than a full one.
        if batch > request.micro_batch_size * size or request.procedure == "fit":
            raise ValueError(_sizes_differ(request, batch))
    if request.procedure == "fit" and request.distribute:
        data.check_first(batch, size)


def _class_weights(request: Request) -> Callable:
    """A function of an element that makes sample weights of class weights."""
    class_weight = request.class_weight
    classes = sorted(class_weight)
    if classes != list(range(len(classes))):
        raise ValueError(
            "Expected `class_weight` to be a dict with keys from 0 to one less than the number of"
            " classes, found {}".format(class_weight)
        )
    # In single precision also where the model has double, as in Keras.
    table = tf.constant([class_weight[number] for number in classes])

    def weigh(*element: Any) -> Any:
        if len(element) < 2:
            raise ValueError(
                "`class_weight` needs targets: the data have to be (x, y) or (x, y, sample_weight)"
            )
        x, y = element[:2]
        if tf.nest.is_nested(y):
            raise ValueError("`class_weight` is only supported for Models with a single output.")
        if y.shape.rank is not None and y.shape.rank >= 2:
            number = (
                tf.argmax(y, -1)
                if y.shape[-1] != 1
                else tf.cast(tf.round(tf.squeeze(y, -1)), tf.int64)
            )
        else:
            number = tf.cast(tf.round(y) if y.dtype.is_floating else y, tf.int64)
        weight = tf.gather(table, number)
        if len(element) == 3:
            given = element[2]
            weight = tf.cast(weight, given.dtype)
            extra = weight.shape.rank - given.shape.rank
            weight = weight * tf.reshape(
                given, tf.concat([tf.shape(given), tf.ones([extra], tf.int32)], 0)
            )
        return x, y, weight

    return weigh


# ==== Arrays ====


def _floatx(request: Request) -> str:
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
        array = array.astype(_floatx(request), copy=False)
    return tf.convert_to_tensor(array)


def _is_scalars(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(
            isinstance(entry, (int, float, str, bytes, np.generic)) or _is_scalars(entry)
            for entry in value
        )
    )


def _tensors(request: Request, value: Any) -> Any:
    """Lists become tuples, which a dataset takes for structures, not for data."""
    if isinstance(value, dict):
        return {key: _tensors(request, entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and not _is_scalars(value):
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
            return tf.constant(weights, _floatx(request))
        element = (None, y) if sample_weight is None else (None, y, sample_weight)
        return _class_weights(request)(*element)[2]
    if sample_weight is not None and tf.nest.is_nested(y) and not tf.nest.is_nested(sample_weight):
        return tf.nest.map_structure(lambda _: sample_weight, y)
    return sample_weight


def _from_arrays(request: Request, x: Any, y: Any, sample_weight: Any) -> Source:
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
        if shuffle and _is_sequence(x)
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
        if isinstance(value, (list, tuple)) and not _is_scalars(value):
            return tuple(convert(entry) for entry in value)
        if isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
            return value
        array = value.to_numpy() if hasattr(value, "to_numpy") else np.asarray(value)
        return (
            array.astype(_floatx(request), copy=False)
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
    dataset = tf.data.Dataset.from_generator(make_iterator, output_signature=_signature(items))
    if steps is not None:
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))
    if request.micro_batch_size is not None:
        dataset = _batched(request, dataset, False)
    if request.class_weight is not None:
        dataset = dataset.map(_no_convert(_class_weights(request)))
    source = Source(dataset, steps)
    source.read_ahead = False
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
            sequence.on_epoch_end()
            if not endless:
                return

    first = [
        _item(request, sequence[number])
        for number in range(2 if length is None or length > 1 else 1)
    ]
    return _streamed(request, first, items, None if endless else length)
