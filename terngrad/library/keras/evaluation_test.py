"""Evaluation and prediction of several workers give the results of one machine."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import terngrad.keras
from terngrad.cluster.errors import MembershipError
from terngrad.library.group import Group
from terngrad.testing.threads import on_all

ROWS = 37  # five batches of 8, of which the last one has 5 rows
DRAW = np.random.default_rng(1)
X = DRAW.normal(size=(ROWS, 3)).astype("float32")
Y = DRAW.integers(0, 2, (ROWS, 1)).astype("float32")
WEIGHTS = DRAW.random((ROWS, 1)).astype("float32")
SLICES = tf.data.Dataset.from_tensor_slices
M = keras.metrics


class Batches(keras.utils.PyDataset):
    """Batches of unequal sizes."""

    ENDS = (0, 3, 20, 21, 37)

    def __len__(self):
        return len(self.ENDS) - 1

    def __getitem__(self, i):
        rows = slice(*self.ENDS[i : i + 2])
        return X[rows], Y[rows]


DATA = {
    "arrays": lambda: (X, Y),
    "weighted": lambda: (X, Y, WEIGHTS),
    "few rows": lambda: (X[:5], Y[:5]),
    "batches": lambda: SLICES((X, Y)).batch(8),
    "batches, not counted": lambda: SLICES((X, Y)).batch(8).filter(lambda x, y: True),
    "few batches": lambda: SLICES((X, Y)).batch(30).filter(lambda x, y: True),
    "own batches": Batches,
}


def on_one(model, data):
    if isinstance(data, tuple):
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        return model.evaluate(x, y, 8, sample_weight=weight, verbose=0, return_dict=True)
    return model.evaluate(data, verbose=0, return_dict=True)


def metrics():
    """Returns metrics of all kinds: means, sums, and functions of several sums."""
    of_batch = lambda y, p: keras.ops.mean(keras.ops.abs(y - p))
    return [
        "accuracy",
        M.AUC(name="auc"),
        M.Precision(name="precision"),
        M.Recall(thresholds=[0.3, 0.6], name="recall"),
        M.FalsePositives(name="positives"),
        M.RootMeanSquaredError(name="rmse"),
        M.R2Score(name="r2"),
        M.F1Score(threshold=0.5, name="f1"),
        M.BinaryIoU(name="iou"),
        M.SensitivityAtSpecificity(0.5, name="sensitivity"),
        M.MeanMetricWrapper(of_batch, name="own"),
    ]


def compiled(model=None, given=None, **settings):
    keras.utils.set_random_seed(1)
    layers = [keras.Input((3,)), keras.layers.Dense(1, "sigmoid")]
    model = model or keras.Sequential(layers)
    given = metrics() if given is None else given
    model.compile("sgd", "binary_crossentropy", metrics=given or None, run_eagerly=True, **settings)
    return model


def evaluated(size, make, data, **settings):
    """Returns what the workers' evaluations return or raise."""
    models = [make() for _ in range(size)]
    return on_all(
        size,
        lambda group: terngrad.keras.evaluate(
            models[group.rank], data(), group, batch_size=8, return_dict=True, **settings
        ),
    )


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, err_msg=name)


@pytest.mark.parametrize("data", DATA)
def test_metrics_of_uneven_parts_are_those_of_one_machine(data):
    """Also where the last of three workers has no part."""
    given = metrics if data in ("arrays", "few rows") else (lambda: metrics()[:2])
    weighted = lambda: [M.AUC(name="weighted")] if data == "weighted" else None
    make = lambda: compiled(given=given(), weighted_metrics=weighted())
    expected = on_one(make(), DATA[data]())
    for each in evaluated(3, make, DATA[data]):
        assert not isinstance(each, Exception), each
        assert_equal(each, expected)


def test_several_outputs_have_their_losses_and_all_get_keras_list():
    def make():
        keras.utils.set_random_seed(1)
        x = keras.Input((3,))
        outputs = {"a": keras.layers.Dense(1, name="a")(x), "b": keras.layers.Dense(1, name="b")(x)}
        model = keras.Model(x, outputs)
        model.compile("sgd", {"a": "mse", "b": "mae"}, metrics={"a": ["mae"]}, run_eagerly=True)
        return model

    labels = {"a": Y, "b": -Y}
    expected = make().evaluate(X, labels, 8, verbose=0)
    models = [make() for _ in range(2)]
    for found in on_all(
        2,
        lambda group: terngrad.keras.evaluate(models[group.rank], (X, labels), group, batch_size=8),
    ):
        np.testing.assert_allclose(found, expected, rtol=2e-6)


