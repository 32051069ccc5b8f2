"""Asynchronous training in a custom loop: `terngrad.AsynchronousTraining`."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import os
import secrets
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from terngrad.asynchronous.chief import Chief, RunFile, States
from terngrad.asynchronous.client import Client, Pulled
from terngrad.asynchronous.copies import change_codes
from terngrad.asynchronous.gradient import (
    Pushable,
    assign_row,
    broken_floats,
    check_codecs,
    parts_by_ps,
    pushable_of,
)
from terngrad.asynchronous.plan import Plan, state_groups
from terngrad.asynchronous.row import make_row_layout, make_shards
from terngrad.cluster.errors import MembershipError
from terngrad.codecs.factory import largest_code
from terngrad.exchange.operation_errors import OperationError
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS, EXACT, FLOAT
from terngrad.library.arrays import plain
from terngrad.library.failures import reporting_failure
from terngrad.library.graphs import check_graph
from terngrad.library.group import Group
from terngrad.library.rates import write_rate
from terngrad.library.reducer import Gradient, Reducer
from terngrad.library.reducer_settings import check_group
from terngrad.training.errors import NotFiniteError, broken_codes
from terngrad.training.nodes import row_of, values_of_row
from terngrad.training.optimizers import make_optimizer

_NAME = "AsynchronousTraining"


class AsynchronousState(tf.Module):
    """What a checkpoint must hold beside the variables and statistics.

    Attributes:
      step: int64 scalar, number of updates of all workers.
      slots: of the optimizer, by slot name, in the order of the variables.
    """

    def __init__(self, slots: Mapping[str, Sequence[tf.Variable]]) -> None:
        """Holds these slots."""
        super().__init__()
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.slots = {name: list(variables) for name, variables in slots.items()}


class AsynchronousTraining(contextlib.AbstractContextManager):
    """Trains without waiting for the other workers.

    ::

        group = terngrad.join(asynchronous=terngrad.Asynchronous(folder=folder))
        training = terngrad.AsynchronousTraining(
            model.trainable_variables, group, optimizer="adam", learning_rate=1e-3, max_steps=1000
        )
        with training:
            while not training.is_over:
                ...
                training.apply(tape.gradient(loss, model.trainable_variables))
            if group.is_chief:
                training.fetch()  # the last state
                model.save(path)

    The parameter servers hold the parameters and the optimizer. `apply` pushes gradients in codes;
    each server applies them when they arrive, and returns its newest parameters. So a lost worker
    delays no other, and one that starts late or again begins with the current parameters.

    Attributes:
      state: variables for tf.train.Checkpoint, see `AsynchronousState`.
      bytes_sent: that this process has pushed so far, without headers.
      bytes_received: that it has pulled so far, without headers.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        group: Group,
        *,
        learning_rate: Any,
        max_steps: int,
        optimizer: str = "momentum",
        momentum: float = 0.9,
        statistics: Sequence[Any] = (),
        max_staleness: int = -1,
        pull_bits: int = 32,
        pull_codec: str = FLOAT,
        bucket_elements: int = DEFAULT_BUCKET_ELEMENTS,
        **settings: Any,
    ) -> None:
        """Plans the training; the block begins it.

        Args:
          variables: tf.Variables or Keras variables, float32, of fixed shapes.
          group: the processes, of `terngrad.join(asynchronous=...)`.
          learning_rate: a number, one of Keras' schedules by step, or a text that
            `Asynchronous.read_schedule` of the servers reads.
          max_steps: the training is over after this many updates, those of all workers together.
          optimizer: "gd", "momentum", "rmsprop" or "adam", as in the programs; the servers have it.
          momentum: of the optimizer.
          statistics: float32 variables that each push carries along, such as the moving statistics
            of batch normalization: all have those of the last push.
          max_staleness: a worker waits while it is more than this many of its steps ahead of the
            slowest one; -1 = no worker waits.
          pull_bits: bits of a parameter on its way to a worker, 32 or 16.
          pull_codec: how parameters travel to a worker: "float", all of them, or "ternary", codes
            of what has changed; then each server keeps a float32 copy of its parameters for each
            worker.
          bucket_elements: see `Reducer`.
          settings: further arguments of `Reducer`, such as `gradients`.

        Raises:
          TypeError: an argument has another type.
          ValueError: an argument is wrong, or the group's processes make steps together.
        """
        check_group(_NAME, group)
        if group.asynchronous is None:
            raise ValueError(
                f"{_NAME}: the processes of the group make steps together; allowed is a group of "
                "terngrad.join(asynchronous=terngrad.Asynchronous(...))"
            )
        if (back := settings.get("sum_codec", EXACT)) != EXACT:
            raise ValueError(
                f"{_NAME}: sum_codec is {back!r}; allowed is {EXACT!r}: servers send parameters"
            )
        if not isinstance(momentum, numbers.Real):
            raise TypeError(f"{_NAME}: momentum is {momentum!r}; allowed are numbers")
        self._group, self._config = group, group.asynchronous
        with reporting_failure(self._config):
            # Alone: its reduction is that of the nodes of this process.
            settings["bucket_elements"] = bucket_elements
            self._reducer = Reducer(variables, Group(), **settings)
            held = {"variables": variables, "statistics": statistics}
            self._variables, self._statistics = (_floats(*each) for each in held.items())
            slots = make_optimizer(optimizer, self._variables, momentum).slots
            self.state = AsynchronousState(slots)
            self._reduction = dataclasses.replace(
                self._reducer.reduction,
                step=self.state.step,
                first_node=group.rank * self._nodes,
            )
            self._plan = self._make_plan(
                optimizer=optimizer,
                momentum=float(momentum),
                schedule=write_rate(learning_rate),
                pull_codec=pull_codec,
                **_integers(
                    max_steps=max_steps,
                    max_staleness=max_staleness,
                    pull_bits=pull_bits,
                    bucket_elements=bucket_elements,
                ),
            )
        layout, plan, servers = self._reducer.layout, self._plan, len(self._config.role.ps_hosts)
        self._row_layout = make_row_layout(layout)
        self._shards = make_shards(layout, servers, plan.nodes, plan.statistics, plan.max_code)
        self._change_codes = change_codes(plan, self._shards, self._reducer.kernels)
        self._eager = tf.function(self._apply, autograph=False)
        self._client: Client | None = None
        self._chief: Chief | None = None
        self._pulled: Pulled | None = None
        self._failure: Exception | None = None  # of a push
        self._is_last = False  # whether the variables have the last state
        self.bytes_sent = self.bytes_received = 0

    @property
    def _nodes(self) -> int:
        return self._reducer.reduction.exchange.local_nodes

    def _make_plan(self, **settings: Any) -> Plan:
        layout, codecs = self._reducer.layout, self._reduction.codecs
        check_codecs(codecs, layout.policy.codec_name)
        configuration = {name: str(value) for name, value in settings.items()}
        if settings["pull_codec"] == FLOAT:  # files of runs before there was another one lack it
            del configuration["pull_codec"]
        configuration |= {
            "gradients": layout.policy.codec_name,
            "variables": layout.fingerprint().hex(),
            "statistics": ", ".join(str(tuple(v.shape)) for v in self._statistics),
            "seed": str(self._reduction.seed),
            "nodes": str(self._nodes),
            "kernels": self._reducer.kernels.family,
        }
        return Plan(
            run=_new_run(),
            names=layout.names,
            shapes=layout.shapes,
            policy=layout.policy,
            statistics=sum(v.shape.num_elements() for v in self._statistics),
            nodes=self._nodes,
            averages_decay=0.0,
            configuration=configuration,
            max_code=largest_code(codecs),
            **settings,
        )

    def __enter__(self) -> AsynchronousTraining:
        """Begins the training, or joins it: the variables get the servers' values.

        Worker 0 sends the servers its variables and `state`. If it finds in the folder that it had
        begun this training before, and the servers hold a state that is not older, that state goes
        on instead. The other workers wait for it, for at most the time-out.

        Raises:
          MembershipError: a server cannot be reached or refuses this worker, or worker 0 did not
            begin in time.
        """
        self._plan = plan = dataclasses.replace(self._plan, run=_new_run())
        self._failure, self._is_last = None, False
        connect = self._config.connect
        with reporting_failure(self._config):
            client = Client(
                connect,
                self._shards,
                plan.pull_bits,
                plan.configuration,
                _log,
                codes=self._change_codes,
            )
            try:
                if self._group.is_chief:
                    self._begin(client)
                else:
                    client.await_run()
                self._take(client.pull())
                self.bytes_received += client.bytes_pulled
            except BaseException:
                client.close()
                raise
        self._client = client
        return self

    def _begin(self, client: Client) -> None:
        folder = self._config.folder
        if folder:
            os.makedirs(folder, exist_ok=True)
        groups = {"variables": self._variables}
        groups |= {f"slots/{slot}": held for slot, held in self.state.slots.items()}
        names = self._plan.names
        held = {f"{g}/{n}": v for g, vs in groups.items() for n, v in zip(names, vs, strict=True)}
        layout, order = self._reducer.layout, state_groups(self._plan)
        states = States(held, self._statistics, layout, order, self._shards)
        self._chief = Chief(client, self._plan, states, RunFile(folder), _log)
        self._chief.begin_or_resume(int(self.state.step), None)

    @property
    def is_over(self) -> bool:
        """Whether all updates are made, or worker 0 has ended the training."""
        return self._pulled is not None and (self._pulled.finished or self._pulled.stopped)

    @tf.autograph.experimental.do_not_convert  # else a function around it takes seconds to trace
    def apply(self, gradients: Sequence[Gradient] | Sequence[Sequence[Gradient]]) -> None:
        """Pushes gradients of the variables; then these have the servers' newest values.

        Call it inside or outside tf.function (not with jit_compile=True).

        Args:
          gradients: of each variable, in their order; with `nodes` above 1 a list of these, one for
            each node. None counts as zeros, tf.IndexedSlices become dense.

        Raises:
          ValueError: their number, a shape or a type is wrong, a gradient is not finite, or this is
            called outside the block.
          MembershipError: a server is lost, or refuses this worker. Inside tf.function the block
            raises it.
        """
        dense = self._reducer.dense_by_node(gradients)
        check_graph()
        if not tf.executing_eagerly():
            self._apply(dense)
            return
        self._failure = None  # of an earlier call
        try:
            self._eager(dense)
        except OperationError as error:
            raise self._failure or error from None

    def _apply(self, gradients: Sequence[Sequence[tf.Tensor]]) -> None:
        reduction, step = self._reduction, self.state.step
        found = reduction.reduce(gradients, reduction.keys(step.read_value()), as_sums=True)
        reduction.remember(found)
        statistics = row_of(v.read_value() for v in self._statistics)
        pushable = pushable_of(found, reduction, self._reducer.layout, statistics)
        row, new, version = tf.numpy_function(
            self._push, list(pushable), [tf.float32, tf.float32, tf.int64]
        )
        assign_row(tf.ensure_shape(row, [self._row_layout.size]), self._variables, self._row_layout)
        new = tf.ensure_shape(new, statistics.shape)
        for variable, value in zip(
            self._statistics, values_of_row(new, self._statistics), strict=True
        ):
            variable.assign(value)
        step.assign(tf.ensure_shape(version, []))

    def _push(self, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.int64]:
        """Pushes a gradient; returns the new row, statistics and version."""
        self._failure = None
        try:
            if self._client is None:
                raise ValueError(f"{_NAME}: apply is called outside `with training:`")
            pushable = Pushable(*parts)
            layout = self._reducer.layout
            if bad := [*broken_codes(pushable.scales, layout), *broken_floats(pushable, layout)]:
                names = ", ".join(bad)
                raise NotFiniteError(
                    f"step {self._pulled.version}: the gradient of {names} is not finite; it was "
                    "not pushed"
                )
            octets = parts_by_ps(pushable, self._shards, self._reducer.kernels.packing)
            self.bytes_sent += sum(map(len, octets))
            before = self._client.bytes_pulled
            self._pulled = self._client.push(octets, self._pulled.versions)
            self.bytes_received += self._client.bytes_pulled - before
        except Exception as error:
            self._failure = error
            raise
        return self._row(), self._pulled.statistics, np.int64(self._pulled.version)

    def _row(self) -> np.ndarray:
        return np.concatenate([np.float32(part) for part in self._pulled.parameters])

    def _take(self, pulled: Pulled) -> None:
        """Gives the variables what was pulled."""
        self._pulled = pulled
        assign_row(tf.constant(self._row()), self._variables, self._row_layout)
        values = values_of_row(tf.constant(pulled.statistics), self._statistics)
        for variable, value in zip(self._statistics, values, strict=True):
            variable.assign(value)
        self.state.step.assign(pulled.version)

    def fetch(self) -> int:
        """Gives variables, statistics and `state` of worker 0 the servers' state; for checkpoints.

        When the training is over it is the last state.

        Returns:
          The step of that state.

        Raises:
          ValueError: this is another worker, or not within the block.
          MembershipError: a server is lost.
        """
        if self._chief is None or self._client is None:
            raise ValueError(f"{_NAME}.fetch: allowed for worker 0, within `with training:`")
        return self._fetch(is_last=self.is_over)

    def _fetch(self, *, is_last: bool) -> int:
        if self._pulled.finished:
            self._chief.await_last_updates()
        step = self._chief.fetch(last=is_last)
        self.state.step.assign(step)
        self._is_last = is_last
        return step

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends the training in worker 0, after all updates or before; another worker leaves it.

        Raises:
          MembershipError: a server is lost, or worker 0 has ended the training by an error.
        """
        client, pulled = self._client, self._pulled
        try:
            if error is not None:
                client.leave(stop=self._group.is_chief)
                if isinstance(error, OperationError) and self._failure:
                    raise self._failure from None
            elif self._chief:
                if not self._is_last:
                    self._fetch(is_last=True)
                self._chief.end(done=pulled.finished, stopped=not pulled.finished)
            else:
                client.leave(done=pulled.finished)
                if pulled.stopped and not (pulled.saved or pulled.finished):
                    raise MembershipError(
                        "worker 0 has ended the training by an error; its output says which"
                    )
        finally:
            client.close()
            self._client = self._chief = None


def _floats(name: str, variables: Sequence[Any]) -> list[tf.Variable]:
    """Returns TensorFlow's variables of float32; ValueError names another one."""
    held = [plain(variable) for variable in variables]
    for variable in held:
        if variable.dtype != tf.float32 or not variable.shape.is_fully_defined():
            kind = f"{variable.dtype.name}{variable.shape}"
            raise ValueError(
                f"{_NAME}: {name}: {variable.name} is {kind}; allowed is float32 of a fixed shape"
            )
    return held


def _integers(**values: Any) -> dict[str, int]:
    """Returns integers by name; TypeError names a value of another type."""
    for name, value in values.items():
        if not isinstance(value, numbers.Integral):
            raise TypeError(f"{name} is {value!r}; allowed are integers")
    return {name: int(value) for name, value in values.items()}


def _new_run() -> str:
    return secrets.token_hex(8)


def _log(line: str) -> None:
    print(line, flush=True)
