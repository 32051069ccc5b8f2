"""Means of gradients over all processes, compressed: `terngrad.Reducer`."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from terngrad.cluster.progress import CALL, STEP
from terngrad.codecs.codec import Codec
from terngrad.codecs.factory import make_codecs, payloads
from terngrad.codecs.sum_codec import KEPT_SUMS
from terngrad.layout import DEFAULT_BUCKET_ELEMENTS, EXACT, Layout, make_layout
from terngrad.library import graphs
from terngrad.library.arrays import plain
from terngrad.library.graphs import CallOrder, begin_after, check_graph
from terngrad.library.group import Group
from terngrad.library.reducer_settings import (
    DEFAULT_GRADIENTS,
    check_group,
    check_settings,
    name_of_codec,
    policy_of,
    with_suited,
)
from terngrad.ops.gradient_kernels import GradientKernels, Sums
from terngrad.training import runtime
from terngrad.training.nodes import row_of, values_of_row
from terngrad.training.reduction import Reduction, make_exchange

Gradient = tf.Tensor | tf.IndexedSlices | None


class ReducerState(tf.Module):
    """What a checkpoint must hold so that a training goes on as if it had not been interrupted.

    Attributes:
      step: int64 scalar, number of calls of the reducer.
      memory: what the codecs of this process keep between steps, by name; empty without feedback
        and with exact sums. It differs between processes. What belongs to the share of the sums
        that this process has is named with its size: nothing is restored to the other shares that
        another number of processes has.
    """

    def __init__(self, step: tf.Variable, memory: Mapping[str, tf.Variable]) -> None:
        """Holds these variables."""
        super().__init__()
        self.step = step
        of_share = lambda name: name.startswith(KEPT_SUMS)
        self.memory = {
            f"{name}/{variable.shape[0]}" if of_share(name) else name: variable
            for name, variable in memory.items()
        }


class Reduced(NamedTuple):
    """The results of a call of a reducer.

    Attributes:
      means: mean gradient of each variable; None where no node of this process has a gradient.
      sums: the same means before they are decoded, by bucket; empty if they were not asked for.
      others: the means of the other tensors that were given.
    """

    means: list[tf.Tensor | None]
    sums: list[Sums]
    others: Sequence[tf.Tensor] = ()


class Reducer:
    """Exchanges gradients with the other processes: `means = reducer(gradients)`.

        group = terngrad.join()
        reducer = terngrad.Reducer(model.trainable_variables, group)
        ...
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(reducer(gradients), model.trainable_variables))

    Each process calls it equally often, inside or outside tf.function (not with jit_compile=True).
    Inside, buckets of gradients are exchanged while the rest of the backward pass runs.

    Attributes:
      state: variables for tf.train.Checkpoint, see `ReducerState`.
      layout: which variables are coded, and the buckets in which they are exchanged.
      memory: what the codecs of this process keep between steps, with ways to save and load it.
      kernels: the arithmetic of its codecs.
      reduction: its codecs and exchange, for training loops of this package.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        group: Group,
        *,
        gradients: str | type = DEFAULT_GRADIENTS,
        clip_factor: float | None = None,
        scale_by: str | None = None,
        size_to_binarize: int | None = None,
        float_layers: Sequence[str] = (),
        seed: int = 1,
        nodes: int = 1,
        bucket_elements: int = DEFAULT_BUCKET_ELEMENTS,
        draws: str | None = None,
        sum_codec: str = EXACT,
        memory_decay: float = 1.0,
    ) -> None:
        """Compares the settings with the other processes, and copies the chief's variables to all.

        Args:
          variables: tf.Variables or Keras variables of a float type, of fixed shapes.
          group: the processes, from `terngrad.join`.
          gradients: "7-level" (3 bits a value or less), codes of other levels: "ternary" (3 levels,
            the paper's, 2 bits or less), "5-level" (3), "15-level" (4), "255-level" (8);
            "ternary-feedback" and "5-level-feedback", which keep what they did not send for the
            next call; "float32", "float16" (half precision), or a codec of your own: a subclass of
            `terngrad.codecs.codec.Codec`, or its MODULE:CLASS.
          clip_factor: clip a gradient to this many standard deviations, or root mean squares with
            another `scale_by` than "variable", before it is encoded; 0 = no clipping, which
            codecs with feedback need. None = 2.5 with "ternary" and "5-level", 4 with "7-level", 5
            with "15-level", else 0.
          scale_by: which values share a scale: "variable", all of a variable; "channel", those of
            an output channel; "block:N", N neighbours; see `terngrad.parts.parts_of`. None =
            "channel" with "7-level" and "15-level", else "variable".
          size_to_binarize: variables with fewer elements stay float. None = 1,024 with "7-level"
            and "15-level", else 1.
          float_layers: layers whose variables stay float, such as the last one: the part of a
            variable's name (of Keras' `path`) before the last "/".
          seed: of the random codes; all processes need the same.
          nodes: how many gradients this process gives in each call, each of a part of its batch. N
            processes of one node and one process of N nodes give the same means.
          bucket_elements: a bucket takes variables until it holds this many values.
          draws: "independent", or "antithetic": two nodes share the random numbers of their codes,
            so that the mean of both has less noise. Codecs that round at random can do this. None =
            "antithetic" with "7-level" and "15-level", else "independent".
          sum_codec: how means of coded gradients travel back: "exact", as sums of codes, or
            "ternary": the process that owns a share of them codes it again, keeps the rounding
            error, and adds it to its next means. With an elastic group what owners keep starts
            from zero whenever processes come or go.
          memory_decay: share of its memory that a codec with feedback adds to the next gradients,
            and the owner of a share to its next means.

        Raises:
          TypeError: an argument has another type.
          ValueError: an argument is wrong.
          MembershipError: names a setting that differs between two processes.
        """
        check_group("Reducer", group)
        coding = with_suited(
            gradients,
            clip_factor=clip_factor,
            scale_by=scale_by,
            size_to_binarize=size_to_binarize,
            float_layers=float_layers,
            draws=draws,
            sum_codec=sum_codec,
        )
        own = {"seed": seed, "nodes": nodes, "bucket_elements": bucket_elements}
        check_settings(**coding, **own, memory_decay=memory_decay)
        seed, nodes, bucket_elements = map(int, (seed, nodes, bucket_elements))  # perhaps NumPy's
        _check_sum_codec(group, sum_codec)
        names, tf_variables = _names_and_variables(
            variables, with_values=group.connection is not None
        )
        shapes, policy = [v.shape for v in tf_variables], policy_of(**coding)
        self.layout: Layout = make_layout(names, shapes, policy, bucket_elements)
        self.kernels = kernels = _kernels(tf_variables)
        step = tf.Variable(0, dtype=tf.int64, trainable=False)
        exchange = make_exchange(group.connection, nodes, kernels, step)
        self._group = group
        self._nodes = nodes
        index = group.count("reducer")
        codecs = _named_codecs(self.layout, kernels, index)
        self._name_of_others = f"others/{index}"
        self.reduction = Reduction(codecs, exchange, step, seed, memory_decay=memory_decay)
        self.memory = self.reduction.memory
        self._name_of_call = f"{CALL} {index}"  # outside graphs, where calls have an order
        call = lambda gradients: self._means(gradients, self._name_of_call).means
        self._eager = tf.function(call, autograph=False)
        self._gate: graphs.Gate | None = None  # of calls in the background
        gated = lambda gradients: self._means(gradients, "", gate=self._gate).means
        self._in_background = tf.function(gated, autograph=False)
        self._call_order = CallOrder()
        self.state = ReducerState(step, self.memory.variables)
        group.step = step
        self._compare(
            {"gradients": name_of_codec(gradients), "seed": str(seed), "nodes": str(nodes)}
        )
        group.memories.add(self.memory)
        if not group.is_elastic:  # `Group.run_steps` copies the whole state
            group.broadcast(tf_variables)

    def _compare(self, settings: Mapping[str, str]) -> None:
        """Compares settings, variables and versions with those of the other processes."""
        names, digest = self.layout.names, self.layout.fingerprint().hex()
        ends = dict.fromkeys((names[0], names[-1]))  # often tell how layers are named
        settings = {**settings, "variables": f"{len(names)} ({', '.join(ends)}; {digest})"}
        configuration = {f"{name} of the reducer": value for name, value in settings.items()}
        configuration |= {"kernels": self.kernels.compared, "tensorflow": tf.version.VERSION}
        self._group.agree(configuration, "a new Reducer")

    @tf.autograph.experimental.do_not_convert  # else a function around it takes seconds to trace
    def __call__(self, gradients: Sequence[Gradient] | Sequence[Sequence[Gradient]]) -> list:
        """Returns the mean gradients over all nodes of all processes.

        Args:
          gradients: of each variable, in the order of `variables`; with `nodes` above 1 a list of
            these, one for each node. None counts as zeros, tf.IndexedSlices become dense.

        Returns:
          The means, of the shapes and types of the gradients; None where no node of this process
          has a gradient.

        Raises:
          ValueError: their number, a shape or a type is wrong.
          MembershipError: the group is closed; within a tf.function an error of TensorFlow says so.
        """
        return self.reduce(gradients).means

    @tf.autograph.experimental.do_not_convert
    def reduce(
        self,
        gradients: Sequence[Gradient] | Sequence[Sequence[Gradient]],
        *,
        as_sums: bool = False,
        others: Sequence[Sequence[tf.Tensor]] = (),
    ) -> Reduced:
        """Returns the means and, if wanted, the sums of codes that they decode.

        Args:
          gradients: see `__call__`.
          as_sums: within a graph, also return means as sums of codes, where they are such. Then
            nothing is decoded unless the means are used.
          others: within a graph, float tensors of each node of this process, of fixed shapes. Their
            means belong to the step: they are final when the gradients' means are, or never.
        """
        by_node = self._by_node(gradients)
        dense = [self._dense(node) for node in by_node]
        self._group.check_open()
        check_graph()
        if tf.executing_eagerly():
            found = Reduced(self._eager(dense), [])
        else:
            found = self._means(self._call_order.delayed(dense), as_sums=as_sums, others=others)
            self._call_order.end(_final_tensors(found))
        given = [[g for g in nodes if g is not None] for nodes in zip(*by_node, strict=True)]
        kind = lambda gradient: getattr(gradient, "dtype", tf.float32)  # a list has none
        means = [
            tf.cast(mean, kind(gradients[0])) if gradients else None
            for mean, gradients in zip(found.means, given, strict=True)
        ]
        return Reduced(means, found.sums, found.others)

    def start(self, gradients: Sequence[Gradient]) -> Callable[[], list[tf.Tensor]]:
        """Begins a call outside graphs, which is made while this process goes on.

        The call ends, and with it `state` changes, before the next one begins.

        Args:
          gradients: see `__call__`.

        Returns:
          Ends the call, and returns the means, as float32.

        Raises:
          MembershipError: the group is closed; for others see `__call__`.
        """
        dense = self.dense_by_node(gradients)
        self._group.check_open()
        if self._group.connection is not None:  # here: all count their operations in one order
            self._group.begin_step(self._name_of_call)
        self._gate = self._gate or graphs.Gate()
        return graphs.run_in_thread(lambda: self._in_background(dense), self._gate)

    def require_in_next_step(self) -> None:
        """Lets the next step wait for this process, where others may make it without this one."""
        self.reduction.exchange.require_in_next_step()

    @property
    def bytes_sent(self) -> int:
        """Bytes that this process has sent so far, without headers."""
        return int(self.reduction.exchange.bytes_sent)

    @property
    def bits_per_parameter(self) -> float:
        """Bits that this process sends for each parameter in a step.

        A process alone sends none; then it is what a node would send. Where codes are packed, so
        that steps differ, it is the mean over all calls so far; before the first call it is an
        upper bound.
        """
        exchange = self.reduction.exchange
        sent = sum(payload.sent for payload in payloads(self.reduction.codecs, exchange))
        if exchange.packs_codes and (calls := int(exchange.steps)):
            sent = self.bytes_sent / calls
        return 8 * sent / max(self.layout.size, 1)

    def _means(
        self,
        gradients: Sequence[Sequence[tf.Tensor]],
        what: str = STEP,
        *,
        as_sums: bool = False,
        others: Sequence[Sequence[tf.Tensor]] = (),
        gate: graphs.Gate | None = None,
    ) -> Reduced:
        """Returns the results of an exchange, as operations of the current graph.

        This process reports `what` it begins; "" = it has done so. The end of the exchange and its
        updates wait for the `gate`.
        """
        if what and self._group.connection is not None:
            begin_after(gradients[0][-1:], lambda: self._group.begin_step(what))
        reduction = self.reduction
        reduction.sequence = self._group.sequence
        keys = reduction.keys(reduction.step.read_value())
        found = reduction.reduce(gradients, keys, as_sums=as_sums)
        rows = [[row_of(node)] for node in others]
        row = reduction.exchange.mean(rows, self._name_of_others) if rows else []
        passed = [gate.passed()] if gate else []
        with tf.control_dependencies(passed), reduction.updates(found, others=row):
            shared = values_of_row(tf.identity(row[0]), others[0]) if rows else []
            means = [None if mean is None else tf.identity(mean) for mean in found.means]
            sums = [each._replace(words=tf.identity(each.words)) for each in found.sums]
        for each in sums:
            shapes = [self.layout.shapes[i] for i in each.variables]
            decoded = self.kernels.decode(each.words, each.units, each.nodes, shapes, each.parts)
            for i, mean in zip(each.variables, decoded, strict=True):
                means[i] = mean
        return Reduced(means, sums, shared)

    def _by_node(self, gradients: Sequence) -> list[Sequence[Gradient]]:
        by_node = [gradients] if self._nodes == 1 else list(gradients)
        if len(by_node) != self._nodes:
            raise ValueError(f"reducer: gradients of {len(by_node)} nodes; allowed: {self._nodes}")
        return [list(node) for node in by_node]  # perhaps iterators

    def dense_by_node(
        self, gradients: Sequence[Gradient] | Sequence[Sequence[Gradient]]
    ) -> list[list[tf.Tensor]]:
        """Returns the gradients of each node as float32 tensors of the variables' shapes.

        Raises:
          ValueError: their number, a shape or a type is wrong.
        """
        return [self._dense(node) for node in self._by_node(gradients)]

    def _dense(self, gradients: Sequence[Gradient]) -> list[tf.Tensor]:
        """Returns float32 tensors of the variables' shapes."""
        names, shapes = self.layout.names, self.layout.shapes
        if len(gradients) != len(names):
            raise ValueError(
                f"reducer: {len(gradients)} gradients; allowed are {len(names)}, one for each "
                "variable"
            )
        return [_dense(*each) for each in zip(gradients, names, shapes, strict=True)]


