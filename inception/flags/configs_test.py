"""Flags become configs; what is wrong, or has no effect, is named."""

import shlex

import pytest
from absl.flags import FlagValues

from inception import app
from inception.flags import command_line, configs, table
from slim.datasets import dataset_factory
from slim.nets.catalog import NETS
from terngrad.layout import BITS_OF_CODEC


def train(*arguments: str, dataset: str = "mnist") -> configs.TrainConfig:
    """The config of a training program called with the arguments."""
    values = FlagValues()
    command_line.define_train(values, dataset)
    app.parse(values, arguments)
    return command_line.train_config(values)


def evaluation(*arguments: str, dataset: str = "mnist") -> configs.EvalConfig:
    """The config of an evaluation program called with the arguments."""
    values = FlagValues()
    command_line.define_eval(values, dataset)
    app.parse(values, arguments)
    return command_line.eval_config(values)


@pytest.mark.parametrize("name", dataset_factory.DATASETS)
@pytest.mark.parametrize("arguments", [[], ["--dataset_name={}"]])
def test_a_program_fits_its_data_set_and_one_for_any_fits_that_which_is_given(name, arguments):
    called = [argument.format(name) for argument in arguments]
    training = train(*called, dataset="" if called else name)
    evaluating = evaluation(*called, dataset="" if called else name)
    info = dataset_factory.DATASETS[name]
    assert NETS[info.net].channels == info.image_shape[-1]
    for config in (training, evaluating):
        assert (config.dataset_name, config.net, config.image_size) == (name, info.net, -1)
    assert (training.subset, evaluating.subset) == ("train", info.splits[-1])
    assert training.train_dir == evaluating.checkpoint_dir == f"/tmp/{name}_train"
    assert evaluating.eval_dir == f"/tmp/{name}_eval"


@pytest.mark.parametrize("function", [train, evaluation])
def test_a_program_for_any_data_set_keeps_what_is_given(function):
    config = function("--dataset_name=mnist", "--net=mlp", "--subset=train", dataset="")
    assert (config.dataset_name, config.net, config.subset) == ("mnist", "mlp", "train")


@pytest.mark.parametrize("function", [train, evaluation])
@pytest.mark.parametrize("arguments", [[], ["--dataset_name="]])
def test_a_program_for_any_data_set_must_be_given_one(function, arguments):
    with pytest.raises(ValueError, match=r"^flag --dataset_name=: must be given; allowed: mnist"):
        function(*arguments, dataset="")


def test_the_flags_of_an_old_script_are_understood():
    config = train(
        *shlex.split("""--seed 123 --pretrained_model_checkpoint_path ""
        --num_epochs_per_decay 200 --initial_learning_rate 0.0002 --grad_bits 1
        --clip_factor 2.5 --floating_grad_epoch 0 --weight_decay 0.004 --momentum 0.9
        --size_to_binarize 1 --optimizer adam --net cifar10_alexnet --image_size 24 --num_gpus 2
        --num_nodes 2 --batch_size 128 --save_iter 2000 --quantize_logits True --max_steps 300000
        --train_dir /tmp/t --data_dir /tmp/d"""),
        dataset="cifar10",
    )
    assert config.quantize_logits and config.grad_bits == 1 and config.train_dir == "/tmp/t"


def test_profile_steps_are_two_numbers():
    assert train("--profile_steps=100,120").profile_steps == (100, 120)
    assert train("--profile_steps=").profile_steps is None


@pytest.mark.parametrize(("arguments", "nodes"), [([], 3), (["--num_nodes=6"], 6)])
def test_without_num_nodes_each_device_is_a_node(arguments, nodes):
    assert train("--num_gpus=3", "--batch_size=30", *arguments).nodes == nodes


def test_adam_keeps_the_learning_rate_fixed_and_says_so_if_asked_otherwise(capsys):
    assert train("--optimizer=adam").learning_rate_decay_type == "fixed"
    assert not capsys.readouterr().out
    config = train("--optimizer=adam", "--learning_rate_decay_type=polynomial")
    assert config.learning_rate_decay_type == "fixed"
    assert (
        "no effect with --optimizer=adam: its learning rate stays fixed" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--outer_momentum=0.5"], "--outer_momentum: has no effect with --local_steps=1."),
        (["--local_overlap"], "--local_overlap: has no effect with --local_steps=1."),
        (
            ["--local_steps=4", "--outer_feedback=0.5", "--grad_bits=1"],
            "--outer_feedback: has no effect with a codec without feedback.",
        ),
        (["--local_steps=4", "--outer_feedback=0.5", "--codec=ternary-feedback"], ""),
        (["--outer_feedback=0.5", "--codec=ternary-feedback"], ""),
        (
            ["--outer_feedback=0.5", "--grad_bits=1"],
            "--outer_feedback: has no effect with a codec without feedback.",
        ),
    ],
)
def test_flags_of_local_steps_that_have_no_effect_are_named(arguments, why, capsys):
    train(*arguments)
    assert capsys.readouterr().out.rstrip() == why


