"""Where every rule comes from: a Bazel without built-in rules needs a change in this file only."""

load("@bazel_tools//tools/python:toolchain.bzl", _py_runtime_pair = "py_runtime_pair")

cc_binary = native.cc_binary
cc_library = native.cc_library
cc_test = native.cc_test
py_binary = native.py_binary
py_library = native.py_library
py_runtime = native.py_runtime
py_runtime_pair = _py_runtime_pair
py_test = native.py_test
sh_test = native.sh_test
