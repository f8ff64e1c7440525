"""Loses ranks in the case that the first argument names. In f64 the weights have to be those of
plain Keras. `failures.py` starts it.

The lost rank dies in the forward pass of a step, so no other one can complete it.
"""

import contextlib
import os
import signal
import sys
import time
from typing import Any, Callable, Dict

import cases
from cases import close, dataset, keras, np, raises, same_bits, tf, tnt, with_weights
from expect import logged
from tarantella import ranks
from tarantella.keras import optimizers, regroup, step, weights
from tarantella.keras.state import state_of

CASES: Dict[str, Callable[[], None]] = {}
_armed = False
_leaves = False


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a function under its name."""
    CASES[function.__name__] = function
    return function


# ==== Losing a rank ====


def _die() -> None:
    if _armed and _leaves:
        ranks.leave()
        os._exit(0)
    if _armed:
        os.kill(os.getpid(), signal.SIGKILL)


class Mortal(keras.layers.Layer):
    """Hands on what it gets, unless this rank is to die."""

    def call(self, inputs: Any) -> Any:
        """The same tensor."""
        with tf.control_dependencies([tf.py_function(_die, [], [])]):
            return tf.identity(inputs)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """That of the input."""
        return input_shape


def arm(victim: int) -> None:
    """The next forward pass is the last one of a rank; a negative number counts from the end."""
    global _armed
    _armed = tnt.get_rank() == victim % tnt.get_size()


class Lose(keras.callbacks.Callback):
    """Has a rank die in a step of an epoch, both from 0."""

    def __init__(self, victim: int = -1, epoch: int = 0, step: int = 4) -> None:
        super().__init__()
        self.victim, self.when, self.epoch = victim, (epoch, step), 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras counts them."""
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before a step."""
        if (self.epoch, batch) == self.when:
            arm(self.victim)


def go_on_with(number: int) -> None:
    """So many ranks are left."""
    assert tnt.get_size() == number, (tnt.get_size(), number)


# ==== Models and data ====


def sgd() -> Any:
    """With a state."""
    return keras.optimizers.SGD(0.05, momentum=0.9)


def adam() -> Any:
    """Its steps depend on their number."""
    return keras.optimizers.Adam(0.01)


def build(optimizer: Any, seed: int = 1) -> Any:
    """A small model, compiled."""
    layers = keras.layers
    stack = [keras.Input((8,)), Mortal(), layers.Dense(5, activation="tanh"), layers.Dense(1)]
    model = with_weights(keras.Sequential(stack), seed)
    compiled(model, optimizer)
    return model


def compiled(model: Any, optimizer: Any) -> None:
    """Compiles it as all are."""
    model.compile(optimizer, "mse", jit_compile=False)


def pair(optimizer: Callable[[], Any], seed: int = 1) -> Any:
    """A plain model, and one that trains on all ranks."""
    return build(optimizer(), seed), tnt.Model(build(optimizer(), seed))


def data(seed: int = 3, weighted: bool = False) -> Any:
    """Ten batches of eight samples."""
    generator = np.random.default_rng(seed)
    arrays = [generator.normal(size=(80, 8)), generator.normal(size=(80, 1))]
    return dataset(*arrays, *([generator.uniform(size=80)] if weighted else []), batch=8)


def both_fit(models: Any, listed: Any = (), epochs: int = 1, **more: Any) -> None:
    """Trains both, and compares them."""
    plain, model = models
    plain.fit(data(**more), epochs=epochs, verbose=0)
    model.fit(data(**more), epochs=epochs, verbose=0, callbacks=list(listed))
    equal(models)


def equal(models: Any) -> None:
    """The second model is what the first is."""
    plain, model = models
    close(model.get_weights(), plain.get_weights(), 1e-10)
    same_bits(model.get_weights())


# ==== Cases ====


@case
def other_models() -> None:
    """One that has trained before, and takes no part in the step that fails."""
    first, second = pair(sgd), pair(adam, 2)
    both_fit(first)
    both_fit(second, [Lose()])
    go_on_with(cases.SIZE - 1)
    both_fit(first, seed=4)
    values = [each.evaluate(data(5), verbose=0) for each in first]
    close([values[1]], [values[0]], 1e-10)


@case
def steps_that_save_nothing() -> None:
    """They raise RankFailure and change nothing; after regroup() the model trains on."""
    models = pair(sgd)
    x, y = np.ones((8, 8)), np.ones((8, 1))
    own = dataset(x[:2], y[:2], batch=2)
    for step in (
        lambda model: model.train_on_batch(x, y),
        lambda model: model.fit(own, verbose=0, tnt_distribute_dataset=False),
    ):
        both_fit(models)
        model = models[1]
        before = model.get_weights(), int(model.optimizer.iterations)
        arm(-1)
        raises(tnt.RankFailure, "rank", lambda step=step: step(model))
        assert int(model.optimizer.iterations) >= before[1]
        close(model.get_weights(), before[0], 0)
        left = tnt.get_size() - 1
        tnt.regroup()
        go_on_with(left)
    both_fit(models)


@case
def first_steps_that_save_nothing() -> None:
    """The same where no step has saved anything before."""
    models = pair(sgd)
    arm(-1)
    raises(tnt.RankFailure, "rank", lambda: models[1].train_on_batch(np.ones((8, 8)), np.ones(8)))
    tnt.regroup()
    both_fit(models)


@case
def data_of_other_structures() -> None:
    """A loss in a fit whose data have another structure than those before, and in one as before."""
    models = pair(sgd)
    both_fit(models)
    both_fit(models, [Lose()], weighted=True)
    go_on_with(cases.SIZE - 1)
    both_fit(models, [Lose(step=2)])
    go_on_with(cases.SIZE - 2)
    both_fit(models, weighted=True)


@case
def compiled_again() -> None:
    """Losses behind a second compile, of which one is in the first step."""
    models = pair(sgd)
    both_fit(models)
    for optimizer, lose in ((adam, Lose()), (sgd, Lose(step=0))):
        for model in models:
            compiled(model, optimizer())
        both_fit(models, [lose], epochs=2)
        assert int(models[1].optimizer.iterations) == 20
    go_on_with(cases.SIZE - 2)


@case
def lost_master() -> None:
    """The next one writes checkpoints where the user has said, the second argument."""
    folder = sys.argv[2]
    models = pair(sgd)
    path = os.path.join(folder, "{epoch}.weights.h5")
    checkpoint = keras.callbacks.ModelCheckpoint(path, save_weights_only=True)
    log = keras.callbacks.CSVLogger(os.path.join(folder, "log.csv"))
    with logged() as lines:
        both_fit(models, [checkpoint, log, Lose(0, epoch=1)], epochs=3)
    assert checkpoint.filepath == path
    assert any("CSVLogger" in line for line in lines) == tnt.is_master_rank(), lines
    if tnt.is_master_rank():
        expected = ["{}.weights.h5".format(epoch) for epoch in (1, 2, 3)] + ["log.csv"]
        assert sorted(os.listdir(folder)) == expected, os.listdir(folder)
        models[0].load_weights(path.format(epoch=3))
        close(models[1].get_weights(), models[0].get_weights(), 0)


def concrete(step: Callable[[], None]) -> Any:
    """A function that is traced once and for all."""
    return tf.function(step).get_concrete_function()


def wrapped(step: Callable[[], None]) -> Any:
    """One of TensorFlow 1."""
    return tf.compat.v1.wrap_function(step, [])


def own_loop(trace: Callable[[Any], Any], weighted: bool) -> None:
    """Steps without fit, in one of which a rank dies before its gradients are there."""
    model = build(sgd())
    optimizer = tnt.optimizers.Optimizer(sgd())
    if hasattr(optimizer, "build"):
        optimizer.build(model.trainable_variables)

    def step() -> None:
        x = np.full((4, 8), 1.0 + tnt.get_rank())
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - 1.0))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(list(zip(gradients, model.trainable_variables)))

    call = trace(step)
    done, left = 0, tnt.get_size()
    while done < 8:
        if done == 4 and tnt.get_size() == left:
            arm(-1)
        try:
            with tnt.batch_weight(1 / tnt.get_size()) if weighted else contextlib.nullcontext():
                call()
            done += 1
        except tnt.RankFailure as failure:
            assert done == 4 and failure.rank == left - 1, (done, failure)
            assert "[Op:" not in str(failure), failure
            tnt.regroup()
            tnt.broadcast(model.variables)
    go_on_with(left - 1)
    same_bits(model.get_weights())


@case
def own_loops() -> None:
    """They catch RankFailure, call regroup(), and go on with weights that are equal, also where
    ranks have made different groups.
    """
    if tnt.is_master_rank():
        tnt.barrier(tnt.Group([0]))
    own_loop(lambda step: step, weighted=False)
    own_loop(lambda step: step, weighted=True)
    own_loop(tf.function, weighted=True)


@case
def traced_loops() -> None:
    """Whose functions fail outside of `batch_weight`, since a rank has died, and has left."""
    global _leaves
    own_loop(tf.function, weighted=False)
    _leaves = True
    own_loop(tf.function, weighted=False)


@case
def concrete_loops() -> None:
    """The same of functions that are called as they were traced."""
    global _leaves
    own_loop(concrete, weighted=False)
    own_loop(wrapped, weighted=False)
    _leaves = True
    own_loop(concrete, weighted=False)


def ancestors(operation: Any) -> Any:
    """All operations that are done before one."""
    found, left = set(), [operation]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += [each.op for each in one.inputs] + list(one.control_inputs)
    return found


@case
def what_a_step_saves_is_there_before_its_line() -> None:
    """Before the operations of a step that fail at once where a death is known: of the line, and
    of the gradients.
    """
    tokens = []
    start = step.Control.start

    def noted(control: Any, share: Any) -> Any:
        tokens.append(start(control, share))
        return tokens[-1]

    step.Control.start = noted
    try:
        models = pair(sgd)
        both_fit(models)
    finally:
        step.Control.start = start
    state, graph = state_of(models[1]), tokens[-1].graph
    starts = [op for op in graph.get_operations() if op.type == "TarantellaStart"]
    assert starts
    before = ancestors(tokens[-1].op).intersection(*map(ancestors, starts))
    saved = [state.attempted, state.sums_before]
    for each in (state.saved, state.saved_counters):
        saved += [each._last] + each.last().variables
    for variable in saved:
        inner = [inner for outer, inner in graph.captures if outer is variable.handle]
        writes = [op for op in inner[0].consumers() if op.type == "AssignVariableOp"]
        assert writes and before.issuperset(writes), variable


class Gone(keras.callbacks.Callback):
    """Has a rank die before a step, which the others begin when they know of that."""

    def __init__(self, victim: int, epoch: int, step: int) -> None:
        super().__init__()
        self.size, self.dies = tnt.get_size(), tnt.get_rank() == victim
        self.when, self.epoch = (epoch, step), 0

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keras counts them."""
        self.epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Before a step."""
        if (self.epoch, batch) != self.when:
            return
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        # Where it is met within the step before, the others have gone on already.
        while not ranks.dead_ranks() and tnt.get_size() == self.size:
            time.sleep(0.001)


@case
def deaths_that_are_known_before_a_step() -> None:
    """So that its first operators fail at once. The second argument is the seed of what is
    random.
    """
    drawn = np.random.default_rng(int(sys.argv[2]))
    for size in range(cases.SIZE, 1, -1):
        go_on_with(size)
        models = pair((sgd, adam)[drawn.integers(2)], int(drawn.integers(100)))
        victim, epoch, batch = drawn.integers([size, 2, 10])
        gone = Gone(victim, epoch, batch)
        both_fit(models, [gone], epochs=2, seed=int(drawn.integers(100)))
    go_on_with(1)


class Rewound:
    """What a rank has of a model before a step: taken back, it has not completed that one."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.reducer = optimizers.reducer_of(optimizers.hooked(model.optimizer))
        self.variables = list(weights.synchronised(model))
        self.variables += [each for metric in model.metrics for each in metric.variables]
        self.values = [each.numpy() for each in self.variables]
        self.steps = int(state_of(model).control.steps()), int(self.reducer.steps())

    def rewind(self) -> None:
        """Takes it back. It was the last step of this rank."""
        for variable, value in zip(self.variables, self.values):
            variable.assign(value)
        state_of(self.model).control.set_steps(self.steps[0])
        self.reducer.set_steps(self.steps[1])
        regroup._steps.begun -= 1
        regroup._steps.last.pop()


@case
def steps_of_two_models_in_turn() -> None:
    """A rank is in a step of one model when one is lost, while another rank has not completed the
    step of the other one.
    """
    pairs = [pair(sgd), pair(adam, 2)]
    for models in pairs:
        both_fit(models)
    elements = [state_of(models[1]).saved.last().read() for models in pairs]

    def one_step(number: int) -> None:
        model = pairs[number][1]
        model.train_function(iter(tf.data.Dataset.from_tensors(elements[number])))

    for turn in range(3):
        before = Rewound(pairs[0][1])
        one_step(0)
        if turn < 2:
            one_step(1)
    arm(-1)
    if tnt.get_rank() == 1:
        before.rewind()
        one_step(0)
    one_step(1)
    go_on_with(cases.SIZE - 1)
    for models, ((x, y), _) in zip(pairs, elements):
        for _ in range(3):
            models[0].train_on_batch(x, y)
        equal(models)
        both_fit(models)


def main() -> None:
    """Runs the case."""
    # What cases.py has made fixed the type of all layers.
    keras.backend.clear_session()
    keras.backend.set_floatx("float64")
    CASES[sys.argv[1]]()
    sys.stderr.write("\n@done rank {} 0\n".format(tnt.get_rank()))


main()
