"""TensorFlow's ops have kernels for GPUs, and their code is loaded before a graph uses them."""

import pytest
import tensorflow as tf
from tensorflow.python.framework.kernels import get_registered_kernels_for_op

from terngrad.gpu import kernels, ops
from terngrad.ops import build, library
from terngrad.ops.library import UnavailableError
from terngrad.testing import native

_ON_HOST = {  # inputs that the host reads, by op
    "TerngradStats": [],
    "TerngradCorrect": [],
    "TerngradEncode": ["seed", "step", "node"],
    "TerngradSum": [],
    "TerngradDecode": ["nodes"],
    "TerngradSubtract": [],
    "TerngradUpdate": ["nodes", "rate", "gain", "weights", "slots", "averages"],
}

pytestmark = pytest.mark.usefixtures("native_library")


@pytest.mark.parametrize("op", _ON_HOST)
def test_an_op_has_a_kernel_for_gpus_whose_host_reads_only_scalars_and_handles(op):
    library.load()
    registered = {each.device_type: each for each in get_registered_kernels_for_op(op).kernel}
    assert registered.keys() == {"CPU", "GPU"}
    assert list(registered["GPU"].host_memory_arg) == _ON_HOST[op]
    (constraint,) = registered["GPU"].constraint  # else ops of CPU tensors would go to a GPU
    assert (constraint.name, list(constraint.allowed_values.list.s)) == ("path", [b"gpu"])


_LAUNCHED = """
#include <cstdio>
#include "terngrad/cc/kernels/gpu.h"
int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    std::printf("%d ", terngrad::Launched(argv[i]).raw_code());
  }
}
"""


@pytest.mark.slow
def test_a_launch_that_fails_is_no_lost_process_and_lack_of_memory_is_named(tmp_path):
    _, flags, link_flags = build.tensorflow()
    source, program = tmp_path / "launched.cc", str(tmp_path / "launched")
    source.write_text(_LAUNCHED)
    found_at_run_time = f"-Wl,-rpath,{tf.sysconfig.get_lib()}"
    options = ["-w", "-O0", "-I.", *flags, str(source), *link_flags, found_at_run_time]
    build.run([native.compiler(), *options, "-o", program])
    texts = ["", "stats: CUDA_ERROR_OUT_OF_MEMORY, out of memory", "stats: CUDA_ERROR_UNKNOWN"]
    codes = [int(code) for code in native.output([program, *texts]).split()]
    # None of operation_errors.LOSSES:
    assert codes == [0, tf.errors.RESOURCE_EXHAUSTED, tf.errors.UNKNOWN]


@pytest.fixture
def seen_gpu(monkeypatch):
    """TensorFlow says that it sees a GPU, and no NVRTC is needed."""
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [gpu])
    monkeypatch.setattr(kernels, "code", lambda capability: b"code")


@pytest.mark.usefixtures("seen_gpu")
def test_kernels_are_loaded_onto_all_gpus_and_kept(driver):
    with driver.setting(capability=86):
        assert ops.prepare.__wrapped__(driver.path) == ("sm_86",)


@pytest.mark.usefixtures("seen_gpu")
def test_law_10_a_gpu_that_cannot_be_opened_is_named(driver):
    with (
        driver.setting(failing_cuDevicePrimaryCtxRetain=2),
        pytest.raises(UnavailableError, match="GPU 0: CUDA_ERROR_OUT_OF_MEMORY"),
    ):
        ops.prepare.__wrapped__(driver.path)


def test_law_10_where_tensorflow_sees_no_gpu_that_is_said():
    with pytest.raises(UnavailableError, match=r"^TensorFlow sees no GPU$"):
        ops.prepare.__wrapped__()
