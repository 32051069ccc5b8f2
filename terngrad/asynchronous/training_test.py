"""Laws of asynchronous training over real connections, with workers in threads."""

import contextlib
import dataclasses
import time
import weakref
from concurrent import futures
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from terngrad.asynchronous import remote
from terngrad.asynchronous.caller import Caller
from terngrad.asynchronous.client import Client
from terngrad.asynchronous.copies import Shadow, change_codes
from terngrad.asynchronous.gradient import GradientStep, broken_floats, contents
from terngrad.asynchronous.keeping import Keeping
from terngrad.asynchronous.plan import Plan
from terngrad.asynchronous.server import Server
from terngrad.asynchronous.space import make_shards, make_space
from terngrad.asynchronous.states import States
from terngrad.asynchronous.store import Store
from terngrad.asynchronous.updates import state_bytes, state_groups
from terngrad.cluster.channel import MembershipError
from terngrad.codecs.factory import largest_code, make_codecs
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.testing.addresses import free_addresses
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.nets import make_batches, make_model
from terngrad.testing.proxy import Kind, Proxy, plan
from terngrad.testing.ps_clients import config_of
from terngrad.testing.selection import sample
from terngrad.testing.threads import in_threads
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier
from terngrad.training.optimizers import make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.runtime import choose_kernels
from terngrad.training.step import TrainStep

SECS, RATE, DECAY = HANG_SECS, 0.05, 0.99
KERNELS = choose_kernels().kernels
TERNARY = Policy(grad_bits=1, clip_factor=2.5, float_layers=("logits",))


class Worker:
    """A worker's net and its calls."""

    def __init__(self, hosts, rank=0, workers=1, nodes=1, policy=TERNARY, model=None, **plan):
        self.classifier = Classifier(model or make_model())
        names, variables = self.classifier.names, self.classifier.variables
        self.layout = make_layout(names, [v.shape for v in variables], policy, 64)
        self.statistics = list(self.classifier.state.values())
        count = sum(v.shape.num_elements() for v in self.statistics)
        exchange, codecs = LocalExchange(nodes, KERNELS), make_codecs(self.layout, KERNELS)
        max_code = largest_code(codecs)
        self.shards = make_shards(self.layout, len(hosts), nodes, count, max_code)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        reduction = Reduction(codecs, exchange, step, 3, first_node=rank * nodes)
        self.compute = GradientStep(self.classifier, self.layout, reduction)
        configuration = {"layout": self.layout.fingerprint().hex()}
        options = {"optimizer": "gd", "pull_bits": 32, "max_steps": 1000, "max_staleness": -1}
        self.plan = Plan(
            run="a run",
            names=self.layout.names,
            shapes=self.layout.shapes,
            policy=policy,
            bucket_elements=64,
            statistics=count,
            nodes=nodes,
            max_code=max_code,
            momentum=0.9,
            averages_decay=DECAY,
            schedule="",
            configuration=configuration,
            **options | plan,
        )
        self.optimizer = make_optimizer(self.plan.optimizer, variables, 0.9)
        self.averages = MovingAverages(variables, DECAY)
        self.state = state_of(self.classifier, self.optimizer, self.averages)
        self.told, self.stopped = [], False
        what = (
            self.shards,
            self.plan.pull_bits,
            configuration,
            self.told.append,
            lambda: self.stopped,
            change_codes(self.plan, self.shards, KERNELS),
        )
        self.client = Client(config_of(hosts, rank, workers=names_of(workers)), *what)

    def begin(self):
        self.client.enter()
        self.client.begin(self.plan, self.states().pack(), 0)

    def states(self):
        groups = state_groups(self.plan)
        return States(self.state, self.statistics, self.layout, groups, self.shards)

    def begin_at(self, server, run):
        """Begins a run at the ps, without a reply to any worker."""
        own = dataclasses.replace(self.plan, run=run)
        plan, shard, _ = server.store.expect(own.to_json().encode())
        server.store.begin(plan, shard, self.states().pack()[self.shards.index(shard)], 0)

    def train(self, batches, steps):
        pulled = self.client.pull()
        for images, labels in batches.take(steps):
            if pulled.finished:
                break
            pulled = self.client.push(self.gradient(pulled, images, labels), pulled.versions)
        return pulled

    def computed(self, pulled, images, labels):
        return self.compute(images, labels, pulled.version, pulled.parameters, pulled.statistics)

    def gradient(self, pulled, images, labels):
        return contents(self.computed(pulled, images, labels).pushable, self.shards)

    def fetched(self):
        """Returns the state of all ps, by name."""
        _, packed = self.client.fetch([state_bytes(self.plan, shard) for shard in self.shards])
        self.states().unpack(packed)
        return {name: v.numpy() for name, v in self.state.items()}


