"""The figures and the picture of a profile with known operations."""

import pytest
from tensorflow.tsl.profiler.protobuf import xplane_pb2

EVENTS = {  # name: begin and length in ms
    "conv1/Conv2D:Conv2D": (0, 10),
    "backward/Conv2D:Conv2DBackpropFilter": (5, 15),
    "ExecutorState::Process": (0, 100),
    "TerngradEncode:TerngradEncode": (12, 1),
    "mesh:TerngradEncode": (13, 1),
    "TerngradEncodeJoinMeans:TerngradEncodeJoinMeans": (13, 1),
    "CollectiveGatherV2_1:CollectiveGatherV2": (14, 6),
    "TerngradJoin_2:TerngradJoin": (20, 0),
    "mesh:TerngradJoin": (20, 10),
}


def write(folder, names):
    space = xplane_pb2.XSpace()
    plane = space.planes.add()
    line = plane.lines.add(timestamp_ns=1_000_000)
    for i, name in enumerate(names):
        plane.event_metadata[i].name = name
        begin, length = EVENTS[name]
        line.events.add(metadata_id=i, offset_ps=begin * 10**9, duration_ps=length * 10**9)
    path = folder / "plugins" / "profile" / "day"
    path.mkdir(parents=True)
    (path / "host.xplane.pb").write_bytes(space.SerializeToString())


def test_the_time_of_exchanges_beside_computing_is_told_and_drawn(run, tmp_path, capsys):
    write(tmp_path, EVENTS)
    png = tmp_path / "overlap.png"
    figures = run("overlap_profile", f"--profile_dir={tmp_path}", f"--png={png}")
    assert figures["ms"] == {
        "net and optimizer": 20.0,
        "statistics, codes": 2.0,
        "exchange between workers": 17.0,
        "overlapped": 7.0,
    }
    assert "exchange during computation: 7.0 ms" in capsys.readouterr().out
    assert png.stat().st_size > 0


@pytest.mark.parametrize(
    ("names", "told"),
    [(None, "holds no profile; train with --profile_steps"), (["conv1/Conv2D:Conv2D"], "without")],
)
def test_law_10_a_folder_without_exchanges_is_told(run, tmp_path, names, told):
    if names:
        write(tmp_path, names)
    with pytest.raises(SystemExit) as end:
        run("overlap_profile", f"--profile_dir={tmp_path}")
    assert str(end.value).startswith(f"overlap_profile: flag --profile_dir={tmp_path}: ")
    assert told in str(end.value)
