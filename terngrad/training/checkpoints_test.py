"""Laws of checkpoints: complete or absent, read by name, and errors name what does not fit."""

import errno
import os
import resource
import signal
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf

from terngrad.training import checkpoints
from terngrad.training.errors import first_line


def make_state(value=1.0):
    return {
        "step": tf.Variable(7, dtype=tf.int64),
        "variables/fc/kernel": tf.Variable(tf.fill((2, 3), value)),
        "averages/fc/kernel": tf.Variable(tf.fill((2, 3), value + 1)),
        "slots/momentum/fc/kernel": tf.Variable(tf.fill((2, 3), value + 2)),
    }


def make_model():
    images = keras.Input((2,))
    return keras.Model(images, keras.layers.Dense(3, use_bias=False, name="fc")(images))


def weights_of(model):
    return {v.path: v.value for v in model.variables}


def test_what_was_saved_is_restored(tmp_path):
    path = checkpoints.save(str(tmp_path), make_state(5.0), 7)
    state = make_state(0.0)
    state["step"].assign(0)
    checkpoints.restore(path, state)
    assert state["step"].numpy() == 7
    np.testing.assert_array_equal(state["slots/momentum/fc/kernel"], np.full((2, 3), 7.0))


@pytest.mark.parametrize("name", ["a [b]", "[!a]", r"a\b", "a*?"])
def test_a_folder_may_have_the_letters_of_a_pattern_in_its_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)  # the path may be relative
    path = checkpoints.save(name, make_state(1.0), 7, settings="net=lenet")
    state = make_state(0.0)
    checkpoints.restore(path, state)
    np.testing.assert_array_equal(state["variables/fc/kernel"], np.full((2, 3), 1.0))
    assert checkpoints.settings_of(path) == "net=lenet"
    os.remove(f"{path}.sha256")  # as of an earlier version
    assert checkpoints.damage(path) == ""


def test_the_newest_is_found_by_step_not_by_name(tmp_path):
    for step in (900, 1000, 99):
        checkpoints.save(str(tmp_path), make_state(), step)
    assert checkpoints.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-1000")
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-1000")


def test_a_checkpoint_is_found_by_its_path_or_by_its_folder(tmp_path):
    first = checkpoints.save(str(tmp_path), make_state(), 1)
    second = checkpoints.save(str(tmp_path), make_state(), 2)
    said = []
    assert checkpoints.find(first, said.append) == first
    assert checkpoints.find(str(tmp_path), said.append) == second
    assert checkpoints.find(str(tmp_path / "absent"), said.append) is None
    assert not said
    os.remove(f"{second}.index")
    assert checkpoints.find(str(tmp_path), said.append) == first
    assert said == [f"{second} is left out: model.ckpt-2.index is missing."]


def test_the_oldest_are_removed(tmp_path):
    for step in range(6):
        checkpoints.save(str(tmp_path), make_state(), step, keep=2)
    steps = [checkpoints.step_of(p) for p in checkpoints.all_checkpoints(str(tmp_path))]
    assert steps == [4, 5]
    assert len(list(tmp_path.iterdir())) == 2 * 3 + 1


def test_all_are_kept_when_asked(tmp_path):
    for step in range(7):
        checkpoints.save(str(tmp_path), make_state(), step, keep=0)
    assert len(checkpoints.all_checkpoints(str(tmp_path))) == 7


def test_what_was_just_saved_stays_where_later_steps_of_a_lost_run_fill_the_folder(tmp_path):
    for step in (5, 6, 7):
        checkpoints.save(str(tmp_path), make_state(), step, keep=3)
    saved = checkpoints.save(str(tmp_path), make_state(), 4, keep=3)
    assert [checkpoints.step_of(p) for p in checkpoints.all_checkpoints(str(tmp_path))] == [4, 6, 7]
    checkpoints.restore(saved, make_state())
    only = checkpoints.save(str(tmp_path), make_state(), 3, keep=1)
    assert checkpoints.all_checkpoints(str(tmp_path)) == [only]


