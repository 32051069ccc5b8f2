"""The callback DistributedCallback in one process."""

import re
import signal
import sys
from pathlib import Path
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import terngrad.keras
from terngrad.library.group import Group
from terngrad.library.keras import state
from terngrad.library.keras.optimizer import exchange_of, optimizers_of, undistributed
from terngrad.library.keras.signals import Signals
from terngrad.library.keras.state import moving_statistics

ALONE = Group()
DATA = np.ones((4, 3), "float32"), np.ones((4, 2), "float32")


class AsIf(Group):
    """A group of three that never speaks: enough to see how the other callbacks are arranged."""

    def __init__(self, rank=1):
        """Is one of them."""
        super().__init__(rank, 3)

    def check_open(self):
        """Is always open."""


@pytest.fixture(autouse=True)
def seeded():
    """Lets models draw their weights."""
    keras.utils.set_random_seed(1)


def compiled(group=ALONE, model=None, nodes=1, **settings):
    model = model or keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    optimizer = terngrad.keras.distribute(
        keras.optimizers.SGD(0.1), group, gradients="ternary", nodes=nodes
    )
    model.compile(optimizer, "mse", **settings)
    return model


@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}])
def test_alone_it_adds_bytes_and_bits_to_the_logs(settings):
    model = compiled(**settings)
    together = terngrad.keras.DistributedCallback(ALONE)
    for _ in range(2):  # also in a second fit
        history = model.fit(
            *DATA, batch_size=2, verbose=0, callbacks=[together], validation_data=DATA
        )
    assert {"loss", "val_loss", "bytes_sent", "bits_per_parameter"} == history.history.keys()
    assert history.history["bytes_sent"] == [0]
    assert history.history["bits_per_parameter"][0] > 2


def test_the_callback_wraps_all_others_and_only_the_chief_writes_files(tmp_path):
    model = compiled(group := AsIf())
    stopping = keras.callbacks.EarlyStopping("loss")
    writers = [
        keras.callbacks.BackupAndRestore(tmp_path / "backup"),
        keras.callbacks.CSVLogger(tmp_path / "a.csv"),
        keras.callbacks.ModelCheckpoint(tmp_path / "a.keras"),
    ]
    board = keras.callbacks.TensorBoard(tmp_path / "board")

    class Own(keras.callbacks.Callback):
        """Writes something."""

    together = terngrad.keras.DistributedCallback(group, chief_only=[Own])
    given = [*writers, stopping, together, board, Own()]
    found = keras.callbacks.CallbackList(given, add_history=True, add_progbar=True, model=model)
    first, *others, last = found.callbacks
    assert last is together
    assert type(first).__name__ == "_Before"
    assert [c for c in others if type(c) is not keras.callbacks.Callback] == [
        stopping,
        model.history,
    ]
    assert stopping.model is model.history.model is model
    assert list(tmp_path.iterdir()) == []
    assert len(given) == 7, "the user's own list stays as it is"


def test_a_loss_waits_for_the_chiefs_checkpoints_and_for_writers_of_the_program(tmp_path):
    class Own(keras.callbacks.Callback):
        """Writes something."""

    model = compiled(group := AsIf(rank=0))
    together = terngrad.keras.DistributedCallback(group, chief_only=[Own])
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "a.keras", save_freq=1)
    plain = keras.callbacks.EarlyStopping("loss")
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    given = [plain, checkpoint, together, Own(), backup]
    found = keras.callbacks.CallbackList(given, model=model)
    kinds = " ".join(type(each).__name__ for each in found.callbacks)
    writers = "EarlyStopping Writer Writer BackupPlaceholder Writer"
    assert kinds == f"_Before {writers} DistributedCallback"
    writer, own = found.callbacks[2:4]
    assert checkpoint.model is own.model is backup.model is model
    writer.on_epoch_begin(0)
    writer.on_train_batch_end(0, {})
    assert [path.name for path in tmp_path.iterdir()] == ["a.keras"]
    together._act_at_losses()
    (act,) = group.at_loss
    together._saver = mock.Mock(is_stepping=False)
    assert act() == "not saved since the last checkpoint"


