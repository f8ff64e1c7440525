"""What the check of data and the control line take of a step: a part of `tarantella.bench`.

Both take as long whatever the model is. So models of one layer train in turn in one job, in whose
short steps they show: one as usual, one without the check (TNT_CHECK_DATA=off), one without both.
What a step of LeNet takes, of which that is a part, is measured in between.
"""

import statistics

# What trains in turn; the differences between one and the next are what is asked for.
VARIANTS = ("both", "line", "neither")
# Epochs of a turn, and turns of a round.
EPOCHS, TURNS = 5, 3
# Part of a step of LeNet, at most.
GOAL = 0.01


def train(bench, turns):
    """CPU seconds of a step, of all ranks: for each variant and for LeNet, those of each turn."""
    bench.bind()
    import tarantella as tnt
    import tensorflow as tf
    from tarantella import settings
    from tarantella.keras.state import state_of

    keras = tf.keras
    data = bench.make_data(tf, "lenet", "tarantella", tnt.get_rank(), tnt.get_size())
    models = {}
    for variant in VARIANTS + ("lenet",):
        models[variant] = tnt.Model(bench.make_model(keras, variant))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        models[variant].compile(keras.optimizers.SGD(0.01), loss)
    state_of(models["neither"]).control = _without_line()
    found = {variant: [] for variant in models}
    for _ in range(turns):
        for variant, model in models.items():
            checks = variant in ("both", "lenet")
            settings.get().check_data = "step" if checks else "off"
            times = bench.timed_epochs(keras, model, data, EPOCHS if variant != "lenet" else 1)
            own = statistics.median(cpu for _, cpu in times) / bench.STEPS
            found[variant].append(float(tnt.allreduce(own)))
    return found if tnt.is_master_rank() else None


def _without_line():
    """A control line of which nothing is sent."""
    import tensorflow as tf
    from tarantella.keras import step

    class Without(step.Control):
        """Counts the steps alone."""

        def start(self, share):
            """Nothing."""
            return tf.constant(0, tf.int64)

        def finish(self, token, after):
            """The number of the step, behind what it has to wait for."""
            with tf.control_dependencies(list(after)):
                return self._steps.assign_add(1, read_value=True)

    return Without()


def record(found):
    """Medians over the turns, in seconds of all ranks: a step of LeNet, what the check and the line
    take of a step, and their part of that one.
    """
    pairs = {
        "data_check_cpu_s": zip(found["both"], found["line"]),
        "control_line_cpu_s": zip(found["line"], found["neither"]),
        "both_cpu_s": zip(found["both"], found["neither"]),
    }
    taken = {
        name: statistics.median(more - less for more, less in each) for name, each in pairs.items()
    }
    turns = zip(found["both"], found["neither"], found["lenet"])
    parts = [(more - less) / step for more, less, step in turns]
    return dict(
        taken,
        lenet_step_cpu_s=statistics.median(found["lenet"]),
        part_of_lenet=statistics.median(parts),
        part_of_lenet_spread=[min(parts), max(parts)],
    )


def text(told):
    """A record in words."""
    return (
        "data check {:.0f} us and control line {:.0f} us of CPU time a step on all ranks, {:.1f} %"
        " of a step of LeNet ({:.1f} to {:.1f}; goal {:g} %)".format(
            1e6 * told["data_check_cpu_s"],
            1e6 * told["control_line_cpu_s"],
            100 * told["part_of_lenet"],
            *(100 * part for part in told["part_of_lenet_spread"]),
            100 * GOAL
        )
    )
