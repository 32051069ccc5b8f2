"""The manifests fit the schemas of Kubernetes, and the programs accept their flags."""

import json
import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from inception import app
from inception.flags import command_line

_HERE = Path(__file__).parent
_REPO = _HERE.parents[1]
# The oldest version that has the fields of each file, as far as we know, and the newest.
_OLDEST, _NEWEST = "1.27.0", kubernetes_validate.latest_version()
_OLDEST_OF = {"elastic.yaml": "1.29.0", "trainjob.yaml": "1.29.0"}
_KUBERNETES = (_OLDEST, _NEWEST)
_JOB_SETS = ("TrainJob", "TrainingRuntime")
_REPLICAS = {
    "type": "object",
    "required": ["replicas", "restartPolicy", "template"],
    "additionalProperties": False,
    "properties": {
        "replicas": {"type": "integer", "minimum": 1},
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object"},
    },
}
_TFJOB = {  # after the definition of kubeflow.org/v1; the pod templates are Kubernetes' own
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "TFJob"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["tfReplicaSpecs"],
            "additionalProperties": False,
            "properties": {
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"cleanPodPolicy": {"enum": ["None", "Running", "All"]}},
                },
                "tfReplicaSpecs": {
                    "type": "object",
                    "propertyNames": {"enum": ["Chief", "Evaluator", "Master", "PS", "Worker"]},
                    "additionalProperties": _REPLICAS,
                },
            },
        },
    },
}

_TRAINER = json.loads((_HERE / "trainer.schema.json").read_text(encoding="utf-8"))
_SCHEMAS = {
    kind: jsonschema.Draft202012Validator(schema)
    for kind, schema in {
        "TFJob": _TFJOB,
        **{kind: {"$ref": f"#/$defs/{kind}", "$defs": _TRAINER["$defs"]} for kind in _JOB_SETS},
    }.items()
}


def manifests():
    """All parts of the manifests, each with the name of its file."""
    return [
        pytest.param(part, id=f"{path.stem}-{part['kind']}")
        for path in sorted(_HERE.glob("*.yaml"))
        for part in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def parts_in_versions():
    """Each part with each version of Kubernetes that it must fit."""
    return [
        pytest.param(part, version, id=f"{path.stem}-{part['kind']}-{version}")
        for path in sorted(_HERE.glob("*.yaml"))
        for part in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        for version in (_OLDEST_OF.get(path.name, _OLDEST), _NEWEST)
    ]


def jobs(part):
    """The parts of a manifest that Kubernetes itself has schemas for, each as a job."""
    if part["kind"] == "TrainJob":
        return []
    if part["kind"] == "TrainingRuntime":
        return [
            {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {"name": each["name"], **each["template"]["metadata"]},
                "spec": each["template"]["spec"],
            }
            for each in part["spec"]["template"]["spec"]["replicatedJobs"]
        ]
    if part["kind"] != "TFJob":
        return [part]
    return [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name.lower()},
            "spec": {"template": replicas["template"]},
        }
        for name, replicas in part["spec"]["tfReplicaSpecs"].items()
    ]


