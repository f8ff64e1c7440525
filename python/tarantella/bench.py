"""`python -m tarantella.bench`: what training costs here, beside one plain process and beside
rivals.

Every figure comes from processes of its own, in rounds: each round runs all variants once, so that
what else the machine does meets all of them. Figures are medians: of the epochs of a process, and
of the rounds; the spread is that of the rounds. A variant is a number of ranks of this layer, or of
Horovod, or one plain process of Keras without it. Each rank is bound to one core, however many the
machine has. The global batch is the same for all. CPU time is user and system time of all
ranks.

The variant "apart" is as many plain processes at the same time, each with its part of each batch,
that exchange nothing: what the machine gives to so many processes. By how much ranks of this layer
take longer is the exposed part of their time: communication that nothing hides, and all else that
the layer does. What the check of data and the control line take is measured by bench_checks.py.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

BATCH = 64
STEPS = 60
MODELS = ("lenet", "perceptron", "deep", "preprocessing")
# Steps of an epoch where a sample takes some 5 ms.
COSTLY_STEPS = 8
# Rows of the matrix whose singular values are a costly sample.
COSTLY_ROWS = 192
# CPU time of 2 ranks by that of one plain process, at most; throughput of 2 ranks by it, at least.
GOALS = {
    "lenet": (1.35, 1.7),
    "perceptron": (2.2, 1.25),
    "deep": (2.1, None),
    "preprocessing": (None, 1.8),
}
RIVALS = ("horovod",)
# Plain processes that train at the same time.
APART = "apart"
# The exposed part of an epoch, at most.
EXPOSED_GOALS = {"lenet": 0.05}
MARK = "tarantella-bench "
# The worker that measures them, and on how many ranks.
CHECKS = "checks"
CHECKED_RANKS = 2
# Names the directory in which processes apart meet.
MEETING = "TNT_BENCH_MEETING"


# In the processes that train.


def make_model(keras, name):
    """A model of images of 28 x 28, or of costly samples. With another name than those of MODELS it
    has one layer.
    """
    layers = keras.layers
    if name == "preprocessing":
        return keras.Sequential([keras.Input((COSTLY_ROWS,)), layers.Dense(10)])
    if name == "lenet":
        stack = [
            layers.Conv2D(20, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Conv2D(50, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(500, activation="relu"),
        ]
    elif name == "perceptron":
        stack = [
            layers.Flatten(),
            layers.Dense(1700, activation="relu"),
            layers.Dense(1700, activation="relu"),
        ]
    elif name != "deep":
        stack = [layers.Flatten()]
    else:
        stack = [layers.Flatten()] + [layers.Dense(128, activation="relu") for _ in range(40)]
    return keras.Sequential([keras.Input((28, 28, 1))] + stack + [layers.Dense(10)])


def make_data(tf, name, variant, rank, size, steps=None):
    """What a variant trains on: the same batches for all; those of an epoch unless `steps`."""
    import numpy as np

    # Else the plain process and Horovod wait for TensorFlow's autotuner at the end of epochs.
    untuned = tf.data.Options()
    untuned.autotune.enabled = False
    if name == "preprocessing":
        samples, prepare = tf.data.Dataset.range(BATCH * (steps or COSTLY_STEPS)), costly
        if variant == "tarantella":
            import tarantella as tnt

            shared = samples.batch(BATCH).with_options(untuned)
            return tnt.data.distribute(shared, preprocess=prepare, num_parallel_calls=1)
    else:
        random = np.random.default_rng(1)
        images = random.random((BATCH * (steps or STEPS), 28, 28, 1), np.float32)
        labels = random.integers(0, 10, len(images))
        samples, prepare = tf.data.Dataset.from_tensor_slices((images, labels)), None
    parts = size if variant in ("horovod", APART) else 1
    samples = samples.shard(size, rank) if parts > 1 else samples
    samples = samples if prepare is None else samples.map(prepare)
    return samples.batch(BATCH // parts).with_options(untuned)


def costly(number):
    """A sample that takes some 5 ms, and its label."""
    import tensorflow as tf

    matrix = tf.random.stateless_uniform([COSTLY_ROWS, COSTLY_ROWS], [1, number])
    return tf.linalg.svd(matrix, compute_uv=False), number % 10


def now():
    """Wall and CPU time of this process, in seconds."""
    return time.perf_counter(), time.process_time()


def timed(action):
    """Seconds of wall and CPU time that an action takes."""
    begin = now()
    action()
    return tuple(end - start for start, end in zip(begin, now()))


def timed_epochs(keras, model, data, epochs):
    """The same for each epoch of one fit, from the end of one to that of the next, without the
    first two.
    """
    ends = []

    class Ends(keras.callbacks.Callback):
        """Notes when epochs end."""

        def on_epoch_end(self, epoch, logs=None):
            """The end of one."""
            ends.append(now())

    model.fit(data, epochs=epochs + 2, verbose=0, callbacks=[Ends()])
    pairs = zip(ends[1:], ends[2:])
    return [tuple(end - start for start, end in zip(*pair)) for pair in pairs]


def meet(what, rank, size):
    """Waits until all processes apart have come here."""
    directory = os.environ[MEETING]
    places = [os.path.join(directory, "{} {}".format(what, each)) for each in range(size)]
    with open(places[rank], "w", encoding="utf-8"):
        pass
    while not all(os.path.exists(place) for place in places):
        time.sleep(0.001)


def bind():
    """Binds this process to one core: the first of its own share, or the one of its number where
    all ranks of the host have the same cores. Before TensorFlow has threads, which keep to it.
    """
    cores = sorted(os.sched_getaffinity(0))
    number = os.environ.get("HOROVOD_LOCAL_RANK", "0")
    if os.environ.get("GASPI_BIND") == "none":
        number = os.environ["GASPI_SOCKET"]
    os.sched_setaffinity(0, [cores[int(number) % len(cores)]])


def train(name, variant, epochs):
    """Trains a model and tells what it took: per epoch, without the first."""
    rank, size, total = 0, 1, lambda values: values
    bind()
    if variant == APART:
        rank, size = int(os.environ["GASPI_RANK"]), int(os.environ["GASPI_NRANKS"])
    if variant == "tarantella":
        import tarantella as tnt

        rank, size = tnt.get_rank(), tnt.get_size()
        total = tnt.allreduce
    elif variant == "horovod":
        import horovod.tensorflow.keras as hvd

        hvd.init()
        rank, size = hvd.rank(), hvd.size()

        def total(values):
            return hvd.allreduce(values, average=False).numpy()

    import numpy as np
    import tensorflow as tf

    keras = tf.keras
    keras.utils.set_random_seed(1)
    data = make_data(tf, name, variant, rank, size)
    one_step = make_data(tf, name, variant, rank, size, 1)
    model, optimizer, callbacks = make_model(keras, name), keras.optimizers.SGD(0.01), []
    if variant == "tarantella":
        model = tnt.Model(model)
    elif variant == "horovod":
        optimizer = hvd.DistributedOptimizer(optimizer)
        callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    first, _ = timed(lambda: model.fit(one_step, epochs=1, verbose=0, callbacks=callbacks))
    found = {"first_step": first, "size": size}
    for what, action in (
        ("fit", None),
        ("call_of_fit", lambda: model.fit(one_step, epochs=1, verbose=0)),
        ("evaluate", lambda: model.evaluate(data, verbose=0)),
        ("predict", lambda: model.predict(data.map(lambda x, _: x), verbose=0)),
    ):
        if what != "fit" and (variant == "horovod" or name == "preprocessing"):
            continue
        if variant == APART:
            meet(what, rank, size)
        if action is None:
            times = timed_epochs(keras, model, data, epochs)
        else:
            action()
            times = [timed(action) for _ in range(epochs)]
        walls, cpus = (np.array(each) for each in zip(*times))
        cpus = total(cpus) if size > 1 else cpus
        found[what] = {"wall": float(np.median(walls)), "cpu": float(np.median(cpus))}
    if rank == 0 or variant == APART:
        print(MARK + json.dumps(found), flush=True)


def train_checks(turns):
    """What the check of data and the control line take, told by rank 0."""
    from tarantella import bench_checks

    found = bench_checks.train(sys.modules[__name__], turns)
    if found is not None:
        print(MARK + json.dumps(found), flush=True)


# In the process that compares.


def environment():
    """That of the processes: one thread of TensorFlow for a rank."""
    return dict(
        os.environ,
        TF_NUM_INTRAOP_THREADS="1",
        TF_NUM_INTEROP_THREADS="2",
        OMP_NUM_THREADS="1",
        TF_CPP_MIN_LOG_LEVEL="3",
        CUDA_VISIBLE_DEVICES="-1",
        TNT_LOG_LEVEL="ERROR",
    )


def command(variant, ranks):
    """What starts a variant on so many ranks."""
    import tarantella_hosts

    launcher = [tarantella_hosts.find_tool("gaspi_run"), "-n", str(ranks), "--kill-on-failure"]
    # In an allocation of a batch system, too: the plain process runs here.
    launcher.append("--here")
    worker = [sys.executable, os.path.abspath(__file__)]
    if variant in ("tarantella", APART):
        return launcher + worker
    if variant == "horovod":
        return ["horovodrun", "--gloo", "-np", str(ranks)] + worker
    return worker


def run(variant, ranks, name, epochs):
    """The figures of one variant, from one start of it."""
    words = ["--worker", variant, "--model", name, "--epochs", str(epochs)]
    return of_all(started(variant, ranks, words))


def started(variant, ranks, words):
    """What the processes of one start of a variant tell."""
    words = command(variant, ranks) + words
    with tempfile.TemporaryDirectory() as meeting:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=dict(environment(), **{MEETING: meeting}),
            check=False,
        )
    lines = [line for line in done.stdout.splitlines() if MARK in line]
    told = [json.loads(line[line.index(MARK) + len(MARK) :]) for line in lines]
    if len(told) == (ranks if variant == APART else 1):
        return told
    sys.stderr.write(done.stderr)
    raise SystemExit(
        "{} on {} ranks ended with status {} and without all figures".format(
            variant, ranks, done.returncode
        )
    )


def of_all(told):
    """The figures of processes at the same time: the slowest one's wall time, CPU time of all."""
    found = dict(told[0], first_step=max(one["first_step"] for one in told))
    for what in (what for what in found if isinstance(found[what], dict)):
        times = [one[what] for one in told]
        found[what] = {
            "wall": max(each["wall"] for each in times),
            "cpu": sum(each["cpu"] for each in times),
        }
    return found


