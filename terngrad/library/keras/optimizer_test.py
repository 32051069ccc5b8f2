"""Distributed optimizers: conformance over all optimizers of Keras, without other processes."""

import contextlib
import math
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import terngrad.keras
from terngrad.library.group import Group
from terngrad.library.keras import optimizer as keras_optimizer
from terngrad.library.keras.optimizer import exchange_of
from terngrad.library.reducer import Reduced

ALONE = Group()
STEPS = 4


class HalvingReducer(keras_optimizer.Reducer):
    """Stands for two workers, of which the other one has gradients of zero."""

    def reduce(self, gradients, **options):
        """Returns the means."""
        means, *_ = super().reduce(gradients, **options)
        return Reduced([0.5 * g for g in means], [])


@pytest.fixture(autouse=True)
def _seeded():
    """Each test draws for itself, whichever ran before."""
    keras.utils.set_random_seed(1)


@pytest.fixture
def other_worker(monkeypatch):
    """A second worker, with gradients of zero."""
    monkeypatch.setattr(keras_optimizer, "Reducer", HalvingReducer)


def classes():
    """All optimizers of Keras that take part in training by themselves."""
    found = {v for v in vars(keras.optimizers).values() if isinstance(v, type)}
    optimizers = [v for v in found if issubclass(v, keras.optimizers.Optimizer)]
    wrappers = {keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer}
    return sorted({*optimizers} - {keras.optimizers.Optimizer} - wrappers, key=lambda c: c.__name__)


def variables():
    """Returns a matrix and a vector."""
    rows = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    return [keras.Variable(rows, name="kernel"), keras.Variable(rows[0], name="bias")]


def gradients(step):
    """Returns gradients of both, which differ by step."""
    draw = np.random.default_rng(step)
    return [tf.constant(draw.normal(size=s), tf.float32) for s in ((4, 3), (3,))]


def trained(optimizer, *, factor=1.0, steps=STEPS, graph=True):
    """Applies gradients times a factor; returns the values of all variables."""
    held = variables()
    optimizer.build(held)
    apply = lambda *grads: optimizer.apply(list(grads), held)
    call = tf.function(apply, autograph=False) if graph else apply
    for step in range(steps):
        call(*[factor * g for g in gradients(step)])
    return [v.numpy() for v in [*held, *optimizer.variables]]


def assert_equal(found, expected):
    for f, e in zip(found, expected, strict=True):
        np.testing.assert_array_equal(f, e)


def distributed(optimizer, **settings):
    return terngrad.keras.distribute(optimizer, ALONE, gradients="float32", **settings)


@pytest.mark.parametrize("optimizer_class", classes(), ids=lambda c: c.__name__)
def test_every_optimizer_applies_means_and_keeps_its_name_and_settings(
    optimizer_class, other_worker
):
    optimizer, plain = distributed(optimizer_class(name="own")), optimizer_class(name="own")
    assert isinstance(optimizer, optimizer_class)
    assert keras.optimizers.serialize(optimizer) == keras.optimizers.serialize(plain)
    assert_equal(trained(optimizer), trained(plain, factor=0.5))


_SETTINGS = [
    {"clipnorm": 0.3},
    {"global_clipnorm": 0.3},
    {"clipvalue": 0.1},
    {"weight_decay": 0.01},
    {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 2},
    {"loss_scale_factor": 4.0},
    {"gradient_accumulation_steps": 2, "clipnorm": 0.3},
    {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)},
]


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("settings", _SETTINGS, ids=lambda s: next(iter(s)))
def test_settings_of_an_optimizer_act_on_means(settings, graph, other_worker):
    optimizer = distributed(keras.optimizers.Adam(**settings))
    expected = trained(keras.optimizers.Adam(**settings), factor=0.5, graph=graph)
    assert_equal(trained(optimizer, graph=graph), expected)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.01}, {"clipnorm": 0.3}], ids=str)
