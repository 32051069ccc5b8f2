"""The installed TensorFlow's headers and library, for the native kernels."""

# Flags that begin with -I or -L name folders, which become a target instead.
_ASK = """
import tensorflow as tf
print(tf.version.VERSION, tf.sysconfig.get_include(), tf.sysconfig.get_lib(), sep="\\n")
print(*(f for f in tf.sysconfig.get_compile_flags() if f[:2] != "-I"), sep="\\n")
"""

_BUILD = """
load("@{workspace}//bazel:rules.bzl", "cc_library")

cc_library(
    name = "tensorflow",
    srcs = glob(["lib/libtensorflow_framework.so.*"]),
    hdrs = glob(["include/**"]),
    includes = ["include"],
    visibility = ["//visibility:public"],
)
"""

def _tensorflow_impl(context):
    python = context.which("python3")
    if not python:
        fail("there is no python3 on PATH")
    asked = context.execute([python, "-c", _ASK], environment = {"TF_CPP_MIN_LOG_LEVEL": "3"})
    if asked.return_code:
        fail("%s cannot load TensorFlow; run `bash scripts/setup.sh` and `source .venv/bin/activate`: %s" %
             (python, asked.stderr.strip().split("\n")[-1]))
    version, include, lib = asked.stdout.split("\n")[:3]
    context.symlink(include, "include")
    for path in context.path(lib).readdir():
        if path.basename.startswith("libtensorflow_framework.so."):
            context.symlink(path, "lib/" + path.basename)
    context.file("BUILD", _BUILD.format(workspace = "terngrad_suite"))
    context.file("tensorflow.bzl", "VERSION = %r\nCOPTS = %r\nPYTHON_FOLDER = %r\n" %
                                   (version, asked.stdout.strip().split("\n")[3:], str(python.dirname)))

tensorflow = repository_rule(
    implementation = _tensorflow_impl,
    doc = "Finds TensorFlow with the first python3 on PATH: that of the active environment.",
    environ = ["PATH"],
    local = True,
)