def test_an_interrupted_save_leaves_the_last_checkpoint_in_place(tmp_path, monkeypatch):
    checkpoints.save(str(tmp_path), make_state(1.0), 1)

    def killed(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(str(tmp_path), make_state(2.0), 2)
    monkeypatch.undo()
    assert checkpoints.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-1")
    checkpoints.save(str(tmp_path), make_state(3.0), 3)
    assert checkpoints.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-3")


def test_a_folder_without_checkpoints_has_no_latest(tmp_path):
    (tmp_path / "model.ckpt-x.index").touch()
    assert checkpoints.latest_checkpoint(str(tmp_path)) is None
    assert checkpoints.latest_checkpoint(str(tmp_path / "absent")) is None


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_not_saved(tmp_path, bad):
    with pytest.raises(ValueError, match="step 3 is not saved: variables/fc/kernel, averages"):
        checkpoints.save(str(tmp_path), make_state(bad), 3)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s | {"variables/b": tf.Variable(0.0)}, "lacks variables/b: was it written"),
        (
            lambda s: {k: v for k, v in s.items() if k != "averages/fc/kernel"},
            "also holds averages/fc/kernel, which this run does not have",
        ),
        (
            lambda s: s | {"variables/fc/kernel": tf.Variable(tf.zeros((4, 3)))},
            r"variables/fc/kernel has shape \(2, 3\); this net's is \(4, 3\)",
        ),
    ],
)
def test_law_10_a_checkpoint_of_another_run_is_named(tmp_path, change, text):
    path = checkpoints.save(str(tmp_path), make_state(), 1)
    with pytest.raises(ValueError, match=text):
        checkpoints.restore(path, change(make_state()))


@pytest.mark.parametrize("ending", ["data-00000-of-00001", "index"])
@pytest.mark.parametrize("damage", [lambda b: b"\0" * len(b), lambda b: b[:20], lambda b: b""])
def test_law_10_a_damaged_checkpoint_is_named(tmp_path, ending, damage):
    path = checkpoints.save(str(tmp_path), make_state(), 1)
    file = tmp_path / f"model.ckpt-1.{ending}"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(ValueError, match=r"model.ckpt-1 is (damaged|not a readable checkpoint)"):
        checkpoints.restore(path, make_state())


