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


class KilledWhileSaving(keras.callbacks.BackupAndRestore):
    """Leaves the third backup as a SIGKILL would do it."""

    def __init__(self, folder, moment, double_checkpoint=False):
        super().__init__(folder, double_checkpoint=double_checkpoint)
        self.moment = moment

    def _save_model(self):
        if self._current_epoch < 3:
            super()._save_model()
            return
        if self.moment == "in the weights":
            with open(self._weights_path, "wb"):
                raise InterruptedError
        self.model.save_weights(self._weights_path)
        if self.moment == "in the epoch":
            with open(self._training_metadata_path, "w", encoding="utf-8"):
                raise InterruptedError
        raise InterruptedError


@pytest.fixture(scope="module")
def undisturbed():
    """The weights and losses of a training that nothing interrupts."""
    weights, history = trained(*MAKERS["own"](), gradients="ternary-feedback")
    return weights, history["loss"]


def assert_resumes(killed, folder, undisturbed, epoch):
    """Trains until a backup is interrupted, and then on from the start of an epoch."""
    both = {"gradients": "ternary-feedback"}
    double = killed.double_checkpoint
    with pytest.raises(InterruptedError):
        trained(*MAKERS["own"](), killed, **both)
    again = keras.callbacks.BackupAndRestore(folder, double_checkpoint=double)
    part, rest = trained(*MAKERS["own"](), again, **both)
    whole, losses = undisturbed
    assert rest["loss"] == losses[epoch:]
    for found, expected in zip(part, whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    assert list(folder.parent.iterdir()) == [], "what an interrupted save left is deleted, too"


@pytest.mark.parametrize("moment", ["in the weights", "after the weights", "in the epoch"])
def test_law_8_killed_while_keras_writes_a_backup_fit_resumes_from_the_one_before(
    tmp_path, moment, undisturbed
):
    folder = tmp_path / "backup"
    assert_resumes(KilledWhileSaving(folder, moment), folder, undisturbed, epoch=2)


@pytest.mark.parametrize(
    ("double", "renames", "epoch"),
    [(False, 0, 2), (False, 1, 3), (False, 2, 3), (True, 1, 3), (True, 2, 3), (True, 4, 3)],
)
def test_law_8_killed_before_any_rename_fit_resumes_from_the_newest_whole_backup(
    tmp_path, monkeypatch, undisturbed, double, renames, epoch
):
    folder = tmp_path / "backup"
    killed = keras.callbacks.BackupAndRestore(folder, double_checkpoint=double)
    publish, left = backup.publish, [renames]

    def interrupted(temporary, path):
        if killed._current_epoch == 3:
            if left == [0]:
                left.clear()
                raise InterruptedError
            if left:
                left[0] -= 1
        publish(temporary, path)

    monkeypatch.setattr(backup, "publish", interrupted)
    assert_resumes(killed, folder, undisturbed, epoch)


def test_with_double_checkpoint_a_damaged_backup_resumes_from_the_one_before(tmp_path, undisturbed):
    folder = tmp_path / "backup"

    class Damaging(keras.callbacks.BackupAndRestore):
        def on_train_batch_begin(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 7:
                (folder / "latest.weights.h5").write_bytes(b"")
                raise InterruptedError

    assert_resumes(Damaging(folder, double_checkpoint=True), folder, undisturbed, epoch=2)


@pytest.mark.parametrize(
    ("damaged", "content", "why"),
    [
        ("latest.weights.h5", b"", "training_metadata.json cannot be read: .*signature not found"),
        ("training_metadata.json", b"", "training_metadata.json cannot be read: Expecting value"),
        ("training_metadata.json", None, "training_metadata.json is missing, so latest.weights.h5"),
        ("latest.weights.h5", None, "latest.weights.h5 is missing, so training_metadata.json"),
    ],
)
def test_a_damaged_backup_ends_in_one_line_with_the_remedy(tmp_path, damaged, content, why):
    model, group = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)]), Group()
    model.compile(terngrad.keras.distribute(keras.optimizers.SGD(), group), "mse")
    model.save_weights(tmp_path / "latest.weights.h5")
    (tmp_path / "training_metadata.json").write_text('{"epoch": 1, "batch": 0}')
    (tmp_path / damaged).unlink()
    if content is not None:
        (tmp_path / damaged).write_bytes(content)
    both = [keras.callbacks.BackupAndRestore(tmp_path), terngrad.keras.DistributedCallback(group)]
    with pytest.raises(ValueError, match=f"^BackupAndRestore: .*{why}.*, or delete") as found:
        model.fit(*DATA, callbacks=both, verbose=0)
    assert "\n" not in str(found.value)


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
