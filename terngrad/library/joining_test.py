"""Arguments of join: which are refused, and what a process alone gets."""

import os
import re
import resource
import sys
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf

from terngrad.cluster.managed import launch_variables
from terngrad.connect.certificates import Tls
from terngrad.library import engines
from terngrad.library.group import Group
from terngrad.library.joining import join
from terngrad.ops import library

ALONE = Group()
TWO = {"hosts": ["a:1", "b:1"], "rank": 0}


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"hosts": ["a:1", "b:1"]}, "join: hosts needs rank"),
        ({"rank": 1}, "join: rank needs hosts"),
        ({"hosts": ["a:1", "b"], "rank": 0}, "join: hosts: 'b' must be host:port"),
        ({"hosts": ["a..b:1", "c:1"], "rank": 0}, "join: hosts: 'a..b' cannot be a host"),
        ({"ps_hosts": ["a..b:1"]} | TWO, "join: ps_hosts: 'a..b' cannot be a host"),
        ({"hosts": ["a:1", "a:1"], "rank": 0}, "join: hosts: each HOST:PORT must be listed once"),
        ({"hosts": ["a:1", "b:1"], "rank": 2}, "rank is 2; allowed are 0 to 1"),
        ({"hosts": "a:1", "rank": 0}, "hosts is 'a:1'; it must list HOST:PORT"),
        ({"timeout_secs": np.inf}, "timeout_secs is inf; allowed are more than 0, finite"),
    ],
)
def test_wrong_arguments_of_join_are_named(arguments, why):
    with pytest.raises(ValueError, match=why):
        join(**arguments)


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("hosts", 5, "lists of HOST:PORT, or None"),
        ("ps_hosts", 5, "lists of HOST:PORT, or None"),
        ("engine", ["mpi"], "auto, collective, parameter_server, mpi, horovod"),
        ("asynchronous", True, r"a terngrad\.Asynchronous, or None"),
        ("tls", "certificates", r"a terngrad\.Tls, or None"),
        ("control_port", "x", "integers, or None"),
        ("min_size", 1.5, "integers, or None"),
        ("elastic_wait_secs", "2", "numbers"),
        ("timeout_secs", None, "numbers"),
        ("elastic", "no", "True and False"),
        ("allow_insecure_network", "yes", "True and False"),
        ("network_interface", 3, "names of network interfaces"),
    ],
)
def test_arguments_of_join_that_have_another_type_are_named(argument, value, allowed):
    why = f"^join: {argument} is {re.escape(repr(value))}; allowed are {allowed}$"
    with pytest.raises(TypeError, match=why):
        join(**TWO | {argument: value})


@pytest.mark.parametrize("argument", ["hosts", "ps_hosts"])
def test_hosts_that_are_no_texts_are_named(argument):
    with pytest.raises(TypeError, match=rf"^join: {argument} is \[1, 2\]; it must list HOST:PORT"):
        join(**TWO | {argument: [1, 2]})


@pytest.mark.parametrize("port", [0, -4])
def test_law_10_a_control_port_that_cannot_be_is_named(port):
    why = f"join: the chief listens at port {port}; allowed are 1 to 65535"
    with pytest.raises(ValueError, match=why):
        join(["127.0.0.1:1", "127.0.0.1:2"], rank=0, timeout_secs=0.1, control_port=port)


def test_law_10_a_transport_that_is_gone_is_named(monkeypatch):
    monkeypatch.setenv("TERNGRAD_TRANSPORT", "tensorflow")
    with pytest.raises(ValueError, match="join: TERNGRAD_TRANSPORT is 'tensorflow'; allowed is so"):
        join(["127.0.0.1:1", "127.0.0.1:2"], rank=0, timeout_secs=0.1)


