"""How the chief's values reach the others; workers are threads here."""

import contextlib
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from terngrad.cluster.errors import DifferenceError
from terngrad.connect.config import ConnectConfig
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.exchange.parameter_server.worker.client import Client
from terngrad.library import engines
from terngrad.library.group import Group
from terngrad.service.messages import LONGEST_RESULT
from terngrad.testing.conformance import parameter_servers
from terngrad.testing.limits import HANG_SECS
from terngrad.testing.threads import in_threads
from terngrad.testing.transport import EchoTransport


def in_groups(act):
    """Returns what `act(group)` returns or raises in each of two workers."""
    with parameter_servers(1, 2) as hosts:
        ps_hosts, workers = (each.split(",") for each in hosts.split("/"))
        clients = [Client(ConnectConfig(workers, i, ps_hosts, HANG_SECS)) for i in range(2)]

        def run(client):
            connection = ParameterServerConnection(client)
            return act(Group(client.rank, 2, connection, membership=contextlib.nullcontext()))

        try:
            return in_threads(*(lambda client=client: run(client) for client in clients))
        finally:
            for client in clients:
                client.close(is_done=True)


@pytest.mark.parametrize("has_state", [False, True])
def test_each_broadcast_over_a_ps_gives_all_the_values_of_the_chief(has_state):
    def act(group):
        if has_state:  # of a loop, before anything is broadcast
            group.synchronize([tf.Variable(0, dtype=tf.int64)])
        found = []
        for call in range(2):
            own = 10 * call + group.rank
            values = (np.full(20_000, own), [float(own)], own == 0, np.zeros([0, 3]))
            variables = [tf.Variable(value) for value in values]
            group.broadcast(variables)
            found.append([variable.numpy().tolist() for variable in variables])
        return found, [group.broadcast_object(value * (1 - group.rank)) for value in ("x", "", 7)]

    expected = [[[10 * call] * 20_000, [10.0 * call], call == 0, []] for call in range(2)]
    assert in_groups(act) == [(expected, ["x", "", 7])] * 2


def test_shapes_and_types_of_a_state_are_compared_before_it_is_copied():
    compared = []
    agree = lambda configuration, what: compared.append({**configuration})
    group = Group(0, 2, EchoTransport(0, 2), agree, membership=contextlib.nullcontext())
    group.synchronize([tf.Variable(0, dtype=tf.int64), tf.Variable([1.0, 2.0])])
    assert compared[0] == {"state to synchronize": "int64[], float32[2]"}


@pytest.mark.parametrize("state", [[], [tf.Variable(tf.zeros(2)), tf.Variable(0, dtype=tf.int64)]])
def test_a_state_that_does_not_begin_with_the_step_is_refused(state):
    first = "float32[2]" if state else "nothing"
    why = rf"^run_steps: state begins with {re.escape(first)}; allowed is reducer\.state\.step$"
    with pytest.raises(ValueError, match=why):
        Group().run_steps(print, 3, state)


class ManyWorkers:
    """The client of worker 0, whose ps passes on what the workers give in one message."""

    rank, size = 0, 1000

    def __init__(self):
        self.coordination, self.others, self.given = self, None, None

    def gather(self, name, content, round_):
        assert len(content) * self.size < LONGEST_RESULT
        self.given = content
        return dict.fromkeys(range(self.size), self.others or content) | {0: content}


def test_values_of_many_workers_are_gathered_in_parts_that_fit_into_a_message():
    connection = ParameterServerConnection(ManyWorkers())
    group = Group(0, ManyWorkers.size, connection, membership=contextlib.nullcontext())
    row = np.arange(5_000, dtype=np.float32)
    np.testing.assert_array_equal(group.all_gather(row), [row] * ManyWorkers.size)


def test_a_long_difference_between_many_workers_is_named_by_its_beginning():
    client, hosts = ManyWorkers(), [f"h:{i}" for i in range(ManyWorkers.size)]
    of_variables = lambda last: {"variables": "float32[3], " * 2_000 + last, "seed": "1"}
    engines._agree(client, of_variables("int32[]"), hosts)
    client.others = client.given
    with pytest.raises(DifferenceError, match=r"^variables is float32\[3\], .*\.{3} \(SHA-256 \w+"):
        engines._agree(client, of_variables("int64[]"), hosts)


def test_a_difference_between_few_workers_is_named_wherever_it_is():
    client = ManyWorkers()
    client.size = 2
    of_variables = lambda last: {"variables": "float32[3], " * 2_000 + last}
    engines._agree(client, of_variables("int32[]"), ["h:0", "h:1"])
    client.others = client.given
    with pytest.raises(DifferenceError, match=r"int32\[\] .*int64\[\] "):
        engines._agree(client, of_variables("int64[]"), ["h:0", "h:1"])


def test_the_connection_says_who_saves_and_a_process_alone_does():
    assert Group().is_saver
    for saver in (0, 1, None):
        group = Group(1, 2, SimpleNamespace(is_saver=saver == 1))
        assert (group.is_chief, group.is_saver) == (False, saver == 1)