def shortest(words, more=None, times=5):
    """The shortest of several runs of a program, in seconds."""
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run(
            words, check=True, stdout=subprocess.DEVNULL, env=dict(environment(), **(more or {}))
        )
        found.append(time.perf_counter() - begin)
    return min(found)


def starts():
    """How long imports and the command take."""
    import tarantella_cli

    cli = [sys.executable, os.path.abspath(tarantella_cli.__file__)]
    python = shortest([sys.executable, "-c", "pass"])
    numpy = shortest([sys.executable, "-c", "import numpy"])
    package = shortest([sys.executable, "-c", "import tarantella"], {"TNT_FRONTEND": "none"})
    script = shortest(cli + ["-n", "2", "--no-gpu", "--", "-c", "pass"])
    return {
        "python": python,
        "import_besides_numpy": package - numpy,
        "import": package - python,
        "command": shortest(cli + ["--version"]),
        "command_to_script": script - python,
    }


def compare(options):
    """Runs all variants in rounds; what the rounds found, by model and variant."""
    variants = [("plain", 1)] + [("tarantella", ranks) for ranks in options.ranks]
    variants += [(APART, ranks) for ranks in options.ranks if ranks > 1]
    variants += [(rival, ranks) for rival in options.rivals for ranks in options.ranks if ranks > 1]
    found = {}
    for number in range(options.rounds):
        for name in options.models:
            for variant, ranks in variants:
                one = run(variant, ranks, name, options.epochs)
                found.setdefault((name, variant, ranks), []).append(one)
                print(
                    "round {}: {} {} x {}: {:.2f} s an epoch, {:.2f} CPU-s".format(
                        number + 1, name, variant, ranks, one["fit"]["wall"], one["fit"]["cpu"]
                    ),
                    file=sys.stderr,
                )
    return found


