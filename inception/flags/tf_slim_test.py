"""TF-Slim's flags become the suite's configs, and errors name them as TF-Slim does."""

import dataclasses
import json
from types import MappingProxyType

import pytest
from absl.flags import FlagValues

from inception import app
from inception.flags import configs, table, tf_slim
from inception.flags.rates import ENDLESS


def config(flags_class, *arguments):
    """The suite's config of one of slim's programs."""
    values = FlagValues()
    table.define(flags_class, values)
    app.parse(values, ["--dataset_dir=/tmp/d", *arguments])
    return table.read(flags_class, values).config()


def test_training_keeps_tf_slims_defaults():
    expected = {
        "net": "inception_v3",
        "max_steps": None,
        "optimizer": "rmsprop",
        "initial_learning_rate": 0.01,
        "learning_rate_power": 1.0,
        "polynomial_over_epochs": True,
        "dropout_keep_prob": None,
        "num_gpus": 1,
    }
    trained = config(tf_slim.TrainFlags)
    assert expected.items() <= dataclasses.asdict(trained).items()
    assert trained.last_step == ENDLESS


def test_a_codec_by_its_name_takes_what_suits_it():
    values = FlagValues()
    tf_slim.define_train(values)
    app.parse(values, ["--dataset_dir=/tmp/d", "--codec=7-level", "--draws=independent"])
    trained = tf_slim.train_config(values)
    assert (trained.clip_factor, trained.scale_by) == (4.0, "channel")
    assert (trained.draws, trained.size_to_binarize) == ("independent", 1024)


def test_lenet_is_tf_slims():
    assert config(tf_slim.TrainFlags, "--model_name=lenet").net == "lenet_slim"
    assert config(tf_slim.EvalFlags, "--model_name=cifarnet").net == "cifarnet"


@pytest.mark.parametrize(
    ("name", "optimizer"), [("sgd", "gd"), ("momentum", "momentum"), ("adam", "adam")]
)
def test_optimizers_have_tf_slims_names(name, optimizer):
    assert config(tf_slim.TrainFlags, f"--optimizer={name}").optimizer == optimizer


def test_every_clone_has_a_batch_of_its_own():
    trained = config(tf_slim.TrainFlags, "--num_clones=2", "--num_nodes=4")
    assert (trained.batch_size, trained.num_gpus, trained.nodes) == (64, 2, 4)


def test_scopes_are_separated_by_commas():
    trained = config(
        tf_slim.TrainFlags, "--trainable_scopes=fc3, logits", "--checkpoint_exclude_scopes="
    )
    assert trained.trainable_scopes == ("fc3", "logits")
    assert trained.checkpoint_exclude_scopes == ()


def test_a_number_of_batches_is_a_number_of_examples():
    assert config(tf_slim.EvalFlags, "--max_num_batches=3").num_examples == 300


def test_a_fixed_decay_means_that_the_averages_are_evaluated():
    assert config(tf_slim.EvalFlags, "--moving_average_decay=0.99").restore_avg_var


def test_the_suites_own_flags_reach_the_config():
    trained = config(tf_slim.TrainFlags, "--grad_bits=1", "--clip_factor=2.5", "--seed=7")
    own = {field.name for field in dataclasses.fields(configs.Trainer)}
    assert {"grad_bits", "clip_factor", "seed", "num_nodes", "deterministic"} <= own
    assert (trained.grad_bits, trained.clip_factor, trained.seed) == (1, 2.5, 7)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--optimizer=ftrl"], "flag --optimizer=ftrl: must be sgd, momentum, adam or rmsprop"),
        (["--sync_replicas=True"], "Unknown command line flag 'sync_replicas'"),
        (
            ["--warmup_epochs=1", "--warmup_steps=5"],
            "flag --warmup_epochs=1.0: must be 0 beside --warmup_steps",
        ),
    ],
)
def test_what_does_not_exist_here_is_refused_at_the_start(arguments, message):
    with pytest.raises(Exception) as error_info:
        config(tf_slim.TrainFlags, *arguments)
    assert str(error_info.value) == message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ValueError("a holds no averages; use the weights instead (--restore_avg_var=False)."),
            "a holds no averages; use the weights instead (without --moving_average_decay).",
        ),
        (ValueError("--data_dir=d: empty; see --net"), "--dataset_dir=d: empty; see --model_name"),
        (MemoryError("a smaller --batch_size or --net"), "a smaller --batch_size or --model_name"),
        (
            table.refuse("image_size", 9, "too small for --net=lenet"),
            "flag --eval_image_size=9: too small for --model_name=lenet",
        ),
    ],
)
def test_errors_name_flags_as_tf_slim_does(error, message):
    with pytest.raises(type(error)) as error_info, tf_slim.own_names(tf_slim.EvalFlags):
        raise error
    assert str(error_info.value) == message