@pytest.mark.parametrize("kind", [terngrad.keras.DistributedCallback, terngrad.keras.LocalSteps])
@pytest.mark.parametrize("wrong", [keras.callbacks.CSVLogger, [keras.callbacks.Callback()], [int]])
def test_law_10_callbacks_of_the_chief_are_named_by_their_classes(kind, wrong):
    settings = {"steps": 2} if kind is terngrad.keras.LocalSteps else {}
    with pytest.raises(TypeError, match=rf"^{kind.__name__}: chief_only is .*; allowed is a list"):
        kind(ALONE, chief_only=wrong, **settings)


@pytest.mark.parametrize("group", [None, "x", [tf.Variable([1.0])]])
@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("Reducer", lambda group: terngrad.Reducer([tf.Variable([1.0])], group)),
        ("LocalSteps", lambda group: terngrad.LocalSteps([tf.Variable([1.0])], group, steps=1)),
        (
            "AsynchronousTraining",
            lambda group: terngrad.AsynchronousTraining(
                [tf.Variable([1.0])], group, optimizer="sgd", learning_rate=0.1, max_steps=1
            ),
        ),
        ("distribute", lambda group: terngrad.keras.distribute(keras.optimizers.SGD(), group)),
        ("DistributedCallback", terngrad.keras.DistributedCallback),
        ("LocalSteps", terngrad.keras.LocalSteps),
        ("evaluate", lambda group: terngrad.keras.evaluate(None, DATA, group)),
        ("predict", lambda group: terngrad.keras.predict(None, DATA[0], group)),
    ],
)
def test_law_10_what_is_no_group_is_named(name, use, group):
    why = rf"^{name}: group is a {type(group).__name__}; allowed is what terngrad.join returns$"
    with pytest.raises(TypeError, match=why):
        use(group)


def test_the_optimizer_that_each_compile_makes_around_a_distributed_one_exchanges():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, dtype="mixed_float16")])
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    inner = terngrad.keras.distribute(keras.optimizers.SGD(0.1), ALONE)
    exchange, held = exchange_of(inner), []
    for settings in ({}, {"metrics": ["mae"]}, {"auto_scale_loss": False}, {}):
        model.compile(inner, "mse", **settings)
        model.fit(*DATA, verbose=0, callbacks=[terngrad.keras.DistributedCallback(ALONE)])
        held.append(model.optimizer)
        assert [each for each in {*held, inner} if exchange_of(each) is exchange] == held[-1:]
    assert [each is inner for each in held] == [False, False, True, False]
    assert len({*held}) == 4
    assert int(inner.iterations) == 4
    (reducer,) = exchange.reducers.values()
    assert int(reducer.state.step) == 4


@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}])
def test_a_model_with_another_optimizer_exchanges_no_more(settings):
    model, expected = compiled(nodes=2, **settings), compiled(**settings)
    model.fit(*DATA, verbose=0, callbacks=[terngrad.keras.DistributedCallback(ALONE)])
    expected.set_weights(model.get_weights())
    for each in (model, expected):
        each.compile(keras.optimizers.SGD(0.1), "mse", **settings)
        each.fit(*DATA, batch_size=2, shuffle=False, verbose=0)  # two updates, each of one batch
    for own, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(own, other)
    assert int(model.optimizer.iterations) == 2


@pytest.mark.parametrize("name", ["a.keras", "{epoch}-{val_loss:.2f}-{loss:.1f}.keras"])
@pytest.mark.parametrize("is_epoch_over", [False, True])
def test_at_a_signal_a_checkpoint_is_saved_whatever_its_name_but_the_best_one_stays(
    tmp_path, name, is_epoch_over
):
    make = keras.callbacks.ModelCheckpoint
    checkpoints = [
        make(tmp_path / "epoch" / name),
        make(tmp_path / "often" / name, save_freq=100),
        make(tmp_path / "best" / name, monitor="val_loss", save_best_only=True),
    ]
    model, together = compiled(), terngrad.keras.DistributedCallback(ALONE)
    keras.callbacks.CallbackList([together, *checkpoints], model=model)
    together.on_epoch_begin(2)
    with pytest.raises(SystemExit):
        together._raise_if([0.0, 1.0, 0.0], {"loss": 0.5}, is_epoch_over=is_epoch_over)
    found = {path.relative_to(tmp_path) for path in tmp_path.rglob("*.keras")}
    file = name.format(epoch=3, val_loss=float("nan"), loss=0.5)
    saved = ["often"] if is_epoch_over else ["epoch", "often"]  # at its end the first has saved
    assert found == {Path(folder) / file for folder in saved}


