"""A graph in a thread continues when its gate is opened, and its errors are raised at its end."""

import gc
import threading

import pytest
import tensorflow as tf

from terngrad.library import graphs


def test_a_call_ends_only_when_its_gate_is_opened():
    gate, begun, ended = graphs.Gate(), threading.Event(), threading.Event()

    @tf.function(autograph=False)
    def wait():
        begun.set()  # when it is traced
        with tf.control_dependencies([gate.passed()]):
            return tf.constant(3.0)

    def make():
        result = wait()
        ended.set()
        return result

    for _ in range(2):
        end = graphs.run_in_thread(make, gate)
        assert begun.wait(60)
        assert not ended.is_set()
        assert float(end()) == 3.0
        assert ended.is_set()
        ended.clear()
        assert float(end()) == 3.0
        assert not int(gate._queue.size())  # the next call still waits for its own end


def test_the_error_of_a_call_is_raised_at_its_end():
    def make():
        raise ValueError("no")

    gate = graphs.Gate()
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^no$"):
            graphs.run_in_thread(make, gate)()
        assert not int(gate._queue.size())  # the next call must wait


def test_a_gate_that_is_given_up_while_a_graph_is_traced_is_no_part_of_the_graph():
    gates = [graphs.Gate()]

    @tf.function(autograph=False)
    def trace():
        gates.clear()
        gc.collect()
        return tf.constant(1.0)

    graph = trace.get_concrete_function().graph
    assert not [op.type for op in graph.get_operations() if "Queue" in op.type]
