"""Proposals: a broken invariant becomes one message, whose command mends the table."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from slackwater.cli import main
from slackwater.client.proposals.propose import ChangedRow, Proposal
from slackwater.client.proposals.send import post_proposal, write_issue
from slackwater.errors import Refused, Unavailable, Usage
from slackwater.pipeline.run.program import load_app
from slackwater.testing import Ran, run
from typer.testing import CliRunner

SECRET = "hush-hush-token"
PROGRAM = """
import slackwater as sw
from pyspark.sql import functions as F

app = sw.App("shop")


@app.stage(reads=sw.topic("orders"), key="k", state=sw.aggregate(total=sw.sum("x"), top=sw.max("x")))
def totals(messages):
    order = F.from_json(F.col("value").cast("string"), "k string, x long").alias("o")
    return messages.select(order).select("o.*")
"""
INVARIANT = '[invariants.none-is-large]\nwhere = "SELECT k FROM totals WHERE top > 1000"\n'


class Webhook:
    """Server that stores the bodies that are posted to it, and answers with a status."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.status = 200
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                webhook.posted.append(json.loads(body))
                self.send_response(webhook.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/{SECRET}"


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    with webhook.server:
        thread = Thread(target=webhook.server.serve_forever)
        thread.start()
        yield webhook
        webhook.server.shutdown()
        thread.join()


PROPOSAL = Proposal(
    "shop",
    "none-is-large",
    "totals v3 is the first bad commit of shop",
    "one record is at fault",
    ("orders[0]@7",),
    "Without them, 1 row of totals would differ.",
    (ChangedRow("totals", "k a", (("top", "5000", "4"),)),),
    "slackwater repair shop --drop 'orders[0]@7'",
)


def test_slack_gets_only_a_text_and_others_all_fields(webhook: Webhook) -> None:
    post_proposal(PROPOSAL, webhook.url, "slack")
    post_proposal(PROPOSAL, webhook.url, "json")
    slack, fields = webhook.posted
    assert slack == {"text": fields["text"]}
    assert slack["text"].splitlines() == [
        "*shop: none-is-large fails*",
        "totals v3 is the first bad commit of shop",
        "one record is at fault",
        "1 record: `orders[0]@7`",
        "Without them, 1 row of totals would differ.",
        "```",
        "totals, k a",
        "  top: 5000 -> 4",
        "```",
        "To apply it: `slackwater repair shop --drop 'orders[0]@7'`",
    ]
    assert (fields["app"], fields["records"], fields["command"]) == ("shop", ["orders[0]@7"], PROPOSAL.command)


def test_an_issue_has_its_title_first_and_replaces_that_of_the_same_failure(tmp_path: Path) -> None:
    first, second = write_issue(PROPOSAL, tmp_path), write_issue(PROPOSAL, tmp_path)
    assert first == second
    assert first.read_text().splitlines()[:3] == ["# shop: none-is-large fails", "", PROPOSAL.sentence]
    assert write_issue(PROPOSAL, tmp_path / "new" / "folder").read_text() == first.read_text()
    with pytest.raises(Refused, match="--issues"):
        write_issue(PROPOSAL, first / "below-a-file")


def test_no_error_shows_the_webhooks_address(webhook: Webhook) -> None:
    webhook.status = 404
    with pytest.raises(Refused, match=r"127\.0\.0\.1 answered 404") as refused:
        post_proposal(PROPOSAL, webhook.url, "json")
    with pytest.raises(Unavailable, match="does not answer") as silent:
        post_proposal(PROPOSAL, f"http://127.0.0.1:1/{SECRET}", "json")
    for address in (f"ftp://example.org/{SECRET}", SECRET, f"http://[{SECRET}"):
        with pytest.raises(Usage) as malformed:
            post_proposal(PROPOSAL, address, "json")
        assert SECRET not in f"{malformed.value} {malformed.value.hint}"
    for error in (refused.value, silent.value):
        assert SECRET not in f"{error} {error.hint} {error.__cause__} {error.quoted}"


def _totals(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    amounts: dict[str, list[int]] = {}
    for row in rows:
        amounts.setdefault(row["k"], []).append(row["x"])
    return [{"k": k, "total": sum(values), "top": max(values)} for k, values in sorted(amounts.items())]


def _watch(ran: Ran, *words: str) -> Any:
    environment = {
        "SLACKWATER_STORE": str(ran.folder.path / "store"),
        "SLACKWATER_CACHE": str(ran.folder.path / "cache"),
        "SLACKWATER_KAFKA": ran.kafka.address,
    }
    return CliRunner().invoke(main.app, words, env=environment)


@pytest.mark.spark
@pytest.mark.usefixtures("isolated", "one_spark")
def test_the_command_of_a_proposal_mends_what_broke_the_invariant(webhook: Webhook, tmp_path: Path) -> None:
    code = tmp_path / "shop.py"
    code.write_text(PROGRAM)
    (tmp_path / "slackwater.toml").write_text(INVARIANT)
    good = [{"k": k, "x": number} for number in range(4) for k in ("anna", "otto")]
    ran = run(load_app(str(code)), {"orders": good})
    words = ("watch", "shop", "--once", "--on-fail", "propose", "--code", str(code), "--post", webhook.url)
    assert _watch(ran, *words).exit_code == 0
    assert webhook.posted == []
    bad, later = {"k": "anna", "x": 98_765}, [{"k": "anna", "x": 5}, {"k": "otto", "x": 6}]
    ran = run(load_app(str(code)), {"orders": [bad, *later]}, after=ran)
    ran = run(load_app(str(code)), {"orders": later}, after=ran)
    result = _watch(ran, *words, "--issues", str(tmp_path / "issues"))
    assert result.exit_code == 1, result.output
    (posted,) = webhook.posted
    assert posted["records"] == [f"orders[0]@{len(good)}"]
    assert posted["command"] == f"slackwater repair shop --drop 'orders[0]@{len(good)}' --code {code}"
    assert f"To apply it: `{posted['command']}`" in (tmp_path / "issues" / "shop-none-is-large.issue.md").read_text()
    assert "98765" not in json.dumps(posted)
    assert "anna" not in json.dumps(posted)
    assert SECRET not in result.output
    # It only proposes.
    assert ran.rows("totals") == _totals([*good, bad, *later, *later])
    applied = _watch(ran, *shlex.split(posted["command"])[1:])
    assert applied.exit_code == 0, applied.output
    assert ran.app.at().query("FROM totals ORDER BY k").to_arrow_table().to_pylist() == _totals([*good, *later, *later])
    assert _watch(ran, "watch", "shop", "--once").exit_code == 0


@pytest.mark.spark
@pytest.mark.usefixtures("isolated", "one_spark")
def test_without_a_record_at_fault_the_reason_is_told(webhook: Webhook, tmp_path: Path) -> None:
    code = tmp_path / "shop.py"
    code.write_text(PROGRAM)
    (tmp_path / "slackwater.toml").write_text(INVARIANT)
    ran = run(load_app(str(code)), {"orders": [{"k": "anna", "x": 1}]})
    assert _watch(ran, "watch", "shop", "--once").exit_code == 0
    ran.app.edit("totals", "UPDATE totals SET top = 5000")
    result = _watch(
        ran,
        "watch",
        "shop",
        "--once",
        "--on-fail",
        "propose",
        "--code",
        str(code),
        "--post",
        webhook.url,
        "--show-values",
    )
    assert result.exit_code == 1, result.output
    (posted,) = webhook.posted
    assert (posted["records"], posted["command"]) == ([], "")
    assert "edit" in posted["cause"]
    assert "No repair is proposed: no record is proved to be the cause" in posted["text"]


def test_options_of_a_proposal_need_one() -> None:
    result = CliRunner().invoke(main.app, ["watch", "shop", "--once", "--show-values"])
    assert (result.exit_code, "--on-fail propose" in result.output) == (2, True)