@pytest.mark.parametrize(
    ("arguments", "inert"),
    [
        (["--learning_rate_decay_type=polynomial", "--power=2", "--num_epochs_per_decay=3"], []),
        (["--power=2", "--clip_factor=2.5"], ["clip_factor", "power"]),
        (
            ["--learning_rate_decay_type=fixed", "--num_epochs_per_decay=3"],
            ["num_epochs_per_decay"],
        ),
        (["--warmup_learning_rate=0.1"], ["warmup_learning_rate"]),
        (["--warmup_learning_rate=0.1", "--warmup_epochs=2"], []),
    ],
)
def test_a_flag_without_effect_is_named_as_tf_slim_names_it(arguments, inert, capsys):
    tf_slim.train_config(parsed(*arguments))
    named = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert named == [f"--{name}" for name in inert]


@pytest.mark.parametrize("flags_class", [tf_slim.TrainFlags, tf_slim.EvalFlags])
@pytest.mark.parametrize(
    ("given", "preprocessing"),
    [
        ("inception_v4", "inception"),
        ("resnet_v2_50", "vgg"),
        ("vgg_16", "vgg"),
        ("alexnet", "alexnet"),
        ("lenet", "lenet"),
        ("unit", "unit"),
        ("none", "none"),  # is refused later
    ],
)
def test_a_preprocessing_may_have_the_name_of_a_net(flags_class, given, preprocessing):
    found = config(flags_class, f"--preprocessing_name={given}")
    assert found.preprocessing_name == preprocessing


def parsed(*arguments):
    """The flags of slim's program that trains."""
    values = FlagValues()
    tf_slim.define_train(values)
    app.parse(values, ["--dataset_dir=/tmp/d", *arguments])
    return values


def cluster(*arguments, environment=MappingProxyType({})):
    """Which process slim's program is."""
    return tf_slim.cluster_config(parsed(*arguments), environment)


_TWO = "--worker_hosts=a:1,b:1"


@pytest.mark.parametrize(
    ("arguments", "engine"),
    [
        ([], None),
        (["--variable_update=local"], None),
        ([_TWO], "collective"),
        ([_TWO, "--ps_hosts=c:1"], "parameter_server"),
        ([_TWO, "--ps_hosts=c:1", "--job_name=ps"], "parameter_server"),
        ([_TWO, "--ps_hosts=c:1", "--cross_replica_sync=False"], "parameter_server"),
        (["--variable_update=mpi"], "mpi"),
        (["--variable_update=horovod"], "horovod"),
    ],
)
def test_slims_program_has_every_engine(arguments, engine):
    found = cluster(*arguments)
    assert (found and found.engine) == engine


def test_slims_program_takes_part_where_a_manager_starts_it():
    task = {"type": "worker", "index": 1}
    place = {"cluster": {"worker": ["a:1", "b:1"]}, "task": task}
    found = cluster("--cluster=auto", environment={"TF_CONFIG": json.dumps(place)})
    assert (found.worker_hosts, found.task_id) == (("a:1", "b:1"), 1)


@pytest.mark.parametrize("argument", [_TWO, "--ps_hosts=c:1", "--cluster=auto", "--job_name=ps"])
def test_what_names_other_processes_is_not_for_a_local_training(argument):
    message = f"flag --variable_update=local: must not be set with {argument.partition('=')[0]}"
    with pytest.raises(ValueError, match=f"^{message}"):
        cluster("--variable_update=local", argument)


@pytest.mark.parametrize("engine", [[], ["--variable_update=local"]])
def test_flags_of_several_workers_are_named_where_a_program_trains_alone(engine, capsys):
    of_workers = ["--task_id=1", "--split_data=False"]
    tf_slim.train_config(parsed(*engine, *of_workers, "--save_interval_secs=1"))
    assert capsys.readouterr().out.splitlines() == [
        f"--{name}: has no effect with --variable_update=local."
        for name in ("split_data", "task_id")
    ]
