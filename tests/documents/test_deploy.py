"""Files in deploy/ agree with the program, as far as can be tested without a container engine."""

import configparser
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from slackwater import settings
from slackwater.cli.main import app
from slackwater.pipeline.kafka.channels import consumer_group
from slackwater.pipeline.run.monitoring import Metrics
from slackwater.pipeline.spark.conf import check_settings
from typer.main import get_command

from tests.programs.go import built
from tests.support.static import PARTS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNIT = DEPLOY / "slackwater@.service"
DOCKERFILE = DEPLOY / "Dockerfile"
CHART = DEPLOY / "helm" / "slackwater"
KUBERNETES = DEPLOY / "kubernetes"
TEMPLATES = sorted((CHART / "templates").iterdir())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
OWN = """\
app: shop-staging
program: /app/files/shop.py
files: {shop.py: "import slackwater as sw\\n\\napp = sw.App('shop')\\n"}
secrets: [shop-kafka]
env: [{name: AWS_REGION, value: eu-central-1}]
runners:
  - {name: intake, stages: [orders], args: [--max-records, "50000"]}
  - {name: totals, stages: [countries, customers]}
serviceAccount: {annotations: {eks.amazonaws.com/role-arn: arn}}
"""

_COUNT, _TEXT = {"type": "integer", "minimum": 0}, {"type": "string"}


def _fields(required: str, **types: Any) -> dict[str, Any]:
    """Return the JSON schema of an object that allows no other fields."""
    return {"type": "object", "properties": types, "required": required.split(), "additionalProperties": False}


_KAFKA_TRIGGER = _fields(
    "bootstrapServers consumerGroup topic",
    **dict.fromkeys(("bootstrapServers", "consumerGroup", "topic"), _TEXT),
    activationLagThreshold={"type": "string", "pattern": r"^\d+$"},
    offsetResetPolicy={"enum": ["latest", "earliest"]},
    scaleToZeroOnInvalidOffset={"enum": ["true", "false"]},
)
SCALED_OBJECT = _fields(
    "apiVersion kind metadata spec",
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=_fields("name", name=_TEXT),
    spec=_fields(
        "scaleTargetRef triggers",
        scaleTargetRef=_fields("name", apiVersion=_TEXT, kind=_TEXT, name=_TEXT),
        **dict.fromkeys(("minReplicaCount", "maxReplicaCount", "pollingInterval", "cooldownPeriod"), _COUNT),
        triggers={
            "type": "array",
            "minItems": 1,
            "items": _fields("type metadata", type={"const": "kafka"}, metadata=_KAFKA_TRIGGER),
        },
    ),
)
"""Schema of the file, from keda.sh/docs/2.20, pages `reference/scaledobject-spec` and `scalers/apache-kafka`.

KEDA's own resource definition allows any metadata in a trigger, and the tests do not use it: no package that fits them
has it.
"""

PROBES = ("/livez", "/readyz")
LONGEST_END_S = 20
"""Time that the supervisor gives batches and Spark, plus a margin."""


def tool(name: str) -> str:
    """Return an optional program; skip the test without it."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on PATH")
    return found


def understood(words: list[str]) -> dict[str, Any]:
    """Parse a `slackwater …` command line, and return its options."""
    verb = get_command(app).get_command(None, words[0])  # type: ignore[attr-defined, arg-type]
    return dict(verb.make_context(words[0], words[1:]).params)


def unit() -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(UNIT.read_text(encoding="utf-8"))
    return parsed


def seconds(words: object) -> int:
    return int(str(words).removesuffix("s"))


def test_the_systemd_unit_runs_a_valid_command() -> None:
    service = unit()["Service"]
    said = dict(each.split("=", 1) for each in service["Environment"].split())
    command, *words = shlex.split(service["ExecStart"].replace("%i", "shop").replace("${METRICS}", said["METRICS"]))
    assert command == "/srv/shop/.venv/bin/slackwater"
    assert (understood(words)["file"], understood(words)["metrics"]) == (Path("shop.py"), 9464)
    assert (service["Restart"], service["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert seconds(service["TimeoutStopSec"]) > LONGEST_END_S
    assert said["SLACKWATER_CACHE"] == f"%C/{service['CacheDirectory']}/sst"


def test_systemd_finds_nothing_wrong_with_the_unit(tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    text = UNIT.read_text(encoding="utf-8").replace("/srv/%i/.venv/bin/slackwater", sys.executable)
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace("User=slackwater", "User=root"), encoding="utf-8")
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr or "SYSTEMD_UNIT_PATH" in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.splitlines()[0]}")
    ours = [line for line in done.stderr.splitlines() if UNIT.stem in line]
    assert (ours, done.returncode) == ([], 0)


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions, with continued lines joined."""
    without_comments = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = (line.partition(" ") for line in without_comments.replace("\\\n", " ").splitlines() if line.strip())
    return [(name, rest.strip()) for name, _, rest in lines]


