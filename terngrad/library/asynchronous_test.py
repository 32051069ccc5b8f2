"""Laws of asynchronous training in custom loops, with servers and workers in threads."""

import contextlib
import itertools
import signal
import sys

import numpy as np
import pytest
import tensorflow as tf

import terngrad.keras
from terngrad.asynchronous.copies import ChangeCode
from terngrad.asynchronous.row import make_row_layout, make_shards
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.snapshots import SnapshotSettings
from terngrad.asynchronous.store import Store
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.managed import launch_variables
from terngrad.cluster.managed.role import Role
from terngrad.layout import Policy, make_layout
from terngrad.library import rates
from terngrad.library.asynchronous import AsynchronousTraining
from terngrad.library.group import Group
from terngrad.library.join_config import JoinConfig
from terngrad.library.joining import join
from terngrad.library.reducer import Reducer
from terngrad.library.serving import Asynchronous
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.addresses import free_addresses
from terngrad.testing.certificates import make_launched_certificates
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.processes import cluster
from terngrad.testing.ps_clients import config_of
from terngrad.training import runtime
from terngrad.training.optimizers import make_optimizer

SHAPES = ((40, 3), (3,), (5, 7))
WORKERS = ["127.0.0.1:1", "127.0.0.1:2"]
RATE = 0.05


@contextlib.contextmanager
def serving(folder, count=1, workers=1):
    """Servers of one training, and their addresses."""
    hosts = free_addresses(count)
    with contextlib.ExitStack() as stack:
        servers = []
        for i in range(count):
            snapshots = SnapshotSettings(str(folder / f"ps_{i}"), 1000)
            kernels = runtime.kernels().kernels
            store = Store(i, count, WORKERS[:workers], kernels, rates.read_rate, snapshots, print)
            servers.append(Server(config_of(hosts, i, workers=WORKERS[:workers]), store))
            servers[-1].start(hosts[i])
            stack.callback(servers[-1].close)
        yield servers, hosts


def group_of(hosts, rank=0, workers=1, folder="", timeout_secs=HANG_SECS):
    """The group of a worker, as `join` returns it."""
    role = Role(
        source="a test",
        task_id=rank,
        size=workers,
        worker_hosts=tuple(WORKERS[:workers]),
        ps_hosts=tuple(hosts),
    )
    group = Group(rank, workers, hosts=WORKERS[:workers], aggregated=1)
    group.asynchronous = JoinConfig(
        role=role, timeout_secs=timeout_secs, synchronous=False, folder=str(folder)
    )
    return group


def weights_of(seed=1):
    draw = np.random.default_rng(seed)
    return [tf.Variable(draw.normal(size=shape).astype("float32")) for shape in SHAPES]


def gradients_of(weights, step, nodes=1):
    """Gradients of each node, which depend on the weights and the step."""
    angle = tf.cast(step, tf.float32)
    by_node = [[0.1 * w + tf.sin(angle + node) for w in weights] for node in range(nodes)]
    return by_node if nodes > 1 else by_node[0]


def training_of(weights, group, **settings):
    settings = {"learning_rate": RATE, "max_steps": 6, "optimizer": "gd"} | settings
    settings = {"gradients": "ternary"} | settings
    return AsynchronousTraining(weights, group, **settings)


def trained(training, weights, is_graph=True, nodes=1):
    """Trains to the end."""

    def step():
        training.apply(gradients_of(weights, training.state.step, nodes))

    step = tf.function(step, autograph=False) if is_graph else step
    with training:
        while not training.is_over:
            step()
    return [w.numpy() for w in weights]


@pytest.mark.parametrize("is_graph", [True, False])
@pytest.mark.parametrize(
    ("optimizer", "settings", "servers"),
    [
        ("gd", {"gradients": "float32"}, 1),
        ("momentum", {"gradients": "ternary", "size_to_binarize": 10, "nodes": 2}, 2),
        ("gd", {"gradients": "7-level", "size_to_binarize": 1}, 2),
        ("adam", {"gradients": "5-level-feedback", "scale_by": "channel"}, 1),
    ],
)
def test_law_4_one_worker_gives_what_the_reducer_alone_gives(
    tmp_path, optimizer, settings, servers, is_graph
):
    alone = weights_of()
    reducer = Reducer(alone, Group(), **settings)
    update = make_optimizer(optimizer, alone, 0.9)
    nodes = settings.get("nodes", 1)
    for i in range(6):
        means = reducer(gradients_of(alone, i, nodes))
        update.apply(means, tf.constant(RATE), tf.constant(i, tf.int64))
    weights = weights_of()
    with serving(tmp_path, servers) as (held, hosts):
        training = training_of(weights, group_of(hosts), optimizer=optimizer, **settings)
        found = trained(training, weights, is_graph, nodes)
        assert held[0].wait(HANG_SECS)
    assert int(training.state.step) == 6
    assert training.bytes_sent > 0
    pulls, values = 7, sum(w.shape.num_elements() for w in alone)
    assert training.bytes_received >= pulls * 4 * values
    for value, other in zip(found, alone, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-7)
    slots = itertools.chain(*training.state.slots.values())
    for value, other in zip(slots, itertools.chain(*update.slots.values()), strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-7)


