"""What the flags of workers and ps may be."""

import pytest
from absl.flags import FlagValues

from inception import app
from inception.flags import table
from inception.flags.cluster import ClusterConfig
from inception.flags.command_line import cluster_config


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({}, "flag --worker_hosts=: must list HOST:PORT of each worker"),
        ({"worker_hosts": ("a:1", "a")}, "'a' must be host:port"),
        ({"worker_hosts": ("a..b:1", "a:1")}, "flag --worker_hosts=a..b:1,a:1: 'a..b' cannot be a"),
        ({"worker_hosts": ("a:1", "::1:2")}, "an IPv6 address must be in brackets"),
        ({"worker_hosts": ("a:1", "a:1")}, "each HOST:PORT must be listed once"),
        ({"worker_hosts": ("a:1", "b:1"), "task_id": 2}, "flag --task_id=2: must be 0 to 1"),
        (
            {"worker_hosts": ("a:65000", "b:1")},
            "flag --control_port=-1: must be 1 to 65535; -1 = the chief's own [+] 1000 is 66000",
        ),
        ({"worker_hosts": ("a:1",), "control_port": 65536}, "flag --control_port=65536: must be 1"),
        (
            {"worker_hosts": ("a:1", "b:1"), "control_port": 1},
            "flag --control_port=1: a:1 is the port of worker 0; must be a free port",
        ),
        ({"worker_hosts": ("a:1",), "worker_timeout_secs": 1e300}, "must be a number > 0 and <= "),
        (
            {"variable_update": "mpi", "task_id": 1},
            "flag --task_id=1: must not be set with --variable_update=",
        ),
        (
            {"variable_update": "mpi", "control_port": 2222},
            "flag --control_port=2222: must not be set.*: mpirun names the workers",
        ),
    ],
)
def test_law_10_flags_that_cannot_be_are_named_with_what_is_allowed(flags, text):
    with pytest.raises(ValueError, match=text):
        ClusterConfig(**flags)


@pytest.mark.parametrize(
    ("host", "control_port", "address"),
    [
        ("a:2222", -1, "a:3222"),
        ("a:64535", -1, "a:65535"),
        ("a:65000", 7, "a:7"),
        ("[::1]:2222", -1, "[::1]:3222"),
    ],
)
def test_the_chief_hears_of_the_others_at_its_own_host(host, control_port, address):
    cluster = ClusterConfig(worker_hosts=(host, "b:1"), control_port=control_port)
    assert cluster.control_address == address


_OF_MPI = {"variable_update": "mpi", "ps_hosts": (), "worker_hosts": ()}


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ({"ps_hosts": ()}, "flag --ps_hosts=: must list HOST:PORT of each ps"),
        ({"ps_hosts": ("a..b:1",)}, "flag --ps_hosts=a..b:1: 'a..b' cannot be a host"),
        (
            {"job_name": "ps", "task_id": 1},
            "--task_id=1: must be 0 to 0, an index of ps_hosts",
        ),
        ({"control_port": 7}, "flag --control_port=7: must not be set with --ps_hosts"),
        ({"tls_ca": "ca.pem"}, "flag --tls_cert=: must be set"),
        (
            {"num_replicas_to_aggregate": 3},
            "flag --num_replicas_to_aggregate=3: must be 1 to 2, the number of worker_hosts",
        ),
        ({"cross_replica_sync": False, "elastic": True}, "--elastic=True: needs --cross_replica_s"),
        (
            {"variable_update": "mpi", "worker_hosts": (), "ps_hosts": (), "elastic": True},
            "flag --elastic=True: needs --variable_update=collective or parameter_server, not mpi",
        ),
        ({"variable_update": "collective"}, "flag --ps_hosts=p:1: needs --ps_hosts and"),
        (
            {**_OF_MPI, "tls_key": "k"},
            "--tls_key=k: needs --variable_update=.*not mpi",
        ),
        (
            {**_OF_MPI, "allow_insecure_network": True},
            "insecure_network=True: needs --variable",
        ),
        (
            {"variable_update": None, "ps_hosts": (), "num_replicas_to_aggregate": 3},
            "flag --num_replicas_to_aggregate=3: must be 1 to 2, the number of worker_hosts",
        ),
        (
            {"variable_update": None, "ps_hosts": (), "job_name": "ps"},
            "flag --job_name=ps: needs --ps_hosts and --variable_update=parameter_server, not",
        ),
    ],
)
def test_law_10_flags_of_parameter_servers_that_cannot_be_are_named(flags, text):
    good = {"variable_update": "parameter_server", "ps_hosts": ("p:1",)}
    with pytest.raises(ValueError, match=text):
        ClusterConfig(**good | {"worker_hosts": ("a:1", "b:1")} | flags)


def test_parameter_server_is_the_engine_where_there_are_ps_hosts():
    hosts = {"worker_hosts": ("a:1", "b:1")}
    assert ClusterConfig(**hosts, ps_hosts=("p:1",)).engine == "parameter_server"
    assert ClusterConfig(**hosts).engine == "collective"