def names_of(workers):
    return [f"worker:{i + 1}" for i in range(workers)]


def state_of(classifier, optimizer, averages):
    groups = {"variables": classifier.variables, "averages": averages.shadows}
    groups |= {f"slots/{slot}": values for slot, values in optimizer.slots.items()}
    named = lambda group, values: zip(classifier.names, values, strict=True)
    state = {f"{g}/{name}": v for g, values in groups.items() for name, v in named(g, values)}
    return state | {f"variables/{name}": v for name, v in classifier.state.items()}


@contextlib.contextmanager
def serving(folder, count=1, workers=1, at=None, secs=SECS, behind=None):
    """Servers, and their addresses; `behind`: where they listen if proxies have these."""
    hosts = at or free_addresses(count)
    servers = []
    for i in range(count):
        keeping = Keeping(str(folder / f"ps_{i}"), 1000)
        schedule = lambda text: schedules.fixed(RATE)
        store = Store(i, count, names_of(workers), KERNELS, schedule, keeping, print)
        servers.append(Server(config_of(hosts, i, secs, workers=names_of(workers)), store))
        servers[-1].start((behind or hosts)[i])
    try:
        yield servers, hosts
    finally:
        for server in servers:
            server.close()


@contextlib.contextmanager
def two_workers(folder, count=1, secs=SECS, **plan):
    """Servers, and their two workers, which have entered a run of the first one."""
    with serving(folder, count, workers=2, secs=secs) as (servers, hosts):
        chief, other = (Worker(hosts, rank, 2, **plan) for rank in range(2))
        chief.begin()
        other.client.await_run()
        yield servers, chief, other


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
            worker.client.bye(done=True)
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
    kinds = [kind for kind in Kind if kind is not Kind.CORRUPT]  # plain text cannot notice it
    faults = plan(seed, kinds, 4)
    found, connections = trained_over(tmp_path, faults)
    assert connections > 1 or faults[0].kind in (Kind.DELAY, Kind.THROTTLE)
    for name, value in over_a_good_network.items():
        np.testing.assert_array_equal(found[name], value, err_msg=f"{name}, {faults}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", sample(range(60, 80), in_ci=(63,)))
def test_copies_are_shadows_over_a_bad_network(tmp_path, seed, shadows):
    faults = plan(seed, [kind for kind in Kind if kind is not Kind.CORRUPT], 4)
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
@pytest.mark.parametrize("arrives", [False, True])
def test_a_run_begins_though_a_stream_breaks_when_the_state_is_sent(tmp_path, monkeypatch, arrives):
    taken, broken = Caller._state, []

    def breaking(caller, call, content):
        reply = taken(caller, call, content) if broken or arrives else None
        if not broken:
            broken.append(True)
            raise OSError  # as if the worker cannot be reached any more
        return reply

    monkeypatch.setattr(Caller, "_state", breaking)
    with serving(tmp_path) as (_, hosts):
        worker = Worker(hosts)
        worker.begin()
        assert broken
        assert worker.train(make_batches(), 2).version == 2


@pytest.mark.slow
def test_a_second_process_of_a_connected_worker_waits_until_that_worker_has_left(
    tmp_path,
):
    with serving(tmp_path, workers=2) as (_, hosts):
        first, second = Worker(hosts, 0, 2), Worker(hosts, 0, 2)
        first.begin()
        with futures.ThreadPoolExecutor(1) as threads:
            entered = threads.submit(second.client.enter)
            with pytest.raises(futures.TimeoutError):
                entered.result(1.0)
            first.train(make_batches(), 3)
            first.client.close()
            assert entered.result(SECS)[0].version == 3
        assert second.train(make_batches(), 2).version == 5


