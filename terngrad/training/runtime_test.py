"""Settings from environment variables."""

import pytest
import tensorflow as tf

from terngrad.gpu.ops import GpuKernels
from terngrad.ops import library
from terngrad.ops.native import NativeKernels
from terngrad.ops.packing import NativePacking, ReferencePacking
from terngrad.ops.reference import ReferenceKernels
from terngrad.training import runtime
from terngrad.training.runtime import Choice, choose_kernels


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch):
    for name in ("TERNGRAD_KERNELS", "TERNGRAD_SIMD"):
        monkeypatch.delenv(name, raising=False)


def _gpus(count):
    return [tf.config.PhysicalDevice(f"/physical_device:GPU:{i}", "GPU") for i in range(count)]


@pytest.mark.parametrize(
    ("on_cpu", "devices", "visible"), [(False, ["/GPU:0"], 1), (True, ["/CPU:0"], 0)]
)
def test_tensorflow_sees_only_the_gpus_that_are_towers(monkeypatch, on_cpu, devices, visible):
    cpus, seen = tf.config.list_physical_devices("CPU"), []
    monkeypatch.setattr(
        tf.config, "list_physical_devices", lambda kind: _gpus(4) if kind == "GPU" else cpus
    )
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda some, kind: seen.append(some))
    monkeypatch.setattr(tf.config, "set_logical_device_configuration", lambda *_: None)
    assert runtime.towers(1, on_cpu=on_cpu) == devices
    assert seen == [_gpus(visible)]


def test_law_10_more_towers_than_gpus_are_named(monkeypatch):
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: _gpus(2))
    with pytest.raises(ValueError, match=r"^--num_gpus=3: this process sees only 2 of them\.$"):
        runtime.towers(3, on_cpu=False)


def test_kernels_are_chosen_by_the_environment(monkeypatch):
    monkeypatch.setenv("TERNGRAD_KERNELS", "reference")
    assert runtime.kernels().kernels.family == "reference"
    assert not runtime.kernels().why_reference


@pytest.mark.parametrize("name", ["TERNGRAD_KERNELS", "TERNGRAD_SIMD"])
def test_law_10_a_value_of_the_environment_that_cannot_be_is_named(monkeypatch, name):
    monkeypatch.setenv(name, "mmx")
    with pytest.raises(ValueError, match=f"{name} is 'mmx'; allowed are "):
        runtime.kernels()


needs_library = pytest.mark.usefixtures("native_library")


@needs_library
def test_native_kernels_are_the_first_choice():
    kernels, why = choose_kernels()
    assert isinstance(kernels, NativeKernels)
    assert not why


@needs_library
def test_a_path_is_chosen_by_name_and_logged():
    assert choose_kernels("native", "portable")[0].title == "native kernels (portable)"


@pytest.mark.parametrize(
    ("wanted", "path", "allowed"),
    [("", "mmx", "avx512, avx2, portable"), ("reference", "avx2", "none beside TERNGRAD_KERNELS")],
)
def test_law_10_a_path_that_cannot_be_is_named(wanted, path, allowed):
    with pytest.raises(ValueError, match=f"TERNGRAD_SIMD is '{path}'; allowed are {allowed}"):
        choose_kernels(wanted, path)


def test_the_reference_can_be_forced():
    assert isinstance(choose_kernels("reference")[0], ReferenceKernels)


@pytest.fixture
def no_gpu(monkeypatch):
    """TensorFlow sees no GPU, also where there is one."""
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: [])


@needs_library
@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize("path", ["", "portable"])
def test_gpus_that_cannot_have_native_kernels_have_the_reference_and_it_says_why(path):
    kernels, why = choose_kernels("", path, on_gpu=True)
    assert isinstance(kernels, ReferenceKernels) and kernels.on_gpu
    assert isinstance(kernels.packing, NativePacking)
    assert why == "TensorFlow sees no GPU"


@needs_library
def test_native_kernels_are_the_first_choice_on_gpus_too(monkeypatch):
    monkeypatch.setattr("terngrad.gpu.ops.prepare", lambda: ("sm_90",))
    kernels, why = choose_kernels(on_gpu=True)
    assert isinstance(kernels, GpuKernels) and not why
    assert kernels.title == "native kernels (GPUs: sm_90)"


@needs_library
@pytest.mark.usefixtures("no_gpu")
def test_law_10_native_kernels_that_gpus_cannot_have_are_refused():
    text = "^TERNGRAD_KERNELS=native: TensorFlow sees no GPU$"
    with pytest.raises(ValueError, match=text):
        choose_kernels("native", on_gpu=True)


def test_workers_on_gpus_and_on_cpus_do_not_train_together():
    on_gpu, on_cpu = ReferenceKernels(on_gpu=True), ReferenceKernels()
    assert on_gpu.compared != on_cpu.compared


@needs_library
def test_without_native_kernels_gpus_have_the_packing_of_the_reference(monkeypatch):
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