@pytest.mark.parametrize(("engine", "launcher"), [("mpi", "mpirun"), ("horovod", "horovodrun")])
def test_law_10_hosts_are_refused_where_a_launcher_names_them(engine, launcher):
    with pytest.raises(ValueError, match=f"worker_hosts=a:1: must not be set .*: {launcher} names"):
        ClusterConfig(variable_update=engine, worker_hosts=("a:1",))


@pytest.mark.parametrize("flags", [{"worker_hosts": ("a:1", "b:1")}, {"variable_update": "mpi"}])
def test_law_10_without_parameter_servers_all_workers_step_together(flags):
    with pytest.raises(ValueError, match="--cross_replica_sync=False: needs --ps_hosts"):
        ClusterConfig(cross_replica_sync=False, **flags)


def test_flags_of_asynchronous_training_are_inert_without_it():
    hosts = {"worker_hosts": ("a:1",), "ps_hosts": ("p:1",)}
    of_ps = "ps_snapshot_steps", "ps_snapshot"
    inert = {"max_staleness", "pull_bits", "pull_codec", "num_ps_tasks", *of_ps}
    assert ClusterConfig(**hosts).inert_flags.keys() == inert
    asynchronous = {**hosts, "cross_replica_sync": False}
    assert set(ClusterConfig(**asynchronous).inert_flags) == {"num_ps_tasks", *of_ps}
    of_a_ps = ClusterConfig(**asynchronous, job_name="ps").inert_flags
    assert of_a_ps.keys() == {"num_ps_tasks", "max_staleness", "pull_bits", "pull_codec"}


@pytest.mark.parametrize("flag", [{"elastic": True}, {"num_replicas_to_aggregate": 1}])
def test_the_control_port_is_inert_where_steps_may_lack_workers(flag):
    flags = {"worker_hosts": ("a:1", "b:1"), "control_port": 7}
    assert "control_port" not in ClusterConfig(**flags).inert_flags
    reason = ClusterConfig(**flags, **flag).inert_flags["control_port"]
    assert reason == f"--{next(iter(flag))}"


def test_law_10_a_snapshot_is_refused_where_a_ps_has_none():
    hosts = {"worker_hosts": ("a:1",), "ps_hosts": ("p:1",), "cross_replica_sync": False}
    flags = {"job_name": "ps", "ps_snapshot_steps": 0}
    assert ClusterConfig(**hosts, **flags).ps_snapshot == -1
    with pytest.raises(ValueError, match=r"^flag --ps_snapshot=5: needs --ps_snapshot_steps above"):
        ClusterConfig(**hosts, **flags, ps_snapshot=5)


def test_law_10_half_precision_is_refused_where_parameters_travel_as_changes():
    hosts = {"worker_hosts": ("a:1",), "ps_hosts": ("p:1",), "cross_replica_sync": False}
    flags = {"pull_codec": "ternary", "pull_bits": 16}
    why = "^flag --pull_bits=16: must be 32 with --pull_codec=ternary"
    with pytest.raises(ValueError, match=why):
        ClusterConfig(**hosts, **flags)
    ClusterConfig(**hosts, **flags, job_name="ps")  # both flags have no effect there
    ClusterConfig(**hosts | {"cross_replica_sync": True}, **flags)


TF_CONFIG = {
    "TF_CONFIG": '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
}


def config_of(*arguments, environment):
    values = FlagValues()
    table.define(ClusterConfig, values)
    app.parse(values, arguments)
    return cluster_config(values, environment)


def test_the_environment_names_the_processes_if_asked(capsys):
    config = config_of("--cluster=auto", environment=TF_CONFIG)
    assert (config.worker_hosts, config.task_id) == (("a:1", "b:1"), 1)
    assert capsys.readouterr().out == "--cluster=auto found TF_CONFIG: worker 1 of 2.\n"
    with pytest.raises(ValueError, match="--worker_hosts=: must list"):
        config_of(environment=TF_CONFIG)


def test_flags_win_over_the_environment():
    config = config_of(
        "--cluster=auto", "--task_id=0", "--worker_hosts=c:1,d:1", environment=TF_CONFIG
    )
    assert (config.worker_hosts, config.task_id) == (("c:1", "d:1"), 0)
    config = config_of(
        "--cluster=auto", "--variable_update=mpi", environment={"PMI_RANK": "0", "PMI_SIZE": "2"}
    )
    assert config.engine == "mpi"


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({}, "flag --cluster=auto: found none of TF_CONFIG, Slurm, MPI, PMIx, torchrun"),
        ({"TF_CONFIG": "x"}, "flag --cluster=auto: TF_CONFIG is not JSON"),
    ],
)
def test_law_10_an_environment_that_says_nothing_is_named(environment, why):
    with pytest.raises(ValueError, match=why):
        config_of("--cluster=auto", environment=environment)


def test_a_number_of_ps_tasks_without_effect_is_reported():
    assert "num_ps_tasks" in config_of("--worker_hosts=a:1", environment={}).inert_flags
    assert "num_ps_tasks" not in config_of("--cluster=auto", environment=TF_CONFIG).inert_flags