def test_a_codec_by_its_name_takes_what_suits_it_unless_flags_say_otherwise(capsys):
    config = train("--codec=7-level", "--clip_factor=5")
    assert (config.grad_bits, config.clip_factor, config.scale_by) == (3, 5.0, "channel")
    assert (config.draws, config.size_to_binarize) == ("antithetic", 1024)
    taken = "--scale_by=channel --draws=antithetic --size_to_binarize=1024"
    assert capsys.readouterr().out == f"--codec=7-level takes {taken}.\n"


@pytest.mark.parametrize("flag", ["--grad_bits=3", "--codec=255-level", "--codec=a:B", "--codec="])
def test_a_number_of_bits_and_other_codecs_keep_the_defaults(flag, capsys):
    config, plain = train(flag), train()
    for name in ("clip_factor", "scale_by", "draws", "size_to_binarize"):
        assert getattr(config, name) == getattr(plain, name)
    assert not capsys.readouterr().out


def test_the_choice_of_a_tower_is_one_line(capsys):
    train("--save_tower=0")
    evaluation("--tower=0")
    assert capsys.readouterr().out == (
        "--save_tower=0: a checkpoint holds one copy of the weights, which all towers share.\n"
        "--tower=0: a checkpoint holds one copy of the weights, which all towers share.\n"
    )


BAD_TRAINING_FLAGS = {
    "--local_steps=0": "must be an integer >= 1 and <= 2147483647",
    "--local_steps=99999999999999999999": "must be an integer >= 1 and <= 2147483647",
    "--local_fragments=0": "must be an integer >= 1 and <= 2147483647",
    "--batch_size=99999999999999999999": "must be an integer >= 1 and <= 16777216",
    "--max_steps=99999999999999999999": "must be an integer >= 1 and <= 4611686018427387904",
    "--num_intra_threads=99999999999": "must be an integer >= 0 and <= 4096",
    "--local_fragments=2": "must divide --local_steps=1",
    "--outer_learning_rate=0": "must be a number > 0",
    "--outer_momentum=1.5": "must be a number >= 0 and <= 1",
    "--outer_feedback=-1": "must be a number >= 0 and <= 1",
    "--grad_bits=5": "must be 32, 16, 8, 4, 3, 2 or 1",
    "--draws=dependent": "must be independent or antithetic",
    "--clip_factor=nan": "must be a number >= 0",
    "--scale_by=row": "must be variable, channel, or block:N with N a multiple of 128",
    "--scale_by=block:100": "must be variable, channel, or block:N with N a multiple of 128",
    "--scale_by=block:0": "must be variable, channel, or block:N with N a multiple of 128",
    "--dropout_keep_prob=0": "must be a number > 0 and <= 1",
    "--momentum=1.5": "must be a number >= 0 and <= 1",
    "--num_preprocess_threads=0": "must be an integer >= 1 and <= 4096",
    "--num_preprocess_threads=3000000000": "must be an integer >= 1 and <= 4096",
    "--image_size=0": "must be an integer >= 1 and <= 65536, or -1",
    "--num_nodes=65537": "must be at most 65536",
    "--profile_steps=120,100": "must be two steps FIRST,LAST with 0 <= FIRST < LAST",
    "--save_tower=1": "must be -1 to 0, one a node",
    "--codec=my codec": "must be float, half, ternary, 5-level, 7-level, "
    "15-level, 255-level, ternary-feedback, 5-level-feedback, or MODULE:CLASS",
    "--fine_tune=True": "needs --pretrained_model_checkpoint_path",
    "--dataset_name=x": f"unknown data set 'x'; allowed: {', '.join(dataset_factory.DATASETS)}",
}


@pytest.mark.parametrize(("argument", "why"), BAD_TRAINING_FLAGS.items())
def test_a_value_that_cannot_be_honoured_is_named_with_what_is_allowed(argument, why):
    with pytest.raises(Exception) as error_info:
        train(argument)
    assert str(error_info.value) == f"flag {argument}: {why}"


