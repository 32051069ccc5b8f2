"""Laws of asynchronous training over real connections, with workers in threads."""

import dataclasses
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf

from terngrad.asynchronous.copies import Shadow
from terngrad.asynchronous.gradient import broken_floats
from terngrad.asynchronous.row import make_row_layout
from terngrad.codecs.factory import make_codecs
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.testing.addresses import free_addresses
from terngrad.testing.asynchronous import (
    DECAY,
    KERNELS,
    RATE,
    SECS,
    TERNARY,
    Worker,
    serving,
    state_of,
    two_workers,
)
from terngrad.testing.nets import make_batches, make_model
from terngrad.testing.proxy import FaultKind, Proxy, plan
from terngrad.testing.selection import sample
from terngrad.testing.threads import in_threads
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier
from terngrad.training.optimizers import make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.step import TrainStep


def trained_alone(steps, optimizer, nodes, policy, model):
    classifier = Classifier(model)
    names, variables = classifier.names, classifier.variables
    codecs = make_codecs(make_layout(names, [v.shape for v in variables], policy, 64), KERNELS)
    update = make_optimizer(optimizer, variables, 0.9)
    averages = MovingAverages(variables, DECAY)
    step = tf.Variable(0, dtype=tf.int64, trainable=False)
    reduction = Reduction(codecs, LocalExchange(nodes, KERNELS), step, 3)
    train = TrainStep(classifier, reduction, update, schedules.fixed(RATE), averages)
    compiled = tf.function(train, autograph=False)
    for images, labels in make_batches().take(steps):
        compiled(images, labels)
    return {name: v.numpy() for name, v in state_of(classifier, update, averages).items()}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "policy", "servers", "nodes"),
    [
        ("gd", Policy(), 1, 1),
        ("momentum", Policy(grad_bits=16), 2, 1),
        ("momentum", TERNARY, 3, 2),
        ("adam", TERNARY, 1, 1),
        ("momentum", Policy(grad_bits=4, clip_factor=2.5, draws="antithetic"), 2, 2),
        ("rmsprop", Policy(), 2, 1),
        ("adam", dataclasses.replace(TERNARY, float_layers=(), scale_by="channel"), 3, 2),
        ("gd", dataclasses.replace(TERNARY, float_layers=(), scale_by="block:128"), 3, 1),
        ("momentum", Policy(codec="5-level-feedback", scale_by="channel"), 2, 2),
    ],
)
def test_one_worker_gives_what_training_alone_gives(tmp_path, optimizer, policy, servers, nodes):
    alone = trained_alone(6, optimizer, nodes, policy, make_model(batch_norm=True))
    with serving(tmp_path, servers) as (_, hosts):
        model = make_model(batch_norm=True)
        worker = Worker(hosts, nodes=nodes, policy=policy, model=model, optimizer=optimizer)
        worker.begin()
        assert worker.train(make_batches(), 6).version == 6
        found = worker.fetched()
    assert found.keys() == alone.keys()
    for name, value in alone.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


@pytest.mark.slow
def test_parameters_are_pulled_rounded_to_half_precision(tmp_path):
    with serving(tmp_path, 2) as (_, hosts):
        worker = Worker(hosts, pull_bits=16)
        worker.begin()
        pulled = worker.client.pull()
        exact = worker.fetched()
        worker.gradient(pulled, *next(iter(make_batches())))
        both = zip(worker.classifier.names, worker.classifier.variables, strict=True)
        for name, variable in both:
            halves = np.float32(np.float16(exact[f"variables/{name}"]))
            np.testing.assert_array_equal(variable.numpy(), halves)


@pytest.fixture(name="shadows")
def _shadows(monkeypatch):
    """The shadows that ps make, as long as somebody holds them."""
    made, begin = weakref.WeakSet(), Shadow.__init__
    note = lambda shadow: (begin(shadow), made.add(shadow))[0]
    monkeypatch.setattr(Shadow, "__init__", note)
    return made


def await_held(shadows, workers):
    """Waits until the shadows with values are, in any order, the copies of these workers."""
    copies = sorted(part.tobytes() for worker in workers for part in worker.pulled.parameters)
    held = lambda: sorted(s.values.tobytes() for s in set(shadows) if s.values is not None)
    deadline = time.monotonic() + SECS
    while held() != copies and time.monotonic() < deadline:
        time.sleep(0.01)
    return held() == copies


@pytest.mark.slow
@pytest.mark.parametrize("policy", [TERNARY, Policy()])
def test_each_ps_has_the_bits_of_each_workers_copy_until_its_stream_ends(tmp_path, shadows, policy):
    with two_workers(tmp_path, 2, policy=policy, pull_codec="ternary") as (servers, *workers):
        (images, labels), *_ = make_batches().take(1)
        out = []
        for i in range(6):
            for worker in workers:
                if i == 0:
                    worker.pulled = worker.client.pull()
                    continue
                gradient = worker.gradient(worker.pulled, images, labels)
                worker.pulled = worker.client.push(gradient, worker.pulled.versions)
            assert await_held(shadows, workers)
            figures = [server.workers.figures.report() for server in servers]
            out.append(sum(own.workers[0].bytes_out for own in figures))
        whole = sum(shard.pulled_bytes(32) for shard in workers[0].shards)
        assert out[0] > whole > 4 * max(out[1:])
        exact = np.concatenate([np.frombuffer(s.store.pulled()[1], "<f4") for s in servers])
        found = np.concatenate(workers[1].pulled.parameters)
        assert 0 < np.abs(found - exact[: len(found)]).max() < 0.1
        workers[1].client.close()
        assert await_held(shadows, workers[:1])


