"""Trainings of a small net, with an exchange in each step and with local steps."""

import numpy as np
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.testing.nets import make_batches, make_model
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier
from terngrad.training.local_step import InnerOptimizer, LocalStep, keep_inner_state, make_fragments
from terngrad.training.memory import Memory
from terngrad.training.optimizers import Momentum, make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.runner import Runner
from terngrad.training.runtime import choose_kernels
from terngrad.training.step import TrainStep

KERNELS = choose_kernels().kernels
FLOAT = Policy()
FEEDBACK = Policy(codec="ternary-feedback")
RATE = schedules.exponential(0.05, 3, 0.5)
SEED = 3


class Plain:
    """A training that exchanges gradients in each step."""

    schedule = staticmethod(RATE)
    make_exchange = LocalExchange

    def __init__(self, policy, nodes, optimizer="momentum", model=None):
        """Builds it."""
        kernels = KERNELS
        self.classifier = Classifier(model or make_model())
        self.variables = self.classifier.variables
        layout = make_layout(self.classifier.names, [v.shape for v in self.variables], policy)
        self.codecs = make_codecs(layout, kernels)
        self.exchange = self.make_exchange(nodes, kernels)
        self.memory = Memory(self.codecs, 0, nodes)
        self.averages = MovingAverages(self.variables, 0.9)
        self.runner = Runner(self._step(optimizer, nodes), self.codecs)

    def _step(self, optimizer, nodes):
        del nodes
        step = tf.Variable(0, dtype=tf.int64)
        reduction = Reduction(self.codecs, self.exchange, step, SEED, memory=self.memory)
        own = make_optimizer(optimizer, self.variables, 0.9)
        return TrainStep(self.classifier, reduction, own, self.schedule, self.averages)

    def run(self, steps, batches=None):
        """Makes steps of the runner; returns the outcome of the last."""
        return self.runner.many(iter(batches or make_batches()), steps)

    def values(self):
        """Returns the shared weights and the moving statistics."""
        shared = [*self.variables, *self.classifier.state.values()]
        return [v.numpy() for v in shared]


class Local(Plain):
    """A training with local steps."""

    def __init__(
        self,
        policy,
        nodes,
        optimizer="momentum",
        model=None,
        *,
        local_steps,
        rate=1.0,
        momentum=0.0,
        feedback=1.0,
        overlaps=False,
    ):
        """Builds it; the outer rate and momentum are `rate` and `momentum`."""
        self.local_steps, self.rate, self.momentum = local_steps, rate, momentum
        self.feedback, self.overlaps = feedback, overlaps
        super().__init__(policy, nodes, optimizer, model)

    fragments = 1

    def _step(self, optimizer, nodes):
        self.rounds, self.step = (tf.Variable(0, dtype=tf.int64) for _ in range(2))
        make = lambda copies: make_optimizer(optimizer, copies, 0.9)
        own = self.fragments > 1 or self.overlaps
        self.inner = [
            InnerOptimizer(make, self.variables, has_own_weights=own) for _ in range(nodes)
        ]
        keep_inner_state(self.memory, self.inner, self.classifier.names, 0)
        self.outer = Momentum(self.variables, self.momentum, nesterov=True)
        return self._local_step(self.codecs, self.memory)

    def _local_step(self, codecs, memory):
        reduction = Reduction(
            codecs,
            self.exchange,
            self.rounds,
            SEED,
            memory=memory,
            memory_decay=self.feedback,
        )
        return LocalStep(
            self.classifier,
            reduction,
            self.inner,
            self.outer,
            self.schedule,
            self.averages,
            self.step,
            local_steps=self.local_steps // self.fragments,
            outer_rate=self.rate,
            overlaps=self.overlaps,
        )


class Fragmented(Local):
    """A training with local steps, whose variables are exchanged as two fragments."""

    fragments = 2

    def __init__(self, policy, nodes, *args, **settings):
        """Builds a runner for each fragment."""
        super().__init__(policy, nodes, *args, **settings)
        self.averages = self.averages and MovingAverages(
            self.variables, 0.9, stride=self.local_steps
        )
        names, shapes = self.classifier.names, [v.shape for v in self.variables]
        self.fragment_indices = make_fragments([v.shape.num_elements() for v in self.variables], 2)
        self.runners = []
        for chosen in self.fragment_indices:
            codecs = make_codecs(make_layout(names, shapes, policy, chosen=chosen), KERNELS)
            memory = Memory(codecs, 0, nodes)
            self.memory.add(memory.variables)
            self.runners.append(Runner(self._local_step(codecs, memory), codecs))

    def run(self, steps, batches=None):
        """Makes rounds of the fragments in turn."""
        batches = iter(batches or make_batches())
        for _ in range(steps):
            outcome = self.runners[int(self.rounds) % 2].many(batches, 1)
        return outcome


def assert_close(left, right):
    """Checks that tensors are equal but for roundings."""
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6 * (np.abs(b).max() + 1e-3))


def assert_same_bits(left, right):
    """Checks that tensors are equal."""
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)