def median(rounds, what, time_of):
    """The median over rounds of a time."""
    return statistics.median(one[what][time_of] for one in rounds)


def rows(found):
    """Records for the table and the file, each beside the plain process."""
    for (name, variant, ranks), rounds in found.items():
        plain = found[name, "plain", 1]
        ratios = [one["fit"]["cpu"] / two["fit"]["cpu"] for one, two in zip(rounds, plain)]
        record = {
            "model": name,
            "variant": variant,
            "ranks": ranks,
            "first_step_s": statistics.median(one["first_step"] for one in rounds),
            "epoch_s": median(rounds, "fit", "wall"),
            "epoch_cpu_s": median(rounds, "fit", "cpu"),
            "throughput_by_plain": median(plain, "fit", "wall") / median(rounds, "fit", "wall"),
            "cpu_by_plain": statistics.median(ratios),
            "cpu_by_plain_spread": [min(ratios), max(ratios)],
        }
        if "call_of_fit" in rounds[0]:
            record["call_of_fit_cpu_s"] = median(rounds, "call_of_fit", "cpu")
        for what in ("evaluate", "predict"):
            if what in rounds[0]:
                throughput = median(plain, what, "wall") / median(rounds, what, "wall")
                record[what + "_throughput_by_plain"] = throughput
        apart = found.get((name, APART, ranks))
        if apart and variant != APART:
            pairs = zip(apart, rounds)
            parts = [1 - one["fit"]["wall"] / two["fit"]["wall"] for one, two in pairs]
            record["exposed"] = statistics.median(parts)
            record["exposed_spread"] = [min(parts), max(parts)]
        yield record