def test_momentum_in_one_pass_has_the_bits_of_keras(settings, nesterov, graph, other_worker):
    settings = settings | {"learning_rate": 0.013, "momentum": 0.9, "nesterov": nesterov}
    optimizer = distributed(keras.optimizers.SGD(**settings))
    expected = trained(keras.optimizers.SGD(**settings), factor=0.5, graph=graph)
    assert_equal(trained(optimizer, graph=graph), expected)


def rising(shape):
    """Returns 1, 2, ... in a shape."""
    return tf.reshape(tf.range(1.0, 1.0 + math.prod(shape)), shape)


def trained_in_graph(optimizer, held, *, calls=1):
    """Applies gradients in a graph, of which the first variable has none.

    Returns all values, and how often the graph was traced.
    """
    optimizer.build(held)
    traces = []

    @tf.function(autograph=False)
    def apply(draw):
        traces.append(1)
        for call in range(calls):
            given = [tf.cast(draw * rising(v.shape) * (call + 1), v.dtype) for v in held]
            optimizer.apply([None, *given[1:]], held)

    for step in range(STEPS):
        apply(tf.constant(0.1 * (step + 1)))
    return [v.numpy() for v in [*held, *optimizer.variables]], len(traces)


_FUSED = [
    (keras.optimizers.SGD, {"learning_rate": 0.013, "momentum": 0.9}),
    (keras.optimizers.SGD, {"learning_rate": 0.013, "momentum": 0.9, "nesterov": True}),
    (keras.optimizers.Adam, {"learning_rate": 0.013}),
    (keras.optimizers.Adam, {"learning_rate": 0.013, "beta_1": 0.7, "epsilon": 0.1}),
    (keras.optimizers.AdamW, {"learning_rate": keras.optimizers.schedules.CosineDecay(0.1, 9)}),
]
_FUSED_NAMES = ["momentum", "nesterov", "adam", "adam of other settings", "adamw"]
_WAYS = [  # settings, how codes travel, and how often an update is fused
    ({}, {}, 1),
    ({"weight_decay": 0.01}, {}, 1),
    ({"use_ema": True, "ema_momentum": 0.9}, {}, 1),
    ({"gradient_accumulation_steps": 2}, {}, 1),
    ({}, {"bucket_elements": 4}, 3),
    ({}, {"size_to_binarize": 5}, 1),  # the vector stays float
    ({}, {"scale_by": "channel"}, 1),
    ({}, {"gradients": "7-level", "size_to_binarize": 5}, 1),
    ({}, {"sum_codec": "ternary"}, 1),
    ({"clipnorm": 0.3}, {}, 0),
    ({"loss_scale_factor": 4.0}, {}, 0),
]


def fused_cases():
    """Each optimizer in the usual way, each other way with one of them, and all exhaustively."""
    for i, optimizer in enumerate(_FUSED):
        for j, way in enumerate(_WAYS):
            marks = [pytest.mark.slow] if j else []
            if j and j % len(_FUSED) != i:
                marks.append(pytest.mark.exhaustive)
            yield pytest.param(*optimizer, *way, marks=marks, id=f"{_FUSED_NAMES[i]}-{way}")


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(("optimizer_class", "own", "settings", "how", "fused"), [*fused_cases()])
def test_fused_updates_give_the_bits_of_decoded_means(
    optimizer_class, own, settings, how, fused, monkeypatch
):
    how = {"gradients": "ternary"} | how
    make = lambda: terngrad.keras.distribute(optimizer_class(**own, **settings), ALONE, **how)
    unused, channels = np.ones(2, "float32"), np.ones((16, 3), "float32")
    held = lambda: [keras.Variable(unused), *variables(), keras.Variable(channels)]
    for calls in (1, 2):
        with counted_updates(monkeypatch) as updates:
            found, traces = trained_in_graph(make(), held(), calls=calls)
        assert len(updates) == traces * calls * fused
        with monkeypatch.context() as patched:
            patched.setattr("terngrad.library.keras.updates.is_fused", lambda optimizer: False)
            assert_equal(found, trained_in_graph(make(), held(), calls=calls)[0])