@pytest.mark.slow
def test_who_waits_for_a_run_keeps_its_stream_and_enters_the_next_before_it_pulls(tmp_path):
    with serving(tmp_path, workers=2) as (servers, hosts):
        chief, other = Worker(hosts, 0, 2), Worker(hosts, 1, 2)
        other.client.enter()
        chief.begin()
        other.client.await_run()
        assert other.client.pull().version == 0
        assert other.told == []
        chief.plan = dataclasses.replace(chief.plan, configuration={"layout": "another"})
        chief.begin_at(servers[0], "another run")
        with pytest.raises(MembershipError, match="layout"):
            other.client.pull()
        assert servers[0].workers.figures.report().workers[1].dropped == 0


@pytest.mark.slow
def test_a_push_into_a_run_that_has_just_begun_enters_that_run(tmp_path):
    with two_workers(tmp_path) as (servers, chief, other):
        pulled = other.client.pull()
        stale = other.gradient(pulled, *next(iter(make_batches())))
        chief.begin_at(servers[0], "another run")
        again = other.client.push(stale, pulled.versions)
        assert again.version == servers[0].store.version == 0
        assert "ended this worker's stream: another run has begun" in other.told[0]
        assert other.client.push(stale, again.versions).version == 1
        assert servers[0].workers.figures.report().workers[1].dropped == 1


@pytest.mark.slow
def test_parameters_of_different_runs_are_not_mixed(tmp_path):
    with serving(tmp_path, 2) as (servers, hosts):
        worker = Worker(hosts)
        worker.begin()
        worker.train(make_batches(), 2)
        worker.begin_at(servers[0], "another run")
        with futures.ThreadPoolExecutor(1) as threads:
            pulled = threads.submit(worker.client.pull)
            with pytest.raises(futures.TimeoutError):
                pulled.result(1.0)
            worker.begin_at(servers[1], "another run")
            assert pulled.result(SECS).versions == (0, 0)


def test_a_worker_that_says_done_too_soon_ends_the_run_for_nobody_else(tmp_path):
    with two_workers(tmp_path, max_steps=5) as (servers, chief, other):
        # A lost ps may have reported the end, and restarted with fewer updates.
        other.client.bye(done=True)
        assert chief.train(make_batches(), 8).version == 5
        assert not servers[0].wait(0.1)
        chief.client.bye(done=True)
        assert servers[0].wait(SECS)
        assert servers[0].workers.why_over == "the run is finished"


@pytest.mark.slow
def test_a_run_that_has_ended_waits_for_a_worker_no_longer_than_the_time_out(tmp_path):
    with two_workers(tmp_path, secs=5.0) as (servers, chief, _other):
        chief.client.bye(stop=True)
        assert servers[0].wait(SECS)
        assert servers[0].workers.present == [1]


def test_who_looks_for_a_ps_while_the_run_ends_still_finds_it(tmp_path):
    with serving(tmp_path, workers=2) as (servers, hosts):
        chief, other = Worker(hosts, 0, 2, max_steps=1), Worker(hosts, 1, 2, max_steps=1)
        chief.begin()
        chief.train(make_batches(), 1)
        chief.client.bye(done=True)
        assert not servers[0].wait(0.2)
        other.client.await_run()
        assert other.client.pull().finished
        other.client.bye(done=True)
        assert servers[0].wait(SECS)


@pytest.mark.slow
@pytest.mark.parametrize("saved", [True, False])
def test_workers_learn_whether_the_chief_has_saved_what_it_stopped(tmp_path, saved):
    with two_workers(tmp_path) as (servers, chief, other):
        assert not other.client.pull().stopped
        chief.client.bye(stop=True, saved=saved)
        pulled = other.client.pull()
        assert (pulled.stopped, pulled.saved, pulled.finished) == (True, saved, False)
        assert servers[0].workers.why_over.endswith("has saved" if saved else "has not saved")


@pytest.mark.slow
def test_nothing_is_applied_between_the_last_state_and_the_end(tmp_path):
    with two_workers(tmp_path, 2) as (servers, chief, other):
        pulled = other.client.pull()
        gradient = other.gradient(pulled, *next(iter(make_batches())))
        sizes = [state_bytes(chief.plan, shard) for shard in chief.shards]
        step, states = chief.client.fetch(sizes, last=True)
        with futures.ThreadPoolExecutor(1) as threads:
            pushed = threads.submit(other.client.push, gradient, pulled.versions)
            with pytest.raises(futures.TimeoutError):
                pushed.result(0.3)
            chief.client.bye(stop=True, saved=True)
            assert pushed.result(SECS).stopped
        assert [server.store.state()[1] for server in servers] == states
        assert [server.store.version for server in servers] == [step, step]