def _kernels(variables: Sequence[tf.Variable]) -> GradientKernels:
    """Returns the kernels of the place where the variables are."""
    on_gpu = any("GPU" in variable.device for variable in variables)
    choice = runtime.kernels(on_gpu=on_gpu)
    if on_gpu and choice.why_reference:
        warnings.warn(f"gradients on GPUs: {choice}", RuntimeWarning, stacklevel=3)
    return choice.kernels


def _final_tensors(found: Reduced) -> list[tf.Tensor]:
    """Returns tensors that exist once an exchange is over; sums need not be decoded for them."""
    coded = {i for sums in found.sums for i in sums.variables}
    others = [mean for i, mean in enumerate(found.means) if i not in coded]
    return [*others, *(sums.words for sums in found.sums)]


def names_of(variables: Sequence[Any]) -> list[str]:
    """Returns a different name for each variable: Keras' path, or TensorFlow's name."""
    names: dict[str, None] = {}
    for variable in variables:
        name = getattr(variable, "path", None) or variable.name.partition(":")[0]
        with_number = (f"{name}_{i}" if i else name for i in itertools.count())
        names[next(each for each in with_number if each not in names)] = None
    return list(names)


def layers_within(
    layers: Sequence[str], part: Sequence[Any], variables: Sequence[Any]
) -> Sequence[str]:
    """Returns the `float_layers` of a reducer that serves a part of the variables.

    Layers of the other variables are left out; those of none stay, for the reducer to refuse.
    """
    if isinstance(layers, str) or len(part) >= len(variables):
        return layers
    layers_of = lambda some: {name.rpartition("/")[0] for name in names_of(some)}
    own, every = layers_of(part), layers_of(variables)
    return [name for name in layers if name in own or name not in every]


