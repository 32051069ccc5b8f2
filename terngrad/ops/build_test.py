"""An object is compiled once for its source's text, its flags and its compiler."""

import concurrent.futures
import errno
import os
import pathlib

import pytest

from terngrad.ops import build

_COMPILER = """#!/usr/bin/env bash
# A fake compiler: counts its calls and writes its last argument, the output.
echo "$@" >> "$0.calls"
sleep 0.1
echo compiled > "${@: -1}"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> pathlib.Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/terngrad"


@pytest.fixture
def cxx(tmp_path) -> pathlib.Path:
    return _compiler(tmp_path / "c++")


@pytest.fixture
def source(tmp_path) -> pathlib.Path:
    path = tmp_path / "one.cc"
    path.write_text("int one;")
    return path


def _compiler(path: pathlib.Path) -> pathlib.Path:
    path.write_text(_COMPILER)
    path.chmod(0o755)
    return path


def _calls(cxx: pathlib.Path) -> int:
    return len(pathlib.Path(f"{cxx}.calls").read_text().splitlines())


def _compiled(cxx, source, *flags, **settings) -> str:
    (path,) = build.compiled(str(cxx), [str(source)], flags, **settings)
    assert pathlib.Path(path).read_text() == "compiled\n"
    return path


def _is_left_when_old(path: pathlib.Path, cxx, source) -> bool:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("old")
    os.utime(path, (0, 0))
    _compiled(cxx, source)
    return path.exists()


def test_what_was_compiled_is_not_compiled_again(cxx, source):
    assert _compiled(cxx, source, "-O3") == _compiled(cxx, source, "-O3")
    assert _calls(cxx) == 1


def test_other_texts_flags_and_compilers_give_other_objects(cxx, source, tmp_path):
    found = [_compiled(cxx, source, "-O3"), _compiled(cxx, source, "-O0")]
    source.write_text("int two;")
    found += [_compiled(cxx, source, "-O3"), _compiled(_compiler(tmp_path / "cc"), source, "-O3")]
    assert len(set(found)) == 4


def test_a_change_to_what_is_included_gives_other_objects(cxx, source, tmp_path):
    first, second = tmp_path / "first.h", tmp_path / "second.h"
    source.write_text(f'#include <vector>\n#include "absl/status.h"\n#include "{first}"\n')
    first.write_text(f'#pragma once\n#include "{second}"\n#include "{first}"\n')
    second.write_text("int a;")
    before = _compiled(cxx, source)
    second.write_text("int b;")
    assert _compiled(cxx, source) != before


def test_objects_do_not_depend_on_where_the_headers_of_others_are(cxx, source):
    here = _compiled(cxx, source, "-I/here/include", names={"/here/include": "tensorflow-2"})
    there = _compiled(cxx, source, "-I/there/include", names={"/there/include": "tensorflow-2"})
    assert here == there
    newer = _compiled(cxx, source, "-I/here/include", names={"/here/include": "tensorflow-3"})
    assert newer != here


def test_those_who_want_the_same_object_at_once_compile_it_once(cxx, source):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: _compiled(cxx, source), range(4)))) == 1
    assert _calls(cxx) == 1


def test_an_error_of_the_compiler_leaves_no_object(source, cache):
    with pytest.raises(build.BuildError, match=r"false .*one\.cc"):
        build.compiled("/bin/false", [str(source)], [])
    assert not list(cache.glob("*.o"))


def test_what_was_not_used_for_long_is_removed(cxx, source, cache):
    old, used = _compiled(cxx, source, "-O0"), _compiled(cxx, source, "-O3")
    for path in cache.iterdir():
        os.utime(path, (0, 0))
    assert _compiled(cxx, source, "-O3") == used
    assert not os.path.exists(old)
    assert _calls(cxx) == 2


@pytest.mark.parametrize("name", ["kernels-sm_90-0.bin", ".unfinished-0", "0.o.unfinished"])
def test_old_gpu_kernels_and_unfinished_files_are_removed(name, cxx, source, cache):
    assert not _is_left_when_old(cache / name, cxx, source)


@pytest.mark.parametrize("name", ["notes.txt", "model.keras"])
def test_old_files_of_others_stay_in_the_cache(name, cxx, source, cache):
    assert _is_left_when_old(cache / name, cxx, source)


@pytest.mark.parametrize("name", ["datasets", "0.o"])
def test_old_folders_stay_in_the_cache(name, cxx, source, cache):
    (cache / name).mkdir(parents=True)
    os.utime(cache / name, (0, 0))
    _compiled(cxx, source)
    assert (cache / name).is_dir()


def test_an_old_file_that_may_not_be_removed_stays(cxx, source, monkeypatch):
    old = _compiled(cxx, source, "-O0")
    os.utime(old, (0, 0))

    def refuse(path):
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    monkeypatch.setattr(os, "remove", refuse)  # as in a sticky folder of several users
    _compiled(cxx, source, "-O3")
    assert os.path.exists(old)


def test_without_a_folder_for_the_cache_objects_are_compiled_all_the_same(cxx, source, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    assert not _compiled(cxx, source).startswith("/proc")
