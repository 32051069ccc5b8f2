"""What callbacks remember and random layers draw when fit resumes, in one process."""

import itertools
import tracemalloc
import warnings

import keras
import ml_dtypes
import numpy as np
import pytest

import terngrad.keras
from terngrad.library.group import Group
from terngrad.library.keras import backup, internals

EPOCHS = 6
DRAW = np.random.default_rng(1)
DATA = DRAW.normal(size=(16, 3)).astype("float32"), DRAW.normal(size=(16, 1)).astype("float32")


class Failing(keras.callbacks.Callback):
    """Fails in the middle of an epoch."""

    def on_train_batch_begin(self, batch, logs=None):
        """Fails in the fourth epoch."""
        if int(self.model.optimizer.iterations) == 7:
            raise InterruptedError


class Halving(keras.callbacks.Callback):
    """Halves the learning rate after the third and the fifth epoch that it sees."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def on_epoch_end(self, epoch, logs=None):
        """Counts epochs."""
        self.seen += 1
        if self.seen in (3, 5):
            self.model.optimizer.learning_rate.assign(self.model.optimizer.learning_rate / 2)


class Remembering(Halving):
    """Takes part in the backup."""

    saved_attributes = ("seen",)


def trained(*callbacks, group=None, gradients="ternary", earlier_fits=0):
    """Trains a new model; returns its weights and history."""
    group = group or Group()
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    optimizer = keras.optimizers.Adam(0.1)
    optimizer = terngrad.keras.distribute(optimizer, group, gradients=gradients)
    model.compile(optimizer, "mse", run_eagerly=True)
    together = lambda: terngrad.keras.DistributedCallback(group)
    fit = {"batch_size": 8, "shuffle": False, "verbose": 0}
    for _ in range(earlier_fits):
        model.fit(*DATA, callbacks=[together()], **fit)
    history = model.fit(*DATA, callbacks=[*callbacks, together()], epochs=EPOCHS, **fit).history
    return model.get_weights(), history


def resumed(backup, make, is_first=True):
    """Trains, fails in the fourth epoch, and trains on with new callbacks."""
    both = lambda: [backup(), *make()] if is_first else [*make(), backup()]
    with pytest.raises(InterruptedError):
        trained(*both(), Failing())
    return trained(*both())


def backup_in(folder):
    return lambda: keras.callbacks.BackupAndRestore(str(folder / "backup"))


MAKERS = {
    "plateau": lambda: [
        # The rate falls in the ends of epochs 3 and 5: for the first time just before the backup.
        keras.callbacks.ReduceLROnPlateau("loss", min_delta=9.0, patience=2, cooldown=0)
    ],
    "stopping": lambda: [
        keras.callbacks.EarlyStopping("loss", min_delta=9.0, patience=4, restore_best_weights=True)
    ],
    "own": lambda: [Remembering()],
}


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("maker", MAKERS)
def test_law_8_a_resumed_fit_with_dropout_and_stateful_callbacks_has_equal_weights(
    tmp_path, maker, is_first
):
    make = MAKERS[maker]
    whole, history = trained(*make())
    part, rest = resumed(backup_in(tmp_path), make, is_first)
    for found, expected in zip(part, whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert rest["loss"] == history["loss"][3:]
    assert list(tmp_path.iterdir()) == [], "Keras deletes backups, too"


def test_law_8_a_resumed_fit_after_another_one_has_its_codecs_memory(tmp_path):
    both = {"gradients": "ternary-feedback", "earlier_fits": 1}
    whole, _ = trained(**both)
    with pytest.raises(InterruptedError):
        trained(backup_in(tmp_path)(), Failing(), **both)
    part, _ = trained(backup_in(tmp_path)(), **both)
    for found, expected in zip(part, whole, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_model_that_is_worse_than_the_best_before_the_interruption_is_not_saved(tmp_path):
    make = lambda: [
        keras.callbacks.ModelCheckpoint(
            tmp_path / "{epoch}.keras", "loss", mode="max", save_best_only=True
        )
    ]
    resumed(backup_in(tmp_path), make)
    assert [path.name for path in tmp_path.iterdir()] == ["1.keras"]


def test_a_callback_of_ones_own_that_changes_is_named_with_the_remedy(tmp_path):
    with pytest.warns(UserWarning, match="callback Halving had changed seen before") as shown:
        resumed(backup_in(tmp_path), lambda: [Halving()])
    assert any('saved_attributes = ("seen",) in its class' in str(each.message) for each in shown)


class Holding(keras.callbacks.Callback):
    """Holds something."""

    def __init__(self, held):
        super().__init__()
        self.held = held


class Noting:
    """Notes that it is written."""

    def __init__(self, written):
        self.written = written

    def __reduce__(self):
        self.written.append(self)
        return str, ()


@pytest.mark.parametrize("has_backup", [False, True])
def test_what_callbacks_hold_is_read_for_a_backup_only(has_backup, tmp_path):
    written = []
    trained(*([backup_in(tmp_path)()] if has_backup else []), Holding([Noting(written)]))
    assert bool(written) == has_backup


@pytest.mark.parametrize(
    ("make", "index"),
    [
        (lambda: np.arange(6.0).reshape(2, 3), (1, 2)),
        (lambda: np.arange(6.0).reshape(2, 3).T, (2, 1)),
        (lambda: np.arange(12.0)[::2], 5),
        (lambda: np.ones(3, ml_dtypes.bfloat16), 1),
        (lambda: np.array([1, "a"], object), 1),
        (lambda: [1, np.zeros(1 << 16)], 0),
        (lambda: {"a": {2}}, "a"),
    ],
)
def test_the_fingerprint_changes_with_any_part_of_a_value(make, index):
    found = lambda value: dict(backup._fingerprints(Holding(value)))["held"]
    changed = make()
    changed[index] = 7
    assert found(make()) == found(make()) != found(changed)


def test_a_fingerprint_takes_no_copy_of_an_array():
    size = 1 << 20
    callback = Holding([np.ones(size), {"labels": np.zeros(size)}])
    tracemalloc.start()
    try:
        assert "held" in dict(backup._fingerprints(callback))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < size


def test_a_backup_without_states_is_reported(tmp_path):
    make = MAKERS["plateau"]

    def resume():
        for path in (tmp_path / "backup-state").glob("*"):
            path.unlink()  # as an older version has left it
        return backup_in(tmp_path)()

    text = "callbacks begin anew, .* remember: ReduceLROnPlateau"
    with pytest.warns(UserWarning, match=text) as shown:
        resumed(resume, make)
    assert sum("callbacks begin anew" in str(each.message) for each in shown) == 1


def test_states_of_another_training_do_not_count_without_its_backup(tmp_path):
    make = MAKERS["own"]
    with pytest.raises(InterruptedError):
        trained(backup_in(tmp_path)(), *make(), Failing())
    for path in (tmp_path / "backup").glob("*"):
        path.unlink()
    (own,) = make()
    trained(backup_in(tmp_path)(), own)
    assert own.seen == EPOCHS


@pytest.mark.parametrize(
    ("names", "why"),
    [(("absent",), "names absent, which it does not have"), (("model",), "allowed are numbers")],
)
def test_what_cannot_be_saved_is_named_before_the_first_step(tmp_path, names, why):
    own = Halving()
    own.saved_attributes = names
    with pytest.raises((AttributeError, TypeError), match=f"Halving.*{why}"):
        trained(backup_in(tmp_path)(), own)


def test_all_types_of_values_come_back():
    values = {
        "n": [1, 2.5, float("inf"), None, True, "a"],
        "t": (np.float32(0.1), {"a": [np.arange(3), np.ones((2,), ml_dtypes.bfloat16)]}),
    }
    seeds = [np.array([3, 4], np.uint32)]
    content = {"states": {"Own": values}, "changed": {"Own 2": ["a"]}, "seeds": seeds}
    found = backup._from_bytes(backup._to_bytes(content))
    assert found["changed"] == content["changed"]
    np.testing.assert_array_equal(found["seeds"], seeds)
    own = found["states"]["Own"]
    assert own["n"] == values["n"]
    assert own["t"][0] == np.float32(0.1)
    arrays = own["t"][1]["a"]
    np.testing.assert_array_equal(arrays[0], np.arange(3))
    assert arrays[1].dtype == ml_dtypes.bfloat16
    assert arrays[1].tolist() == [1.0, 1.0]


def test_all_that_changes_in_callbacks_of_keras_is_remembered(tmp_path):
    """Or set anew in each fit or epoch."""
    new_in_each_fit = {
        "BackupAndRestore": {"_current_epoch"},
        "CSVLogger": {"append_header", "keys", "writer"},
        "EarlyStopping": {"min_delta"},
        "History": {"epoch", "history"},
        "ModelCheckpoint": {"_current_epoch"},
        "ProgbarLogger": {"seen"},
        "ReduceLROnPlateau": {"min_delta"},
        "TensorBoard": {
            "_batch_start_time",
            "_epoch_start_time",
            "_prev_summary_state",
            "_previous_epoch_iterations",
            "_should_trace",
            "_should_write_train_graph",
            "_train_accumulated_time",
            "_writers",
        },
    }
    make = keras.callbacks
    callbacks = [
        make.BackupAndRestore(str(tmp_path / "backup")),
        make.CSVLogger(tmp_path / "a.csv"),
        make.EarlyStopping("loss"),
        make.LearningRateScheduler(lambda epoch, rate: rate),
        make.ModelCheckpoint(tmp_path / "a.keras", "loss", save_best_only=True),
        make.ReduceLROnPlateau("loss"),
        make.TensorBoard(tmp_path / "board"),
        make.TerminateOnNaN(),
        history := make.History(),
    ]
    noted = []

    def values():
        return [
            {k: repr(v) for k, v in vars(c).items() if k not in ("_model", "params", "monitor_op")}
            for c in callbacks
        ]

    class Noting(make.Callback):
        """Notes the callbacks' attributes at the start and in the end of each epoch."""

        def on_train_begin(self, logs=None):
            """Notes them."""
            noted.append(values())

        def on_epoch_end(self, epoch, logs=None):
            """Notes them."""
            noted.append(values())

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    model.fit(*DATA, epochs=3, verbose=0, callbacks=[*callbacks, Noting()])
    assert history.history
    for i, callback in enumerate(callbacks):
        name = type(callback).__name__
        allowed = {*internals.REMEMBERED.get(name, ()), *new_in_each_fit.get(name, ())}
        for before, after in itertools.pairwise(noted):
            changed = {key for key in after[i] if after[i][key] != before[i].get(key)}
            assert changed <= allowed, (name, changed - allowed)


def test_without_a_backup_nothing_is_written_and_nothing_is_reported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trained(Halving(), *MAKERS["plateau"]())
    assert list(tmp_path.iterdir()) == []
