"""Compiles the mesh without TensorFlow and checks its laws (mesh_test.cc)."""

import ctypes.util
import os
import subprocess

import pytest

from terngrad.ops import build
from terngrad.testing.certificates import make_certificates
from terngrad.testing.limits import HANG_SECS

SOURCES = [*build.sources("lib", "*.cc"), *build.sources("net", "*.cc")]
LAWS = os.path.join("terngrad", "cc", "net", "mesh_test.cc")
FLAGS = [flag for flag in build.FLAGS if flag not in ("-w", "-O3")]
SANITIZERS = {"users": [], "memory": ["address,undefined"], "threads": ["thread"]}


def run(command, timeout=HANG_SECS):
    return subprocess.run(
        command, cwd=build.ROOT, capture_output=True, text=True, timeout=timeout, check=False
    )


def run_well(command):
    done = run(command)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sanitizer", sorted(SANITIZERS))
def test_laws_hold_also_with_tls(sanitizer, tmp_path):
    cxx = build.compiler() or pytest.skip("needs a C++ compiler")
    sanitized = [f"-fsanitize={name}" for name in SANITIZERS[sanitizer]]
    flags = [*FLAGS, "-O1", "-g", *sanitized, "-fno-sanitize-recover=all"]
    (tmp_path / "nothing.cc").write_text("int main() {}\n")
    program = str(tmp_path / "laws")
    if run([cxx, *flags, str(tmp_path / "nothing.cc"), "-o", program]).returncode:
        pytest.skip(f"{cxx} cannot link with {sanitized}")
    objects = []
    for source in [*SOURCES, LAWS]:
        objects.append(str(tmp_path / os.path.basename(source)) + ".o")
        # The headers of vector instructions give warnings with GCC 12.
        warnings = ["-Wall", "-Wextra", "-Werror"] if "net" in source else ["-w"]
        own = [*flags, *warnings, *build.flags_of(source), "-I."]
        run_well([cxx, *own, "-c", source, "-o", objects[-1]])
    run_well([cxx, *flags, *objects, "-lpthread", "-ldl", "-o", program])
    assert "mesh: " in run_well([program])
    tls = make_certificates(tmp_path, "authority", "all")
    openssl = ctypes.util.find_library("ssl") or pytest.skip("there is no OpenSSL")
    assert "mesh: " in run_well([program, tls.ca, tls.cert, tls.key, openssl])
