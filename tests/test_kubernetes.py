"""The file for Kubernetes in docs/guides/machines.md, and what JAX makes of its fields."""

import builtins
import io
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from jax._src.clusters.k8s_cluster import K8sCluster

from fedjax_adapt.cli.run import parse

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "machines.md"


@pytest.fixture(scope="module")
def objects():
    """What the file makes, by its kind."""
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return {made["kind"]: made for made in yaml.safe_load_all(text)}


@pytest.fixture(scope="module")
def replicated(objects):
    """The one Job of the JobSet, of which JAX counts the processes."""
    (job,) = objects["JobSet"]["spec"]["replicatedJobs"]
    assert job["replicas"] == 1
    return job


def test_every_process_has_a_number_and_no_pod_comes_back_alone(objects, replicated):
    job = replicated["template"]["spec"]
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"] > 1
    assert job["backoffLimit"] == 0
    assert job["template"]["spec"]["restartPolicy"] == "Never"
    assert objects["JobSet"]["spec"]["failurePolicy"]["maxRestarts"] > 0
    # process 0 is looked for below the name of the JobSet, which is the default
    assert "network" not in objects["JobSet"]["spec"]


def test_its_pods_may_do_as_the_role_says(objects, replicated):
    account = objects["ServiceAccount"]["metadata"]["name"]
    binding = objects["RoleBinding"]
    assert binding["roleRef"]["name"] == objects["Role"]["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    pod = replicated["template"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account


def test_its_command_line_is_one(replicated):
    pod = replicated["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    command, *flags = container["args"]
    request = parse(flags)
    assert command == "run" and request.resume
    assert request.processes.coordinator_address == "auto"
    assert request.processes.num_processes is None  # as JAX finds out
    mounted = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert {*mounted} == {volume["name"] for volume in pod["volumes"]}
    assert request.settings["folder"].startswith(f"{mounted['disk']}/")


class Cluster:
    """What JAX asks the package kubernetes, answered as the controllers would."""

    def __init__(self, jobset, replicated):
        name = f"{jobset['metadata']['name']}-{replicated['name']}-0"
        owner = SimpleNamespace(controller=True, kind="Job")
        metadata = SimpleNamespace(labels={"job-name": name}, owner_references=[owner])
        labels = {"jobset.sigs.k8s.io/jobset-name": jobset["metadata"]["name"]}
        parallelism = replicated["template"]["spec"]["parallelism"]
        self.pod = SimpleNamespace(metadata=metadata)
        self.job = SimpleNamespace(
            metadata=SimpleNamespace(name=name, labels=labels),
            spec=SimpleNamespace(parallelism=parallelism),
        )
        self.asked = []
        self.config = SimpleNamespace(load_incluster_config=lambda: None)
        self.client = SimpleNamespace(
            CoreV1Api=lambda: self,
            BatchV1Api=lambda: self,
            exceptions=SimpleNamespace(ApiException=OSError),
        )

    def list_namespaced_pod(self, namespace, field_selector):
        self.asked.append(("", "pods", "list"))
        return SimpleNamespace(items=[self.pod])

    def read_namespaced_job(self, name, namespace):
        assert name == self.job.metadata.name
        self.asked.append(("batch", "jobs", "get"))
        return self.job


@pytest.fixture
def forgetful():
    """JAX keeps what it has asked; here nothing of it is left."""
    yield
    for name in ("_pod", "_job", "_controller", "_namespace"):
        vars(K8sCluster)[name].__func__.cache_clear()
    for name in ("_core_api", "_batch_api", "_ApiException"):
        delattr(K8sCluster, name)


def test_jax_finds_all_processes_with_no_more_than_the_role_allows(
    objects, replicated, forgetful, monkeypatch
):
    cluster = Cluster(objects["JobSet"], replicated)
    monkeypatch.setitem(sys.modules, "kubernetes", cluster)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("HOSTNAME", "mine-run-0-1")
    monkeypatch.setenv("JOB_COMPLETION_INDEX", "1")
    monkeypatch.setattr(socket, "gethostbyname", lambda host: "10.0.0.2")
    own = builtins.open
    secret = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
    opened = lambda path, *rest: (
        io.StringIO("default") if path == secret else own(path, *rest)
    )
    monkeypatch.setattr(builtins, "open", opened)
    assert K8sCluster.is_env_present()
    assert K8sCluster.get_coordinator_address(None, None) == "mine-run-0-0.mine:55527"
    assert (K8sCluster.get_process_count(), K8sCluster.get_process_id()) == (2, 1)
    allowed = {
        (group, resource, verb)
        for rule in objects["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {*cluster.asked} == allowed


@pytest.mark.slow
def test_without_the_package_the_run_ends_and_names_it(tmp_path):
    program = (
        "import sys; sys.modules['kubernetes'] = None; import fedjax_adapt.cli as cli; "
        "sys.exit(cli.main(['run', '--coordinator-address', 'auto']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and not [*tmp_path.iterdir()]
    assert "pip install jax[k8s]" in done.stderr
    assert "coordinator_address=auto leads to no other process" in done.stderr
