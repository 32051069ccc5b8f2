"""The manifests keep the schemas of Kubernetes, and their flags those of the programs."""

import json
import re
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from inception import app
from inception.flags import command_line, defined

_HERE = Path(__file__).parent
_REPO = _HERE.parents[1]
_KUBERNETES = ("1.27.0", kubernetes_validate.latest_version())
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

_TFJOB_SCHEMA = jsonschema.Draft202012Validator(_TFJOB)


def manifests():
    """All parts of the manifests, each with the name of its file."""
    return [
        pytest.param(part, id=f"{path.stem}-{part['kind']}")
        for path in sorted(_HERE.glob("*.yaml"))
        for part in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    ]


def jobs(part):
    """What Kubernetes itself knows of a manifest: a TFJob's pod templates, each as a job."""
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
    if part["kind"] == "TFJob":
        found += [error.message for error in _TFJOB_SCHEMA.iter_errors(part)]
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
    """What the program of a container makes of its flags."""
    program, *arguments = container["args"]
    values = defined.flags_of(program)
    expand = lambda text: re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
    app.parse(values, [expand(argument) for argument in arguments])
    return command_line.cluster_config(values, environment)


def manifest(name, kind):
    """The part of a kind in a manifest."""
    text = (_HERE / name).read_text(encoding="utf-8")
    return next(part for part in yaml.safe_load_all(text) if part["kind"] == kind)


@pytest.mark.parametrize("version", _KUBERNETES)
@pytest.mark.parametrize("part", manifests())
def test_a_manifest_keeps_its_schema(part, version):
    assert faults(part, version) == []


@pytest.mark.parametrize("version", _KUBERNETES)
def test_a_manifest_that_breaks_a_schema_is_noticed(version):
    job, tfjob = manifest("all_reduce.yaml", "Job"), manifest("tfjob.yaml", "TFJob")
    job["spec"]["completionz"] = 2
    (told,) = faults(job, version)
    assert "completionz" in told
    tfjob["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 0
    tfjob["spec"]["tfReplicaSpecs"]["PS"]["template"]["spec"]["containerz"] = []
    assert len(faults(tfjob, version)) == 2


@pytest.mark.parametrize("part", manifests())
def test_a_volume_that_is_mounted_exists(part):
    for job in jobs(part):
        pod = job["spec"].get("template", {}).get("spec", {})
        volumes = {volume["name"] for volume in pod.get("volumes", [])}
        for container in pod.get("containers", []):
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes


@pytest.mark.parametrize("index", [0, 1])
def test_the_pods_of_a_job_are_the_workers(index):
    job = manifest("all_reduce.yaml", "Job")
    (container,) = containers(job)
    config = config_of(container, {"JOB_COMPLETION_INDEX": str(index)}, {})
    # A pod of an indexed job is named after the job and its index, below the service.
    service = manifest("all_reduce.yaml", "Service")
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    names = [f"{job['metadata']['name']}-{i}.{service['metadata']['name']}" for i in (0, 1)]
    assert [host.partition(":")[0] for host in config.worker_hosts] == names
    assert len(names) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert config.task_id == index
    assert config.tls_cert == f"/certs/{names[index]}.crt"
    assert_certificates_are_made("all_reduce.yaml", config)


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