def table(records):
    """The records as text."""
    lines = [
        "{:<13} {:<11} {:>5} {:>9} {:>9} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9}  {}".format(
            "model",
            "variant",
            "ranks",
            "s/epoch",
            "CPU-s",
            "throughput",
            "CPU-s by 1",
            "spread",
            "evaluate",
            "predict",
            "exposed",
            "goals",
        )
    ]
    for record in records:
        goal = ""
        if record["variant"] == "tarantella" and record["ranks"] == 2:
            cpu, throughput = GOALS[record["model"]]
            exposed = EXPOSED_GOALS.get(record["model"])
            goals = (("CPU-s", cpu), ("throughput", throughput), ("exposed", exposed))
            goal = ", ".join("{} {:g}".format(*each) for each in goals if each[1])
        lines.append(
            "{:<13} {:<11} {:>5} {:>9.2f} {:>9.2f} {:>10.2f}x {:>10.2f}x {:>11} {:>9} {:>9}"
            " {:>9}  {}".format(
                record["model"],
                record["variant"],
                record["ranks"],
                record["epoch_s"],
                record["epoch_cpu_s"],
                record["throughput_by_plain"],
                record["cpu_by_plain"],
                "{:.2f}-{:.2f}".format(*record["cpu_by_plain_spread"]),
                *(
                    "{:.2f}x".format(record[key]) if key in record else "-"
                    for key in ("evaluate_throughput_by_plain", "predict_throughput_by_plain")
                ),
                "{:.0f} %".format(100 * record["exposed"]) if "exposed" in record else "-",
                goal,
            ).rstrip()
        )
    return "\n".join(lines)


