"""What evaluation prints and writes, and which checkpoints it takes."""

import glob
import json
import os
import re
import resource
import sys
import time
import types

import numpy as np
import pytest
import tensorflow as tf

from inception import programs
from inception.flags import configs
from inception.training import evaluate
from inception.training.problem import problem_of
from slim.nets import nets_factory
from slim.testing import write_mnist_records
from terngrad.testing import forked
from terngrad.training import checkpoints

LABELS = np.array([3] * 12 + [5] * 6 + [9] * 32)
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: "


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A folder with a test split of 50 images, of which 12 are labelled 3 and 6 are labelled 5."""
    folder = tmp_path_factory.mktemp("data")
    images = np.random.default_rng(1).integers(0, 256, (50, 28, 28, 1), np.uint8)
    write_mnist_records(folder, "test", images, LABELS)
    return str(folder)


@pytest.fixture
def train_dir(tmp_path):
    """An empty folder."""
    return str(tmp_path / "train")


def save(train_dir: str, step: int, net: str = "mlp", keep: int = 5, settings: str = "") -> str:
    """Saves a net whose weights always say 3, and whose averages always say 5."""
    model = nets_factory.build_net(net, num_classes=10)
    state = {"step": tf.Variable(step, dtype=tf.int64)}
    for group, label in (("variables", 3), ("averages", 5)):
        for variable in model.variables:
            value = np.zeros(variable.shape, np.float32)
            if variable.path == "logits/bias":
                value[label] = 1
            state[f"{group}/{variable.path}"] = tf.Variable(value)
    return checkpoints.save(train_dir, state, step, keep=keep, settings=settings)


def mnist_arguments(data_dir: str, train_dir: str, *more: str) -> list[str]:
    """Arguments of mnist_eval."""
    return [
        f"--data_dir={data_dir}",
        f"--checkpoint_dir={train_dir}",
        f"--eval_dir={train_dir}_eval",
        "--net=mlp",
        *more,
    ]


def run_mnist_eval(*arguments: str) -> None:
    """Calls the program in this process."""
    programs.evaluate("mnist", "", ["mnist_eval", *arguments])


def scalars(folder: str) -> dict[str, tuple[int, float]]:
    """The (step, value) of each scalar in a folder's event file."""
    (file,) = glob.glob(os.path.join(folder, "events.*"))
    found = {}
    for event in tf.compat.v1.train.summary_iterator(file):
        for value in event.summary.value:
            found[value.tag] = (event.step, float(tf.make_ndarray(value.tensor)))
    return found


@pytest.mark.slow
def test_the_program_prints_the_lines_that_tools_read_and_writes_them(data_dir, train_dir):
    path = save(train_dir, 40)
    arguments = mnist_arguments(data_dir, train_dir, "--run_once", "True", "--batch_size=2")
    done = forked.run([sys.executable, "-m", "inception.mnist_eval", *arguments])
    assert (done.returncode, done.stderr) == (0, "")
    expected = [
        re.escape("There is no GPU: /gpu:0 means the CPU."),
        re.escape(f"Succesfully loaded model from {path} at step=40."),
        TIME + r"starting evaluation on \(test\)\.",
        TIME + r"\[20 batches out of 25\] \(\d+\.\d examples/sec; \d+\.\d{3}sec/batch\)",
        TIME + r"precision @ 1 = 0\.1200 recall @ 5 = 0\.3600 \[50 examples\]",
    ]
    assert re.fullmatch("".join(line + "\n" for line in expected), done.stdout), done.stdout
    found = scalars(train_dir + "_eval")
    assert found["Precision @ 1"] == (40, pytest.approx(0.12))
    assert found["Recall @ 5"] == (40, pytest.approx(0.36))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        # Zero logits tie: after the bias' class come 0, 1, 2, 3.
        (
            ["--restore_avg_var", "False"],
            "precision @ 1 = 0.2400 recall @ 5 = 0.2400 [50 examples]",
        ),
        (["--restore_avg_var", "True"], "precision @ 1 = 0.1200 recall @ 5 = 0.3600 [50 examples]"),
        (["--num_examples=-1"], "[50 examples]"),
        (["--num_examples=13", "--batch_size=5"], "[13 examples]"),
        (["--batch_size=32"], "[50 examples]"),
    ],
)
def test_flags_choose_weights_and_examples(arguments, line, data_dir, train_dir, capsys):
    save(train_dir, 40)
    run_mnist_eval(*mnist_arguments(data_dir, train_dir, "--run_once", *arguments))
    assert capsys.readouterr().out.endswith(f"{line}\n")