def flip(file):
    """Changes one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("ending", "has_digests"),
    [
        ("data-00000-of-00001", True),
        ("index", True),
        ("sha256", True),
        ("data-00000-of-00001", False),  # earlier versions wrote no digests
        ("index", False),
    ],
)
def test_damaged_checkpoints_are_set_aside_and_the_newest_undamaged_one_is_found(
    tmp_path, ending, has_digests
):
    folder, said = str(tmp_path), []
    paths = [checkpoints.save(folder, make_state(float(step)), step) for step in (1, 2, 3)]
    if not has_digests:
        for file in tmp_path.glob("*.sha256"):
            file.unlink()
    for path in paths[1:]:
        flip(tmp_path / f"{path}.{ending}")
    assert checkpoints.latest_undamaged(folder, said.append) == paths[0]
    assert [line.split(": ")[0] for line in said] == [
        f"{p} is damaged" for p in reversed(paths[1:])
    ]
    assert said[0].endswith(f"; set aside as {tmp_path}/damaged.model.ckpt-3.")
    assert checkpoints.all_checkpoints(folder) == paths[:1]
    assert tf.train.latest_checkpoint(folder) == paths[0]
    assert (tmp_path / f"damaged.model.ckpt-3.{ending}").exists()
    assert checkpoints.latest_undamaged(folder, said.append) == paths[0] and len(said) == 2


@pytest.mark.parametrize("ending", ["data-00000-of-00001", "index"])
def test_digests_that_are_not_of_every_file_are_named(tmp_path, ending):
    paths = [checkpoints.save(str(tmp_path), make_state(), step) for step in (1, 2)]
    digests = tmp_path / "model.ckpt-2.sha256"
    lines = digests.read_text().splitlines(keepends=True)
    digests.write_text("".join(line for line in lines if not line.endswith(f"{ending}\n")))
    flip(tmp_path / f"model.ckpt-2.{ending}")
    assert checkpoints.damage(paths[1]) == f"{digests.name} does not list model.ckpt-2.{ending}"
    digests.write_text((tmp_path / "model.ckpt-1.sha256").read_text())
    of_another = (
        f"{digests.name} does not list model.ckpt-2.data-00000-of-00001, model.ckpt-2.index"
    )
    assert checkpoints.damage(paths[1]) == of_another
    assert checkpoints.latest_undamaged(str(tmp_path), print) == paths[0]


def test_a_newer_checkpoint_without_an_index_is_named(tmp_path):
    paths = [checkpoints.save(str(tmp_path), make_state(), step) for step in (1, 2, 3)]
    said = []
    for path, found in ((paths[0], paths[2]), (paths[2], paths[1]), (paths[1], None)):
        os.remove(f"{path}.index")
        said.clear()
        assert checkpoints.latest_undamaged(str(tmp_path), said.append) == found
    assert said == [
        f"{path} is left out: model.ckpt-{step}.index is missing."
        for step, path in enumerate(paths, 1)
    ]


def test_a_file_that_is_missing_is_named_and_one_that_may_not_be_read_is_no_damage(
    tmp_path, monkeypatch
):
    path = checkpoints.save(str(tmp_path), make_state(), 1)
    data = tmp_path / "model.ckpt-1.data-00000-of-00001"
    data.rename(tmp_path / "elsewhere")
    assert checkpoints.damage(path) == f"{data.name} is missing"
    (tmp_path / "elsewhere").rename(data)
    assert checkpoints.damage(path) == ""

    def failing(number):
        def digest(path):
            raise OSError(number, os.strerror(number))

        return digest

    monkeypatch.setattr(checkpoints, "_digest", failing(errno.EIO))
    assert checkpoints.damage(path) == f"{data.name}: Input/output error"
    monkeypatch.setattr(checkpoints, "_digest", failing(errno.EACCES))
    with pytest.raises(PermissionError):
        checkpoints.damage(path)


def test_where_all_checkpoints_are_damaged_nothing_is_renamed_or_trained_anew(tmp_path):
    paths = [checkpoints.save(str(tmp_path), make_state(), step) for step in (1, 2)]
    for path in paths:
        flip(tmp_path / f"{path}.index")
    text = r"no checkpoint is undamaged \(model.ckpt-2: model.ckpt-2.index has another .*ckpt-1: "
    with pytest.raises(ValueError, match=text):
        checkpoints.latest_undamaged(str(tmp_path), print)
    assert checkpoints.all_checkpoints(str(tmp_path)) == paths
    assert checkpoints.latest_undamaged(str(tmp_path / "absent"), print) is None


def test_the_digests_are_those_that_sha256sum_checks(tmp_path):
    checkpoints.save(str(tmp_path), make_state(), 1)
    command = ["sha256sum", "--check", "--strict", "model.ckpt-1.sha256"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.count(": OK") == 2


def test_an_index_never_stands_beside_data_of_another_save(tmp_path, monkeypatch):
    checkpoints.save(str(tmp_path), make_state(1.0), 1)
    path = checkpoints.save(str(tmp_path), make_state(2.0), 2)
    replace = os.replace

    def killed_at_the_index(source, target):
        if source.endswith(".index"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", killed_at_the_index)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.save(str(tmp_path), make_state(3.0), 2)
    assert checkpoints.was_interrupted(str(tmp_path))
    assert checkpoints.latest_checkpoint(str(tmp_path)).endswith("model.ckpt-1")
    monkeypatch.undo()
    assert checkpoints.save(str(tmp_path), make_state(3.0), 2) == path
    assert checkpoints.damage(path) == "" and not checkpoints.was_interrupted(str(tmp_path))


def test_an_older_checkpoint_that_somebody_else_removes_is_no_error(tmp_path, monkeypatch, capsys):
    remove = os.remove

    def removed_twice(path):
        remove(path)
        remove(path)

    checkpoints.save(str(tmp_path), make_state(), 1)
    monkeypatch.setattr(os, "remove", removed_twice)
    path = checkpoints.save(str(tmp_path), make_state(), 2, keep=1)
    assert checkpoints.all_checkpoints(str(tmp_path)) == [path]
    assert len(list(tmp_path.iterdir())) == 3 + 1
    assert tf.train.latest_checkpoint(str(tmp_path)) == path and capsys.readouterr().out == ""


@pytest.mark.parametrize("act", ["replace", "remove"])
def test_a_checkpoint_that_is_complete_is_no_error(tmp_path, monkeypatch, capsys, act):
    checkpoints.save(str(tmp_path), make_state(), 1)
    real = getattr(os, act)

    def failing(path, *target):
        if act == "remove" or target[0].endswith("/checkpoint"):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path, *target)

    monkeypatch.setattr(os, act, failing)
    path = checkpoints.save(str(tmp_path), make_state(), 2, keep=1)
    monkeypatch.undo()
    assert checkpoints.latest_undamaged(str(tmp_path), print) == path
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path}: step 2 is saved, but older ones cannot be removed, or it ")
    assert line.endswith("No space left on device.")
    assert not list(tmp_path.glob("*.saving"))


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file: step 1 cannot be saved: .* last checkpoint: none"):
        checkpoints.save(str(tmp_path / "file"), make_state(), 1)


@pytest.mark.parametrize("bytes_of_file", [3000, 0])  # of the tensors, or of the first file at all
def test_a_full_disk_is_named_without_names_of_tensorflows_own(tmp_path, bytes_of_file):
    state = make_state() | {"variables/large": tf.Variable(tf.zeros([10_000]))}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_of_file, before[1]))
    try:
        with pytest.raises(OSError) as error_info:
            checkpoints.save(str(tmp_path), state, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    why = "step 1 cannot be saved: File too large; last checkpoint: none."
    assert str(error_info.value) == f"{tmp_path}: {why}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("message", "line"),
    [
        ("{{function_node __wrapped__SaveV2}} /a/b.tempstate1; No space left [Op:SaveV2]", None),
        ("{{function_node f}} {{node SaveV2}} No space left [Op:SaveV2] name: \n more", None),
        ("Failed to flush 3 events to /a/b", "Failed to flush 3 events to /a/b"),
    ],
)
def test_an_error_of_a_file_is_its_reason(message, line):
    error = tf.errors.ResourceExhaustedError(None, None, message)
    assert first_line(error) == (line or "No space left")


def test_a_checkpoint_of_another_optimizer_is_named(tmp_path):
    path = checkpoints.save(str(tmp_path), make_state(), 1)
    state = make_state() | {"slots/m/fc/kernel": tf.Variable(0.0)}
    with pytest.raises(ValueError, match=r"lacks slots/m/.*written with another optimizer"):
        checkpoints.restore(path, state)


def test_weights_are_read_by_name(tmp_path):
    path = checkpoints.save(str(tmp_path), make_state(5.0), 7)
    model = make_model()
    checkpoints.restore_weights(path, weights_of(model), averages=False)
    np.testing.assert_array_equal(model.variables[0], np.full((2, 3), 5.0))
    checkpoints.restore_weights(path, weights_of(model), averages=True)
    np.testing.assert_array_equal(model.variables[0], np.full((2, 3), 6.0))


@pytest.mark.parametrize("name", ["a.b/kernel", "features.Stem/kernel", "a..S/.S", "a/.b"])
def test_names_may_have_dots_wherever_they_like(tmp_path, name):
    state = {f"variables/{name}": tf.Variable(3.0)}
    path = checkpoints.save(str(tmp_path), state, 1)
    state[f"variables/{name}"].assign(0.0)
    checkpoints.restore(path, state)
    assert state[f"variables/{name}"].numpy() == 3.0
    assert checkpoints.read_weights(path, averages=False) == {name: 3.0}


def test_weights_that_are_not_there_are_named(tmp_path):
    state = {"variables/other/kernel": tf.Variable(1.0)}
    path = checkpoints.save(str(tmp_path), state, 7)
    with pytest.raises(ValueError, match="lacks variables/fc/kernel"):
        checkpoints.restore_weights(path, weights_of(make_model()), averages=False)


def test_weights_are_returned_without_the_rest_of_the_state(tmp_path):
    path = checkpoints.save(str(tmp_path), make_state(5.0), 7)
    (plain,) = checkpoints.read_weights(path, averages=False).items()
    (averaged,) = checkpoints.read_weights(path, averages=True).items()
    assert (plain[0], averaged[0]) == ("fc/kernel", "fc/kernel")
    np.testing.assert_array_equal(plain[1], np.full((2, 3), 5.0))
    np.testing.assert_array_equal(averaged[1], np.full((2, 3), 6.0))


def test_a_checkpoint_of_another_program_is_known(tmp_path):
    assert checkpoints.is_of_suite(checkpoints.save(str(tmp_path), make_state(5.0), 7))
    other = tf.train.Checkpoint(kernel=tf.Variable(1.0)).write(str(tmp_path / "other"))
    assert not checkpoints.is_of_suite(other)


def test_moving_averages_that_were_not_kept_are_named(tmp_path):
    path = checkpoints.save(str(tmp_path), {"variables/fc/kernel": tf.Variable(1.0)}, 7)
    with pytest.raises(ValueError, match="holds no moving averages"):
        checkpoints.restore_weights(path, weights_of(make_model()), averages=True)


def test_a_missing_checkpoint_is_named(tmp_path):
    with pytest.raises(ValueError, match="absent is not a readable checkpoint"):
        checkpoints.restore_weights(
            str(tmp_path / "absent"), weights_of(make_model()), averages=False
        )


def test_settings_stand_beside_the_state_and_older_checkpoints_have_none(tmp_path):
    state = make_state(5.0)
    path = checkpoints.save(str(tmp_path), state, 7, settings='{"seed": 1}')
    assert checkpoints.settings_of(path) == '{"seed": 1}'
    checkpoints.restore(path, state)
    tf.train.Checkpoint(state=state).write(str(tmp_path / "model.ckpt-8"))
    assert checkpoints.settings_of(str(tmp_path / "model.ckpt-8")) == ""


def test_each_file_is_on_the_disk_before_it_has_its_name_and_the_index_is_last(
    tmp_path, monkeypatch
):
    acts = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        acts.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_replace(old, new):
        assert acts[-1] == os.path.basename(old)
        acts.append(f"named {os.path.basename(new)}")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    checkpoints.save(str(tmp_path), {"step": tf.Variable(3)}, 3)
    named = [act for act in acts if act.startswith("named ")]
    assert named[-2:] == ["named model.ckpt-3.index", "named checkpoint"]
    for act in named:
        assert acts[acts.index(act) + 1] == tmp_path.name


def test_a_step_that_is_saved_again_lacks_an_index_only_while_files_are_renamed(
    tmp_path, monkeypatch
):
    state, synced, before = {"step": tf.Variable(3)}, [], []
    checkpoints.save(str(tmp_path), state, 3)
    fsync, remove = os.fsync, os.remove

    def noted_fsync(descriptor):
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_remove(path):
        before.append((os.path.basename(path), sorted(synced)))
        remove(path)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "remove", noted_remove)
    checkpoints.save(str(tmp_path), state, 3)
    files = [f"model.ckpt-3.{ending}" for ending in ("data-00000-of-00001", "index", "sha256")]
    assert before == [("model.ckpt-3.index", files)]