def positive(word):
    """A number from 1 on."""
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("{} is less than 1".format(number))
    return number


def numbers(words):
    """The numbers of ranks of a list such as 1,2."""
    found = [positive(word) for word in words.split(",")]
    for ranks in found:
        if BATCH % ranks:
            raise argparse.ArgumentTypeError(
                "{} ranks cannot share a batch of {} evenly".format(ranks, BATCH)
            )
    return found


def parse(words):
    """The options."""
    parser = argparse.ArgumentParser(
        prog="python -m tarantella.bench", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--ranks", type=numbers, default=[1, 2], help="numbers of ranks; default: 1,2"
    )
    parser.add_argument(
        "--models",
        type=lambda words: words.split(","),
        default=list(MODELS),
        help="of {}".format(", ".join(MODELS)),
    )
    parser.add_argument(
        "--rivals", type=lambda words: words.split(","), default=[], help="horovod, where installed"
    )
    parser.add_argument("--rounds", type=positive, default=3, help="default: 3")
    parser.add_argument(
        "--epochs", type=positive, default=5, help="timed in each process; default: 5"
    )
    parser.add_argument(
        "--to", default=".", metavar="DIR", help="where training.json and the plots go"
    )
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    for each in options.models:
        if each not in MODELS:
            parser.error("there is no model {}; use {}".format(each, ", ".join(MODELS)))
    for each in options.rivals:
        if each not in RIVALS:
            parser.error("there is no rival {}; use {}".format(each, ", ".join(RIVALS)))
        found = subprocess.run(
            [sys.executable, "-c", "import horovod.tensorflow.keras"],
            check=False,
            stderr=subprocess.DEVNULL,
            env=environment(),
        )
        if found.returncode != 0:
            parser.error(
                "Horovod cannot be imported here: build it with HOROVOD_WITH_TENSORFLOW=1 in an"
                " environment with TensorFlow 2.10 to 2.12, or leave out --rivals"
            )
    return options


def main(words=None):
    """The comparison; its exit status."""
    options = parse(words)
    if options.worker == CHECKS:
        train_checks(options.epochs)
        return 0
    if options.worker:
        train(options.model, options.worker, options.epochs)
        return 0
    from tarantella import bench_checks, bench_plots

    cores = len(os.sched_getaffinity(0))
    if max(options.ranks) > cores:
        print("note: {} ranks on {} cores".format(max(options.ranks), cores), file=sys.stderr)
    records = list(rows(compare(options)))
    turns = ["--worker", CHECKS, "--epochs", str(options.rounds * bench_checks.TURNS)]
    checks = bench_checks.record(started("tarantella", CHECKED_RANKS, turns)[0])
    beginnings = starts()
    print(table(records) + "\n\n" + bench_checks.text(checks))
    print(
        "\n"
        + "\n".join("{:<22} {:6.3f} s".format(name, value) for name, value in beginnings.items())
    )
    os.makedirs(options.to, exist_ok=True)
    for name, content in (
        (
            "training.json",
            json.dumps(
                {
                    "cores": cores,
                    "batch": BATCH,
                    "steps": STEPS,
                    "rows": records,
                    "checks": checks,
                    "starts_s": beginnings,
                },
                indent=1,
            ),
        ),
        ("speed-up.svg", bench_plots.speed_up(records)),
        ("cpu-time.svg", bench_plots.cpu_seconds(records)),
    ):
        with open(os.path.join(options.to, name), "w", encoding="utf-8") as file:
            file.write(content)
    return 0


if __name__ == "__main__":
    if not __package__:
        # Started by its path, Python would take modules of this package for those of others
        # (keras).
        sys.path.pop(0)
    sys.exit(main())
