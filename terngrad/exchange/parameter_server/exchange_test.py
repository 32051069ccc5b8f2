"""How a worker gets the state of the others."""

from types import SimpleNamespace

import pytest
import tensorflow as tf

from terngrad.exchange.connection import InterruptionError
from terngrad.exchange.parameter_server import groups
from terngrad.exchange.parameter_server.exchange import ParameterServerConnection
from terngrad.service.messages import View


class Meeting:
    """Sends the worker a state in each view; interrupts the worker in its second view."""

    def __init__(self):
        self.said = []

    def stand(self, steps, *, is_live):
        self.said.append((steps, is_live))
        return View(number=len(self.said), donor=1, receivers=groups.pack([0]))

    def take_state(self):
        if len(self.said) == 2:
            raise InterruptionError
        return tf.constant([7 + len(self.said)], tf.int64).numpy().tobytes()


@pytest.fixture
def meeting():
    return Meeting()


def test_a_worker_interrupted_before_it_got_a_state_does_not_report_that_it_has_it(meeting):
    client = SimpleNamespace(rank=0, size=2, meeting=meeting, wait_for_servers=lambda: None)
    connection = ParameterServerConnection(client)
    step = tf.Variable(5, dtype=tf.int64)
    connection.synchronize([step])
    connection.synchronize([step])
    assert meeting.said == [(5, False), (8, True), (8, False)]
    assert step.numpy() == 10