def stages() -> dict[str, list[tuple[str, str]]]:
    """Return the instructions of each stage by name; the last stage is the default image."""
    found: dict[str, list[tuple[str, str]]] = {}
    for name, rest in instructions():
        if name == "FROM":
            base, _, called = rest.partition(" AS ")
            found[called] = [(name, base)]
        else:
            found[called].append((name, rest))
    return found


def test_the_serving_image_has_neither_spark_nor_java() -> None:
    assert [*stages()][-2:] == ["serve", "run"]
    assert [rest for name, rest in stages()["serve"] if name in ("FROM", "COPY")] == [
        "system",
        "--from=build /opt/slackwater /opt/slackwater",
    ]
    assert not re.search("spark|jdk|jre", str(stages()["build"]) + str(stages()["system"]))
    assert "spark]" in str(stages()["build-spark"])
    assert ("USER", "10001") in stages()["run"][-2:]


def test_the_image_runs_as_an_unprivileged_user_and_forwards_signals() -> None:
    last = dict(stages()["system"])
    assert json.loads(last["ENTRYPOINT"]) == ["tini", "--", "slackwater"]
    assert re.fullmatch(r"[1-9]\d+", last["USER"])
    assert "SLACKWATER_CACHE=/var/cache/slackwater/sst" in last["ENV"].split()
    assert json.loads(last["VOLUME"]) == ["/var/cache/slackwater"]
    assert f"--uid {last['USER']} " in last["RUN"]


def test_the_image_has_supported_versions_of_python_and_java() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    least = tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    bases = [rest.partition(" AS ")[0] for name, rest in instructions() if name == "FROM"]
    for base in {*bases} - {*stages()}:
        found = re.match(r"python:(\d+)\.(\d+)-", base)
        assert found is not None
        assert (int(found[1]), int(found[2])) >= least
    assert "openjdk-17-jre-headless" in str(stages()["run"])
    assert f"slackwater:{project['version']}" in DOCKERFILE.read_text(encoding="utf-8")


def test_the_image_contains_the_whole_package() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    folders = {*PARTS, "pyspark_slackwater"}
    assert kept == folders | {"constraints.txt", "pyproject.toml", "README.md", "LICENSE", "*.py", "py.typed"}
    assert all(list(ROOT.glob(name)) for name in kept)


def test_hadolint_finds_nothing_wrong_with_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_every_value_that_a_template_names_exists() -> None:
    for template in TEMPLATES:
        for path in re.findall(r"\.Values\.([\w.]+)", template.read_text(encoding="utf-8")):
            found = VALUES
            for part in path.split("."):
                assert part in found, f"{template.name}: {path}"
                found = found[part]


def test_every_value_is_used_in_a_template_and_known_to_the_schema() -> None:
    text = "".join(template.read_text(encoding="utf-8") for template in TEMPLATES)
    assert [name for name in VALUES if f".Values.{name}" not in text] == []
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    assert schema["properties"].keys() <= VALUES.keys()
    assert set(schema["required"]) <= schema["properties"].keys()


def test_the_chart_uses_the_probes_that_a_runner_answers() -> None:
    text = (CHART / "templates" / "runners.yaml").read_text(encoding="utf-8")
    assert tuple(re.findall(r"path: (/\w+)", text)) == PROBES
    assert tuple(Metrics().probes) == PROBES
    patience_s = VALUES["probes"]["liveness"]["periodSeconds"] * VALUES["probes"]["liveness"]["failureThreshold"]
    assert patience_s >= LONGEST_END_S


def test_the_settings_of_the_chart_are_valid(tmp_path: Path) -> None:
    (tmp_path / settings.FILE_NAME).write_text(VALUES["settings"], encoding="utf-8")
    found = settings.load(environ={}, folder=tmp_path)
    assert (found.store, found.brokers) == ("s3://bucket/prefix", "broker:9092")
    assert not found.retention_of("shop").keeps_everything


