"""What a user can get wrong in flags ends in one line that names the flag, before TensorFlow."""

import json
import re
import subprocess
import sys

import pytest
import tensorflow as tf

from inception import programs
from inception.flags.cluster import ClusterConfig
from inception.flags.configs import TrainConfig
from inception.training import preparation, refusals
from slim.datasets import mnist
from terngrad.library.group import Group
from terngrad.training import checkpoints

_ALL = """
import json, sys
import functools
from inception import app, export, label_image, programs
from inception.flags import table, tf_slim
from slim import train_image_classifier

said = []
for program, arguments in json.loads(sys.argv[1]):
    if program == "slim":
        main = train_image_classifier.main
        run = lambda: app.run(main, tf_slim.define_train, ["program", *arguments])
    elif program in ("export", "label_image"):
        module = globals()[program]
        define = functools.partial(table.define, module._Options)
        run = lambda: app.run(module.main, define, ["program", *arguments])
    else:
        name, _, dataset = program.partition(" ")
        run = lambda: getattr(programs, name)(dataset, "", ["program", *arguments])
    try:
        run()
        said.append("no error")
    except SystemExit as end:
        said.append(str(end.code))
assert "tensorflow" not in sys.modules
print(json.dumps(said))
"""


@pytest.fixture
def records(tmp_path):
    """A folder whose records are found, though never read."""
    folder = tmp_path / "records"
    folder.mkdir()
    for split in mnist.INFO.splits:
        (folder / f"{split}-mnist.tfrecord").touch()
    return folder


