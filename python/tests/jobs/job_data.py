"""Dividing data among ranks: the rule by itself for many ranks, and the datasets of this job's
ranks.
"""

import os

from cases import case, run
from expect import raises

import numpy as np
import tarantella as tnt
import tensorflow as tf
from tarantella import data


def divided(dataset, num_ranks, **more):
    """What each of the ranks gets: a list of (samples, local, global)."""
    return [
        [
            (part.numpy().tolist(), int(share["local"]), int(share["global"]))
            for part, share in data.divide(dataset, num_ranks, rank, **more)
        ]
        for rank in range(num_ranks)
    ]


@case
def slices_are_contiguous_and_cover_the_batch():
    for batch in list(range(0, 40)) + [64, 100, 1437]:
        for num_ranks in (1, 2, 3, 4, 7, 16):
            at = 0
            for rank in range(num_ranks):
                begin, count = data.bounds(batch, num_ranks, rank)
                assert count in (batch // num_ranks, batch // num_ranks + 1), (
                    batch,
                    num_ranks,
                    rank,
                )
                assert count == 0 or begin == at, (batch, num_ranks, rank)
                at += count
            assert at == batch, (batch, num_ranks)
            counts = data.sizes(batch, num_ranks)
            assert counts == sorted(counts, reverse=True)


@case
def rule_of_tensors_is_that_of_numbers():
    for batch in (0, 1, 5, 29, 64, 100):
        for num_ranks in (1, 2, 3, 7):
            for rank in range(num_ranks):
                begin, count = data.bounds(tf.constant(batch, tf.int64), num_ranks, rank)
                assert (int(begin), int(count)) == data.bounds(batch, num_ranks, rank)


@case
def slices_of_all_ranks_in_order_are_the_dataset():
    for length, batch in ((64, 64), (100, 64), (93, 64), (137, 100), (65, 64), (10, 4)):
        dataset = tf.data.Dataset.range(length).batch(batch)
        for num_ranks in (1, 2, 3, 4):
            ranks = divided(dataset, num_ranks)
            assert len({len(each) for each in ranks}) == 1, "ranks have different numbers of steps"
            together = [
                sample for step in zip(*ranks) for part, local, _ in step for sample in part[:local]
            ]
            assert together == list(range(length)), (length, batch, num_ranks)
            for step in zip(*ranks):
                assert sum(local for _, local, _ in step) == step[0][2]


@case
def rank_without_a_sample_takes_the_first_as_stand_in():
    ranks = divided(tf.data.Dataset.range(9).batch(4), 3)
    assert [each[-1] for each in ranks] == [([8], 1, 1), ([8], 0, 1), ([8], 0, 1)]


@case
def fixed_batches_have_fixed_slices():
    dataset = tf.data.Dataset.from_tensor_slices((np.zeros((12, 3)), np.zeros(12))).batch(
        5, drop_remainder=True
    )
    for rank, length in enumerate((2, 2, 1)):
        spec = data.divide(dataset, 3, rank).element_spec[0]
        assert spec[0].shape == (length, 3) and spec[1].shape == (length,)
    free = tf.data.Dataset.from_tensor_slices(np.zeros((12, 3))).batch(5)
    assert data.divide(free, 3, 0).element_spec[0].shape.as_list() == [None, 3]
    assert int(data.divide(free, 3, 0).cardinality()) == 3


@case
def structures_ragged_and_sparse_are_cut():
    ragged = tf.ragged.constant([[1], [2, 3], [], [4, 5, 6]])
    sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 3], [0, 4]])
    dataset = tf.data.Dataset.from_tensors({"a": ragged, "b": (sparse, tf.range(4))})
    part, share = next(iter(data.divide(dataset, 3, 1)))
    assert part["a"].to_list() == [[]] and part["b"][1].numpy().tolist() == [2]
    assert tf.sparse.to_dense(part["b"][0]).numpy().tolist() == [[3, 3]]
    assert int(share["local"]) == 1 and int(share["global"]) == 4


