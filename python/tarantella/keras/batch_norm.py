"""Batch normalisation over the global batch, for `sync_batch_norm=True`.

Each rank computes mean and variance of its own samples; these are combined by one exchange in f64.
The gradient of that sum is a sum again: the loss is the sum of w_s times the losses of the ranks,
and what goes back on rank r is multiplied by w_r later, so here it is divided by that.
"""

from typing import Any, List, Optional, Tuple

import tensorflow as tf

from .. import fusion, operators
from . import classes, step as steps, weights


class _Exchange:
    """The exchanges of one layer."""

    def __init__(self, width: int) -> None:
        def slot(name: str) -> operators.Slot:
            return operators.Slot(fusion.Layout((fusion.Tensor(name, (width,), "float64"),)))

        self._forward, self._backward = (
            slot("batch statistics"),
            slot("gradient of batch statistics"),
        )

    def sum(self, values: Any) -> Any:
        """The sum of `values` of all ranks; differentiable."""

        @tf.custom_gradient
        def summed(own: Any) -> Any:
            step = steps.current()
            assert step is not None
            total = step.exchange(self._forward, [own])[0]

            def gradient(upstream: Any) -> Any:
                inner = steps.current() or step
                weight = inner.weight
                whole = inner.exchange(self._backward, [upstream * weight])[0]
                return tf.math.divide_no_nan(whole, weight)

            return total, gradient

        return summed(values)


def _combine(layer: Any, mean: Any, variance: Any, count: Any) -> Tuple[Any, Any, Any]:
    """Mean and variance over the samples of all ranks, and their number."""
    step = steps.current()
    assert step is not None and step.share is not None
    channels = mean.shape.num_elements()
    exchange = layer.__dict__.get("_tnt_exchange")
    if exchange is None:
        exchange = _Exchange(2 * channels + 1)
        object.__setattr__(layer, "_tnt_exchange", exchange)
    present = tf.cast(tf.cast(step.share["local"], tf.int64) > 0, tf.float64)
    count = tf.cast(count, tf.float64) * present
    own_mean = tf.reshape(tf.cast(mean, tf.float64), [-1])
    own_square = tf.reshape(tf.cast(variance, tf.float64), [-1]) + tf.square(own_mean)
    # Where a rank has no samples, what its stand-in gave must not even be multiplied: it may be
    # NaN.
    own_mean, own_square = (
        tf.where(present > 0, each, tf.zeros_like(each)) for each in (own_mean, own_square)
    )
    sums = exchange.sum(tf.concat([own_mean * count, own_square * count, [count]], 0))
    total = sums[-1]
    all_mean = sums[:channels] / total
    all_variance = tf.maximum(sums[channels:-1] / total - tf.square(all_mean), 0.0)
    shape = tf.shape(mean)
    return (
        tf.reshape(tf.cast(all_mean, mean.dtype), shape),
        tf.reshape(tf.cast(all_variance, variance.dtype), shape),
        total,
    )


def _in_training() -> bool:
    step = steps.current()
    return step is not None and step.share is not None and step.divisor is not None


class _Moments:
    """For the layer of Keras 3."""

    def _moments(self, inputs: Any, mask: Any) -> Any:
        mean, variance = super()._moments(inputs, mask)  # type: ignore[misc]
        if not _in_training():
            return mean, variance
        count = tf.cast(tf.size(inputs, tf.int64), tf.float64) / mean.shape.num_elements()
        if mask is not None:
            unmasked = tf.reduce_sum(tf.cast(mask, tf.float64))
            count = count * unmasked / tf.cast(tf.size(mask, tf.int64), tf.float64)
        return _combine(self, mean, variance, count)[:2]


class _CalculateMeanAndVar:
    """For the layer of Keras 2, not fused."""

    _tnt_fused: Optional[bool] = False
    _tnt_corrects = False
    _tnt_total: Optional[Any] = None

    def _calculate_mean_and_var(
        self, inputs: Any, reduction_axes: Any, keep_dims: bool, **more: Any
    ) -> Any:
        of_rank = super()._calculate_mean_and_var  # type: ignore[misc]
        mean, variance = of_rank(inputs, reduction_axes, keep_dims, **more)
        if not _in_training():
            return mean, variance
        count = tf.cast(tf.size(inputs, tf.int64), tf.float64) / mean.shape.num_elements()
        mean, variance, total = _combine(self, mean, variance, count)
        object.__setattr__(self, "_tnt_total", total)
        if self._tnt_fused is None:
            corrects = inputs.shape.rank == 4 and self.compute_dtype != "float64"
        else:
            corrects = self._tnt_fused
        object.__setattr__(self, "_tnt_corrects", corrects)
        return mean, variance

    def _assign_moving_average(
        self, variable: Any, value: Any, momentum: Any, inputs_size: Any
    ) -> Any:
        # The fused operator, which this takes the place of, keeps the unbiased variance.
        if self._tnt_corrects and self._tnt_total is not None and variable is self.moving_variance:
            total = self._tnt_total
            value = value * tf.cast(total / tf.maximum(total - 1, 1), value.dtype)
        assign = super()._assign_moving_average  # type: ignore[misc]
        return assign(variable, value, momentum, inputs_size)


def layers(model: Any) -> List[Any]:
    """The layers of a model that normalise batches."""
    names = ("BatchNormalization", "BatchNormalizationBase")
    return [
        layer
        for layer in weights.layers_of(model)
        if any(base.__name__ in names for base in type(layer).__mro__)
    ]


def synchronise(model: Any) -> None:
    """Has every BatchNormalization of a model take its statistics from the global batch; twice is
    once.
    """
    for layer in layers(model):
        if hasattr(layer, "_calculate_mean_and_var"):
            if getattr(layer, "renorm", False) or getattr(layer, "virtual_batch_size", None):
                raise ValueError(
                    "sync_batch_norm=True does not go with renorm or virtual_batch_size of {};"
                    " leave them out".format(layer.name)
                )
            if not isinstance(layer, _CalculateMeanAndVar):
                classes.extend(layer, _CalculateMeanAndVar)
                object.__setattr__(layer, "_tnt_fused", layer.fused)
            layer.fused = False
        else:
            classes.extend(layer, _Moments)


def synchronised_variables(model: Any) -> List[Any]:
    """The moving statistics that all ranks change alike."""
    return [
        variable
        for layer in weights.layers_of(model)
        if isinstance(layer, (_Moments, _CalculateMeanAndVar))
        for variable in (layer.moving_mean, layer.moving_variance)
    ]