@pytest.mark.slow
def test_a_ps_or_a_worker_that_starts_again_begins_with_the_parameters_themselves(tmp_path):
    plan = {"pull_codec": "ternary"}
    with serving(tmp_path) as (servers, hosts):
        worker = Worker(hosts, **plan)
        worker.begin()
        worker.train(make_batches(), 5)
        again = Worker(hosts, **plan)
        worker.client.close()
        again.client.enter("a run")
        assert exact(servers[0], again.client.pull())
        assert not exact(servers[0], again.train(make_batches(), 3))
    with serving(tmp_path, at=hosts) as (servers, _):
        pulled = again.client.pull()
        assert exact(servers[0], pulled) and pulled.version == 8
        assert not exact(servers[0], again.train(make_batches(), 3))


def exact(server, pulled):
    """Whether a worker has pulled the very parameters of its only ps."""
    return server.store.pulled()[1].startswith(pulled.parameters[0].tobytes())


@pytest.mark.slow
def test_workers_end_after_exactly_as_many_updates_within_the_staleness_bound(tmp_path):
    bound, steps = 1, 40
    with serving(tmp_path, 2, workers=3) as (servers, hosts):
        plan = {"max_steps": steps, "max_staleness": bound}
        workers = [Worker(hosts, rank, 3, **plan) for rank in range(3)]
        workers[0].begin()
        for worker in workers[1:]:
            worker.client.await_run()
        for worker in workers:  # compiles; from its first step on a worker is waited for
            worker.train(make_batches(), 1)
        assert servers[0].store.take_staleness().count == 3

        def train(worker):
            worker.train(make_batches(), steps)
            worker.client.leave(done=True)
            worker.client.close()

        trained = in_threads(*(lambda worker=worker: train(worker) for worker in workers))
        assert trained == [None] * len(workers)
        staleness = servers[0].store.take_staleness()
        assert [server.store.version for server in servers] == [steps, steps]
        assert staleness.count == steps - 3
        assert 0 < staleness.largest <= (2 * bound + 1) * (len(workers) - 1)
        assert all(server.wait(SECS) for server in servers)


def trained_over(folder, faults):
    """The state after some updates over a disturbed connection."""
    (target,) = free_addresses(1)
    with (
        Proxy(target, faults) as proxy,
        serving(folder, at=[proxy.address], behind=[target]) as (servers, hosts),
    ):
        worker = Worker(hosts)
        worker.begin()
        assert worker.train(make_batches(), 6).version == 6
        found = worker.fetched()
        worker.client.close()
        assert servers[0].store.version == 6
        return found, proxy.connections


@pytest.fixture(scope="module", name="over_a_good_network")
def _over_a_good_network(tmp_path_factory):
    return trained_over(tmp_path_factory.mktemp("good"), [])[0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(60, 80), in_ci=(60, 63, 71, 72)))
def test_each_update_is_applied_once_over_a_bad_network(tmp_path, over_a_good_network, seed):
    # Plain text cannot notice a changed bit.
    kinds = [kind for kind in FaultKind if kind is not FaultKind.CORRUPT]
    faults = plan(seed, kinds, 4)
    found, connections = trained_over(tmp_path, faults)
    assert connections > 1 or faults[0].kind in (FaultKind.DELAY, FaultKind.THROTTLE)
    for name, value in over_a_good_network.items():
        np.testing.assert_array_equal(found[name], value, err_msg=f"{name}, {faults}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(60, 80), in_ci=(63,)))
def test_copies_are_shadows_over_a_bad_network(tmp_path, seed, shadows):
    faults = plan(seed, [kind for kind in FaultKind if kind is not FaultKind.CORRUPT], 4)
    (target,) = free_addresses(1)
    with (
        Proxy(target, faults) as proxy,
        serving(tmp_path, at=[proxy.address], behind=[target]) as (_, hosts),
    ):
        worker = Worker(hosts, pull_codec="ternary")
        worker.begin()
        worker.pulled = worker.train(make_batches(), 8)
        assert worker.pulled.version == 8
        assert await_held(shadows, [worker])


@pytest.mark.slow
def test_law_10_float_variables_with_gradients_that_are_not_finite_are_named(tmp_path):
    with serving(tmp_path) as (_, hosts):
        worker = Worker(hosts)
        worker.begin()
        (images, labels), *_ = make_batches().take(1)
        computed = worker.computed(worker.client.pull(), images, labels).pushable
    assert broken_floats(computed, worker.layout) == []
    row_layout = make_row_layout(worker.layout)
    segment = row_layout.segments[-1]
    floats = computed.floats.numpy()
    floats[segment.start - row_layout.coded + segment.size - 1] = np.inf
    broken = computed._replace(floats=tf.constant(floats))
    assert broken_floats(broken, worker.layout) == [worker.layout.names[segment.variable]]
