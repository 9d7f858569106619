"""Verbs on a server that never answers: within seconds, they name the setting with the server's address."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.cli.verbs.calling import process

NO_BROKER = ("--kafka", "127.0.0.1:1")
ON_S3 = ("--store", "s3://bucket/prefix")
VERBS = (
    (("run", "app.py", *NO_BROKER), "--kafka"),
    (("clone", "flights", "copy", *NO_BROKER), "--kafka"),
    (("snapshot", "take", "flights", *ON_S3, "--json"), "AWS_ENDPOINT_URL"),
)
MORE_VERBS = (
    (("query", "flights", "FROM carriers", *ON_S3), "AWS_ENDPOINT_URL"),
    (("status", *ON_S3), "AWS_ENDPOINT_URL"),
)
"""Verbs that open the store like `snapshot take`."""
PROGRAM = """
import slackwater as sw
app = sw.App("idle")
app.stage(name="s", reads=sw.topic("t"), key="key", state=sw.aggregate(n=sw.count()))(lambda rows: rows)
"""


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Point S3's address to a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "anybody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        yield


@pytest.mark.usefixtures("isolated", "silent", "app")
@pytest.mark.parametrize(
    "verbs",
    [
        pytest.param(VERBS, id="each way to a server"),
        pytest.param(MORE_VERBS, id="more verbs", marks=pytest.mark.ci),  # `snapshot take` shows it, too
    ],
)
def test_each_verb_names_the_setting_long_before_it_gives_up(verbs: tuple[tuple[tuple[str, ...], str], ...]) -> None:
    Path("app.py").write_text(PROGRAM)

    def said(words: tuple[str, ...]) -> str:
        """Return the output of a verb until it names a setting, or all of it if it does not."""
        lines = []
        with process(*words) as started:
            assert started.stderr is not None
            for line in started.stderr:
                lines.append(line)
                if "check that it is running, and its address in" in line:
                    # No verb has timed out yet: that takes ten seconds for Kafka, a minute for S3.
                    assert started.poll() is None, lines
                    break
        return "".join(lines)

    with ThreadPoolExecutor(len(verbs)) as threads:
        found = list(threads.map(said, (words for words, _ in verbs)))
    for (words, setting), text in zip(verbs, found, strict=True):
        assert f"its address in {setting}" in text, (words, text)
