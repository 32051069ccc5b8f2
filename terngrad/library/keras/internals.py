"""All uses of private members of Keras, with the reason for each; other modules have none.

Brackets name the members, and the version of Keras with which they were checked. TensorFlow 2.21
allows Keras from 3.12 on. A test names the members that another version lacks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import keras

# State of Keras' own callbacks, and subclasses of them, which Keras does not save. [3.15]
REMEMBERED = {
    "EarlyStopping": ("best", "best_epoch", "best_weights", "stopped_epoch", "wait"),
    "ModelCheckpoint": ("_batches_seen_since_last_saving", "_last_batch_seen", "best"),
    "OrbaxCheckpoint": (
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
        "_total_batches_seen",
        "best",
    ),
    "ReduceLROnPlateau": ("best", "cooldown_counter", "wait"),
    "SwapEMAWeights": ("_ema_weights_in_model",),
    "TensorBoard": ("_global_test_batch", "_global_train_batch"),
}
# Attributes of callbacks that change in each `fit`; the last one changes its sign. [3.15]
SET_BY_FIT = ("_model", "params", "min_delta")


def is_of_keras(kind: type) -> bool:
    """Whether Keras defines a class, of which the module is private [3.15: keras.src]."""
    return kind.__module__.partition(".")[0] == "keras"


# Models and layers.


def layers_of(model: keras.Model) -> list[keras.Layer]:
    """A model and all layers in it; `layers` has one level only [3.15: Layer._flatten_layers]."""
    return list(model._flatten_layers())


def own_state(layer: keras.Layer) -> list[keras.Variable]:
    """The variables that a layer itself holds and does not train.

    Its public lists also hold frozen weights, and those of layers within [3.15:
    Layer._non_trainable_variables].
    """
    return layer._non_trainable_variables


def seed_generators(layer: keras.Layer) -> Sequence[keras.random.SeedGenerator]:
    """A layer's random generators, of which there is no list [3.15: Layer._seed_generators]."""
    return getattr(layer, "_seed_generators", ())


def lookup_of(layer: keras.Layer) -> keras.Layer | None:
    """The lookup layer within a TextVectorization, which has the same vocabulary.

    None of other layers [3.15: TextVectorization._lookup_layer].
    """
    return getattr(layer, "_lookup_layer", None)


def loss_weights(model: keras.Model) -> Any:
    """The weights of losses as `compile` got them; its public settings have names of functions.

    [3.15: Model._compile_loss._user_loss_weights]
    """
    return getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)


def metrics(model: keras.Model) -> dict[str, Any]:
    """Metrics and weighted metrics as `compile` got them; see `loss_weights`.

    [3.15: Model._compile_metrics._user_metrics, _user_weighted_metrics]
    """
    compiled = getattr(model, "_compile_metrics", None)
    names = ("metrics", "weighted_metrics")
    return {name: getattr(compiled, f"_user_{name}", None) for name in names}


def settings_of(thing: Any) -> dict[str, Any]:
    """The configuration of an optimizer, a loss or a metric.

    `get_config` of some losses lacks numbers, as Huber's delta [3.15:
    LossFunctionWrapper._fn_kwargs].
    """
    return {**thing.get_config(), **getattr(thing, "_fn_kwargs", {})}


def chose_xla(model: keras.Model) -> bool:
    """Whether Keras itself chooses XLA for a model [3.15: Model._resolve_auto_jit_compile]."""
    return bool(model._resolve_auto_jit_compile())


def in_order(model: keras.Model, logs: Mapping[str, Any]) -> Any:
    """Results as `evaluate` without a dict has them [3.15: Model._flatten_metrics_in_order]."""
    return model._flatten_metrics_in_order(logs)


# `fit` and its callbacks.


class FitCall(NamedTuple):
    """A call of `Model.fit`: its arguments and other local variables by name, and its code."""

    arguments: Mapping[str, Any]
    code: CodeType


def callback_list() -> keras.callbacks.CallbackList | None:
    """The list of callbacks that calls this one, which does not get it [3.15: its frame]."""
    frame = _list_frame()
    return frame and frame.f_locals["self"]


def fit_call() -> FitCall:
    """The call of `fit` that calls `on_train_begin`.

    Callbacks get neither its data nor `steps_per_epoch` [3.15: the frame that calls
    CallbackList.on_train_begin has the arguments under their names].
    """
    fit = _list_frame().f_back
    return FitCall(fit.f_locals, fit.f_code)


def element_spec(fit: FitCall) -> Any:
    """The type of a batch in `fit`, of which the dimension of the rows may be unknown.

    [3.15: a local variable of fit, TFEpochIterator._distributed_dataset]
    """
    return fit.arguments["epoch_iterator"]._distributed_dataset.element_spec


def _list_frame() -> FrameType | None:
    frame = sys._getframe(2)
    while frame and not isinstance(frame.f_locals.get("self"), keras.callbacks.CallbackList):
        frame = frame.f_back
    return frame


def initial_epoch(model: keras.Model) -> int | None:
    """The epoch at which BackupAndRestore lets `fit` resume [3.15: Model._initial_epoch]."""
    return getattr(model, "_initial_epoch", None)


