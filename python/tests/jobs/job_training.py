"""Training on all ranks against plain Keras in the same process: in f64 equal up to rounding."""

from typing import Any, Callable

import cases
from cases import KERAS3, SIZE, case, close, dataset, digits, keras, lenet, np, same_bits, tf, tnt


def against_plain(build: Callable[[], Any], optimizer: Callable[[], Any], data: Callable[[], Any], epochs: int = 2,
                  loss: Any = None, relative: float = 1e-12, compile_args: Any = None, fit_args: Any = None) -> Any:
    """Trains the same model plainly and on all ranks; weights and reported losses have to agree."""
    results = []
    for distributed in (False, True):
        model = build()
        if distributed:
            model = tnt.Model(model)
        model.compile(optimizer=optimizer(), loss=loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True),
                      **(compile_args or {}))
        history = model.fit(data(), epochs=epochs, verbose=0, **(fit_args or {}))
        results.append((model, history.history))
    (plain, plain_history), (model, history) = results
    same_bits(model.get_weights())
    close(model.get_weights(), plain.get_weights(), relative)
    for name in plain_history:
        close([history[name]], [plain_history[name]], max(1e-10, relative), name)
    return model


def _digits(batch: int, number: int = 400) -> Callable[[], Any]:
    return lambda: dataset(*digits(number), batch=batch)


@case
def sgd_with_momentum() -> None:
    against_plain(lenet, lambda: keras.optimizers.SGD(0.05, momentum=0.9), _digits(64))


@case
def adam() -> None:
    against_plain(lenet, lambda: keras.optimizers.Adam(1e-3), _digits(64))


if __name__ == "__main__":
    cases.run()
