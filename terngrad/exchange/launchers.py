"""Workers that a launcher started and connected (mpirun, horovodrun)."""

from __future__ import annotations

import contextlib
import os
import socket
import traceback
import warnings
from collections.abc import Iterator
from types import ModuleType

from terngrad.cluster import launched
from terngrad.cluster.errors import MembershipError
from terngrad.cluster.membership import end_process, reason_of, was_shown
from terngrad.exchange.two_shot import Transport


def start_mpi() -> tuple[Transport, launched.Gather]:
    """Joins the processes of mpirun; returns the transport, and an all-gather of objects.

    Raises:
      ValueError: MPI is not installed, or its own launcher did not start this process.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about foreign launchers, which are refused below
            import mpi4py

            mpi4py.rc(initialize=False, finalize=True)  # see _initialize
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # there is no mpi4py, or it finds no library
        how = "bash scripts/setup.sh mpi, or pip install '.[mpi]'"
        why = f"needs mpi4py and an MPI library: {how} ({error})"
        raise ValueError(" ".join(why.split())) from None
    _initialize(MPI)
    from terngrad.exchange.mpi import MpiTransport

    world = MPI.COMM_WORLD
    if why := launched.why_incomplete(world.size, os.environ):
        raise ValueError(f"must be started by mpirun of mpi4py's MPI: {why}")
    return MpiTransport(world), world.allgather


def _initialize(mpi: ModuleType) -> None:
    """Initializes MPI, unless the program has done so.

    Raises:
      ValueError: its library would end the process instead, without saying what to do.
    """
    library = mpi.Get_library_version()
    if launched.OPEN_MPI in os.environ and library.startswith("MPICH"):
        raise ValueError(
            "Open MPI's mpirun started this process, but mpi4py has loaded MPICH: "
            "export MPI4PY_MPIABI=openmpi, or use MPICH's mpirun"
        )
    if not mpi.Is_initialized():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mpi.Init_thread()


def start_horovod(timeout_secs: float) -> tuple[Transport, launched.Gather]:
    """Joins the processes of horovodrun; returns what `start_mpi` does; gathering uses TensorFlow.

    Raises:
      ValueError: Horovod is not installed, or no launcher of its kind started this process.
    """
    try:
        from terngrad.exchange import horovod
    except ImportError as error:
        why = f"needs Horovod, bash scripts/install_horovod.sh ({error})"
        raise ValueError(why) from None
    transport = horovod.start(timeout_secs)
    return transport, transport.gather_objects


@contextlib.contextmanager
def ending_at_once(name: str) -> Iterator[None]:
    """Ends this process at once if the block fails; the launcher then ends the others.

    An orderly end would deadlock: it waits for the others, which wait for this process.
    """
    try:
        yield
    except SystemExit:  # all processes end at the same step
        raise
    except BaseException as error:
        is_shown = was_shown(error)
        is_short = is_shown or isinstance(error, ValueError | OSError)
        if isinstance(error, Exception) and not is_short:
            traceback.print_exc()
        says_all = is_shown and isinstance(error, MembershipError)
        said = f"{name} ({socket.gethostname()}) ends: {reason_of(error)}"
        end_process("" if says_all else said)