def test_all_updates_are_made_once_and_a_late_worker_begins_with_the_newest(
    tmp_path,
):
    with serving(tmp_path, workers=2) as (servers, hosts):
        first, late = weights_of(), weights_of(2)
        chief = training_of(first, group_of(hosts, 0, 2), max_steps=40)
        other = training_of(late, group_of(hosts, 1, 2), max_steps=40)
        with chief:
            for _ in range(3):
                chief.apply(gradients_of(first, chief.state.step))
            with other:
                assert int(other.state.step) == 3
                for value, newest in zip(late, first, strict=True):
                    np.testing.assert_array_equal(value, newest)

                # In turn: in one process workers that wait could leave the servers no thread.
                while not (chief.is_over and other.is_over):
                    for training, weights in ((chief, first), (other, late)):
                        training.apply(gradients_of(weights, training.state.step))
        assert servers[0].wait(HANG_SECS)
        assert servers[0].store.version == int(chief.state.step) == 40
        assert servers[0].workers.why_over == "the run is finished"


def test_worker_0_that_starts_again_goes_on_with_the_servers_state(tmp_path):
    weights = weights_of()
    with serving(tmp_path) as (_, hosts):
        training = training_of(weights, group_of(hosts, folder=tmp_path), max_steps=10)
        training.__enter__()
        for _ in range(4):
            training.apply(gradients_of(weights, training.state.step))
        training._client.close()  # as if it was killed
        again = weights_of(3)
        other = training_of(again, group_of(hosts, folder=tmp_path), max_steps=10)
        with other:
            assert int(other.state.step) == 4
            for value, before in zip(again, weights, strict=True):
                np.testing.assert_array_equal(value, before)
            while not other.is_over:
                other.apply(gradients_of(again, other.state.step))


def test_worker_0_that_failed_goes_on_from_the_snapshots_of_the_servers(tmp_path):
    weights = weights_of()
    with serving(tmp_path) as (servers, hosts):
        training = training_of(weights, group_of(hosts, folder=tmp_path), max_steps=10)
        with pytest.raises(KeyError), training:
            for _ in range(4):
                training.apply(gradients_of(weights, training.state.step))
            raise KeyError
        assert servers[0].wait(HANG_SECS)
    again = weights_of(3)
    with serving(tmp_path) as (_, hosts):
        with training_of(again, group_of(hosts, folder=tmp_path), max_steps=10) as other:
            assert int(other.state.step) == 4
        for value, before in zip(again, weights, strict=True):
            np.testing.assert_array_equal(value, before)


def test_parameters_may_travel_in_half_precision_and_are_fetched_as_they_are(tmp_path):
    weights, exact = weights_of(), weights_of()
    with serving(tmp_path, 2) as (_, hosts):
        with training_of(weights, group_of(hosts), pull_bits=16) as training:
            for value, whole in zip(weights, exact, strict=True):
                np.testing.assert_array_equal(value, np.float32(np.float16(whole)))
            assert training.fetch() == 0
        for value, whole in zip(weights, exact, strict=True):
            np.testing.assert_array_equal(value, whole)