@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(
    "settings",
    [{"amsgrad": True}, {"beta_1": tf.constant(0.9)}, {"epsilon": np.float64(1e-7)}],
    ids=lambda s: next(iter(s)),
)
def test_adam_of_another_form_is_not_fused(settings, monkeypatch):
    optimizer = keras.optimizers.Adam(**settings)
    optimizer = terngrad.keras.distribute(optimizer, ALONE, gradients="ternary")
    with counted_updates(monkeypatch) as updates:
        found, _ = trained_in_graph(optimizer, variables())
    assert not updates
    assert not np.array_equal(found[1], variables()[1])


def test_the_share_of_a_memory_that_counts_in_the_next_step_is_the_reducers():
    def changes(share):
        how = {"gradients": "ternary-feedback", "memory_decay": share}
        optimizer = terngrad.keras.distribute(keras.optimizers.SGD(1.0), ALONE, **how)
        weights = [keras.Variable(np.zeros((4, 3), "float32"))]
        for _ in range(2):
            optimizer.apply(gradients(0)[:1], weights)
            yield weights[0].numpy()

    forgotten, again = changes(0.0)
    np.testing.assert_array_equal(again, 2 * forgotten)
    first, second = changes(1.0)
    np.testing.assert_array_equal(first, forgotten)
    assert not np.array_equal(second, again)


@pytest.mark.parametrize(
    ("now", "text"),
    [
        ("ternary", "an earlier memory is dropped: .* also holds memory/"),
        ("ternary-feedback", r"a codec's memory starts from zero: .* has shape \(4, 3\)"),
    ],
)
def test_a_memory_that_cannot_be_restored_starts_from_zero_or_is_dropped(tmp_path, now, text):
    def step(codec, *shape):
        optimizer = terngrad.keras.distribute(keras.optimizers.SGD(), ALONE, gradients=codec)
        weights = [keras.Variable(np.zeros(shape, "float32"))]
        optimizer.apply([tf.reshape(tf.range(float(np.prod(shape))), shape)], weights)
        exchange = exchange_of(optimizer)
        exchange.memory_folder = str(tmp_path)
        return exchange, optimizer

    def held(exchange):
        (reducer,) = exchange.reducers.values()
        return [variable.numpy().any() for variable in reducer.memory.variables.values()]

    exchange, optimizer = step("ternary-feedback", 4, 3)
    exchange.save_memories(optimizer)
    exchange, optimizer = step(now, 5, 3)
    memories = held(exchange)
    assert any(memories) == (now == "ternary-feedback")
    with pytest.warns(UserWarning, match=f"^{text}"):
        exchange.restore_memories(optimizer)
    assert held(exchange) == [False] * len(memories)


@contextlib.contextmanager
def counted_updates(monkeypatch):
    """Notes each fused update of a graph."""
    from terngrad.ops.native import NativeKernels

    updates, update = [], NativeKernels.apply_update
    with monkeypatch.context() as patched:
        patched.setattr(
            NativeKernels,
            "apply_update",
            lambda *arguments: updates.append(1) or update(*arguments),
        )
        yield updates


@pytest.mark.usefixtures("native_library")
def test_gradients_of_another_type_and_variables_that_occur_twice_are_not_fused(monkeypatch):
    half = keras.Variable(np.ones((4, 3), "float16"), name="half")
    twice = keras.Variable(np.ones(3, "float32"), name="twice")
    optimizer = keras.optimizers.SGD(0.5, momentum=0.5)
    optimizer = terngrad.keras.distribute(optimizer, ALONE, gradients="ternary")
    optimizer.build([half, twice])

    @tf.function(autograph=False)
    def apply():
        optimizer.apply([tf.ones((4, 3), tf.float16)], [half])
        optimizer.apply([tf.ones(3), tf.ones(3)], [twice, twice])

    with counted_updates(monkeypatch) as updates:
        apply()
    assert not updates
    np.testing.assert_array_equal(half, np.full((4, 3), 0.5))
    np.testing.assert_array_equal(twice, np.full(3, 1 - 0.5 - (0.5 * 0.5 + 0.5)))


