"""The members of Keras without a public name: each is there, and does what internals.py says."""

import operator
import types

import keras
import numpy as np
import pytest

from terngrad.library.keras import internals

MEMBERS = [
    "model._flatten_layers",
    "model._non_trainable_variables",
    "dropout._seed_generators",
    "text._lookup_layer",
    "model._compile_loss._user_loss_weights",
    "model._compile_metrics._user_metrics",
    "model._compile_metrics._user_weighted_metrics",
    "model.loss._fn_kwargs",
    "model._resolve_auto_jit_compile",
    "model._flatten_metrics_in_order",
    "model._initial_epoch",
    "backup._weights_path",
    "backup._training_metadata_path",
    "checkpoint._save_model",
    "checkpoint._get_file_path",
    "model.optimizer._trainable_variables",
    "model.optimizer._get_variable_index",
    "accumulating._accumulated_gradients",
    "accumulating._iterations",
    "model.optimizer._momentums",
    "model.optimizer._velocities",
    *(f"model.optimizer.{name}" for name in internals._WITHIN_APPLY),
]


@pytest.fixture(scope="module")
def model():
    """A compiled model."""
    found = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    loss = keras.losses.Huber(delta=2.0)
    found.compile("adam", loss, metrics=["mse"], weighted_metrics=["mae"], loss_weights=0.5)
    found.optimizer.build(found.trainable_variables)
    return found


@pytest.mark.parametrize("member", MEMBERS)
def test_keras_has_the_member(member, model, tmp_path):
    accumulating = keras.optimizers.SGD(gradient_accumulation_steps=2)
    accumulating.build([])
    holders = types.SimpleNamespace(
        model=model,
        accumulating=accumulating,
        dropout=keras.layers.Dropout(0.5),
        text=keras.layers.TextVectorization(),
        backup=keras.callbacks.BackupAndRestore(str(tmp_path)),
        checkpoint=keras.callbacks.ModelCheckpoint(str(tmp_path / "a.keras")),
    )
    try:
        operator.attrgetter(member)(holders)
    except AttributeError as error:
        pytest.fail(f"Keras {keras.__version__}: {error}; see its use in internals.py")


def test_what_compile_was_given_is_found(model):
    assert internals.loss_weights(model) == 0.5
    assert internals.metrics(model) == {"metrics": ["mse"], "weighted_metrics": ["mae"]}
    assert internals.settings_of(model.loss)["delta"] == 2.0


def test_a_callback_finds_the_list_of_callbacks_and_the_arguments_of_fit(model):
    class Seeing(keras.callbacks.Callback):
        def set_model(self, model):
            super().set_model(model)
            self.list = internals.callback_list()

        def on_train_begin(self, logs=None):
            self.fit = internals.fit_call()
            self.spec = internals.element_spec(self.fit)

    keras.utils.set_random_seed(1)
    seeing, x = Seeing(), np.ones((4, 3))
    model.fit(x, np.ones((4, 2)), verbose=0, steps_per_epoch=1, callbacks=[seeing])
    assert seeing in seeing.list.callbacks
    assert seeing.fit.arguments["x"] is x
    assert seeing.fit.arguments["steps_per_epoch"] == 1
    assert [tuple(part.shape)[1:] for part in seeing.spec] == [(3,), (2,)]
    assert internals.callback_list() is None


def test_an_optimizer_whose_methods_a_program_has_replaced_is_known():
    optimizer = keras.optimizers.SGD()
    assert not internals.is_patched(optimizer)
    optimizer.update_step = lambda *arguments: None
    assert internals.is_patched(optimizer)