def set_initial_epoch(model: keras.Model, epoch: int | None) -> None:
    """Lets `fit` resume at an epoch; see `initial_epoch`."""
    model._initial_epoch = epoch


class BackupPaths(NamedTuple):
    """The files of a backup; those of `double_checkpoint` are these with ".bkp" [3.15]."""

    weights: str
    metadata: str


def backup_paths(callback: keras.callbacks.BackupAndRestore) -> BackupPaths:
    """Where a BackupAndRestore writes and reads.

    [3.15: BackupAndRestore._weights_path, _training_metadata_path]
    """
    return BackupPaths(callback._weights_path, callback._training_metadata_path)


def set_backup_paths(callback: keras.callbacks.BackupAndRestore, paths: BackupPaths) -> None:
    """Lets a BackupAndRestore write and read elsewhere; see `backup_paths`."""
    callback._weights_path, callback._training_metadata_path = paths


def save_checkpoint(
    callback: keras.callbacks.ModelCheckpoint, epoch: int, batch: int, logs: dict[str, Any]
) -> str:
    """Lets a ModelCheckpoint save before it is due; returns the path.

    [3.15: ModelCheckpoint._save_model, _get_file_path]
    """
    callback._save_model(epoch, batch, logs)
    return callback._get_file_path(epoch, batch, logs)


# Optimizers.


def trained_variables(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The model's variables; `variables` are its own [3.15: Optimizer._trainable_variables]."""
    return optimizer._trainable_variables


def place_of(optimizer: keras.optimizers.Optimizer, variable: Any) -> int:
    """The index of a variable in an optimizer's slots [3.15: Optimizer._get_variable_index]."""
    return optimizer._get_variable_index(variable)


def accumulated(optimizer: keras.optimizers.Optimizer) -> list[keras.Variable]:
    """Sums of gradients for an update that is not due yet; after an update these are zero.

    [3.15: Optimizer._accumulated_gradients, of which an item may be None]
    """
    found = optimizer._accumulated_gradients if optimizer.built else ()
    return [variable for variable in found if variable is not None]


def steps_of(optimizer: keras.optimizers.Optimizer) -> int:
    """How often an optimizer was called; `iterations` counts updates [3.15: Optimizer._iterations].

    It may accumulate the gradients of several calls for an update.
    """
    return int(keras.ops.convert_to_numpy(optimizer._iterations))


def adam_slots(optimizer: keras.optimizers.Adam) -> tuple[list[Any], list[Any]]:
    """Adam's slots; SGD's have a public name [3.15: Adam._momentums, _velocities]."""
    return optimizer._momentums, optimizer._velocities


_WITHIN_APPLY = ("_backend_apply_gradients", "_clip_gradients", "_backend_update_step")


def is_patched(optimizer: keras.optimizers.Optimizer) -> bool:
    """Whether a program has replaced a method that `apply` calls; for these see `ApplyHooks`."""
    return not vars(optimizer).keys().isdisjoint(("update_step", *_WITHIN_APPLY))


class ApplyHooks:
    """A base, before an optimizer's own class, whose methods are called within Keras' `apply`.

    `apply` filters gradients, accumulates or clips them, and updates; between these it calls no
    public method [3.15: Optimizer._backend_apply_gradients, _clip_gradients,
    _backend_update_step].
    """

    def note_filtered(self, variables: Sequence[Any]) -> None:
        """Gets the variables whose gradients are applied, or accumulated."""

    def before_clipping(self, gradients: Sequence[Any]) -> Sequence[Any]:
        """Returns the gradients to clip, if that is set, and to apply."""
        return gradients

    def rate_of_updates(self, rate: Any) -> Any:
        """Returns the learning rate of the updates."""
        return rate

    def before_updates(
        self, gradients: Sequence[Any], variables: Sequence[Any], rate: Any
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Returns the clipped gradients that are still to be applied, and their variables."""
        return gradients, variables

    def _backend_apply_gradients(self, grads, trainable_variables) -> None:
        self.note_filtered(trainable_variables)
        super()._backend_apply_gradients(grads, trainable_variables)

    def _clip_gradients(self, grads):
        return super()._clip_gradients(self.before_clipping(grads))

    def _backend_update_step(self, grads, trainable_variables, learning_rate) -> None:
        rate = self.rate_of_updates(learning_rate)
        left = self.before_updates(grads, trainable_variables, rate)
        super()._backend_update_step(*left, rate)


class AsOwnClass:
    """A base, before an object's own class, that Keras saves and copies as one of the own class.

    Keras writes the name of `__class__`, and would not find a class that was made for an object
    [3.15].
    """

    @property
    def __class__(self) -> type:
        """The object's own class."""
        return type(self).__bases__[-1]

    @classmethod
    def from_config(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a new object of the own class."""
        return cls.__bases__[-1].from_config(*args, **kwargs)


def own_class(thing: Any) -> type:
    """The class by which Keras saves an object, not one that `AsOwnClass` hides."""
    return thing.__class__


def change_class(thing: Any, kind: type) -> None:
    """Gives an object another class, also where `AsOwnClass` has a `__class__` of its own.

    Keras tracks what is assigned to its objects; this assigns beneath both [3.15].
    """
    vars(object)["__class__"].__set__(thing, kind)