def test_momentum_in_one_pass_is_for_float32_and_for_the_class_of_keras_itself():
    class Still(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            pass

    kernel, *_ = trained(distributed(Still(momentum=0.9)))
    assert_equal([kernel], [variables()[0].numpy()])
    half = keras.Variable(np.ones(3), dtype="float16")
    distributed(keras.optimizers.SGD(0.5, momentum=0.9)).apply([tf.ones(3, tf.float16)], [half])
    assert half.numpy().tolist() == [0.5] * 3


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "eager"])
def test_accumulated_gradients_are_exchanged_only_when_an_update_is_due(graph):
    settings = {"gradient_accumulation_steps": 3}
    optimizer = distributed(keras.optimizers.SGD(**settings))
    trained(optimizer, steps=7, graph=graph)
    (reducer,) = exchange_of(optimizer).reducers.values()
    assert int(reducer.state.step) == 2


def test_an_accumulation_of_ones_own_is_refused():
    class Own(keras.optimizers.SGD):
        def _backend_apply_gradients(self, grads, trainable_variables):
            pass

        def apply(self, grads, trainable_variables=None):
            pass

    with pytest.raises(TypeError, match="Own accumulates gradients in a way of its own"):
        trained(distributed(Own(gradient_accumulation_steps=2)))


def test_a_loss_scale_skips_a_step_where_any_worker_has_no_finite_gradients(monkeypatch):
    class Overflowing(keras_optimizer.Reducer):
        def reduce(self, gradients, **options):
            means, *_ = super().reduce(gradients, **options)
            return Reduced([np.inf * g for g in means], [])

    monkeypatch.setattr(keras_optimizer, "Reducer", Overflowing)
    inner = keras.optimizers.SGD(0.1)
    optimizer = distributed(keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0))
    kernel, bias, *_ = trained(optimizer, steps=1)
    assert_equal([kernel, bias], [v.numpy() for v in variables()])
    assert float(optimizer.dynamic_scale) == 4.0


def test_a_loss_scale_and_several_optimizers_act_on_means(other_worker):
    def made():
        adam, sgd = keras.optimizers.Adam(), keras.optimizers.SGD(use_ema=True)
        chosen = keras.optimizers.OptimizerMap(adam, {"bias": sgd})
        return keras.optimizers.LossScaleOptimizer(keras.optimizers.MultiOptimizer(chosen))

    assert_equal(trained(distributed(made())), trained(made(), factor=0.5))


def test_within_another_optimizer_it_is_refused_where_workers_could_differ():
    optimizer = terngrad.keras.distribute(keras.optimizers.SGD(), Group(0, 2))
    with pytest.raises(ValueError, match="distribute the outermost one"):
        trained(keras.optimizers.LossScaleOptimizer(optimizer), graph=False)


def test_what_cannot_be_distributed_is_named():
    with pytest.raises(TypeError, match="the optimizer is 'adam'; allowed are objects of"):
        terngrad.keras.distribute("adam", ALONE)
    with pytest.raises(TypeError, match=r"gradients is \['ternary'\]; allowed are"):
        terngrad.keras.distribute(keras.optimizers.Adafactor(0.1), ALONE, gradients=["ternary"])
    optimizer = distributed(keras.optimizers.Adam(name="mine"))
    with pytest.raises(ValueError, match="the optimizer mine is distributed already"):
        distributed(optimizer)


def test_xla_is_refused_without_the_callback_and_turned_off_by_it():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    data = np.ones((4, 3)), np.ones((4, 2))
    held = variables()
    optimizer = distributed(keras.optimizers.SGD())
    compiled = tf.function(lambda *g: optimizer.apply(list(g), held), jit_compile=True)
    with pytest.raises(ValueError, match="jit_compile=True: XLA cannot compile the exchange"):
        compiled(*gradients(0))
    model.compile(distributed(keras.optimizers.SGD()), "mse")
    model._jit_compile = True  # whose setter refuses it where operations are deterministic
    with pytest.warns(UserWarning, match="jit_compile is off: XLA cannot compile the exchange"):
        model.fit(*data, verbose=0, callbacks=[terngrad.keras.DistributedCallback(ALONE)])
    assert not model.jit_compile


