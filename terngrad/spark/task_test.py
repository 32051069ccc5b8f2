"""A task of Spark ends with the reason if what it runs, or what feeds that, fails."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import pytest

from terngrad.spark.context import Context
from terngrad.testing.limits import HANG_SECS

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed: pip install '.[spark]'")
cloudpickle = pytest.importorskip(
    "pyspark.cloudpickle", reason="pyspark is not installed: pip install '.[spark]'"
)


def test_rows_that_fail_end_the_inference_before_it_takes_them_for_all(tmp_path):
    from terngrad.spark.task import _Process

    def predict(path, context):
        for batch in context.feed.batches(10):
            context.feed.give({"y": batch.column("x")})
        path.touch()

    def rows():
        yield pa.record_batch({"x": range(100)})
        raise OSError("no more rows")

    def consume():
        try:
            list(process.run(rows(), 1))
        except OSError as error:
            errors.append(str(error))

    errors = []
    finished = tmp_path / "finished"
    work = cloudpickle.dumps(predict) + cloudpickle.dumps(finished)
    connection = types.SimpleNamespace(send=print, requests=lambda: iter(()))
    schema = pa.schema({"y": pa.int64()})
    process = _Process(work, Context("inference", 0), connection, schema)
    consuming = threading.Thread(target=consume, daemon=True)
    try:
        consuming.start()
        consuming.join(HANG_SECS)
        assert errors == ["no more rows"]
    finally:
        process.kill()
    assert not finished.exists()


def _stop_by_the_signal(*_):
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.raise_signal(signal.SIGTERM)


def _stop_like_a_success(*_):
    sys.exit(0)


@pytest.mark.parametrize("num_given", [0, 3])
@pytest.mark.parametrize("stop", [_stop_by_the_signal, _stop_like_a_success])
def test_a_stop_fails_an_inference_whose_results_are_not_complete(stop, num_given):
    from terngrad.spark.task import _Process

    def predict(stop, context):
        signal.signal(signal.SIGTERM, stop)
        for batch in itertools.islice(context.feed.batches(10), num_given):
            context.feed.give({"y": batch.column("x")})
        print("ready")
        time.sleep(HANG_SECS)

    def requests():
        assert is_ready.wait(HANG_SECS)
        yield "stop"

    is_ready = threading.Event()
    work = cloudpickle.dumps(predict) + cloudpickle.dumps(stop)
    connection = types.SimpleNamespace(send=lambda line: is_ready.set(), requests=requests)
    schema = pa.schema({"y": pa.int64()})
    process = _Process(work, Context("inference", 0), connection, schema)
    try:
        with pytest.raises(RuntimeError, match=r"^the cluster was stopped$"):
            list(process.run([pa.record_batch({"x": range(100)})], 1))
    finally:
        process.kill()


_HOLDER = """
from terngrad.spark.task import _temporary_folder
with _temporary_folder() as folder:
    print(folder, flush=True)
    input()
"""


def test_a_task_deletes_the_folders_of_killed_tasks_only(tmp_path, monkeypatch):
    from terngrad.spark.task import _temporary_folder

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        theirs = Path(other.stdout.readline().strip())
        (theirs / "key.pem").touch()
        link = theirs.with_name(theirs.name + "_link")
        link.symlink_to(tmp_path)
        with _temporary_folder() as first, _temporary_folder() as second:
            assert {*tmp_path.iterdir()} == {theirs, Path(first), Path(second), link}
        assert {*tmp_path.iterdir()} == {theirs, link}
        other.kill()
    with _temporary_folder() as own:
        assert {*tmp_path.iterdir()} == {Path(own), link}


def test_a_process_has_a_folder_with_its_key_until_the_task_ends(tmp_path, monkeypatch):
    from terngrad.spark.certificates import Certificates
    from terngrad.spark.task import ProcessTask

    def leave(path, context):
        names = sorted(os.listdir(context.folder))
        path.write_text(f"{context.folder} {oct(os.stat(context.folder).st_mode)} {names}")
        os.mkdir(f"{context.folder}/rows")
        os._exit(0)

    connection = types.SimpleNamespace(send=print, requests=lambda: iter(()), close=lambda: None)
    place = connection, Context("worker", 0)
    monkeypatch.setattr(ProcessTask, "_connect", lambda *_: place)
    found = types.SimpleNamespace(partitionId=lambda: 0)
    monkeypatch.setattr("pyspark.TaskContext", types.SimpleNamespace(get=lambda: found))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = tmp_path / "seen"
    work = cloudpickle.dumps(leave) + cloudpickle.dumps(seen)
    list(ProcessTask(work, "worker", ("", 0), Certificates("ca", "cert", "key"))(()))
    names = "['ca.pem', 'cert.pem', 'key.pem']"
    folder, *rest = seen.read_text().split(maxsplit=1)
    assert Path(folder).parent == tmp_path
    assert rest == [f"0o40700 {names}"]
    assert {*tmp_path.iterdir()} == {seen}