@case
def parts_of_different_lengths_are_refused():
    with raises(ValueError, "different numbers of samples", "3, 4"):
        data.divide(tf.data.Dataset.from_tensors((tf.zeros([4]), tf.zeros([3]))), 2, 0)
    with raises(ValueError, "dataset.batch(64)"):
        data.divide(tf.data.Dataset.range(3), 2, 0)


@case
def watch_sees_first_and_other_sizes():
    watch = data.Watch()
    list(data.divide(tf.data.Dataset.range(137).batch(64), 2, 0, watch))
    assert (
        watch.first == 64
        and watch.other == {2: 9}
        and watch.batch_at(1) == 64
        and watch.batch_at(2) == 9
    )


@case
def first_batch_smaller_than_ranks_is_refused():
    watch = data.Watch(lambda batch: data.check_first(batch, 3))
    with raises(tf.errors.OpError):
        list(data.divide(tf.data.Dataset.range(4).batch(2), 3, 0, watch))
    with raises(ValueError, "2 samples", "number of ranks, 3"):
        raise watch.error


@case
def fingerprints_tell_batches_apart():
    def prints(array, num_ranks, rank, compare="step"):
        dataset = tf.data.Dataset.from_tensor_slices(array).batch(4)
        return [
            share["fingerprint"].numpy().tolist()
            for _, share in data.divide(dataset, num_ranks, rank, None, compare)
        ]

    one = np.random.RandomState(0).rand(8, 5).astype("float32")
    other = one.copy()
    other[5, 0] += 1e-6
    assert prints(one, 3, 0) == prints(one, 3, 2), "ranks with the same data differ"
    changed = one.copy()
    changed[4, 0] += 1e-6
    assert (
        prints(one, 2, 0)[0] == prints(changed, 2, 0)[0]
        and prints(one, 2, 0)[1] != prints(changed, 2, 0)[1]
    )
    assert prints(one, 2, 0)[0] != prints(one[::-1].copy(), 2, 0)[0]
    assert prints(one, 2, 0, "epoch")[1] == [0, 0] != prints(one, 2, 0, "epoch")[0]
    for array in (
        np.array([b"a", b"bc", b"d", b""]),
        np.array([True, False, True, True]),
        np.arange(4, dtype="uint8"),
    ):
        assert prints(array, 2, 0) != prints(array[::-1].copy(), 2, 0)


@case
def operator_cuts_as_operators_of_tensorflow_do():
    samples = np.random.default_rng(5).random((33, 3)).astype("float32")
    signature = [tf.TensorSpec([None, 3]), tf.TensorSpec([None], tf.int64)]
    for num_ranks in (1, 2, 3, 5):
        for rank in range(num_ranks):
            division = data.Division(num_ranks, rank, None, "off", None)
            for batch in (0, 1, 4, 5, 33):
                element = {"a": samples[:batch], "b": (np.arange(batch), None)}

                @tf.function(input_signature=signature)
                def both(a, b):
                    element = {"a": a, "b": (b, None)}
                    state = (tf.constant(7, tf.int64), tf.constant(-1, tf.int64))
                    found = division.cut(state, element)
                    graph = tf.compat.v1.get_default_graph()
                    assert "TarantellaCut" in [node.type for node in graph.get_operations()]
                    expected = division._cut_any(state, element)
                    return tf.nest.flatten(found), tf.nest.flatten(expected)

                found, expected = both(element["a"], element["b"][0])
                for one, other in zip(found, expected):
                    assert one is other is None or (one.numpy() == other.numpy()).all()


@case
def parts_whose_lengths_are_not_known_before_are_refused():
    def batches():
        yield np.zeros(4), np.zeros(4)
        yield np.zeros(4), np.zeros(3)

    spec = (tf.TensorSpec([None], tf.float64), tf.TensorSpec([None], tf.float64))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    parts = iter(data.divide(dataset, 2, 0))
    assert next(parts)[0][0].shape == (2,)
    with raises(tf.errors.InvalidArgumentError, "different numbers of samples", "4 and 3"):
        next(parts)


