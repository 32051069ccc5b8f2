"""A file is on the disk before it has its name, and its name is, too."""

import os

import pytest

from terngrad import durable


@pytest.fixture
def acts(monkeypatch):
    """What was done to the disk, in its order: paths that were synced, and new names."""
    done = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(descriptor):
        done.append(("on disk", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def noted_replace(old, new):
        done.append(("named", str(new)))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    return done


def test_content_comes_before_the_name_and_the_folder_after_it(tmp_path, acts):
    (tmp_path / "new").write_text("content")
    durable.publish(str(tmp_path / "new"), str(tmp_path / "final"))
    new, final = str(tmp_path / "new"), str(tmp_path / "final")
    assert acts == [("on disk", new), ("named", final), ("on disk", str(tmp_path))]
    assert (tmp_path / "final").read_text() == "content"


def test_a_file_that_cannot_be_synced_gets_no_name(tmp_path, monkeypatch):
    (tmp_path / "new").write_text("content")

    def fail(descriptor):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        durable.publish(str(tmp_path / "new"), str(tmp_path / "final"))
    assert not (tmp_path / "final").exists()