def _names_and_variables(
    variables: Sequence[Any], *, with_values: bool
) -> tuple[list[str], list[tf.Variable]]:
    """Returns names and tf.Variables.

    Args:
      variables: tf.Variables or Keras variables.
      with_values: whether their values will be sent, so that these are checked, too.

    Raises:
      ValueError: there are none, or one cannot be exchanged.
    """
    found = [plain(variable) for variable in variables]
    if not found:
        raise ValueError("reducer: there are no variables; allowed are one and more")
    for name, variable in zip(names := names_of(variables), found, strict=True):
        _check_variable(name, variable)
        if with_values:
            _check_value(name, variable)
    return names, found


def _check_variable(name: str, variable: tf.Variable) -> None:
    if not variable.dtype.is_floating:
        raise ValueError(f"reducer: {name} is {variable.dtype.name}; allowed are float types")
    if not variable.shape.is_fully_defined():
        raise ValueError(f"reducer: {name} has the shape {variable.shape}; allowed are fixed ones")


def _check_value(name: str, variable: tf.Variable) -> None:
    """Checks that a variable was not made by the step that is being traced."""
    if tf.executing_eagerly() and not variable.is_initialized():
        raise ValueError(
            f"reducer: {name} has no value yet, so the chief's cannot be copied; build the model "
            "before its first step: with a keras.Input as its first layer, or model.build(shape)"
        )


def _dense(gradient: Gradient, name: str, shape: tuple[int, ...]) -> tf.Tensor:
    if gradient is None:
        return tf.zeros(shape)
    value = tf.convert_to_tensor(gradient)
    if not value.dtype.is_floating:
        raise ValueError(
            f"reducer: the gradient of {name} is {value.dtype.name}, not of a float type"
        )
    if not value.shape.is_compatible_with(shape):
        raise ValueError(
            f"reducer: the gradient of {name} has the shape {value.shape}; allowed is {shape}"
        )
    return tf.cast(tf.ensure_shape(value, shape), tf.float32)


def _named_codecs(layout: Layout, kernels: GradientKernels, index: int) -> list[Codec]:
    """Returns codecs; layouts of a group's reducers may be equal, but not names of operations."""
    codecs = make_codecs(layout, kernels)
    for each in codecs if index else ():
        each.name = f"{each.name}/{index}"
    return codecs


def _check_sum_codec(group: Group, sum_codec: str) -> None:
    if sum_codec != EXACT and not group.may_code_sums:
        raise ValueError(
            f"sum_codec is {sum_codec}; allowed is {EXACT} with num_replicas_to_aggregate: a share "
            "of the means belongs to one process, without which no step can be made"
        )