@case
def autotuner_is_off_where_it_has_nothing_to_set():
    def is_on(dataset):
        return tnt.data.Dataset(dataset).divided().options().autotune.enabled

    plain = tf.data.Dataset.range(64).shuffle(8).map(lambda n: n + 1).batch(8).prefetch(1)
    assert is_on(plain) is False
    parallel = plain.map(lambda n: n + 1, num_parallel_calls=tf.data.AUTOTUNE)
    assert is_on(parallel) is None and is_on(parallel.take(3)) is None
    for chosen in (True, False):
        options = tf.data.Options()
        options.autotune.enabled = chosen
        assert is_on(plain.with_options(options)) is chosen
        assert is_on(parallel.with_options(options)) is chosen


@case
def dataset_yields_elements_and_weights():
    dataset = tf.data.Dataset.range(9).batch(8)
    parts = [list(tnt.data.Dataset(dataset, 3, rank).weights) for rank in range(3)]
    assert [[weight for _, weight in part] for part in parts] == [
        [3 / 8, 1.0],
        [3 / 8, 0.0],
        [2 / 8, 0.0],
    ]
    assert [part.numpy().tolist() for part in tnt.data.Dataset(dataset, 3, 1)] == [[3, 4, 5], [8]]
    own = tnt.data.Dataset(tf.data.Dataset.range(100).batch(50))
    assert own.num_ranks == tnt.get_size() and own.rank == tnt.get_rank() and len(own) == 2
    together = tnt.allgatherv(np.concatenate([part.numpy() for part in own]))
    assert sorted(np.asarray(together).tolist()) == list(range(100))
    with raises(TypeError, "tf.data.Dataset"):
        tnt.data.Dataset([1, 2])
    with raises(ValueError, "rank 3"):
        tnt.data.Dataset(dataset, 3, 3)


@case
def distribute_preprocesses_own_samples_only():
    seen = []

    def costly(number):
        seen.append(int(number))
        return np.int64(number * number)

    names = tf.data.Dataset.range(11).batch(4)
    for rank in range(3):
        del seen[:]
        made = tnt.data.Dataset(
            tnt.data.distribute(
                names, lambda i: tf.ensure_shape(tf.numpy_function(costly, [i], tf.int64), [])
            ),
            3,
            rank,
        )
        got = [part.numpy().tolist() for part in made]
        wanted = [part.numpy().tolist() for part in tnt.data.Dataset(names, 3, rank)]
        assert got == [[number * number for number in part] for part in wanted]
        assert sorted(seen) == sorted(number for part in wanted for number in part), (
            "others' samples were preprocessed"
        )
        assert int(made.divided().cardinality()) == 3
    pairs = tnt.data.distribute(
        tf.data.Dataset.from_tensor_slices((np.arange(4), np.arange(4))).batch(4),
        lambda x, y: (x + 1, y * 2),
    )
    x, y = next(iter(tnt.data.Dataset(pairs, 1, 0)))
    assert x.numpy().tolist() == [1, 2, 3, 4] and y.numpy().tolist() == [0, 2, 4, 6]


@case
def whole_batches_are_dealt_in_turn():
    dataset = tf.data.Dataset.range(10).batch(2)
    assert [
        [part.numpy().tolist() for part in data.deal(dataset, 3, rank)] for rank in range(3)
    ] == [[[0, 1], [6, 7]], [[2, 3], [8, 9]], [[4, 5]]]


@case
def unseeded_shuffle_is_equal_on_all_ranks():
    if os.environ.get("TNT_SEED", "") == "none":
        return
    order = np.array([int(sample) for sample in tf.data.Dataset.range(50).shuffle(50)])
    assert (np.asarray(tnt.allgather(order)).reshape(-1, 50) == order).all()


if __name__ == "__main__":
    run()