@pytest.mark.parametrize("is_graph", [True, False])
def test_one_worker_with_coded_pulls_gives_what_the_formulas_of_ef21_p_give(tmp_path, is_graph):
    names, steps = ["a", "b", "c"], 8
    layout = make_layout(names, SHAPES, Policy())
    (shard,) = make_shards(layout, 1, 1, 0)
    segments = make_row_layout(layout).segments
    code = ChangeCode("ternary", [own.size for own in shard.ranges], ReferenceKernels())
    row, copies = np.zeros(shard.size, np.float32), weights_of()
    for segment in segments:
        row[segment.start : segment.start + segment.size] = (
            copies[segment.variable].numpy().reshape(-1)
        )
    shadow = row.copy()
    for i in range(steps):
        for segment, gradient in zip(segments, gradients_in(segments, copies, i), strict=True):
            row[segment.start : segment.start + segment.size] -= np.float32(RATE) * gradient
        shadow += code.write(row - shadow).values
        for segment in segments:
            value = shadow[segment.start : segment.start + segment.size]
            copies[segment.variable].assign(value.reshape(SHAPES[segment.variable]))
    weights = weights_of()
    settings = {"gradients": "float32", "pull_codec": "ternary", "max_steps": steps}
    with serving(tmp_path) as (_, hosts):
        training = training_of(weights, group_of(hosts), **settings)
        step = lambda: training.apply(gradients_of(weights, training.state.step))
        step = tf.function(step, autograph=False) if is_graph else step
        with training:
            while not training.is_over:
                step()
            for value, copy in zip(weights, copies, strict=True):
                np.testing.assert_allclose(value, copy, rtol=1e-5, atol=1e-6)
            training.fetch()
        for segment in segments:
            exact = row[segment.start : segment.start + segment.size]
            found = weights[segment.variable].numpy().reshape(-1)
            np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)
            assert np.abs(found - copies[segment.variable].numpy().reshape(-1)).max() > 1e-3


def gradients_in(segments, weights, step):
    """Gradients in the order of the row, flat."""
    by_variable = gradients_of(weights, step)
    return [by_variable[segment.variable].numpy().reshape(-1) for segment in segments]


def test_a_checkpoint_of_the_servers_state_begins_another_training_there(tmp_path):
    """Six steps in two trainings are six steps in one, for an optimizer with slots."""
    whole = weights_of()
    with serving(tmp_path / "whole") as (_, hosts):
        trained(training_of(whole, group_of(hosts), optimizer="adam"), whole)
    weights = weights_of()
    with serving(tmp_path / "first") as (_, hosts):
        training = training_of(weights, group_of(hosts), optimizer="adam")
        with training:
            for _ in range(3):
                training.apply(gradients_of(weights, training.state.step))
            assert training.fetch() == 3
            saved = tf.train.Checkpoint(weights=weights, training=training.state)
            path = saved.write(str(tmp_path / "checkpoint"))
    resumed = weights_of(5)
    with serving(tmp_path / "second") as (_, hosts):
        training = training_of(resumed, group_of(hosts), optimizer="adam")
        tf.train.Checkpoint(weights=resumed, training=training.state).read(path).assert_consumed()
        trained(training, resumed)
    for value, other in zip(resumed, whole, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-6, atol=1e-7)


def test_statistics_are_those_of_the_last_push(tmp_path):
    with serving(tmp_path, workers=2) as (_, hosts):
        trainings = []
        for rank in range(2):
            weights, moving = weights_of(), tf.Variable([float(rank), 9.0])
            group = group_of(hosts, rank, 2)
            training = training_of(weights, group, statistics=[moving], max_steps=2)
            trainings.append((training, weights, moving))
        (chief, own, first), (other, _, second) = trainings
        with chief, other:
            assert second.numpy().tolist() == [0.0, 9.0]
            first.assign([0.5, 8.0])
            chief.apply(gradients_of(own, 0))
            second.assign([1.5, 7.0])
            other.apply(gradients_of(own, 0))
            chief.apply(gradients_of(own, 0))
            assert chief.is_over
            assert first.numpy().tolist() == [1.5, 7.0]


def test_statistics_may_be_the_non_trainable_weights_of_a_model_with_random_layers():
    layers = [tf.keras.layers.BatchNormalization(), tf.keras.layers.Dropout(0.5)]
    model = tf.keras.Sequential([tf.keras.Input((3,)), *layers])
    statistics = model.non_trainable_weights
    assert len(statistics) == 2
    training_of(model.trainable_variables, group_of(["127.0.0.1:1"]), statistics=statistics)


