"""Building, finding and choosing the native kernels."""

import os

import pytest
import tensorflow as tf

from terngrad.ops import build, library
from terngrad.ops.choice import Choice, choose_kernels
from terngrad.ops.native import NativeKernels
from terngrad.ops.packing import NativePacking, ReferencePacking
from terngrad.ops.reference import ReferenceKernels

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
def test_native_kernels_are_the_first_choice():
    kernels, why = choose_kernels()
    assert isinstance(kernels, NativeKernels)
    assert not why


@needs_library
def test_a_path_is_chosen_by_name_and_told():
    assert choose_kernels("native", "portable")[0].title == "native kernels (portable)"


@pytest.mark.parametrize(
    ("wanted", "path", "allowed"),
    [("", "mmx", "avx512, avx2, portable"), ("reference", "avx2", "none beside TERNGRAD_KERNELS")],
)
def test_law_10_a_path_that_cannot_be_is_named(wanted, path, allowed):
    with pytest.raises(ValueError, match=f"TERNGRAD_SIMD is '{path}'; allowed are {allowed}"):
        choose_kernels(wanted, path)


@needs_library
def test_law_10_an_unknown_path_of_the_ops_is_named():
    with pytest.raises(ValueError, match=r"TERNGRAD_SIMD: path is 'mmx'; allowed are .*portable"):
        NativeKernels("mmx")


def test_the_reference_can_be_forced():
    assert isinstance(choose_kernels("reference")[0], ReferenceKernels)


def test_on_gpus_the_reference_is_used_and_the_reason_told():
    kernels, why = choose_kernels(on_gpu=True)
    assert isinstance(kernels, ReferenceKernels)
    assert why == "TensorFlow sees no GPU"


@needs_library
def test_on_gpus_native_kernels_pack_what_lies_in_memory(monkeypatch):
    assert isinstance(choose_kernels(on_gpu=True).kernels.packing, NativePacking)
    monkeypatch.setattr(library, "load_functions", _unavailable)
    assert isinstance(choose_kernels(on_gpu=True).kernels.packing, ReferencePacking)


@needs_library
def test_each_choice_tells_the_family_of_its_kernels():
    for wanted in ("native", "reference"):
        assert choose_kernels(wanted).kernels.family == wanted
    assert choose_kernels("", "portable").kernels.family == "native"


def test_the_text_of_a_choice_is_its_title_and_what_forced_it():
    kernels = ReferenceKernels()
    assert f"{Choice(kernels)}" == kernels.title
    assert f"{Choice(kernels, 'it rains')}" == f"{kernels.title}, because it rains"


def test_law_10_an_unknown_choice_is_named():
    with pytest.raises(ValueError, match="TERNGRAD_KERNELS is 'fast'; allowed are native and ref"):
        choose_kernels("fast")


def _unavailable():
    raise library.UnavailableError("native kernels are not built")


def test_without_a_library_the_reference_works_and_forcing_fails(monkeypatch):
    monkeypatch.setattr(library, "load", _unavailable)
    kernels, why = choose_kernels()
    assert isinstance(kernels, ReferenceKernels)
    assert "not built" in why
    with pytest.raises(ValueError, match="TERNGRAD_KERNELS=native: native kernels are not built"):
        choose_kernels("native")


def test_law_10_a_missing_compiler_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "compiler", lambda: None)
    with pytest.raises(build.BuildError, match="no C\\+\\+ compiler: install g\\+\\+"):
        build.build(str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_failed_build_leaves_nothing_and_shows_the_compilers_words(monkeypatch, tmp_path):
    (tmp_path / "wrong.cc").write_text("int wrong = nothing;")
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(library, "array_sources", lambda: [str(tmp_path / "wrong.cc")])
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
