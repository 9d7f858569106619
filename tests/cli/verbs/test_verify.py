"""`slackwater verify`: output, streams and exit codes."""

import json
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from slackwater.store.objects.protocol import ObjectStore
from slackwater.store.versions import codec, keys
from slackwater.store.versions.manifest import Manifest
from typer.testing import Result

from tests.cli.verbs.calling import slackwater
from tests.support.fan_in import FanIn, bank

pytestmark = pytest.mark.usefixtures("isolated")


@pytest.fixture
def app(store: ObjectStore) -> FanIn:
    return bank(store)


def verify(*words: str) -> Result:
    return slackwater("verify", *words)


def one_less_sent(app: FanIn) -> None:
    """Lower the count of sent records of partition 1 by one."""
    key = keys.manifest("bank", "right", 5)
    manifest = codec.decode(app.store.get(key), Manifest, key=key)
    output = replace(manifest.outputs["by-right"], sent=(4, 5))
    app.store.put(key, codec.encode(replace(manifest, outputs={"by-right": output})))


@pytest.mark.usefixtures("app")
def test_verify_prints_the_record_counts_and_checks_of_a_consistent_snapshot() -> None:
    result = verify("bank@good")
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0] == ["bank@good"]
    assert lines[2] == ["by-left", "left@v3", "join@v3", "all", "8", "8", "0", "0", "manifests"]
    assert lines[3] == ["by-right", "right@v5", "join@v3", "all", "10", "5", "5", "0", "snapshot"]
    checked = {line[0]: line[1] for line in lines[6 : lines.index([], 6)]}
    assert checked == {"versions": "3", "channels": "2", "kept": "1", "markers": "4", "history": "3", "objects": "1"}
    left_out = [line for line in result.stdout.splitlines() if line.startswith("not checked: ")]
    assert ["(--deep)" in line for line in left_out] == [True, False]
    assert lines[-1][0] == "consistent"
    assert result.stderr == ""


def test_an_inconsistency_is_one_sentence_and_exit_code_1(app: FanIn) -> None:
    one_less_sent(app)
    result = verify("bank@good")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[3].split() == ["by-right", "right@v5", "join@v3", "all", "9", "5", "5", "-1", "snapshot"]
    # Only the partition whose numbers do not add up.
    assert lines[4].split() == ["1", "5", "4", "2", "-1"]
    assert lines[-2] == (
        "not consistent: by-right[1]: right at version 5 sent 5 records, but join at version 3 consumed 4 "
        "and 2 are in flight"
    )
    assert lines[-1] == "and 2 more differences; --json has them all"
    assert "Traceback" not in result.output


def test_json_has_all_fields(app: FanIn) -> None:
    whole: Any = json.loads(verify("bank@good", "--json").stdout)
    assert whole["consistent"] is True
    assert whole["versions"] == {"left": 3, "right": 5, "join": 3}
    assert [entry["difference"] for entry in whole["ledger"]] == [0, 0]
    assert whole["ledger"][1]["in_flight"]["by_partition"] == [3, 2]
    assert whole["differences"] == []
    assert whole["requests"] > 5
    one_less_sent(app)
    result = verify("bank@good", "--json")
    assert result.exit_code == 1
    found: Any = json.loads(result.stdout)
    assert found["consistent"] is False
    assert [difference["check"] for difference in found["differences"]] == ["channels", "history", "history"]


@pytest.mark.usefixtures("app")
def test_deep_without_kafka_says_what_was_not_checked() -> None:
    result = verify("bank", "--deep")
    assert result.exit_code == 0
    assert "manifests (not re-read)" in result.stdout
    assert "records in flight on by-right to join were not re-read: no Kafka configured" in result.stdout


def test_a_damaged_manifest_of_the_cut_is_reported_without_a_traceback(app: FanIn) -> None:
    key = keys.manifest("bank", "right", 5)
    app.store.put(key, b"\x00")
    for words in (["bank@good"], ["bank@good", "--deep"], ["bank/right@v5"]):
        result = verify(*words)
        assert result.exit_code == 1
        assert "not consistent: " in result.stdout
        assert key in result.stdout
        assert result.stderr == ""


@pytest.mark.usefixtures("app")
def test_an_unknown_ref_and_an_invalid_ref_have_different_exit_codes() -> None:
    unknown = verify("bank@goof")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert "the nearest: good" in unknown.stderr
    senseless = verify("bank@")
    assert (senseless.exit_code, senseless.stdout) == (2, "")
    assert verify().exit_code == 2


@pytest.mark.usefixtures("app")
def test_progress_goes_to_stderr_so_the_result_can_be_piped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.cli.session._PROGRESS_S", -1.0)
    result = verify("bank@good", "--deep", "--json")
    assert json.loads(result.stdout)["deep"] is True
    assert result.stderr == ""
    result = verify("bank@good", "--deep")
    assert "history of join: v1 of v4" in result.stderr
    assert "records in flight on by-right to join" in result.stderr
    assert "history of" not in result.stdout


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys; from slackwater.cli.verbs import status as verify; "
        "sys.exit(bool({'pyarrow', 'numpy', 'duckdb', 'confluent_kafka'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