def test_an_early_end_by_worker_0_ends_the_others_and_an_error_is_reported(tmp_path):
    for fails in (False, True):
        with serving(tmp_path / str(fails), workers=2) as (_, hosts):
            weights = weights_of()
            chief = training_of(weights, group_of(hosts, 0, 2), max_steps=1000)
            other = training_of(weights, group_of(hosts, 1, 2), max_steps=1000)
            why = pytest.raises(MembershipError, match="worker 0 has ended the training by an err")
            chief.__enter__()
            with why if fails else contextlib.nullcontext(), other:
                error = KeyError("a mistake") if fails else None
                chief.__exit__(type(error) if error else None, error, None)
                assert not other.is_over  # until it hears from the servers
                other.apply(gradients_of(weights, 0))
                assert other.is_over


@pytest.mark.parametrize("is_graph", [True, False])
def test_a_server_that_does_not_come_back_ends_the_block_with_its_name(tmp_path, is_graph):
    weights = weights_of()
    training = None
    with serving(tmp_path) as (_, hosts):
        training = training_of(weights, group_of(hosts, timeout_secs=1.0), max_steps=10)
        training.__enter__()
    step = lambda: training.apply(gradients_of(weights, training.state.step))
    step = tf.function(step, autograph=False) if is_graph else step
    with pytest.raises(MembershipError, match=rf"ps 0 \({hosts[0]}\) .* 1 s"):
        try:
            step()
        except Exception as error:
            training.__exit__(type(error), error, None)
            raise


@pytest.mark.parametrize("is_graph", [True, False])
def test_law_10_a_gradient_that_is_not_finite_is_named_and_not_pushed(tmp_path, is_graph):
    weights = weights_of()
    with serving(tmp_path) as (servers, hosts):
        training = training_of(weights, group_of(hosts), size_to_binarize=10)
        step = lambda bad: training.apply(
            [tf.fill(w.shape, float("nan") if i == bad else 0.0) for i, w in enumerate(weights)]
        )
        step = tf.function(step, autograph=False) if is_graph else step
        for bad in (0, 1):
            why = f"step 0: the gradient of Variable{'_1' if bad else ''} is not finite"
            with pytest.raises(ValueError, match=why), training:
                step(bad)
        assert servers[0].store.version == 0