class Largest(M.Metric):
    """A metric that is no sum."""

    def __init__(self, name="largest"):
        super().__init__(name=name)
        self.value = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Notes the largest prediction."""
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        """Returns it."""
        return self.value


class Counting(Largest):
    """A metric that is a sum, and says so."""

    sums_over_workers = True

    def update_state(self, y_true, y_pred, sample_weight=None):
        """Counts rows."""
        self.value.assign_add(keras.ops.cast(keras.ops.shape(y_pred)[0], "float32"))


class OwnStep(keras.Sequential):
    """Returns something that is no metric."""

    def test_step(self, data):
        """Returns a value of the batch."""
        return {"batch_loss": keras.ops.mean(data[1])}


def test_what_is_no_sum_is_refused_by_name():
    for found in evaluated(2, lambda: compiled(given=[Largest()]), DATA["arrays"]):
        assert isinstance(found, ValueError)
        assert "metric largest is a Largest, whose variables may be no sums" in str(found)
    step = lambda: compiled(OwnStep([keras.Input((3,)), keras.layers.Dense(1)]), given=[])
    for found in evaluated(2, step, DATA["arrays"]):
        assert "test_step returns batch_loss, of which there is no metric" in str(found)
    for found in evaluated(2, lambda: compiled(given=[Counting()]), DATA["arrays"]):
        assert found["largest"] == ROWS


def test_all_metrics_of_keras_begin_with_zeros():
    """What a worker without data adds to the sums is nothing."""
    iou = {"num_classes": 2, "target_class_ids": [0]}
    settings = {
        "BinaryIoU": {},
        "IoU": iou,
        "MeanIoU": {"num_classes": 2},
        "OneHotIoU": iou,
        "OneHotMeanIoU": {"num_classes": 2},
        "PrecisionAtRecall": {"recall": 0.5},
        "RecallAtPrecision": {"precision": 0.5},
        "SensitivityAtSpecificity": {"specificity": 0.5},
        "SpecificityAtSensitivity": {"sensitivity": 0.5},
    }
    kinds = {name: kind for name, kind in vars(M).items() if isinstance(kind, type)}
    for name, kind in kinds.items():
        if name not in ("Metric", "MeanMetricWrapper"):
            for variable in kind(**settings.get(name, {})).variables:
                assert not np.any(keras.ops.convert_to_numpy(variable)), name


def test_other_weights_and_other_amounts_are_named_and_other_data_are_reported():
    def evaluate(group, shift=0, rows=ROWS, order=1):
        model = models[group.rank]
        model.layers[0].bias.assign([float(shift * group.rank)])
        own = slice(None, None, order if group.rank else 1)
        data = (X[: rows - group.rank * (ROWS - rows)][own], Y[: rows - group.rank * (ROWS - rows)])
        return terngrad.keras.evaluate(model, data, group)

    models = [compiled(given=[]) for _ in range(2)]
    for found in on_all(2, lambda group: evaluate(group, shift=1)):
        assert isinstance(found, MembershipError)
        assert "checksum of the weights (after fit they are equal" in str(found)
    for found in on_all(2, lambda group: evaluate(group, rows=36)):
        assert "data (give all workers all of it) is 35 rows on worker 1" in str(found)
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    for found in on_all(2, lambda group: terngrad.keras.predict(unbuilt, X, group)):
        assert "predict: the model has no weights yet" in str(found)
    with pytest.warns(
        UserWarning, match="evaluate: the workers have other data, or the same"
    ) as of:
        on_all(2, lambda group: evaluate(group, order=-1))
    assert [each.filename for each in of if "the workers" in str(each.message)] == [__file__]


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("call", [terngrad.keras.evaluate, terngrad.keras.predict])
def test_a_shuffled_data_set_is_refused(call, seed):
    """Each worker would take its batches from an order of its own."""
    models = [compiled(given=[]) for _ in range(2)]
    shuffled = SLICES((X, Y)).shuffle(ROWS, seed=seed).batch(8).prefetch(1)
    for found in on_all(2, lambda group: call(models[group.rank], shuffled, group)):
        assert isinstance(found, ValueError)
        assert str(found) == f"{call.__name__}: the data set is shuffled; give it without shuffle"


@pytest.mark.parametrize("data", [name for name in DATA if name != "weighted"])
def test_all_workers_get_all_predictions_in_order(data):
    given = DATA[data]()
    inputs = given[0] if isinstance(given, tuple) else given
    expected = compiled(given=[]).predict(inputs, verbose=0)
    models = [compiled(given=[]) for _ in range(3)]
    found = on_all(
        3,
        lambda group: terngrad.keras.predict(models[group.rank], inputs, group, batch_size=8),
    )
    for each in found:
        assert not isinstance(each, Exception), each
        np.testing.assert_allclose(each, expected, rtol=1e-6)


def test_predictions_keep_their_structure_and_come_in_parts(monkeypatch):
    monkeypatch.setattr("terngrad.library.keras.evaluation._MAX_BYTES", 16)

    def make():
        x, z = keras.Input((3,)), keras.Input((3,))
        keras.utils.set_random_seed(1)
        both = keras.layers.Dense(2)(x + z)
        return keras.Model({"x": x, "z": z}, {"sum": both, "first": x})

    inputs = {"x": X, "z": -2 * X}
    expected = make().predict(inputs, verbose=0)
    models = [make() for _ in range(2)]
    for found in on_all(
        2, lambda group: terngrad.keras.predict(models[group.rank], inputs, group, batch_size=8)
    ):
        assert found.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_alone_they_are_kerass_own_and_data_without_rows_are_named():
    model = compiled()
    alone = terngrad.keras.evaluate(model, (X, Y), Group(), batch_size=8, return_dict=True)
    assert_equal(alone, on_one(model, (X, Y)))
    whole = model.predict(X, verbose=0)
    np.testing.assert_array_equal(terngrad.keras.predict(model, X, Group()), whole)
    batches = SLICES((X, Y)).batch(4)
    for data, why in [
        ((X[:0], Y[:0]), "0 rows"),
        (batches.take(0), "0 batches"),
        (batches.filter(lambda x, y: False), "0 batches"),
        (batches.repeat(), "need data that ends"),
    ]:
        for call in (terngrad.keras.evaluate, terngrad.keras.predict):
            with pytest.raises(ValueError, match=why):
                call(model, data, Group())


def test_what_is_no_data_for_them_is_named_with_what_is():
    for call in (terngrad.keras.evaluate, terngrad.keras.predict):
        for data, error, why in [
            (None, TypeError, "the data is None; allowed are arrays, tensors"),
            ((i for i in X), TypeError, "cannot deal out generator; allowed are arrays"),
            ([[1, 2], [3, 4]], TypeError, "cannot deal out a list of lists; allowed are arrays"),
            ((X, Y[:5]), ValueError, "arrays must have equally many rows; they have"),
        ]:
            for group in (Group(), Group(0, 2)):
                with pytest.raises(error, match=f"^{call.__name__}: {why}"):
                    call(compiled(), data, group)


@pytest.mark.parametrize("data", [X, (X,), SLICES(X).batch(8), {"x": X}])
def test_data_without_labels_are_reported_unless_the_loss_needs_none(data):
    with pytest.raises(ValueError, match=r"^evaluate: the data has no labels, which the"):
        terngrad.keras.evaluate(compiled(), data, Group())


class Autoencoder(keras.Sequential):
    """Has the inputs as labels."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        """Returns the error of the outputs."""
        return keras.ops.mean((x - y_pred) ** 2)


def test_a_model_that_needs_no_labels_may_have_none():
    penalty = keras.layers.ActivityRegularization(l2=1.0)
    for model, loss in [(keras.Sequential, None), (Autoencoder, "mse")]:
        model = model([keras.Input((3,)), penalty, keras.layers.Rescaling(2.0)])
        model.compile("sgd", loss, run_eagerly=True)
        assert terngrad.keras.evaluate(model, X, Group()) > 0