def faults(part, version):
    """What is wrong with a manifest for a version of Kubernetes."""
    found = []
    if schema := _SCHEMAS.get(part["kind"]):
        found += [error.message for error in schema.iter_errors(part)]
    for job in jobs(part):
        try:
            kubernetes_validate.validate(job, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(error.message)
    return found


def containers(part):
    """The containers of a manifest."""
    for job in jobs(part):
        yield from job["spec"].get("template", {}).get("spec", {}).get("containers", [])


def config_of(container, variables, environment):
    """The configuration that the program of a container reads from its flags."""
    program, *arguments = container["args"]
    values = command_line.flags_of(program)
    expand = lambda text: re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
    app.parse(values, [expand(argument) for argument in arguments])
    return command_line.cluster_config(values, environment)


def manifest(name, kind):
    """The part of a kind in a manifest."""
    text = (_HERE / name).read_text(encoding="utf-8")
    return next(part for part in yaml.safe_load_all(text) if part["kind"] == kind)


@pytest.mark.parametrize(("part", "version"), parts_in_versions())
def test_a_manifest_keeps_its_schema(part, version):
    assert faults(part, version) == []


@pytest.mark.parametrize("version", _KUBERNETES)
def test_a_manifest_that_breaks_a_schema_is_noticed(version):
    job, tfjob = manifest("all_reduce.yaml", "Job"), manifest("tfjob.yaml", "TFJob")
    job["spec"]["completionz"] = 2
    (reported,) = faults(job, version)
    assert "completionz" in reported
    tfjob["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 0
    tfjob["spec"]["tfReplicaSpecs"]["PS"]["template"]["spec"]["containerz"] = []
    assert len(faults(tfjob, version)) == 2


def test_a_part_of_a_trainjob_that_breaks_a_schema_is_noticed():
    runtime, job = (manifest("trainjob.yaml", kind) for kind in ("TrainingRuntime", "TrainJob"))
    runtime["spec"]["mlPolicy"]["torch"]["numProcPerNode"] = 1  # before Trainer 2.2
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    node["template"]["spec"]["backofLimitPerIndex"] = 1
    assert len(faults(runtime, _NEWEST)) == 2
    job["spec"]["runtimeRef"].pop("name")
    job["spec"]["trainer"]["numNodes"] = "2"
    assert len(faults(job, _NEWEST)) == 2


@pytest.mark.parametrize(
    "job",
    [manifest("elastic.yaml", "Job"), *jobs(manifest("trainjob.yaml", "TrainingRuntime"))],
    ids=["elastic.yaml", "trainjob.yaml"],
)
def test_a_job_that_replaces_its_pods_has_what_kubernetes_demands_for_that(job):
    spec = job["spec"]
    # Kubernetes refuses both of these in other jobs.
    assert spec["backoffLimitPerIndex"] and spec["podFailurePolicy"]
    assert spec["completionMode"] == "Indexed"
    assert spec["podReplacementPolicy"] == "Failed"  # the only one with a podFailurePolicy
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["spec"]["terminationGracePeriodSeconds"] > 60


@pytest.mark.parametrize("part", manifests())
def test_a_volume_that_is_mounted_exists(part):
    for job in jobs(part):
        pod = job["spec"].get("template", {}).get("spec", {})
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod.get("containers", []):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes


def test_the_records_are_made_where_the_workers_look_for_them():
    (converter,) = containers(manifest("records.yaml", "Job"))
    program, *arguments = converter["args"]
    values = command_line.flags_of(program)
    app.parse(values, arguments)
    (worker,) = containers(manifest("all_reduce.yaml", "Job"))
    assert f"--data_dir={values['dataset_dir'].value}" in worker["args"]
    assert converter["volumeMounts"][0] in worker["volumeMounts"]


@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("file", ["all_reduce.yaml", "elastic.yaml"])
def test_the_pods_of_a_job_are_the_workers(file, index):
    job = manifest(file, "Job")
    (container,) = containers(job)
    config = config_of(container, {"JOB_COMPLETION_INDEX": str(index)}, {})
    # A pod of an indexed job is named after the job and its index, below the service.
    service = manifest(file, "Service")
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    names = [f"{job['metadata']['name']}-{i}.{service['metadata']['name']}" for i in (0, 1)]
    assert [host.partition(":")[0] for host in config.worker_hosts] == names
    assert len(names) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert config.task_id == index
    assert config.tls_cert == f"/certs/{names[index]}.crt"
    assert config.elastic == (file == "elastic.yaml")
    assert_certificates_are_made(file, config)


@pytest.mark.parametrize("index", [0, 1])
def test_the_pods_of_a_trainjob_are_the_workers(index):
    runtime, job = (manifest("trainjob.yaml", kind) for kind in ("TrainingRuntime", "TrainJob"))
    trainer, reference = job["spec"]["trainer"], job["spec"]["runtimeRef"]
    named = reference["apiGroup"], reference["kind"], reference["name"]
    group = runtime["apiVersion"].partition("/")[0]
    assert named == (group, runtime["kind"], runtime["metadata"]["name"])
    # Trainer finds what it changes by these names.
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    label = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert (node["name"], node["template"]["metadata"]["labels"]) == ("node", label)
    assert [each["name"] for each in containers(runtime)] == ["node"]
    name = job["metadata"]["name"]
    environment = {  # as Trainer's torch policy sets it
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
        "PET_MASTER_PORT": "29500",
        "JOB_COMPLETION_INDEX": str(index),
    }
    config = config_of(trainer, environment, environment)
    hosts = [f"{name}-node-0-{i}.{name}" for i in range(trainer["numNodes"])]
    assert list(config.worker_hosts) == [f"{host}:29500" for host in hosts]
    assert (config.task_id, config.control_port, config.elastic) == (index, 30500, True)
    assert config.tls_cert == f"/certs/{hosts[index]}.crt"
    assert_certificates_are_made("trainjob.yaml", config)


@pytest.mark.parametrize("job_name", ["PS", "Worker"])
def test_the_pods_of_a_tfjob_know_their_role(job_name):
    tfjob = manifest("tfjob.yaml", "TFJob")
    replicas = tfjob["spec"]["tfReplicaSpecs"]
    hosts = {  # as the operator names them
        name.lower(): [
            f"{tfjob['metadata']['name']}-{name.lower()}-{i}.default.svc:2222"
            for i in range(of_kind["replicas"])
        ]
        for name, of_kind in replicas.items()
    }
    text = json.dumps({"cluster": hosts, "task": {"type": job_name.lower(), "index": 0}})
    (container,) = replicas[job_name]["template"]["spec"]["containers"]
    pod = hosts[job_name.lower()][0].partition(".")[0]
    config = config_of(container, {"POD_NAME": pod}, {"TF_CONFIG": text})
    assert (config.job_name, config.task_id) == (job_name.lower(), 0)
    assert list(config.ps_hosts) == hosts["ps"]
    assert_certificates_are_made("tfjob.yaml", config)


def assert_certificates_are_made(name, config):
    """Checks that the comment of a manifest makes the certificates of a container."""
    head = (_HERE / name).read_text(encoding="utf-8").partition("apiVersion")[0]
    for path in (config.tls_ca, config.tls_cert, config.tls_key):
        assert f"--from-file={path.replace('/certs', 'certs')}" in head


def test_the_image_is_made_of_files_that_exist():
    text = (_HERE / "Containerfile").read_text(encoding="utf-8")
    copied = [name for line in re.findall(r"^COPY (.*)$", text, re.M) for name in line.split()[:-1]]
    assert copied
    ignored = (_HERE / "Containerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line for line in ignored if line.startswith("!")]
    assert sorted(f"!{name}" for name in copied) == sorted(kept)
    assert all((_REPO / name).exists() for name in copied)
