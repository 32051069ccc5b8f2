"""The processes that train together, as one of them sees them."""

from __future__ import annotations

import collections
import contextlib
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any

import numpy as np
import tensorflow as tf

from terngrad.cluster.errors import DifferenceError, MembershipError
from terngrad.cluster.progress import STEP, ProcessProgress
from terngrad.coordination.client import InterruptionError
from terngrad.exchange.connection import Connection, packed, unpacked
from terngrad.exchange.operation_errors import OperationError
from terngrad.exchange.parameter_server.exchange import StateSizeError
from terngrad.exchange.two_shot import Transport
from terngrad.library import objects
from terngrad.library.arrays import check_numbers, fingerprint, kinds, octets, plain, state_of
from terngrad.library.data_digest import digest
from terngrad.library.join_config import JoinConfig
from terngrad.library.leaving import Leaving
from terngrad.library.shard import Data, EpochOrder, seeds_of, shard, shard_anew
from terngrad.library.shared import AllReduce, Shared
from terngrad.training.memory import Memory
from terngrad.training.sequence_lock import SequenceLock


class Group(contextlib.AbstractContextManager):
    """The processes that train together; `terngrad.join` returns it.

    As a context manager it leaves the others at the end of the block. Without one it leaves when
    the program ends. All processes must call its methods in the same order, except `shard` and
    `set_epoch`.

    Attributes:
      rank: index of this process.
      size: number of processes.
      hosts: those of all processes, for messages.
      batches_per_step: number of processes whose batches make a step.
      is_elastic: whether steps may be made without some processes; see `run_steps`.
      may_leave: whether the others go on at once without this process.
      asynchronous: how `AsynchronousTraining` reaches the servers; None = steps are made together.
      connection: the engine's connection to the others; None if there are none.
      progress: counts what this process does together with the others.
      seeds_of_shuffles: those before `shard`, which all processes must have in common.
      digests_of_data: of what `shard` was given, which all processes must have in common, too.
      shard_calls: how many there were.
      leaving: how this process leaves the others.
      step: the reducer's step; parameter servers match operations by it. None without a reducer.
      sequence: tells in `fit` whether the variables are those of a whole step; None without `fit`.
      fit_position: how far `fit` is where processes may come and go; None without it.
      at_loss: called in turn where a loss is about to end this one; return texts for its last line.
      memories: of the reducers, cleared where this process has got the state of another step.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        connection: Connection | None = None,
        agree: Callable[[Mapping[str, str], str], None] = lambda configuration, what: None,
        progress: ProcessProgress | None = None,
        membership: contextlib.AbstractContextManager | None = None,
        at_loss: list[Callable[[], str]] | None = None,
        *,
        hosts: Sequence[str] = (),
        aggregated: int | None = None,
        is_elastic: bool = False,
        may_leave: bool = False,
    ) -> None:
        """Groups are made by `terngrad.join`; without arguments this process is alone.

        Args:
          rank: see class.
          size: see class.
          connection: see class.
          agree: compares a configuration in an operation of this name; "" = once in each view.
          progress: see class.
          membership: leaves the others when it is left; it was entered.
          at_loss: see class.
          hosts: see class.
          aggregated: see `batches_per_step`; None = all.
          is_elastic: see class.
          may_leave: see class.
        """
        self.rank, self.size, self.hosts, self.connection = rank, size, hosts, connection
        self.batches_per_step = aggregated or size
        self.is_elastic, self.may_leave = is_elastic, may_leave
        self.asynchronous: JoinConfig | None = None
        self.progress = progress or ProcessProgress()
        self._agree = agree
        self._difference = ""  # because of which all have left each other
        self.seeds_of_shuffles: list[list[int]] = []
        self.digests_of_data: list[str] = []
        self.shard_calls = 0
        self._orders: list[EpochOrder] = []  # of data that is shuffled anew in each epoch
        self._counts = collections.Counter()
        self.step: tf.Variable | None = None
        self.sequence: SequenceLock | None = None
        self.fit_position: Any = None
        self.at_loss = [] if at_loss is None else at_loss
        self.memories: weakref.WeakSet[Memory] = weakref.WeakSet()
        self._is_open = membership is not None  # whether there are others, whom it has not left
        self._has_synchronized = False  # whether it has called connection.synchronize
        self._all_reduce: AllReduce | None = None
        was_interrupted = lambda: connection is not None and connection.was_interrupted()
        self.leaving = Leaving(self.label, membership, was_interrupted, self._forget)

    @property
    def heartbeat(self) -> ProcessProgress:
        """The former name of `progress`; the next version does not have it."""
        warnings.warn("Group.heartbeat is now called progress", FutureWarning, stacklevel=2)
        return self.progress

    @property
    def may_code_sums(self) -> bool:
        """Whether each share of the means has an owner in each step, who can code it again."""
        has_others = self.connection is not None and self.connection.owners_change
        return not self.is_elastic or has_others

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and summaries: it has rank 0."""
        return self.rank == 0

    @property
    def is_saver(self) -> bool:
        """Whether this process saves: the chief, or where some come and go one in its place."""
        return self.is_chief if self.connection is None else self.connection.is_saver

    @property
    def label(self) -> str:
        """This process in messages, as "worker 1 of 4"."""
        return f"worker {self.rank} of {self.size}"

    def shard(self, data: Data, *, reshuffle: int | None = None) -> Data:
        """Returns this process' share of the data; all processes get equally many.

        Call it before `shuffle` and `batch`, so that the data is dealt out by record. A data set of
        batches is dealt out batch by batch. What is left out is printed once, by the chief.

        Args:
          data: a tf.data.Dataset; or arrays [n, ...], data frames of n rows or lists of n strings
            or numbers, one or several in a tuple, list or dict, where None may stand, too. All
            processes must have the same, in the same order.
          reshuffle: a seed, the same on all: in each epoch all rows are shuffled and dealt out
            anew. The order depends on the seed and the epoch only, so a training that resumes goes
            on with the order of its epoch. A tf.data.Dataset is read into memory for that.

        Returns:
          The same kind of data: elements or rows `rank`, `rank + size`, `rank + 2 size` and so on.
          With `reshuffle` a tf.data.Dataset of rows, which is to be batched, but not shuffled.

        Raises:
          TypeError: the data is of another kind.
          ValueError: there is less than one element or row for each process, or the data or seed
            does not suit `reshuffle`.
        """
        if reshuffle is None:
            share = shard(data, self.rank, self.size)
        else:
            share, order = shard_anew(data, self.rank, self.size, reshuffle)
            self._orders.append(order)
        self.shard_calls += 1
        if self.size > 1:
            if isinstance(data, tf.data.Dataset):
                self.seeds_of_shuffles += seeds_of(data)
            self.digests_of_data.append(f"{digest(data)} {reshuffle}")
        return share

    def set_epoch(self, epoch: int) -> None:
        """Lets data of `shard(..., reshuffle=seed)` go on with the order of an epoch.

        Each pass over the data counts the epoch on by itself, and `DistributedCallback` sets it in
        `fit`. So only a custom loop that resumes calls it.
        """
        for order in self._orders:
            order.epoch = epoch

    def barrier(self) -> None:
        """Waits until all processes have called it.

        Raises:
          MembershipError: a process left or called something else.
        """
        self._check_fixed("barrier")
        self.agree({f"barrier {self.count('barrier')}": "reached"}, "barrier")

    def shared(self, name: str, nodes: int = 1) -> Shared:
        """Returns means and maxima over all nodes of all processes; see `Shared`."""
        self.check_open()
        return Shared(self.connection, self.begin_step, name, nodes)

    def count(self, kind: str) -> int:
        """Returns how many of a kind this group has had before: all processes count alike.

        So it tells apart the names of the operations of several reducers, optimizers and fits.
        """
        self._counts[kind] += 1
        return self._counts[kind] - 1

    def begin_step(self, what: str = STEP) -> None:
        """Counts a part of a step that is made with the others; see `ProcessProgress.begin`.

        Raises:
          MembershipError: see `check_open`.
        """
        self.check_open()
        self._count_operation(what)

    def _count_operation(self, what: str) -> None:
        if not self.is_elastic:  # those that join late have made fewer
            self.progress.begin(what)

    def agree(self, configuration: Mapping[str, str], what: str) -> None:
        """Compares a configuration with those of the other processes, and waits for these.

        Args:
          configuration: what must be equal.
          what: names this operation in messages.

        Raises:
          MembershipError: names the first difference, or the process that left.
        """
        self.check_open()
        self._count_operation(what)
        try:
            self._agree(configuration, f"{what} {self.count(what)}" if self.is_elastic else what)
        except DifferenceError as error:
            self._difference = str(error)
            raise

    def compare(self, configuration: Mapping[str, str]) -> None:
        """Compares a configuration as `agree` does, once in each view, also with late workers.

        Raises:
          InterruptionError: a process came or went; see `synchronize`.
          MembershipError: names the first difference, or the process that left.
        """
        self.check_open()
        self._agree(configuration, "")

    def synchronize(self, state: Sequence[tf.Variable]) -> bool:
        """Gives all processes the same state, and compares it.

        At first that is the chief's, later that of the processes that make steps. If the last one
        of these is lost while it sends its state, the training begins again from the chief's.

        Args:
          state: all that the processes have in common, the step first: int64.

        Returns:
          Whether the training begins with this state.

        Raises:
          MembershipError: the training ends, or names a process whose state differs.
        """
        self.check_open()
        if self.connection is None:
            return True
        if isinstance(self.connection, Transport):  # copies meet by their sizes
            self.agree({"state to synchronize": kinds(state)}, "synchronize")
        before, begins = int(state[0]), False
        self._has_synchronized = True
        while not begins and self.connection.synchronize(state):
            with contextlib.suppress(InterruptionError):
                self.compare({"parameters": fingerprint(v.numpy() for v in state)})
                begins = True
        if int(state[0]) != before:
            for memory in self.memories:
                memory.clear()
        return begins

    def run_steps(self, make_step: Callable[[], Any], steps: int, state: Sequence[Any]) -> None:
        """Makes steps up to a number, also where processes come and go; all end together.

        A step that is given up because of that has changed nothing. This process then gets the
        state of the others, and `make_step` is called anew, with whatever batch it takes next.

        Args:
          make_step: makes a step with a batch.
          steps: number of the last step.
          state: all variables that the processes have in common, of TensorFlow or Keras: first
            the reducer's `state.step`, then weights and the optimizer's variables.

        Raises:
          ValueError: the state does not begin with an int64 scalar.
          MembershipError: the training ends.
        """
        self.synchronize(state := state_of(state))
        while True:
            try:
                while int(state[0]) < steps:
                    make_step()
                self.compare({"steps at the end": str(steps)})
                return
            except (OperationError, InterruptionError):
                if self.connection is None or not self.connection.was_interrupted():
                    raise
                self.synchronize(state)

    def broadcast(self, variables: Sequence[Any]) -> None:
        """Gives variables of all processes the chief's values.

        Args:
          variables: tf.Variables or Keras variables of numbers, of equal shapes and types on all
            processes.

        Raises:
          TypeError: there is something else.
          MembershipError: names a process whose variables have other shapes or types.
        """
        self._check_fixed("broadcast")
        held = [plain(variable) for variable in variables]
        for variable in held:
            check_numbers(variable.name, variable.dtype.as_numpy_dtype)
        self.check_open()
        if self.connection is not None and held:
            self.agree({"variables to broadcast": kinds(held)}, "broadcast")
            self._copy(held)

    def _copy(self, variables: Sequence[tf.Variable]) -> None:
        """Assigns the chief's values: one by one, since copies of all would take much memory."""
        self.progress.begin("broadcast")
        if not isinstance(self.connection, Transport) and not self._has_synchronized:
            self._has_synchronized = True
            step = self.step or tf.Variable(0, dtype=tf.int64)
            try:
                self.connection.synchronize([step, *variables])
            except StateSizeError:
                raise MembershipError(
                    f"{self.label} was started again while the others make steps, and the loop "
                    "does not let it join them: needs join(..., elastic=True) or "
                    f"num_replicas_to_aggregate={self.size} on all, and Group.run_steps"
                ) from None
            return
        for variable in variables:
            self.connection.copy(variable)

    def all_reduce(self, value: Any, op: str = "mean") -> Any:
        """Returns the elementwise mean, sum or maximum over all processes, equal on all of them.

        Within a tf.function it is an operation of the graph, after those before it. Floats up to
        32 bits are added in float32, as gradients are. Integers and float64 keep their
        bits, and a sum of integers wraps in their type. They are meant for few values: each process
        gets those of all.

        Args:
          value: numbers: a tensor, an array, or a list, tuple or dict of these; of the same shapes
            and types on all processes.
          op: "mean" (of floats), "sum" (of numbers) or "max" (also of bools: whether any is true).

        Returns:
          Tensors in the same structure, of the same shapes and types.

        Raises:
          TypeError: the operation does not take this type.
          ValueError: there is no such operation, or a shape is not fixed.
          MembershipError: a process left or does something else.
        """
        self.check_open()
        self._check_fixed("all_reduce")
        if self._all_reduce is None:
            with tf.init_scope():
                self._all_reduce = AllReduce(self.connection, self.begin_step)
        return self._all_reduce(value, op)

    def broadcast_object(self, value: Any = None) -> Any:
        """Returns the chief's value on all processes.

        Args:
          value: of the chief: None, bools, numbers, texts, bytes, NumPy arrays, and lists, tuples
            and dicts of these; up to 256 MiB. Those of the others do not count.

        Raises:
          TypeError: names the part of the value that is something else.
          ValueError: it is larger.
          MembershipError: a process left or does something else.
        """
        what = "broadcast_object"
        content = objects.pack(value, what) if self.is_chief else b""
        size = self._sizes(content, what)[0]
        if self.connection is None:
            return objects.unpack(content)
        held = tf.Variable(packed([octets(content, size)]), trainable=False)
        self._copy([held])
        return objects.unpack(held.numpy().tobytes()[:size])

    def all_gather_object(self, value: Any, *, what: str = "all_gather_object") -> list[Any]:
        """Returns the values of all processes, in the order of their ranks.

        Args:
          value: see `broadcast_object`.
          what: see `all_gather`.

        Raises:
          TypeError: names the part of the value that is something else.
          ValueError: a process' value is larger.
          MembershipError: a process left or does something else.
        """
        content = objects.pack(value, what)
        sizes = self._sizes(content, what)
        rows = self.all_gather(octets(content, max(sizes)), what=what)
        return [objects.unpack(row.tobytes()[:size]) for row, size in zip(rows, sizes, strict=True)]

    def _sizes(self, content: bytes, what: str) -> list[int]:
        """Returns the bytes of each process' value, so that all make room for them."""
        sizes = self.all_gather(np.array(len(content), np.int64), what=what).tolist()
        for rank, size in enumerate(sizes):
            objects.check_size(size, f"{what}: the value of worker {rank}")
        return sizes

    def all_gather(self, array: np.ndarray, *, what: str = "all_gather") -> np.ndarray:
        """Returns the arrays of all processes, in the order of their ranks: [...] -> [size, ...].

        For small arrays of numbers, such as metrics. `what` is its name in the error that says
        which process does something else meanwhile.

        Raises:
          TypeError: it is no array of numbers.
          MembershipError: names a process whose array has another shape or type.
        """
        self.check_open()
        self._check_fixed(what)
        array = np.asarray(array)
        check_numbers(what, array.dtype)
        if self.connection is None:
            return array[np.newaxis]
        self.agree({f"the array to {what}": f"{array.dtype.name}{list(array.shape)}"}, what)
        self.progress.begin(what)
        rows = self._gathered(packed([array]), "gather")
        kind = [(array.shape, array.dtype)]
        return np.stack([unpacked(row, kind)[0] for row in rows])

    def _gathered(self, content: np.ndarray, name: str) -> np.ndarray:
        """Returns the contents of all processes, int32 [n] -> [size, n], in parts."""
        limit = self.connection.largest_part // content.itemsize
        rows = []
        for start in range(0, max(len(content), 1), limit):
            part = tf.constant(content[start : start + limit])
            # Transports tell shapes apart by names; a ps knows few names, and counts the calls.
            called = f"{name}/{part.shape[0]}" if isinstance(self.connection, Transport) else name
            rows.append(self.connection.all_gather(part, called).numpy())
        return np.concatenate(rows, axis=1)

    def close(self) -> None:
        """Leaves the other processes; the chief waits for them to leave."""
        self.__exit__(None, None, None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leaves the others, and tells them the reason if that is an error.

        Raises:
          MembershipError: the error comes from an operation that no longer reached the others.
        """
        self.leaving.leave(kind, error, traceback)

    def _forget(self) -> None:
        """Marks the group as closed: later operations raise MembershipError."""
        self.connection, self._is_open = None, False
        self._agree = _is_closed

    def check_open(self) -> None:
        """Raises MembershipError or ValueError if this process does nothing with the others."""
        if self.asynchronous:
            allowed = "AsynchronousTraining, Group.shard and Group.set_epoch"
            raise ValueError(f"no process of the group waits for another; allowed are {allowed}")
        self._check_alike()
        if self.size > 1 and not self._is_open:
            _is_closed({})

    def _check_fixed(self, what: str) -> None:
        """Raises ValueError if processes may come and go, which have made other calls before."""
        if self.is_elastic:
            raise ValueError(
                f"{what}: not with elastic or num_replicas_to_aggregate; allowed are a Reducer and "
                "Group.run_steps, which copies the state, or Keras' fit with DistributedCallback"
            )

    def _check_alike(self) -> None:
        if self._difference:
            raise MembershipError(f"all have left each other: {self._difference}")


def _is_closed(configuration: Mapping[str, str], what: str = "") -> None:
    del configuration, what
    raise MembershipError("the group is closed: call terngrad.join once, and close at the end")
