"""Making the weighted sum of the ranks' losses the loss of the global batch.

The gradient of each rank counts w, its samples divided by those of all: exact for means over
samples, regularisation included. Where a loss of an output is something else, its sample weights
are multiplied by a factor before the loss is computed, so the loss that Keras reports is right too:
- reduction `sum` or `none`: 1 / w;
- outputs with a mask: (own unmasked elements / those of all ranks) / w, summed over the ranks in
  the step; Keras 2.10 divides by all elements, so that they are means over samples there;
- reduction `mean_with_sample_weight`, which does not feel such a factor: the whole loss is
  multiplied by (own sum of weights / that of all ranks) / w.
"""

from typing import Any, Callable, Dict, List, Optional, Tuple

import tensorflow as tf

from .. import fusion, log, operators
from . import classes, step as steps

_NAMES = ("x", "y", "y_pred", "sample_weight", "training")
_MASKED_COUNT = tf.__version__.startswith("2.10.")


class Total:
    """Sums a number over the ranks within a step."""

    def __init__(self) -> None:
        self._slot: Optional[operators.Slot] = None
        self.warned = False

    def share_of(self, step: steps.Step, amount: Any) -> Any:
        """This rank's part of the sum of all ranks' amounts; 0 if that is 0."""
        if self._slot is None:
            self._slot = operators.Slot(
                fusion.Layout((fusion.Tensor("weight of a step", (1,), "float64"),))
            )
        own = tf.reshape(tf.cast(amount, tf.float64), [1])
        total = step.exchange(self._slot, [own])[0]
        return tf.reshape(tf.math.divide_no_nan(own, total), [])


def weight_by_samples(step: steps.Step, share: Dict[str, Any], total: Total) -> Any:
    """The weight of this rank; summed over the ranks where each feeds its own data."""
    local = tf.cast(share["local"], tf.float64)
    if "own" in share:
        return total.share_of(step, local)
    return tf.math.divide_no_nan(local, tf.cast(share["global"], tf.float64))


def compute(
    model: Any,
    base: Callable[..., Any],
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    total: Total,
) -> Any:
    """Calls `base`, the compute_loss of the model's own class, with sample weights as described
    above.
    """
    step = steps.current()
    named = dict(zip(_NAMES, args))
    named.update(kwargs)
    if step is None or step.share is None or step.divisor is None or named.get("y_pred") is None:
        return base(**named)
    _weigh_batches(model, named)
    outputs = tf.nest.flatten(named["y_pred"])
    kinds = _reductions(model, named["y_pred"], len(outputs))
    masks = [getattr(output, "_keras_mask", None) for output in outputs]
    own = _own_weights(named.get("sample_weight"), len(outputs))
    factors = [_factor(kind, mask, step, total) for kind, mask in zip(kinds, masks)]
    if any(factor is not None for factor in factors):
        weighted = [_times(*each) for each in zip(own, factors, outputs, masks)]
        named["sample_weight"] = tf.nest.pack_sequence_as(named["y_pred"], weighted)
    loss = base(**named)
    if "mean_with_sample_weight" in kinds:
        loss = _by_sample_weights(loss, kinds, own, outputs, step, total)
    return loss


class _BatchMean:
    """A metric that takes each batch once, whatever its size, as Keras 3 does for the losses of
    outputs.
    """

    def update_state(self, values: Any, sample_weight: Any = None) -> Any:
        """The ranks together count as one batch."""
        step = steps.current()
        if sample_weight is None and step is not None and step.divisor is not None:
            dtype = self.dtype or values.dtype  # type: ignore[attr-defined]
            sample_weight = tf.cast(step.divisor, dtype)
        return super().update_state(values, sample_weight=sample_weight)  # type: ignore[misc]


def _weigh_batches(model: Any, named: Dict[str, Any]) -> None:
    losses = getattr(model, "_compile_loss", None)
    if losses is None:
        return
    # Keras 3.0 counts each batch once in the loss of the model too; later ones give its samples.
    tracker = getattr(model, "_loss_tracker", None)
    if tracker is not None:
        classes.extend(tracker, _BatchMean)
    if not hasattr(losses, "metrics"):
        return
    if not losses.built:
        losses.build(named.get("y"), named["y_pred"])
    for metric in losses.metrics:
        classes.extend(metric, _BatchMean)


def _factor(kind: str, mask: Any, step: steps.Step, total: Total) -> Any:
    if kind in ("sum", "none"):
        return tf.math.divide_no_nan(tf.constant(1.0, tf.float64), step.divisor)
    if mask is not None and kind != "mean_with_sample_weight" and not _MASKED_COUNT:
        unmasked = tf.reduce_sum(tf.cast(mask, tf.float64)) * tf.cast(step.divisor > 0, tf.float64)
        return tf.math.divide_no_nan(total.share_of(step, unmasked), step.divisor)
    return None


def _own_weights(sample_weight: Any, num: int) -> List[Any]:
    if sample_weight is None:
        return [None] * num
    flat = tf.nest.flatten(sample_weight)
    return flat if len(flat) == num else flat[:1] * num


def _times(weights: Any, factor: Any, output: Any, mask: Any) -> Any:
    if weights is None:
        dtype = output.dtype if output.dtype.is_floating else tf.float32
        weights = tf.ones([tf.shape(output)[0]] if mask is None else tf.shape(mask), dtype)
    if factor is None:
        return weights
    weights = tf.convert_to_tensor(weights)
    if not weights.dtype.is_floating:
        weights = tf.cast(weights, tf.float32)
    return weights * tf.cast(factor, weights.dtype)


def _by_sample_weights(
    loss: Any, kinds: List[str], own: List[Any], outputs: List[Any], step: steps.Step, total: Total
) -> Any:
    if len(outputs) > 1:
        if not total.warned:
            total.warned = True
            log.logger().warning(
                "losses of reduction mean_with_sample_weight are weighted by samples, since the"
                " model has several outputs: its loss differs from that of one rank; use"
                " sum_over_batch_size"
            )
        return loss
    weights = own[0]
    amount = (
        tf.shape(outputs[0])[0] if weights is None else tf.reduce_sum(tf.cast(weights, tf.float64))
    )
    amount = tf.cast(amount, tf.float64) * tf.cast(step.divisor > 0, tf.float64)
    factor = tf.math.divide_no_nan(total.share_of(step, amount), step.divisor)
    return loss * tf.cast(factor, loss.dtype)


def _reductions(model: Any, predictions: Any, num: int) -> List[str]:
    """The reduction of the loss of each output."""
    chosen = getattr(model, "loss", None)
    if isinstance(chosen, dict):
        names = (
            sorted(predictions)
            if isinstance(predictions, dict)
            else list(getattr(model, "output_names", None) or chosen)
        )
        flat = [chosen.get(name) for name in names]
    elif isinstance(chosen, (list, tuple)):
        flat = list(chosen)
    else:
        flat = [chosen] * num
    flat = (flat + [None] * num)[:num]
    return [_reduction(loss) for loss in flat]


def _reduction(loss: Any) -> str:
    """Names as in Keras 3; a function, or the name of one, has the default: the mean."""
    reduction = getattr(loss, "reduction", "sum_over_batch_size")
    return "none" if reduction is None else str(reduction)