@pytest.mark.parametrize(("codec", "bits"), BITS_OF_CODEC.items())
def test_a_codec_that_has_a_number_of_bits_is_the_same_as_that(codec, bits):
    plain = ("--clip_factor=0", "--scale_by=variable", "--draws=independent")
    named = train(f"--codec={codec}", *plain, "--size_to_binarize=1")
    assert named == train(f"--grad_bits={bits}")
    assert train(f"--codec={codec}", f"--grad_bits={bits}").codec == ""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--codec=float", "--grad_bits=1"], "--grad_bits=1: must not be set with --codec=float"),
        (["--codec=a.b:C", "--grad_bits=16"], "--grad_bits=16: must not be set with --codec=a.b:C"),
        (["--grad_bits=2", "--use_encoding=False"], "--use_encoding=False: must be True with"),
        (["--grad_bits=4", "--scaler_sharing=False"], "--scaler_sharing=False: must be True with"),
        (
            ["--codec=ternary-feedback", "--clip_factor=2.5"],
            "--clip_factor=2.5: must be 0 with --codec=ternary-feedback: what clipping cuts off",
        ),
        (["--codec=a:C", "--use_encoding=False"], "--use_encoding=False: must be True with"),
        (["--codec=a:C", "--scaler_sharing=False"], "--scaler_sharing=False: must be True with"),
    ],
)
def test_flags_that_a_codec_does_not_go_with_are_named(arguments, text):
    with pytest.raises(ValueError, match=f"^flag {text}"):
        train(*arguments)


def test_a_codec_of_ones_own_has_clipping_and_float_epochs(capsys):
    config = train("--codec=a:C", "--clip_factor=2.5", "--floating_grad_epoch=3")
    assert config.is_coded and config.has_float_epochs
    assert "no effect" not in capsys.readouterr().out


def test_looks_for_checkpoints_have_time_between_them():
    with pytest.raises(Exception, match=r"^flag --eval_interval_secs=0: must be a number > 0$"):
        evaluation("--eval_interval_secs=0")


def test_batches_divide_over_the_nodes():
    with pytest.raises(
        ValueError, match=r"^flag --batch_size=33: must be a multiple of the 4 nodes$"
    ):
        train("--batch_size=33", "--num_nodes=4")


def test_every_device_has_a_node():
    with pytest.raises(ValueError, match=r"^flag --num_nodes=1: must be >= --num_gpus=2, or -1$"):
        train("--num_gpus=2", "--num_nodes=1")


@pytest.mark.parametrize("config_class", [configs.TrainConfig, configs.EvalConfig])
def test_every_flag_has_a_help_and_a_default_that_is_allowed(config_class):
    for name, entry in table.table(config_class).items():
        assert entry.help, name
    config_class(dataset_name="mnist", net="lenet")


_LOCAL = "--local_steps=4", "--outer_feedback=0.5", "--sum_codec=ternary"


@pytest.mark.parametrize(
    ("arguments", "inert"),
    [
        (["--grad_bits=1", "--clip_factor=2.5", "--momentum=0.8"], []),
        (["--clip_factor=2.5", "--quantize_logits"], ["clip_factor", "quantize_logits"]),
        (["--scale_by=channel"], ["scale_by"]),
        ([*_LOCAL, "--grad_bits=1"], []),
        ([*_LOCAL], ["sum_codec", "outer_feedback"]),
        ([*_LOCAL, "--grad_bits=16"], ["sum_codec", "outer_feedback"]),
        (["--optimizer=gd", "--momentum=0.8"], ["momentum"]),
        (["--benchmark_mode", "--data_dir=/nowhere"], ["data_dir"]),
        (["--net=lenet", "--dropout_keep_prob=0.7"], ["dropout_keep_prob"]),
        (["--net=lenet_slim", "--dropout_keep_prob=0.7"], []),
        # Scripts pass all flags; one at its default is no wish that is not granted.
        (["--optimizer=gd", "--momentum=0.9", "--clip_factor=0"], []),
        (["--optimizer=adam", "--learning_rate_decay_type=exponential"], []),
    ],
)
def test_a_flag_without_effect_is_named(arguments, inert, capsys):
    values = FlagValues()
    command_line.define_train(values, "mnist")
    app.parse(values, arguments)
    command_line.train_config(values)
    named = [line.split(":")[0] for line in capsys.readouterr().out.splitlines()]
    assert named == [f"--{name}" for name in inert]