def test_checkpoints_are_measured_as_the_program_prints_and_compile_nothing_anew(
    data_dir, train_dir
):
    config = configs.EvalConfig(dataset_name="mnist", net="mlp", subset="test", data_dir=data_dir)
    evaluation = evaluate.prepare_evaluation(config)
    count_hits = evaluation.prepare(problem_of(config)).count_hits
    traces = []
    for step in (40, 50):
        found = evaluate.measure_checkpoint(save(train_dir, step), evaluation)
        assert (found.precision_at_1, found.examples) == (0.12, 50)
        traces.append(count_hits.experimental_get_tracing_count())
    assert traces[0] == traces[1] > 0


@pytest.mark.parametrize(
    ("stored", "given", "used", "line"),
    [
        ({}, {}, ("unit", 28), ""),
        ({"preprocessing_name": None, "image_size": -1}, {}, ("unit", 28), ""),
        ({"preprocessing_name": "unit", "image_size": 28}, {"image_size": 28}, ("unit", 28), ""),
        (
            {"preprocessing_name": "lenet", "image_size": 28},
            {},
            ("lenet", 28),
            "Evaluating with preprocessing lenet, as {path} was trained, not with the net's own "
            "unit.\n",
        ),
        (
            {"preprocessing_name": "lenet"},
            {"preprocessing_name": "unit"},
            ("unit", 28),
            "Evaluating with preprocessing unit, as the flag says; {path} was trained with lenet."
            "\n",
        ),
        (
            {"image_size": 20},
            {},
            ("unit", 20),
            "Evaluating with image size 20, as {path} was trained, not with the net's own 28.\n",
        ),
        (
            {"image_size": 20},
            {"image_size": 28},
            ("unit", 28),
            "Evaluating with image size 28, as the flag says; {path} was trained with 20.\n",
        ),
    ],
)
def test_a_checkpoint_says_the_input_where_no_flag_does(
    data_dir, train_dir, stored, given, used, line, capsys, monkeypatch
):
    monkeypatch.setattr(checkpoints, "restore_weights", lambda *args, **kwargs: None)
    monkeypatch.setattr(evaluate.batches, "evaluation_batches", lambda *args: None)
    path = save(train_dir, 10, settings=json.dumps(stored))
    config = configs.EvalConfig(
        dataset_name="mnist", net="mlp", subset="test", data_dir=data_dir, **given
    )
    seen = []
    monkeypatch.setattr(evaluate, "_measure", lambda prepared: seen.append(prepared.problem))
    evaluate.measure_checkpoint(path, evaluate.prepare_evaluation(config))
    assert [(each.preprocessing, each.image_size) for each in seen] == [used]
    assert capsys.readouterr().out == line.format(path=path)


@pytest.mark.parametrize(
    ("stored", "given", "refused"), [(1, None, False), (1, 1, False), (1, 0, True), (0, 1, True)]
)
def test_a_checkpoint_says_the_offset_of_the_labels(
    data_dir, train_dir, stored, given, refused, monkeypatch
):
    monkeypatch.setattr(checkpoints, "restore_weights", lambda *args, **kwargs: None)
    path = save(train_dir, 10, settings=json.dumps({"labels_offset": stored}))
    names = {"dataset_name": "mnist", "net": "mlp", "subset": "test", "data_dir": data_dir}
    evaluation = evaluate.prepare_evaluation(configs.EvalConfig(**names, labels_offset=given))
    if refused:
        why = re.escape(f"{path} was trained with --labels_offset={stored}")
        with pytest.raises(ValueError, match=f"^flag --labels_offset={given}: {why}$"):
            evaluate.measure_checkpoint(path, evaluation)
    else:
        prepared = evaluate._load(path, evaluation)
        assert (prepared.problem.num_classes, prepared.problem.labels_offset) == (9, 1)
        _, labels = next(iter(prepared.batches))
        assert set(labels.numpy()) == {2, 4, 8}


def test_following_takes_the_input_of_each_checkpoint(data_dir, train_dir, monkeypatch):
    problems, measure = [], evaluate._measure
    monkeypatch.setattr(
        evaluate, "_measure", lambda of, *args: problems.append(of.problem) or measure(of, *args)
    )
    events = iter(["unit", "lenet", "lenet"])

    def sleep(secs):
        step = 10 * (len(problems) + 1)
        save(train_dir, step, settings=json.dumps({"preprocessing_name": next(events)}))

    monkeypatch.setattr(evaluate, "time", types.SimpleNamespace(**vars(time) | {"sleep": sleep}))
    run_mnist_eval(*mnist_arguments(data_dir, train_dir, "--max_steps=30"))
    assert [each.preprocessing for each in problems] == ["unit", "lenet", "lenet"]


