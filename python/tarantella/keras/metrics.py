"""Metrics over all ranks: their states are summed, not their values averaged.

Each state variable of Keras' metrics is a sum over samples, so the sums of the ranks are the state
of the serial run. Sums travel in f64, all states of a model in one allreduce. The states of a rank
stay what they were: the global ones are set only while the results are computed.
"""

from typing import Any, Dict, Iterator, List, Tuple

import numpy as np
import tensorflow as tf

from .. import collectives, ranks

KINDS = ("sum", "max", "min", "mean", "local")
_rules: Dict[type, Dict[str, str]] = {}


def register(metric_class: type, variables: Dict[str, str]) -> None:
    """Says how states of a metric class of the user are combined: `{"largest": "max"}`.

    Keys are attributes of the metric, or names of its variables; values are sum (the default), max,
    min, mean (over the ranks) or local (this rank's own).
    """
    if not isinstance(metric_class, type):
        raise TypeError("register takes the class of a metric, not {!r}".format(metric_class))
    for name, kind in variables.items():
        if kind not in KINDS:
            raise ValueError(
                "state {!r} of {} cannot be combined by {!r}; use one of {}".format(
                    name, metric_class.__name__, kind, ", ".join(KINDS)
                )
            )
    _rules[metric_class] = dict(variables)


def _rule(metric: Any, variable: Any) -> str:
    for base in type(metric).__mro__:
        rules = _rules.get(base)
        if rules:
            names = [name for name, value in vars(metric).items() if value is variable]
            names.append(str(getattr(variable, "name", "")).split(":")[0].split("/")[-1])
            for name in names:
                if name in rules:
                    return rules[name]
    return "sum"


def _owned(metric: Any) -> Iterator[Tuple[Any, Any]]:
    """The state variables of a metric and of those inside it, each with its owner."""
    for inner in getattr(metric, "metrics", None) or []:
        if inner is not metric:
            yield from _owned(inner)
    for variable in metric.variables:
        yield metric, variable


def states(model: Any) -> List[Tuple[Any, str]]:
    """The state variables of a model's metrics, in one order on all ranks, and how each is
    combined.
    """
    found: List[Tuple[Any, str]] = []
    seen = set()
    for metric in model.metrics:
        for owner, variable in _owned(metric):
            if id(variable) not in seen:
                seen.add(id(variable))
                found.append((variable, _rule(owner, variable)))
    return found


def _read(variable: Any) -> np.ndarray:
    return tf.cast(tf.convert_to_tensor(variable), tf.float64).numpy()


def _combine(values: List[np.ndarray], kinds: List[str]) -> List[np.ndarray]:
    """One allreduce for each kind that occurs; as a rule that is one."""
    combined = list(values)
    for kind in ("sum", "max", "min"):
        places = [
            place
            for place, own in enumerate(kinds)
            if own == kind or (kind == "sum" and own == "mean")
        ]
        if not places:
            continue
        flat = np.concatenate([values[place].reshape(-1) for place in places])
        total = collectives.allreduce(flat, op=kind)
        begin = 0
        for place in places:
            end = begin + values[place].size
            part = total[begin:end].reshape(values[place].shape)
            combined[place] = part / ranks.get_size() if kinds[place] == "mean" else part
            begin = end
    return combined


def plain(value: Any) -> Any:
    """A result as Keras puts it into logs: a float, or an array."""
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array


def results(model: Any) -> Dict[str, Any]:
    """The values that a model's metrics have by their states as they are now."""
    if hasattr(model, "get_metrics_result"):
        return model.get_metrics_result()
    # Keras 2.10 does this in compute_metrics, behind an update of the states.
    found: Dict[str, Any] = {}
    for metric in model.metrics:
        result = metric.result()
        found.update(result if isinstance(result, dict) else {metric.name: result})
    return found


def plain_results(model: Any) -> Dict[str, Any]:
    """The same, as Keras puts them into logs."""
    return {name: plain(value) for name, value in results(model).items()}


def global_results(model: Any) -> Dict[str, Any]:
    """The values of a model's metrics over the samples of all ranks. All ranks call it together."""
    if ranks.get_size() == 1:
        return plain_results(model)
    own = states(model)
    values = [_read(variable) for variable, _ in own]
    combined = _combine(values, [kind for _, kind in own])
    kept = [tf.identity(tf.convert_to_tensor(variable)) for variable, _ in own]
    try:
        for (variable, _), value in zip(own, combined):
            variable.assign(tf.cast(tf.constant(value, tf.float64), tf.as_dtype(variable.dtype)))
        return plain_results(model)
    finally:
        for (variable, _), value in zip(own, kept):
            variable.assign(value)


def average_others(logs: Dict[str, Any], known: Dict[str, Any]) -> Dict[str, Any]:
    """Values in logs that no metric computed, averaged over the ranks."""
    names = sorted(name for name in logs if name not in known)
    numbers = []
    for name in names:
        try:
            numbers.append(np.asarray(logs[name], np.float64))
        except (TypeError, ValueError):
            numbers.append(None)
    used = [place for place, number in enumerate(numbers) if number is not None]
    if not used or ranks.get_size() == 1:
        return {}
    means = _combine([numbers[place] for place in used], ["mean"] * len(used))
    return {names[place]: plain(mean) for place, mean in zip(used, means)}