def helm(tmp_path: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    homes = {name: str(tmp_path) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    return subprocess.run(
        [built("helm"), *words], capture_output=True, text=True, check=False, env={**os.environ, **homes}
    )


def rendered(tmp_path: Path, values: str) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart with these values."""
    file = tmp_path / "values.yaml"
    file.write_text(values, encoding="utf-8")
    return helm(tmp_path, "template", "shop", CHART, "--values", file)


def test_helm_finds_nothing_wrong_with_the_chart(tmp_path: Path) -> None:
    done = helm(tmp_path, "lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("values", ["", OWN], ids=["default", "two runners"])
def test_the_chart_creates_one_deployment_per_runner_with_valid_commands(tmp_path: Path, values: str) -> None:
    done = rendered(tmp_path, values)
    assert done.returncode == 0, done.stderr
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    wanted = VALUES | (yaml.safe_load(values) or {})
    runners = [each for each in made if each["kind"] == "Deployment"]
    assert [each["metadata"]["name"] for each in runners] == [f"shop-{each['name']}" for each in wanted["runners"]]
    maps = {each["metadata"]["name"]: each["data"] for each in made if each["kind"] == "ConfigMap"}
    assert tomllib.loads(maps["shop"]["slackwater.toml"]) == tomllib.loads(wanted["settings"])
    assert maps.get("shop-files", {}) == wanted["files"]
    for runner, each in zip(wanted["runners"], runners, strict=True):
        assert (each["spec"]["replicas"], each["spec"]["strategy"]["type"]) == (1, "Recreate")
        pod = each["spec"]["template"]["spec"]
        assert pod["terminationGracePeriodSeconds"] > LONGEST_END_S
        (container,) = pod["containers"]
        said = understood(container["args"])
        assert (said["file"], said["stage"] or [], said["metrics"]) == (
            Path(wanted["program"]),
            runner.get("stages", []),
            wanted["metrics"]["port"],
        )
        assert said["app_name"] == (wanted["app"] or None)
        probed = [container[f"{name}Probe"]["httpGet"] for name in ("liveness", "readiness")]
        assert probed == [{"path": path, "port": "metrics"} for path in PROBES]
        mounted = {volume["name"] for volume in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}
        # Only these can be written to.
        assert container["securityContext"]["readOnlyRootFilesystem"]
        assert {"work", "tmp", "cache"} <= mounted


@pytest.mark.parametrize("kubernetes", ["1.30", "1.37"])
@pytest.mark.parametrize("values", ["", OWN], ids=["default", "two runners"])
def test_kubernetes_schemas_know_every_field_of_the_chart(tmp_path: Path, values: str, kubernetes: str) -> None:
    done = rendered(tmp_path, values)
    assert done.returncode == 0, done.stderr
    made = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert {each["kind"] for each in made} >= {"ConfigMap", "Deployment", "ServiceAccount"}
    for each in made:
        kubernetes_validate.validate(each, kubernetes, strict=True)


def test_the_spark_operators_schema_knows_every_field_of_the_application() -> None:
    # Takes two seconds, which the other workers of pytest need not spend.
    from kubeflow_spark_api.models.spark_v1beta2_spark_application import SparkV1beta2SparkApplication

    said = yaml.safe_load((KUBERNETES / "spark-application.yaml").read_text(encoding="utf-8"))
    known = SparkV1beta2SparkApplication.from_dict(said)
    assert known is not None
    assert known.to_dict() == said


def test_the_spark_application_has_valid_arguments_and_settings() -> None:
    spec = yaml.safe_load((KUBERNETES / "spark-application.yaml").read_text(encoding="utf-8"))["spec"]
    said = understood(spec["arguments"])
    assert said["metrics"] == spec["driver"]["ports"][0]["containerPort"]
    assert spec["sparkVersion"] == version("pyspark")
    assert spec["driver"]["terminationGracePeriodSeconds"] > LONGEST_END_S
    assert check_settings(spec["sparkConf"], "--conf") == spec["sparkConf"]
    # The executors keep no secret.
    assert "envFrom" not in spec["executor"]


def test_the_keda_scaled_object_is_valid_and_starts_at_most_one_runner() -> None:
    said = yaml.safe_load((KUBERNETES / "scaled-object.yaml").read_text(encoding="utf-8"))
    jsonschema.validate(said, SCALED_OBJECT)
    spec = said["spec"]
    assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (0, 1)
    assert spec["scaleTargetRef"]["name"] == f"shop-{VALUES['runners'][0]['name']}"
    (trigger,) = (each["metadata"] for each in spec["triggers"])
    assert trigger["consumerGroup"] == consumer_group("shop", trigger["topic"])


@pytest.mark.parametrize("wrong", ["program: shop", "runners: []", "runners: [{name: A_B}]", "app: Shop"])
def test_the_chart_refuses_invalid_values(tmp_path: Path, wrong: str) -> None:
    done = rendered(tmp_path, wrong)
    assert done.returncode != 0
    assert "schema" in done.stderr