def test_optimizers_in_lists_and_dicts_are_found_and_plain_ones_are_named():
    class Several(keras.Model):
        """Has optimizers in several places."""

        def __init__(self, first, *others):
            super().__init__()
            self.first, self.others, self.by_name = first, others[:1], {"a": others[1]}
            self.scaled, self.within = others[2:]

    plain = [keras.optimizers.SGD(0.1) for _ in range(4)]
    outer = keras.optimizers.LossScaleOptimizer(plain[3])
    used = terngrad.keras.distribute(plain[1], AsIf())
    terngrad.keras.distribute(outer, AsIf())
    model = Several(plain[0], used, plain[2], outer, plain[3])
    model.compile()  # with an optimizer that it does not use
    found = {name: each for name, each in optimizers_of(model) if name != "optimizer"}
    assert found == {
        "first": plain[0],
        "others": used,
        "by_name": plain[2],
        "scaled": outer,
        "within": plain[3],
    }
    assert undistributed(model) == []
    for each in plain:
        each.iterations.assign(1)
    assert undistributed(model) == ["first", "by_name"]


def test_a_worker_that_cannot_save_beside_the_chiefs_backup_goes_on(tmp_path):
    model = compiled()
    together = terngrad.keras.DistributedCallback(ALONE)
    model.fit(*DATA, verbose=0, callbacks=[together])
    exchange_of(model.optimizer).save_memories = mock.Mock(side_effect=OSError("read-only"))
    together._backup = keras.callbacks.BackupAndRestore(tmp_path / "own")
    with pytest.raises(OSError, match="read-only"):
        together.save_memories()
    together._is_stand_in = True
    with pytest.warns(UserWarning, match="not saved beside the chief's: read-only"):
        together.save_memories()
    together.save_memories()  # nothing more


def test_wrong_uses_are_named(tmp_path):
    model = compiled()
    together = terngrad.keras.DistributedCallback(ALONE)
    board = keras.callbacks.TensorBoard(tmp_path)
    with pytest.raises(ValueError, match="DistributedCallback: put it before TensorBoard"):
        model.fit(*DATA, verbose=0, callbacks=[board, together])
    with pytest.raises(ValueError, match="DistributedCallback: give it to fit"):
        together.set_model(model)
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="the model's optimizer is not distributed with this"):
        model.fit(*DATA, verbose=0, callbacks=[together])
    model = compiled(Group())
    with pytest.raises(ValueError, match="the model's optimizer is not distributed with this"):
        model.fit(*DATA, verbose=0, callbacks=[together])


@pytest.mark.parametrize("settings", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}])
def test_each_node_gets_a_part_of_the_batch_and_all_begin_with_the_same_statistics(settings):
    normalization = keras.layers.BatchNormalization(momentum=0.5)
    model = keras.Sequential([keras.Input((3,)), normalization, keras.layers.Dense(2)])
    x = np.array([[1.0], [3.0], [5.0], [7.0]]) * np.ones((4, 3))
    model = compiled(model=model, nodes=2, **settings)
    model.fit(x, DATA[1], verbose=0, callbacks=[terngrad.keras.DistributedCallback(ALONE)])
    # The nodes' batches are rows 0 and 2, and rows 1 and 3.
    np.testing.assert_allclose(normalization.moving_mean.numpy(), [0.5 * (3 + 5) / 2] * 3)
    np.testing.assert_allclose(normalization.moving_variance.numpy(), [0.5 + 0.5 * 4] * 3)
    assert int(model.optimizer.iterations) == 1


class Twice(keras.Sequential):
    """Applies gradients twice in a step."""

    def train_step(self, data):
        """Makes two steps."""
        super().train_step(data)
        return super().train_step(data)


