"""Starts TensorFlow's collective runtime so that the caller can watch the processes.

Only this module relies on undocumented parts of TensorFlow's runtime.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
from tensorflow.python.eager import context
from tensorflow.python.framework import errors_impl

_JOB = "worker"
_LONGEST_SECS = 1e6
_LIBRARY = os.path.join(os.path.dirname(tf.__file__), "libtensorflow_cc.so.2")


def start(hosts: Sequence[str], rank: int, timeout_secs: float) -> None:
    """See `collective.start`."""
    cluster = tf.train.ClusterSpec({_JOB: list(hosts)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type=_JOB, task_id=rank
    )
    _be_patient(len(hosts), min(timeout_secs, _LONGEST_SECS))
    try:
        with _python_running(), _signals_kept():
            # The strategy itself is not used: its constructor starts the collective runtime.
            tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except tf.errors.UnknownError:
        raise ValueError(f"TensorFlow cannot listen at {hosts[rank]}: is the port taken?") from None


def is_too_late() -> bool:
    """Returns whether TensorFlow's runtime has begun, so that it cannot start collectives."""
    return context.context()._initialized


def _be_patient(processes: int, timeout_secs: float) -> None:
    """Makes TensorFlow wait much longer for a silent process than its caller does.

    By default TensorFlow gives up after about 10 s and does not name the process.
    """
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{_JOB}/replica:0/task:0",
        heartbeat_timeout_in_ms=int((2 * timeout_secs + 60) * 1000),
        coordinated_jobs=[coordination_config_pb2.CoordinatedJob(name=_JOB, num_tasks=processes)],
    )


@contextlib.contextmanager
def _python_running() -> Iterator[None]:
    """Lets this process' other threads run, and send its heartbeat, while it waits for the others.

    TensorFlow's binding holds Python's lock until all processes have joined. The same function of
    its C library, called through ctypes, does not.
    """
    bindings = context.pywrap_tfe
    original = bindings.TFE_EnableCollectiveOps
    with contextlib.suppress(OSError, AttributeError):  # another TensorFlow keeps the lock
        bindings.TFE_EnableCollectiveOps = _enabling(ctypes.CDLL(_LIBRARY))
    try:
        yield
    finally:
        bindings.TFE_EnableCollectiveOps = original


def _enabling(library: ctypes.CDLL):
    """Returns a library's TFE_EnableCollectiveOps(context handle, serialized ServerDef)."""
    address_of = ctypes.pythonapi.PyCapsule_GetPointer
    address_of.restype, address_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    library.TF_NewStatus.restype = ctypes.c_void_p
    library.TF_Message.restype = ctypes.c_char_p
    pointer = ctypes.c_void_p
    library.TFE_EnableCollectiveOps.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t, pointer]

    def enable(handle, server_def: bytes) -> None:
        status = pointer(library.TF_NewStatus())
        library.TFE_EnableCollectiveOps(
            address_of(handle, None), server_def, len(server_def), status
        )
        code, message = library.TF_GetCode(status), library.TF_Message(status).decode()
        library.TF_DeleteStatus(status)
        if code:
            raise errors_impl.exception_type_from_error_code(code)(None, None, message)

    return enable


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Restores the handler of SIGTERM: TensorFlow's own handler ignores the signal."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