def test_law_10_all_reduce_without_native_kernels_names_engines_that_need_none(monkeypatch):
    def load():
        raise library.UnavailableError("native kernels are not built")

    monkeypatch.setattr(library, "load", load)
    why = "join: all-reduce needs native kernels: .* not built; parameter servers, mpi and horovod"
    with pytest.raises(ValueError, match=why):
        join(["127.0.0.1:1", "127.0.0.1:2"], rank=0, timeout_secs=0.1)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"engine": "mpi"}, "join: engine is 'mpi': must be started by mpirun|needs mpi4py"),
        ({"engine": "mpi", "rank": 0}, "'mpi' knows the processes: leave out hosts and rank"),
        ({"engine": "tcp"}, "join: engine is 'tcp'; allowed are auto, collective"),
        ({"job": "ps"} | TWO, "join: ps_hosts is .*; it must list HOST:PORT"),
        ({"job": "chief"} | TWO, "join: job is 'chief'; allowed are worker and ps"),
        ({"timeout_secs": 0}, "join: timeout_secs is 0; allowed are more than 0"),
        ({"ps_hosts": ["c:1"]}, "join: ps_hosts needs hosts"),
        ({"engine": "parameter_server"} | TWO, "join: engine='parameter_server' needs ps_hosts"),
        ({"engine": "collective", "ps_hosts": ["c:1"]} | TWO, "must not have ps_hosts"),
        ({"ps_hosts": ["c.invalid:1"]} | TWO, "c.invalid:1 is not on this machine: needs tls"),
        ({"hosts": ["c.invalid:1", "c.invalid:2"], "rank": 0}, "c.invalid:1 is not on this mach"),
        (
            {"hosts": ["127.0.0.1:1", "c.invalid:1"], "rank": 0},
            "c.invalid:1 is not .* needs tls, or .* TERNGRAD_CERTIFICATES, or .*_NETWORK=1;",
        ),
        ({"engine": "mpi", "tls": Tls("a", "b", "c")}, "join: tls: needs engine collective or"),
        (
            {"ps_hosts": ["c:1"], "tls": Tls("/gone", "/gone", "/gone")} | TWO,
            "join: tls: ca is '/gone': cannot be read: No such file",
        ),
    ],
)
def test_an_engine_that_does_not_fit_is_named(arguments, why):
    with pytest.raises(ValueError, match=why):
        join(**arguments)


def test_a_process_alone_is_a_group_of_one():
    with join() as group:
        assert (group.rank, group.size, group.is_chief, group.label) == (
            0,
            1,
            True,
            "worker 0 of 1",
        )
        group.barrier()
        variable = tf.Variable([1.0, 2.0])
        group.broadcast([variable])
        assert group.all_gather(np.float32(3)).tolist() == [3.0]
        assert group.shard([1, 2]) == [1, 2]


@pytest.mark.parametrize("place", [{}, {"hosts": ["127.0.0.1:2222"], "rank": 0}])
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"num_replicas_to_aggregate": 0}, "num_replicas_to_aggregate is 0: allowed are 1 and mor"),
        ({"tls": Tls("/gone", "b", "c")}, "tls: ca is '/gone': cannot be read: No such file"),
        ({"elastic_wait_secs": 2.0}, "elastic_wait_secs is 2.0: needs elastic"),
        ({"elastic_wait_secs": -1.0, "elastic": True}, "elastic_wait_secs is -1.0: allowed are mo"),
        ({"min_size": 2, "elastic": True}, "min_size is 2; this process is alone: allowed is 1"),
    ],
)
def test_law_10_wrong_arguments_of_a_process_alone_are_named(place, arguments, why):
    with pytest.raises(ValueError, match=f"^join: {why}"):
        join(**place, **arguments)
    assert join(**place, num_replicas_to_aggregate=2).size == 1, "the same program, alone"


def test_a_process_in_slurm_that_srun_did_not_start_is_warned_that_it_is_alone(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "4")
    with pytest.warns(UserWarning, match="join: this process trains alone: .* with srun"):
        assert join().size == 1
    monkeypatch.setenv("SLURM_NTASKS", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert join().size == 1


def test_only_numbers_are_gathered_and_broadcast():
    with pytest.raises(TypeError, match=r"holds object; allowed are numbers and bools"):
        ALONE.broadcast([tf.Variable(["x", "y"])])
    for given in (np.array(["x"]), np.array([None])):
        with pytest.raises(TypeError, match=r"all_gather holds .*; allowed are numbers and bools"):
            ALONE.all_gather(given)


def test_an_error_of_join_is_a_line_where_a_launcher_gave_its_arguments(monkeypatch, capsys):
    for name, value in launch_variables.variables(
        ["10.0.0.1:1", "10.0.0.2:1"], 0, 3, ["10.0.0.1:2"]
    ).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(ValueError, match="is not on this machine") as error:
        join()
    sys.excepthook(ValueError, error.value, error.value.__traceback__)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("join: ps_hosts: 10.0.0.1:2 is not on this machine: needs tls")
    sys.excepthook(ValueError, other := ValueError("other"), None)
    assert capsys.readouterr().err.splitlines() == [f"ValueError: {other}"]


def test_the_former_name_of_a_groups_progress_still_works_with_a_warning():
    with pytest.warns(FutureWarning, match=r"Group\.heartbeat is now called progress"):
        former = ALONE.heartbeat
    assert former is ALONE.progress


def test_a_worker_raises_its_limit_of_open_files(monkeypatch):
    before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = lambda config: resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    monkeypatch.setitem(engines.ENGINES, "collective", limit)
    role = types.SimpleNamespace(engine="collective")
    few = len(os.listdir("/proc/self/fd")) + 64
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        assert engines.join(types.SimpleNamespace(synchronous=True, role=role)) > few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