@pytest.mark.slow
def test_the_others_go_on_without_a_chief_that_dies_while_it_ends_the_run(tmp_path):
    with two_workers(tmp_path) as (_, chief, other):
        chief.client.fetch([state_bytes(chief.plan, chief.shards[0])], last=True)
        chief.client.close()
        assert other.train(make_batches(), 2)


@pytest.mark.slow
def test_updates_that_are_on_their_way_to_a_ps_are_waited_for(tmp_path):
    with serving(tmp_path, 2) as (servers, hosts):
        worker = Worker(hosts)
        worker.begin()
        pulled = worker.client.pull()
        parts = worker.gradient(pulled, *next(iter(make_batches())))
        servers[0].store.push("a run", 0, 1, 1, 0, parts[0])
        assert not worker.client.await_updates(1, 0.1)
        with futures.ThreadPoolExecutor(1) as threads:
            reached = threads.submit(worker.client.await_updates, 1, SECS)
            servers[1].store.push("a run", 0, 1, 1, 0, parts[1])
            assert reached.result(SECS)


@pytest.mark.slow
def test_a_worker_leaves_a_ps_that_is_gone_without_looking_for_it(tmp_path):
    with serving(tmp_path, 2) as (_, hosts):
        worker = Worker(hosts)
        worker.begin()
    assert not worker.client.bye(stop=True)  # nobody confirmed it; a search would raise an error
    assert worker.told == []


@pytest.mark.slow
def test_a_search_for_a_ps_ends_when_the_worker_is_to_end_or_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "_STOP_SECS", 0.1)
    with serving(tmp_path, 2) as (_, hosts):
        stopped, closed = Worker(hosts), Worker(hosts)
        stopped.begin()
    with futures.ThreadPoolExecutor(2) as threads:
        searches = [threads.submit(worker.client.pull) for worker in (stopped, closed)]
        assert not futures.wait(searches, 0.5).done
        stopped.stopped = True
        with pytest.raises(MembershipError, match="did not come back before this worker had to"):
            searches[0].result(SECS)
        closed.client.close()
        with pytest.raises(MembershipError, match="is not called any more"):
            searches[1].result(SECS)


def test_a_ps_that_would_send_too_much_is_named_before_anything_is_allocated(tmp_path, monkeypatch):
    allocated, collect = [], remote.collect

    def collect_noting(header, *args):
        allocated.append(header.size)
        return collect(header, *args)

    monkeypatch.setattr(remote, "collect", collect_noting)
    with serving(tmp_path) as (servers, hosts):
        worker = Worker(hosts)
        worker.begin()
        servers[0].store.pulled = lambda: (servers[0].store.status, bytes(1 << 20))
        with pytest.raises(MembershipError, match="sent 1048576 bytes; allowed are"):
            worker.client.pull()
    assert allocated and not any(allocated)


@pytest.mark.slow
def test_law_10_float_variables_with_gradients_that_are_not_finite_are_named(tmp_path):
    with serving(tmp_path) as (_, hosts):
        worker = Worker(hosts)
        worker.begin()
        (images, labels), *_ = make_batches().take(1)
        computed = worker.computed(worker.client.pull(), images, labels).pushable
    assert broken_floats(computed, worker.layout) == []
    space = make_space(worker.layout)
    place = space.places[-1]
    floats = computed.floats.numpy()
    floats[place.start - space.coded + place.size - 1] = np.inf
    broken = computed._replace(floats=tf.constant(floats))
    assert broken_floats(broken, worker.layout) == [worker.layout.names[place.variable]]


def test_an_error_of_a_ps_is_told_and_not_tried_again(tmp_path, capfd):
    with serving(tmp_path) as ((server,), hosts):
        worker = Worker(hosts)
        worker.begin()
        server.store.pulled = mock.Mock(side_effect=MemoryError("no room"))
        with pytest.raises(MembershipError, match=r"this ps failed: MemoryError\('no room'\)"):
            worker.client.pull()
    assert "Traceback" in capfd.readouterr().err