def test_a_full_disk_ends_the_summaries_and_not_the_evaluation(
    data_dir, train_dir, capsys, monkeypatch
):
    paths = [save(train_dir, step) for step in (40, 50, 60)]
    monkeypatch.setattr(evaluate, "_paths", lambda *_: iter(paths))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))  # as if the disk was full
    try:
        run_mnist_eval(*mnist_arguments(data_dir, train_dir))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    printed = capsys.readouterr().out
    assert re.findall(r"at step=(\d+)\.", printed) == ["40", "50", "60"]
    assert printed.count("precision @ 1 = ") == 3
    assert re.findall("^No more summaries are written: (.*)$", printed, re.M) == ["File too large"]


@pytest.mark.parametrize("ending", ["", ".index"])
def test_a_single_checkpoint_is_evaluated_once_also_without_run_once(
    data_dir, train_dir, ending, capsys, monkeypatch
):
    monkeypatch.setattr(evaluate, "follow", pytest.fail)
    path = save(train_dir, 40)
    save(train_dir, 50)
    run_mnist_eval(*mnist_arguments(data_dir, path + ending))
    assert re.findall(r"at step=(\d+)\.", capsys.readouterr().out) == ["40"]


def test_following_evaluates_each_newest_checkpoint_once_up_to_the_last(
    data_dir, train_dir, capsys, monkeypatch
):
    os.mkdir(train_dir)
    events = iter([10, 20, None, 30])  # what a concurrent training has saved at each look

    def sleep(secs):
        step = next(events)
        if step:
            save(train_dir, step)

    # Not for other threads of this process.
    monkeypatch.setattr(evaluate, "time", types.SimpleNamespace(**vars(time) | {"sleep": sleep}))
    run_mnist_eval(*mnist_arguments(data_dir, train_dir, "--max_steps=30"))
    printed = capsys.readouterr().out
    assert printed.count("No checkpoint file found yet") == 1
    assert re.findall(r"at step=(\d+)\.", printed) == ["10", "20", "30"]


def before_step_10_is_read(monkeypatch, act):
    """Lets a concurrent training act."""
    restore = checkpoints.restore_weights

    def slow_restore(path, *args, **kwargs):
        if path.endswith("-10"):
            act()
        restore(path, *args, **kwargs)

    monkeypatch.setattr(checkpoints, "restore_weights", slow_restore)


@pytest.mark.parametrize("flag", ["--run_once", "--max_steps=20"])
def test_in_the_place_of_a_removed_checkpoint_the_newest_is_evaluated_at_once(
    data_dir, train_dir, capsys, monkeypatch, flag
):
    save(train_dir, 10)
    before_step_10_is_read(monkeypatch, lambda: save(train_dir, 20, keep=1))
    no_sleep = types.SimpleNamespace(**vars(time) | {"sleep": pytest.fail})
    monkeypatch.setattr(evaluate, "time", no_sleep)
    run_mnist_eval(*mnist_arguments(data_dir, train_dir, flag))
    printed = capsys.readouterr().out
    assert "model.ckpt-10 was removed by the training before it was read." in printed
    assert re.findall(r"at step=(\d+)\.", printed) == ["20"]


@pytest.mark.parametrize("name", ["", "/model.ckpt-10"])
def test_where_the_only_checkpoint_is_removed_there_is_none_to_evaluate(
    data_dir, train_dir, monkeypatch, name
):
    path = save(train_dir, 10)
    before_step_10_is_read(monkeypatch, lambda: [os.remove(f) for f in glob.glob(f"{path}.*")])
    line = error_line(*mnist_arguments(data_dir, train_dir + name, "--run_once"))
    assert line == f"mnist_eval: flag --checkpoint_dir={train_dir}{name}: holds no checkpoint"


def error_line(*arguments: str) -> str:
    """Returns the last line of the program."""
    with pytest.raises(SystemExit) as exit_info:
        run_mnist_eval(*arguments)
    return exit_info.value.code


