"""Laws of the training step: nodes, devices, determinism."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from terngrad.codecs.factory import make_codecs
from terngrad.draws import DrawKey
from terngrad.exchange.local import LocalExchange
from terngrad.layout import Policy, make_layout
from terngrad.ops.reference import ReferenceKernels
from terngrad.testing.nets import BATCH, CLASSES, SIDE, make_batches, make_model
from terngrad.testing.selection import sample
from terngrad.training import schedules
from terngrad.training.averages import MovingAverages
from terngrad.training.classifier import Classifier
from terngrad.training.memory import Memory
from terngrad.training.nodes import dropout_seed
from terngrad.training.optimizers import make_optimizer
from terngrad.training.reduction import Reduction
from terngrad.training.runner import Runner
from terngrad.training.runtime import choose_kernels
from terngrad.training.step import TrainStep

TERNARY = Policy(grad_bits=1, clip_factor=2.5)
MIXED = Policy(grad_bits=1, float_layers=("logits",))
FEEDBACK = Policy(codec="5-level-feedback")
CHANNEL = Policy(grad_bits=1, clip_factor=2.5, scale_by="channel")
POLICIES = {
    "ternary": TERNARY,
    "channel": CHANNEL,
    "mixed": MIXED,
    "feedback": FEEDBACK,
    "float": Policy(),
}
REFERENCE = ReferenceKernels()
DEVICES = ("/CPU:0", "/CPU:1")


class Training:
    """A classifier and its runner."""

    def __init__(
        self,
        policy,
        nodes,
        devices=("/CPU:0",),
        model=None,
        seed=3,
        kernels=None,
        optimizer="momentum",
    ):
        """Takes the fastest kernels, unless the test says otherwise."""
        kernels = kernels or choose_kernels().kernels
        self.classifier = Classifier(model or make_model())
        names, variables = self.classifier.names, self.classifier.variables
        codecs = make_codecs(make_layout(names, [v.shape for v in variables], policy), kernels)
        self.exchange = LocalExchange(nodes, kernels)
        self.memory = Memory(codecs, 0, nodes)
        step = tf.Variable(0, dtype=tf.int64)
        self.reduction = Reduction(codecs, self.exchange, step, seed, devices, self.memory)
        self.step = TrainStep(
            self.classifier,
            self.reduction,
            make_optimizer(optimizer, variables, 0.9, kernels),
            schedules.fixed(0.05),
            MovingAverages(variables, 0.99),
            save_request=tf.Variable(0.0, trainable=False),
        )
        self.runner = Runner(self.step, codecs)

    def run(self, steps, batches=None):
        return self.runner.many(iter(batches or make_batches()), steps)

    def parameters(self):
        return [v.numpy() for v in self.classifier.variables]


def parameters_after(steps, *args, **kwargs):
    training = Training(*args, **kwargs)
    training.run(steps)
    return training.parameters()


def mean_gradients(training):
    images, labels = next(iter(make_batches()))
    return tf.function(training.step, autograph=False)(images, labels).aggregate.means


def assert_same_bits(left, right):
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.mark.parametrize("nodes", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_law_6_float_gradients_of_n_nodes_equal_those_of_the_whole_batch(nodes):
    one, many = (mean_gradients(Training(Policy(), n)) for n in (1, nodes))
    for whole, split in zip(one, many, strict=True):
        np.testing.assert_allclose(split, whole, rtol=1e-6, atol=1e-6 * np.abs(whole).max())


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy", [Policy(), TERNARY, FEEDBACK], ids=["float", "ternary", "feedback"]
)
def test_law_4_devices_do_not_matter(policy):
    trainings = [Training(policy, 4, devices) for devices in (DEVICES[:1], DEVICES)]
    for training in trainings:
        step = tf.function(training.step, autograph=False)
        for images, labels in make_batches().take(5):
            step(images, labels)
    assert_same_bits(*(training.parameters() for training in trainings))


@pytest.mark.slow
def test_devices_do_not_matter_beyond_the_last_bits_where_onednn_chooses_kernels():
    # Within a loop oneDNN takes another kernel for bias gradients on a second logical CPU.
    one, two = (parameters_after(1, Policy(), 4, devices) for devices in (DEVICES[:1], DEVICES))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def operations(training):
    """The operations of a step, those of loops included: kind, and device."""
    compiled = tf.function(training.step, autograph=False)
    graph = compiled.get_concrete_function(*next(iter(make_batches()))).graph.as_graph_def()
    bodies = [function.node_def for function in graph.library.function]
    return [(node.op, node.device[-5:]) for nodes in (graph.node, *bodies) for node in nodes]


@pytest.mark.slow
def test_nodes_are_spread_over_the_devices():
    found = operations(Training(TERNARY, 4, devices=DEVICES, kernels=REFERENCE))
    # The nodes of a device share one graph.
    assert sorted(device for kind, device in found if kind == "Conv2D") == ["CPU:0", "CPU:1"]
    drawn = {device for kind, device in found if kind.startswith("StatelessRandomUniformFull")}
    assert drawn - {""} == {"CPU:0", "CPU:1"}  # "": the seeds of dropout


def test_a_graph_of_many_nodes_holds_the_net_once():
    one, many = (operations(Training(TERNARY, nodes)) for nodes in (1, 8))
    for kind in ("Conv2D", "Conv2DBackpropFilter"):
        alone, together = (sum(kind == each for each, _ in found) for found in (one, many))
        assert alone == together > 0


@pytest.mark.slow
def test_law_2_equal_seeds_give_equal_parameters_and_others_do_not():
    first, again = (parameters_after(5, TERNARY, 2, seed=3) for _ in range(2))
    assert_same_bits(first, again)
    other = parameters_after(5, TERNARY, 2, seed=4)
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_updates_in_the_only_process_wait_for_all_gradients(monkeypatch):
    training, gradients = Training(TERNARY, 2, kernels=REFERENCE), []
    awaited = training.exchange.awaited
    monkeypatch.setattr(
        training.exchange, "awaited", lambda found: gradients.extend(awaited(found)) or gradients
    )
    batch = next(iter(make_batches()))
    graph = tf.function(training.step, autograph=False).get_concrete_function(*batch).graph
    updates = [op for op in graph.get_operations() if op.type == "ResourceApplyMomentum"]
    assert len(updates) == len(training.classifier.variables) == len(gradients) / 2
    for update in updates:
        assert {gradient.op for gradient in gradients} <= precede(update)


@pytest.mark.slow
@pytest.mark.usefixtures("native_library")
@pytest.mark.parametrize(
    "made",
    sample(
        itertools.product(["momentum", "adam", "rmsprop"], POLICIES, [1, 4]),
        in_ci=[  # each once
            ("momentum", "ternary", 4),
            ("adam", "mixed", 1),
            ("rmsprop", "feedback", 4),
            ("adam", "channel", 4),
            ("momentum", "float", 1),
        ],
    ),
    ids=str,
)
def test_updates_with_sums_give_the_bits_of_updates_with_means(made, monkeypatch):
    from terngrad.ops.native import NativeKernels

    optimizer, policy, nodes = made
    policy = POLICIES[policy]

    found = {}
    for takes_sums in (True, False):
        training = Training(policy, nodes, kernels=NativeKernels(), optimizer=optimizer)
        assert training.step._optimizer.takes_sums
        monkeypatch.setattr(training.step._optimizer, "takes_sums", takes_sums)
        training.run(5)
        kept = [*training.step._optimizer.slots.values(), training.step._averages.shadows]
        found[takes_sums] = training.parameters() + [v.numpy() for each in kept for v in each]
    assert_same_bits(found[True], found[False])


def precede(operation):
    """The operations that run before one."""
    found, left = set(), [operation]
    while left:
        last = left.pop()
        before = {*(value.op for value in last.inputs), *last.control_inputs} - found
        found |= before
        left += before
    return found


@pytest.mark.slow
def test_packing_gives_the_same_parameters_bit_for_bit():
    plain = Policy(codec="terngrad.codecs.examples:UnpackedTernaryCodec", clip_factor=2.5)
    assert_same_bits(parameters_after(8, TERNARY, 4), parameters_after(8, plain, 4))


@pytest.mark.slow
def test_law_9_gradients_of_a_step_that_was_made_without_a_process_are_kept_whole(monkeypatch):
    training = Training(FEEDBACK, 2)
    training.run(3)
    before = [v.numpy() for v in training.memory.variables.values()]
    images, labels = next(iter(make_batches()))
    monkeypatch.setattr(training.exchange, "took_part", lambda: tf.constant(False))
    result = tf.function(training.step, autograph=False)(images, labels)
    after = [v.numpy() for v in training.memory.variables.values()]
    assert_same_bits(after, [v.numpy() for v in tf.nest.flatten(result.aggregate.unsent)])
    variable = int(next(iter(training.memory.variables)).rpartition("/")[2])
    given = result.gradients[variable].numpy()  # of node 0, whose memory comes first
    assert np.any(given) and np.any(before[0])
    np.testing.assert_array_equal(after[0], before[0] + given)


@pytest.mark.slow
def test_a_request_to_save_ends_a_call_after_the_step_that_tells_all():
    training = Training(TERNARY, 2)
    training.runner.request_save()
    outcome = training.run(8)
    assert (int(outcome.done), bool(outcome.save)) == (1, True)
    outcome = training.run(8)
    assert (int(outcome.done), bool(outcome.save)) == (8, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "kernels"), [(DEVICES[:1], None), (DEVICES, REFERENCE)], ids=["1", "2"]
)
def test_law_8_steps_in_one_call_equal_steps_one_by_one_and_observed(devices, kernels):
    whole = parameters_after(6, TERNARY, 2, devices, kernels=kernels)
    single = Training(TERNARY, 2, devices, kernels=kernels)
    batches = iter(make_batches())
    for i in range(6):
        if i % 2:
            single.runner.one(batches)
        else:
            single.runner.many(batches, 1)
    assert_same_bits(whole, single.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Policy(), Policy(grad_bits=16), TERNARY])
def test_training_learns_a_fixed_batch(policy):
    batch = make_batches().take(1).repeat()
    training = Training(policy, 2)
    before = float(training.run(1, batch).losses.entropy)
    assert float(training.run(100, batch).losses.entropy) < 0.5 * before


def test_weight_decay_is_part_of_the_gradient():
    plain, decayed = (Training(Policy(), 2, model=make_model(penalty=p)) for p in (0.0, 0.01))
    kernel = plain.classifier.names.index("logits/kernel")
    weights = plain.classifier.variables[kernel].numpy()
    observation = decayed.runner.one(iter(make_batches()))
    expected = plain.runner.one(iter(make_batches())).gradients[kernel] + 0.02 * weights
    np.testing.assert_allclose(observation.gradients[kernel], expected, rtol=1e-4, atol=1e-7)
    penalty = observation.outcome.losses.regularization
    np.testing.assert_allclose(penalty, 0.01 * np.sum(weights**2), rtol=1e-5)


@pytest.mark.slow
def test_a_run_stops_after_the_step_whose_loss_is_not_finite():
    images = tf.concat(
        [tf.ones([3, BATCH, SIDE, SIDE, 1]), tf.fill([5, BATCH, SIDE, SIDE, 1], np.nan)], 0
    )
    labels = tf.zeros([8, BATCH], tf.int32)
    batches = tf.data.Dataset.from_tensor_slices((images, labels))
    assert int(Training(TERNARY, 2).run(8, batches).done) == 4


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("policy", [Policy(), MIXED], ids=["float", "mixed"])
def test_law_10_a_run_stops_after_a_float_gradient_that_is_not_finite(policy, value, monkeypatch):
    training = Training(policy, 2)
    reduction, bias = training.reduction, training.classifier.names.index("logits/bias")
    reduce = reduction.reduce

    def reduce_broken(gradients, *args, **kwargs):
        wrong = tf.where(reduction.step < 2, 0.0, value)
        first = [g + wrong if i == bias else g for i, g in enumerate(gradients[0])]
        return reduce([first, *gradients[1:]], *args, **kwargs)

    monkeypatch.setattr(reduction, "reduce", reduce_broken)
    outcome = training.run(3)
    is_finite = np.isfinite(value)  # the sum of such values is infinite: each is looked at
    assert int(outcome.done) == 3 and np.isfinite(outcome.losses).all()
    assert [i for i, broken in enumerate(outcome.broken) if broken] == [bias] * (not is_finite)
    assert int(training.run(2).done) == 1 + is_finite


@pytest.mark.slow
def test_moving_statistics_are_averaged_over_the_nodes():
    training = Training(Policy(), 4, model=make_model(batch_norm=True))
    images, _ = next(iter(make_batches()))
    expected = []
    for part in tf.split(images, 4):
        features = training.classifier.model.get_layer("conv")(part)
        expected.append(0.5 * np.mean(features.numpy().astype(np.float64), axis=(0, 1, 2)))
    training.run(1)
    means = [v for k, v in training.classifier.state.items() if k.endswith("moving_mean")]
    np.testing.assert_allclose(means[0], np.mean(expected, 0), rtol=1e-4, atol=1e-7)


def test_only_the_variables_in_scope_are_trained():
    classifier = Classifier(make_model(), trainable_scopes=["logits"])
    assert classifier.names == ["logits/kernel", "logits/bias"]
    assert sorted(classifier.frozen) == ["conv/bias", "conv/kernel"]
    with pytest.raises(ValueError, match="begins with 'fc9'; layers are conv, logits"):
        Classifier(make_model(), trainable_scopes=["fc9"])


def test_label_smoothing_spreads_a_share_over_all_classes():
    images, labels = next(iter(make_batches()))
    seed = tf.zeros([2], tf.int32)
    classifier = Classifier(make_model(), label_smoothing=0.1)
    log_probabilities = tf.nn.log_softmax(classifier.logits(images)).numpy()
    targets = 0.9 * np.eye(CLASSES)[labels.numpy()] + 0.1 / CLASSES
    expected = -np.mean(np.sum(targets * log_probabilities, axis=1))
    np.testing.assert_allclose(
        classifier.gradients(images, labels, seed)[1].entropy, expected, 1e-5
    )


def test_auxiliary_heads_add_their_weighted_cross_entropy_in_training_only():
    images, labels = next(iter(make_batches()))
    seed = tf.zeros([2], tf.int32)
    model = make_model(auxiliary=True)
    classifier = Classifier(model, auxiliary_weights=[0.4])
    main, auxiliary = model(images)
    gradients, losses, _ = classifier.gradients(images, labels, seed)
    heads = [
        np.mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        for logits in (main, auxiliary)
    ]
    np.testing.assert_allclose(losses.entropy, heads[0] + 0.4 * heads[1], rtol=1e-5)
    np.testing.assert_array_equal(classifier.logits(images), main)
    twice = Classifier(model, auxiliary_weights=[0.8]).gradients(images, labels, seed)[0]
    for name, once, double in zip(classifier.names, gradients, twice, strict=True):
        if name.startswith("auxiliary"):
            np.testing.assert_allclose(double, 2 * once, rtol=1e-5)
        if name.startswith("logits"):
            np.testing.assert_array_equal(double, once)


def test_label_smoothing_holds_for_auxiliary_heads_too():
    images, labels = next(iter(make_batches()))
    model = make_model(auxiliary=True)
    classifier = Classifier(model, label_smoothing=0.1, auxiliary_weights=[0.4])
    losses = classifier.gradients(images, labels, tf.zeros([2], tf.int32))[1]
    targets = 0.9 * np.eye(CLASSES)[labels.numpy()] + 0.1 / CLASSES
    main, auxiliary = (
        -np.mean(np.sum(targets * tf.nn.log_softmax(logits).numpy(), axis=1))
        for logits in model(images)
    )
    np.testing.assert_allclose(losses.entropy, main + 0.4 * auxiliary, rtol=1e-5)


def test_a_model_with_other_outputs_than_heads_is_refused():
    with pytest.raises(ValueError, match="has 2 outputs; allowed with 0 auxiliary weights are 1"):
        Classifier(make_model(auxiliary=True))


def test_a_classifier_names_its_variables_by_a_given_function():
    name_of = lambda variable: variable.path.replace(".", "/")
    classifier = Classifier(
        make_model(batch_norm=True, auxiliary=True),
        trainable_scopes=["auxiliary/"],
        auxiliary_weights=[1.0],
        name_of=name_of,
    )
    assert classifier.names == ["auxiliary/logits/kernel", "auxiliary/logits/bias"]
    assert "norm/gamma" in classifier.frozen
    assert "norm/moving_mean" in classifier.state


def test_dropout_draws_from_all_64_bits_of_the_seed_from_step_and_from_node():
    keys = [
        (1, 5, 0),
        (1 + (1 << 32), 5, 0),
        (1 + (1 << 62), 5, 0),
        (2, 5, 0),
        (1, 6, 0),
        (1, 5, 1),
    ]
    seeds = {
        tuple(dropout_seed(DrawKey(tf.constant(seed, tf.uint64), tf.constant(step), node)).numpy())
        for seed, step, node in keys
    }
    assert len(seeds) == len(keys)