def test_steps_that_nodes_cannot_make_are_named():
    def fit(model, data=DATA, together=True):
        callbacks = [terngrad.keras.DistributedCallback(ALONE)] if together else []
        model.fit(*data, batch_size=3, verbose=0, callbacks=callbacks)

    with pytest.raises(tf.errors.InvalidArgumentError, match="nodes=2: a batch cannot be divided"):
        fit(compiled(nodes=2))
    with pytest.raises(
        ValueError, match=r"nodes=2 needs fit with callbacks=\[DistributedCallback\(group\)\]"
    ):
        fit(compiled(nodes=2), together=False)
    twice = Twice([keras.Input((3,)), keras.layers.Dense(2)])
    with pytest.raises(ValueError, match="nodes=3: a train_step must apply gradients exactly once"):
        fit(compiled(model=twice, nodes=3), [np.ones((3, 3)), np.ones((3, 2))])
    two = compiled(nodes=2)
    two.other = terngrad.keras.distribute(keras.optimizers.SGD(), ALONE)
    with pytest.raises(ValueError, match="nodes=2 in a model with 2 distributed optimizers"):
        fit(two)
    accumulating = keras.optimizers.SGD(gradient_accumulation_steps=2)
    with pytest.raises(ValueError, match="distribute: nodes is 2; an optimizer with gradient_acc"):
        terngrad.keras.distribute(accumulating, ALONE, nodes=2)


def test_statistics_of_trained_layers_are_averaged_and_frozen_weights_are_not():
    inner = keras.Sequential([keras.Input((3,)), keras.layers.BatchNormalization(name="inner")])
    frozen = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    )
    frozen.trainable = False
    dropout = keras.layers.Dropout(0.5)
    normalization = keras.layers.BatchNormalization(name="outer")
    model = keras.Sequential([keras.Input((3,)), inner, frozen, dropout, normalization])
    names = sorted(v.path.rpartition("/")[2] for v in moving_statistics(model))
    assert names == ["moving_mean", "moving_mean", "moving_variance", "moving_variance"]
    assert not {id(v) for v in frozen.variables} & {id(v) for v in moving_statistics(model)}


def test_a_signal_is_left_to_the_program_after_an_error_has_ended_fit(capsys):
    signals = Signals()

    def fit():
        signals.catch(sys._getframe().f_code)
        signal.raise_signal(signal.SIGINT)
        return signals.seen()

    before = signal.getsignal(signal.SIGINT)
    assert fit() == [1.0, 0.0, 0.0]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err == "stopping after this step ...\n"


def test_random_layers_draw_for_each_node_and_node_0_keeps_the_chiefs_seed():
    layers = [keras.layers.Dropout(0.5, seed=3), keras.layers.GaussianNoise(0.1, seed=4)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    seeds = state.seed_states(model)
    assert [int(seed[0]) for seed in seeds] == [3, 4]
    chiefs = [seed.numpy() for seed in seeds]
    found, masks = [], []
    for rank in range(3):
        for seed, value in zip(seeds, chiefs, strict=True):
            seed.assign(value)
        state.share_seeds(model, AsIf(rank), nodes=2)
        found.append([int(seed[0]) for seed in seeds])
        masks.append(model.layers[0](np.ones((1, 64), "float32"), training=True).numpy().tolist())
    assert found[0] == [3, 4]
    assert len({seed for each in found for seed in each}) == 6
    assert masks[0] != masks[1] != masks[2] != masks[0], "all drop the same units"
    state.assign_seeds(seeds, state.values(seeds), old=4, new=0)
    assert [int(seed[0]) for seed in seeds] == [3, 4]


def test_a_layer_that_keeps_a_copy_of_its_weights_reads_them_again():
    normalization = keras.layers.Normalization()
    normalization.adapt(np.array([[1.0], [3.0]], "float32"))
    model = keras.Sequential([keras.Input((1,)), normalization])
    normalization.adapt_mean.assign([5.0])
    state.refresh(model)
    assert float(normalization.mean[0, 0]) == 5.0


def test_models_whose_layers_have_learned_something_else_differ():
    def knowing(words):
        text = keras.layers.TextVectorization(vocabulary=words)
        return keras.Sequential([keras.layers.StringLookup(vocabulary=words), text])

    found = [state.learned(knowing(words)) for words in (["a", "b"], ["b", "a"], ["a"])]
    assert len(set(found)) == 3
    assert re.fullmatch(r"StringLookup of 3 \(\w+\), TextVectorization of 4 \(\w+\)", found[0])
    bins = [keras.layers.Discretization(edges) for edges in ([0.0, 1.0], [0.0, 2.0])]
    found = [state.learned(keras.Sequential([each])) for each in bins]
    assert len(set(found)) == 2
    assert state.learned(compiled()) == "nothing"


def test_the_former_name_of_the_callback_still_works_with_a_warning():
    with pytest.warns(FutureWarning, match="Together is now called DistributedCallback"):
        former = terngrad.keras.Together
    assert former is terngrad.keras.DistributedCallback