def test_law_10_arguments_that_do_not_fit_are_named(tmp_path):
    weights = weights_of()
    held = Asynchronous()
    with pytest.raises(ValueError, match="the processes of the group make steps together"):
        training_of(weights, Group())
    group = group_of(["127.0.0.1:1"])
    for settings, why in [
        ({"optimizer": "sgd"}, "optimizer is 'sgd'; allowed are momentum, adam, gd, rmsprop"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; allowed are numbers from 0 on"),
        ({"pull_bits": 8}, "pull_bits is 8; allowed are 16 and 32"),
        ({"pull_codec": "half"}, "pull_codec is 'half'; allowed are float, ternary"),
        ({"pull_codec": "ternary", "pull_bits": 16}, "pull_bits is 16; allowed is 32 with pull_co"),
        ({"max_steps": 0}, "max_steps: 0; allowed are 1 to"),
        ({"gradients": "1-level"}, "gradients is '1-level'; allowed are"),
        ({"sum_codec": "ternary"}, "sum_codec is 'ternary'; allowed is 'exact': servers send"),
        ({"statistics": [tf.Variable(1)]}, "statistics: .* is int32.*; allowed is float32"),
    ]:
        with pytest.raises(ValueError, match=why):
            training_of(weights, group, **settings)
    with pytest.raises(TypeError, match=r"max_steps is 2\.5; allowed are integers"):
        training_of(weights, group, max_steps=2.5)
    with pytest.raises(TypeError, match=r"momentum is 'x'; allowed are numbers"):
        training_of(weights, group, momentum="x")
    with pytest.raises(TypeError, match=r"learning_rate is <function .*; allowed"):
        training_of(weights, group, learning_rate=lambda step: 0.1)
    with pytest.raises(ValueError, match="apply is called outside `with training:`"):
        training_of(weights, group).apply(gradients_of(weights, 0))
    with pytest.raises(ValueError, match=r"fetch: allowed for worker 0, within `with training:`"):
        training_of(weights, group).fetch()
    with pytest.raises(ValueError, match="no process of the group waits for another; allowed are"):
        Reducer(weights, group)
    with pytest.raises(ValueError, match=r"distribute: the group is asynchronous: .*; allowed"):
        terngrad.keras.distribute(tf.keras.optimizers.SGD(), group)
    with pytest.raises(ValueError, match="join: asynchronous needs parameter servers: ps_hosts, "):
        join(WORKERS, rank=0, asynchronous=held)
    for other in ({"elastic": True}, {"num_replicas_to_aggregate": 1}):
        with pytest.raises(ValueError, match=f"join: {next(iter(other))} is .*: not with asynch"):
            join(WORKERS, rank=0, ps_hosts=["127.0.0.1:3"], asynchronous=held, **other)


def test_learning_rates_travel_as_text():
    for rate in (
        0.25,
        tf.keras.optimizers.schedules.ExponentialDecay(0.5, 3, 0.9, staircase=True),
        tf.keras.optimizers.schedules.PiecewiseConstantDecay([2, 4], [0.3, 0.2, 0.1]),
        tf.keras.optimizers.schedules.CosineDecay(0.0, 6, warmup_target=0.4, warmup_steps=2),
    ):
        read = rates.read_rate(rates.write_rate(rate))
        for step in range(8):
            wanted = rate if isinstance(rate, float) else float(rate(step))
            assert float(read(tf.constant(step, tf.int64))) == pytest.approx(wanted, rel=1e-6)
    assert rates.write_rate("a custom text") == "a custom text"
    for text in ('{"schedule": "Model", "config": {}}', "{}", "1"):
        with pytest.raises((ValueError, TypeError, LookupError)):
            rates.read_rate(text)


def test_learning_rates_of_numpys_numbers_travel_as_text():
    schedules = tf.keras.optimizers.schedules
    for rate in (
        schedules.ExponentialDecay(np.float32(0.5), np.int64(3), 0.9),
        schedules.CosineDecay(0.5, tf.constant(6)),
        schedules.PiecewiseConstantDecay(np.array([2, 4]), np.array([0.3, 0.2, 0.1])),
    ):
        read = rates.read_rate(rates.write_rate(rate))
        for step in (0, 3, 5):
            wanted = float(rate(tf.constant(step, tf.int64)))
            assert float(read(tf.constant(step, tf.int64))) == pytest.approx(wanted, rel=1e-6)
    with pytest.raises(TypeError, match=r"learning_rate: a schedule with <object .*; allowed are"):
        rates.write_rate(schedules.ExponentialDecay(0.5, 3, object()))


def test_a_push_that_failed_is_not_the_reason_of_a_later_error(tmp_path):
    weights = weights_of()
    later = pytest.raises(tf.errors.OpError, match="of this line")
    with serving(tmp_path) as (_, hosts), later:
        training = training_of(weights, group_of(hosts))
        apply = tf.function(training.apply, autograph=False)
        with training:
            with pytest.raises(tf.errors.OpError):
                apply([tf.fill(w.shape, float("nan")) for w in weights])
            apply(gradients_of(weights, 0))
            tf.debugging.check_numerics(tf.constant(float("inf")), "of this line")


def test_an_asynchronous_training_has_one_memory_of_its_codecs():
    training = training_of(
        weights_of(), group_of(["127.0.0.1:1"]), gradients="ternary-feedback", nodes=2
    )
    assert training._reduction.memory is training._reducer.memory


@pytest.mark.slow
@pytest.mark.parametrize("is_encrypted", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_killed_workers_and_servers_that_start_again_go_on_where_the_training_is(
    tmp_path, monkeypatch, is_encrypted
):
    if is_encrypted:
        (certificates := tmp_path / "certificates").mkdir()
        make_launched_certificates(certificates)
        monkeypatch.setenv(launch_variables.CERTIFICATES, str(certificates))
    program = [sys.executable, "-m", "terngrad.testing.programs.asynchronous_loop"]
    with cluster([*program, str(tmp_path), "400"], 2, 1) as ((chief, other, server), start):
        other.wait_for(r"^step [1-9]\d$")
        other.process.send_signal(signal.SIGKILL)
        other = start(1)
        other.wait_for(r"^begins at [1-9]\d+$")
        chief.process.send_signal(signal.SIGKILL)
        other.wait_for(r"^step \d\d\d$")  # it goes on without worker 0
        chief = start(0)
        chief.wait_for(r"^The run continues with the state of the ps at step \d+\.$")
        server.process.send_signal(signal.SIGKILL)
        server = start(2)
        server.wait_for(r"Loaded .*/ps_0/snapshot-\d+; waits for the workers of its run\.$")
        assert [run.finish() for run in (chief, other, server)] == [0, 0, 0], chief.output
        assert "ends at 400" in chief.output
        assert "ends at step 400: the run is finished" in server.output
