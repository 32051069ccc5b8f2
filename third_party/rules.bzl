"""Where every rule comes from; a Bazel without built-in Python rules needs a change here only."""

load("@bazel_tools//tools/python:toolchain.bzl", _py_runtime_pair = "py_runtime_pair")

py_binary = native.py_binary
py_library = native.py_library
py_runtime = native.py_runtime
py_runtime_pair = _py_runtime_pair

def py_programs(names, deps, folder = ""):
    """Builds the program `name` from folder + name.py, for each of `names`."""
    for name in names:
        source = folder + name + ".py"
        py_binary(name = name, srcs = [source], main = source, deps = deps)
