"""Data of `fit`, `evaluate` and `predict` as a dataset of global batches.

A `Source` gives the dataset that Keras is handed in their place: `divided` for training and
evaluation, `undivided` where each rank feeds its own data, `dealt` for predict. The order of
batches and samples is the one that Keras itself would take with the same seeds.
"""

from typing import Any, Callable, NamedTuple, Optional

import tensorflow as tf

from .. import data, ranks
from ..data import Watch
from . import regroup

_no_convert = tf.autograph.experimental.do_not_convert


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
        # Gives the first batches once more, where looking at them would take them away.
        self.preview: Optional[Callable[[], "Source"]] = None
        # Steps per epoch that Keras is told although the user gave none.
        self.keras_steps: Optional[int] = None
        # What a PyDataset or Sequence is told.
        self.begin_epoch: Callable[[], Any] = lambda: None
        self.end_epoch: Callable[[], Any] = lambda: None

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
        return data.untuned(dataset.prefetch(data.AHEAD) if self.read_ahead else dataset)

    def element_spec(self) -> Any:
        """Specification of an element after the cut."""
        return self.divided(Watch(), "off").element_spec[0]


class Epochs:
    """Tells a PyDataset or Sequence of its epochs when plain Keras does. Keras itself has a dataset
    in its place, so callbacks of ours call this.
    """

    def __init__(self, keras3: bool, source: Optional[Source]) -> None:
        self._keras3 = keras3
        self._source = source
        self._begun = False

    def reset(self) -> None:
        """Before a fit and before each evaluation, where Keras 3 tells of an end."""
        if self._source is not None and self._keras3:
            self._source.end_epoch()

    def begin(self) -> None:
        """Before the first batch."""
        if self._source is not None:
            self._begun = True
            self._source.begin_epoch()

    def end(self, stopped: bool = False) -> None:
        """Once behind the last batch; nobody is told where the loop was `stopped` before."""
        if self._source is not None and self._begun:
            self._begun = False
            if not stopped:
                self._source.end_epoch()


def as_element(part: Any) -> Any:
    """What predict is given of an element."""
    return part if isinstance(part, tuple) else (part,)


def sizes_differ(request: Request, batch: int) -> str:
    """What is wrong with batches that do not fit the batch size of a rank."""
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


def is_sequence(x: Any) -> bool:
    """Whether it is a PyDataset, or a Sequence of Keras 2."""
    return (
        hasattr(x, "__getitem__")
        and hasattr(x, "on_epoch_end")
        and (hasattr(x, "__len__") or hasattr(x, "num_batches"))
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
            raise ValueError(sizes_differ(request, batch))
    if request.procedure == "fit" and request.distribute:
        data.check_first(batch, size)


def class_weights(request: Request) -> Callable:
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