def test_what_flags_name_is_refused_before_tensorflow_is_loaded(tmp_path, records):
    data, train = f"--data_dir={records}", f"--train_dir={tmp_path}/run"
    alone = [
        (["--train_dir="], "--train_dir=: must name a folder"),
        ([data, "--train_dir=/proc/x"], "--train_dir=/proc/x: is not writable (No such file"),
        ([data, "--train_dir=~/x"], "--train_dir=~/x: bash leaves ~ as it is within --train_dir=~"),
        ([train, "--data_dir="], "--data_dir=: must name the folder of the record files"),
        ([train, "--data_dir=/none"], "--data_dir=/none: holds neither train-mnist.tfrecord nor"),
        ([train, data, "--net=resnet"], "--net=resnet: unknown net 'resnet': allowed are alexnet,"),
        ([train, data, "--net=cifarnet"], "--net=cifarnet: takes 3-channel images, those of mnist"),
        ([train, data, "--subset=validation"], "--subset=validation: data set mnist has no such"),
        ([train, data, "--codec=x"], "--codec=x: there is no such codec; allowed are float, half,"),
        ([train, data, "--codec=x.y:Z"], "--codec=x.y:Z: there is no module x.y; allowed are"),
        ([train, data, "--image_size=3"], "--image_size=3: lenet needs 4 or more"),
        (
            [train, data, "--pretrained_model_checkpoint_path=/none"],
            "--pretrained_model_checkpoint_path=/none: there is no such checkpoint, folder or",
        ),
    ]
    calls = [("train mnist", *call) for call in alone]
    calls += [
        ("train_distributed mnist", [*call[0], "--worker_hosts=a:1,b:1", "--task_id=0"], call[1])
        for call in alone
    ]
    tls = [f"--tls_{name}=/none" for name in ("ca", "cert", "key")]
    for job in ("ps", "worker"):
        place = [f"--job_name={job}", "--task_id=0", "--worker_hosts=a:1", "--ps_hosts=b:1"]
        calls += [
            (
                "train_distributed mnist",
                [*place, *tls],
                "--tls_ca=/none: cannot be read: No such file",
            ),
            (
                "train_distributed mnist",
                place,
                "--ps_hosts=b:1: b:1 is not on this machine: needs --tls",
            ),
        ]
    calls += [
        ("evaluate mnist", [data, "--checkpoint_dir="], "--checkpoint_dir=: must name a folder"),
        ("evaluate mnist", [data, "--eval_dir="], "--eval_dir=: must name a folder"),
        ("evaluate mnist", [data, "--eval_dir=/proc/x"], "--eval_dir=/proc/x: is not writable"),
        ("evaluate mnist", [data, "--subset=train", "--net=x"], "--net=x: unknown net 'x'"),
        (
            "evaluate mnist",
            [data, "--run_once", f"--checkpoint_dir={tmp_path}"],
            f"--checkpoint_dir={tmp_path}: holds no checkpoint",
        ),
        ("evaluate mnist", ["--data_dir=/none"], "--data_dir=/none: holds neither test-mnist."),
        (
            "slim",
            [
                f"--dataset_dir={records}",
                *("--dataset_name=mnist", "--model_name=lenet", "--train_image_size=2"),
            ],
            "--train_image_size=2: lenet_slim needs 4 or more",
        ),
        (
            "slim",
            [
                f"--dataset_dir={records}",
                *("--dataset_name=mnist", "--model_name=lenet", "--preprocessing_name=x"),
            ],
            "--preprocessing_name=x: unknown preprocessing; allowed are alexnet, cifarnet,",
        ),
    ]
    worker, ps = ["--worker_hosts=a:1"], ["--ps_hosts=b:1", "--allow_insecure_network"]
    for place in ([], worker, [*worker, *ps], [*worker, *ps, "--cross_replica_sync=False"]):
        program = f"train{'_distributed' * bool(place)} "
        calls += [
            (program, place, "--dataset_name=: must be given; allowed: mnist, fashion_mnist,"),
            (program, [*place, "--dataset_name=x"], "--dataset_name=x: unknown data set 'x'; all"),
            (program, [*place, "--dataset_name=mnist", "--net=x"], "--net=x: unknown net 'x': all"),
            ("slim", [*place, "--dataset_name=x"], "--dataset_name=x: unknown data set 'x'; allo"),
            ("slim", [*place, "--model_name=x"], "--model_name=x: unknown net 'x': allowed are"),
            ("slim", place, "--dataset_dir=: must name the folder of the record files"),
        ]
    none = f"--checkpoint_dir={tmp_path}"
    calls += [
        ("export", [none, "--output=a.keras"], f"{none}: holds no checkpoint"),
        ("label_image", [none, f"--image={__file__}"], f"{none}: holds no checkpoint"),
    ]
    for name in ("checkpoint", "model.ckpt-2.data-00000-of-00001"):  # hold no weights by themselves
        (tmp_path / name).touch()
        location = f"--checkpoint_dir={tmp_path / name}"
        told = f"{location}: holds no checkpoint"
        calls.append(("evaluate mnist", [data, "--run_once", location], told))
    calls.append(
        (
            "train_distributed mnist",
            [*worker, *ps, "--job_name=ps", "--train_dir="],
            "--train_dir=: must name a folder",
        )
    )
    command = [sys.executable, "-c", _ALL, json.dumps([call[:2] for call in calls])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for (program, arguments, expected), said in zip(calls, json.loads(done.stdout), strict=True):
        assert said.startswith(f"program: flag {expected}"), (program, arguments, said)
    assert not (tmp_path / "run").exists()


def test_small_images_are_reported_and_train(tmp_path, records, capsys):
    shared = {"dataset_name": "mnist", "net": "lenet", "data_dir": str(records)}
    for size in (7, 14, -1):
        config = TrainConfig(**shared, image_size=size, train_dir=str(tmp_path / "run"))
        refusals.check_training(config)
    assert capsys.readouterr().out == (
        "Warning: lenet keeps little of images of 7 pixels; 14 or more are sensible.\n"
    )


def test_law_10_a_checkpoint_of_another_net_is_named_also_where_no_step_is_left(tmp_path):
    checkpoints.save(str(tmp_path), {"step": tf.Variable(10)}, 10, settings='{"net": "mlp"}')
    flags = [f"--train_dir={tmp_path}", "--max_steps=10", "--data_dir=/absent"]
    with pytest.raises(SystemExit) as exit_info:
        programs.train("mnist", "", ["mnist_train", *flags])
    assert exit_info.value.code == (
        f"mnist_train: {tmp_path}/model.ckpt-10 holds a net mlp, --net is lenet"
    )


@pytest.mark.parametrize("program", ["train", "evaluate"])
def test_law_10_a_record_file_that_cannot_be_opened_is_named_at_once(tmp_path, records, program):
    for split in mnist.INFO.splits:
        file = records / f"{split}-mnist.tfrecord"
        file.unlink()
        file.symlink_to(tmp_path / "absent")
    flags = [f"--data_dir={records}", "--net=lenet"]
    if program == "train":
        flags.append(f"--train_dir={tmp_path}/run")
    else:
        flags += [f"--checkpoint_dir={tmp_path}", f"--eval_dir={tmp_path}/eval"]
    with pytest.raises(SystemExit) as ended:
        getattr(programs, program)("mnist", "", [program, *flags])
    named = rf"{records}/(train|test)-mnist\.tfrecord"
    said = rf"{program}: {named}: cannot be read \(No such file or directory\)"
    assert re.fullmatch(said, ended.value.code)
    assert not (tmp_path / "run").exists()


def test_a_worker_that_does_not_save_needs_no_folder_to_write_to(records):
    shared = {"dataset_name": "mnist", "net": "lenet", "data_dir": str(records)}
    config = TrainConfig(**shared, train_dir="/proc/x")
    refusals.check_training(config, is_alone=False, is_chief=False)


@pytest.mark.parametrize(
    "flags", [{"elastic": True}, {"codec": "5-level-feedback"}, {"local_steps": 2}], ids=str
)
def test_law_10_a_worker_that_may_save_names_a_folder_that_it_cannot_write_to(flags):
    hosts = {"worker_hosts": ("a:1", "b:1"), "task_id": 1}
    cluster = ClusterConfig(**hosts, elastic="elastic" in flags)
    settings = {name: value for name, value in flags.items() if name != "elastic"}
    shared = {"dataset_name": "mnist", "net": "mlp", "batch_size": 2, "benchmark_mode": True}
    config = TrainConfig(**shared, **settings, train_dir="/proc/x")
    with pytest.raises(ValueError, match=r"^flag --train_dir=/proc/x: is not writable"):
        preparation.prepare(config, Group(1, 2), cluster, ["/CPU:0"])
