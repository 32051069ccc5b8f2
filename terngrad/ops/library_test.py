"""Building and finding the native kernels."""

import os

import pytest
import tensorflow as tf

from terngrad.ops import build, library
from terngrad.ops.native import NativeKernels

BUILT = library.path_for(tf.version.VERSION)
needs_library = pytest.mark.skipif(not os.path.exists(BUILT), reason="kernels are not built")


def test_a_library_that_was_not_built_is_answered_by_what_builds_it(tmp_path):
    with pytest.raises(library.UnavailableError, match=r"not built .*terngrad\.ops\.build"):
        library.load(str(tmp_path))


def test_law_10_a_library_of_another_tensorflow_is_named(tmp_path):
    (tmp_path / "kernels-tf2.9.1-0.so").write_bytes(b"")
    text = rf"are built for TensorFlow 2\.9\.1, but this is TensorFlow {tf.version.VERSION}"
    with pytest.raises(library.UnavailableError, match=text):
        library.load(str(tmp_path))


def test_law_10_a_damaged_library_is_named(tmp_path):
    path = library.path_for(tf.version.VERSION, str(tmp_path))
    with open(path, "wb") as file:
        file.write(b"no library")
    with pytest.raises(library.UnavailableError, match=r"kernels-tf.*cannot be loaded") as caught:
        library.load(str(tmp_path))
    assert "\n" not in str(caught.value)


@needs_library
@pytest.mark.parametrize("length", [0, 64, 1000, 50_000, 140_000])
def test_law_10_a_library_that_is_cut_off_is_named_and_not_loaded(tmp_path, length):
    with open(BUILT, "rb") as file:
        content = file.read()
    with open(library.path_for(tf.version.VERSION, str(tmp_path)), "wb") as file:
        file.write(content[:length])
    with pytest.raises(library.UnavailableError, match=r"is damaged: .* cannot be loaded"):
        library.load(str(tmp_path))


def test_a_library_of_other_sources_is_named(tmp_path):
    (tmp_path / f"kernels-tf{tf.version.VERSION}-0123.so").write_bytes(b"")
    with pytest.raises(library.UnavailableError, match="are built from other sources"):
        library.load(str(tmp_path))


@needs_library
def test_law_10_an_unknown_path_of_the_ops_is_named():
    with pytest.raises(ValueError, match=r"TERNGRAD_SIMD: path is 'mmx'; allowed are .*portable"):
        NativeKernels("mmx")


def test_law_10_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "compiler", lambda: None)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler: install g\\+\\+"):
        build.build(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_failed_build_leaves_nothing_and_shows_the_compilers_words(monkeypatch, tmp_path):
    (tmp_path / "wrong.cc").write_text("int wrong = nothing;")
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(build, "sources", lambda *parts: [str(tmp_path / "wrong.cc")])
    with pytest.raises(build.BuildError, match=r"wrong\.cc:1:13: error: "):
        build.build(str(tmp_path / "built"))
    assert not list((tmp_path / "built").iterdir())


@needs_library
def test_the_library_keeps_no_path_of_the_machine_it_was_built_on():
    with open(BUILT, "rb") as file:
        content = file.read()
    include = os.path.dirname(tf.sysconfig.get_include())
    for path in (library.ROOT, include, os.path.expanduser("~")):
        assert path.encode() + b"/" not in content, path