def test_a_newer_checkpoint_that_lost_its_index_is_named(data_dir, train_dir, capsys):
    save(train_dir, 10)
    path = save(train_dir, 20)
    os.remove(f"{path}.index")
    run_mnist_eval(*mnist_arguments(data_dir, train_dir, "--run_once"))
    assert f"{path} is left out: model.ckpt-20.index is missing.\n" in capsys.readouterr().out


def test_a_checkpoint_of_another_net_is_named_with_what_it_lacks(data_dir, train_dir):
    path = save(train_dir, 10)
    line = error_line(*mnist_arguments(data_dir, train_dir, "--run_once", "--net=lenet"))
    assert path in line and "lacks" in line and "\n" not in line


def save_as_tf_slim(path, version: int) -> None:
    """Saves the weights of `save` in one of TensorFlow 1's two formats."""
    model = nets_factory.build_net("mlp", num_classes=10)
    names = {"kernel": "weights", "bias": "biases"}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for variable in model.variables:
            layer, _, last = variable.path.rpartition("/")
            value = np.zeros(variable.shape, np.float32)
            value[...] = np.arange(10) == 3 if variable.path == "logits/bias" else 0
            tf.compat.v1.get_variable(f"{layer}/{names[last]}", initializer=value)
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver(write_version=version)
        saver.save(session, str(path), write_meta_graph=False)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("name", "step"), [("mlp.ckpt", 0), ("model.ckpt-70", 70)])
def test_weights_that_tf_slim_published_are_evaluated(
    data_dir, tmp_path, capsys, name, step, version
):
    save_as_tf_slim(tmp_path / name, version)
    arguments = mnist_arguments(data_dir, str(tmp_path / name), "--run_once")
    run_mnist_eval(*arguments, "--restore_avg_var=False")
    printed = capsys.readouterr().out
    assert f"Succesfully loaded model from {tmp_path / name} at step={step}.\n" in printed
    assert printed.endswith("precision @ 1 = 0.2400 recall @ 5 = 0.2400 [50 examples]\n")
    assert error_line(*arguments) == (
        f"mnist_eval: {tmp_path / name}: another program wrote it; use its weights, not "
        "averages (--restore_avg_var=False)."
    )


def test_weights_that_tf_slim_published_must_be_those_of_the_net(data_dir, tmp_path):
    save_as_tf_slim(tmp_path / "mlp.ckpt", 2)
    arguments = mnist_arguments(data_dir, str(tmp_path / "mlp.ckpt"), "--restore_avg_var=False")
    line = error_line(*arguments, "--net=lenet_slim")
    assert "mlp.ckpt (TF-Slim's checkpoint) does not fit lenet_slim: it lacks conv1/" in line
    assert "scopes" not in line


@pytest.mark.parametrize("size", [-1, 28])
def test_a_net_with_weights_for_each_position_names_the_size_it_was_trained_with(
    data_dir, train_dir, size
):
    save(train_dir, 10, settings=json.dumps({"net": "mlp", "image_size": size}))
    run_mnist_eval(*mnist_arguments(data_dir, train_dir, "--run_once"))
    line = error_line(*mnist_arguments(data_dir, train_dir, "--run_once", "--image_size=20"))
    assert line.endswith("It was trained with images of 28 pixels, --image_size is 20.")


def test_follow_looks_often_only_until_the_first_checkpoint():
    slept = []
    paths = iter([None, "m-5", "m-5", "m-9"])
    found = list(evaluate.follow(lambda: next(paths), 3600, 9, slept.append, set()))
    assert (found, slept) == (["m-5", "m-9"], [5, 3600, 3600])


@pytest.mark.parametrize(
    ("name", "num_gpus", "device"),
    [
        ("/gpu:0", 0, "/CPU:0"),
        ("/gpu:3", 0, "/CPU:0"),
        ("/gpu:1", 2, "/GPU:1"),
        ("/device:GPU:1", 2, "/GPU:1"),
        ("/cpu:0", 2, "/CPU:0"),
    ],
)
def test_a_device_is_a_gpu_or_the_cpu_where_there_is_none(name, num_gpus, device, capsys):
    assert evaluate.choose_device(name, num_gpus) == device
    assert ("There is no GPU" in capsys.readouterr().out) == ("gpu" in name and not num_gpus)


@pytest.mark.parametrize("name", ["/gpu:2", "gpu", "/tpu:0", "/cpu:1", ""])
def test_another_device_is_refused_with_those_that_are_allowed(name):
    with pytest.raises(ValueError, match=r"must be one of /gpu:0, /gpu:1, /cpu:0$"):
        evaluate.choose_device(name, 2)