def test_sparse_and_missing_gradients_and_values_that_are_copied(other_worker):
    kernel, bias, scale = *variables(), keras.Variable(1.0, name="scale")
    scale.overwrite_with_gradient = True
    frozen = keras.Variable(1.0, name="frozen")
    optimizer = distributed(keras.optimizers.SGD(1.0))
    sparse = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([1, 1]), tf.constant([4, 3]))
    before = kernel.numpy()
    with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
        optimizer.apply([sparse, tf.ones(3), tf.constant(7.0), None], [kernel, bias, scale, frozen])
    assert (before - kernel.numpy()).tolist() == [[0] * 3, [1] * 3, [0] * 3, [0] * 3]
    assert float(scale) == 7.0
    assert float(frozen) == 1.0
    # One optimizer may serve several sets of variables, as in adversarial training.
    optimizer.apply([tf.ones(3)], [bias])
    assert len(exchange_of(optimizer).reducers) == 2


def test_float_layers_may_be_in_another_part_of_the_variables():
    dense = [keras.layers.Dense(4, name=name) for name in ("first", "second")]
    for layer in dense:
        layer.build((None, 4))
    first, second = (layer.trainable_variables for layer in dense)
    make = lambda names: terngrad.keras.distribute(
        keras.optimizers.SGD(), ALONE, gradients="ternary", float_layers=names
    )
    optimizer = make([second[0].path.rpartition("/")[0]])
    optimizer.build([*first, *second])
    for part in (second, first):
        optimizer.apply([tf.ones_like(v) for v in part], part)
    reducers = exchange_of(optimizer).reducers.values()
    assert [sorted(reducer.layout.coded) for reducer in reducers] == [[], [0, 1]]
    optimizer = make(["third"])
    optimizer.build([*first, *second])
    with pytest.raises(ValueError, match="no variable is in layer 'third'"):
        optimizer.apply([tf.ones_like(v) for v in first], first)


def test_a_saved_model_is_loaded_with_the_optimizer_alone(tmp_path):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(distributed(keras.optimizers.AdamW(0.02, clipnorm=1.0)), "mse")
    model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)
    model.save(tmp_path / "a.keras")
    loaded = keras.models.load_model(tmp_path / "a.keras").optimizer
    assert type(loaded) is keras.optimizers.AdamW
    assert loaded.get_config() == model.optimizer.get_config()
    assert_equal(
        [v.numpy() for v in loaded.variables], [v.numpy() for v in model.optimizer.variables]
    )


def test_an_adafactor_whose_products_vanish_is_reported():
    faint, usual = keras.optimizers.Adafactor(0.1), keras.optimizers.Adafactor(0.1, epsilon_1=1e-12)
    for optimizer in (faint, keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor(0.1))):
        with pytest.warns(
            UserWarning, match="Adafactor with an epsilon_1 below 1e-16 makes weights"
        ):
            terngrad.keras.distribute(optimizer, ALONE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        terngrad.keras.distribute(usual, ALONE)
    gradient = tf.constant([[1.0, 0.0], [0.0, 0.0]])
    for optimizer, is_sound in ((faint, False), (usual, True)):
        weights = keras.Variable(tf.ones([2, 2]))
        optimizer.from_config(optimizer.get_config()).apply([gradient], [weights])
        assert np.isfinite(weights.numpy()).all() == is_sound, "Keras' own arithmetic"


def test_the_codes_step_never_goes_back_though_updates_were_skipped():
    optimizer = distributed(keras.optimizers.SGD(1.0))
    trained(optimizer, steps=3)
    (reducer,) = exchange_of(optimizer).reducers.values()
    reducer.state.step.assign(3)
    for updates, step in ((2, 3), (5, 5)):  # as after a skipped one, and after a backup
        optimizer.iterations.assign(updates)
        exchange_of(optimizer).align(optimizer)
        assert int(reducer.state.step) == step
