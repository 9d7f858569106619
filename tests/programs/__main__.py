"""`python -m tests.programs [NAME …]`: fetch and build the programs that tests need, before any test.

Kafka, the S3 server and the schema registry are required. A browser, and programs of Go and Node.js, which are given by
name, are optional: tests that need a missing one are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from slackwater.errors import SlackwaterError
from slackwater.pipeline.dev.kafka import EmbeddedKafka
from slackwater.pipeline.dev.s3 import EmbeddedS3

from tests.programs import go, spark_classes
from tests.serve.page import browser
from tests.support.registries import EmbeddedRegistry, unpacked


def main(names: Sequence[str]) -> int:
    """Fetch and build all, and report failures. Returns 1 if a required program is missing."""
    for server in (EmbeddedKafka, EmbeddedS3, EmbeddedRegistry):
        try:
            server.jars.fetch(_say)
        except SlackwaterError as error:
            _say(f"error: {error.message}\nhint: {error.hint}")
            return 1
    unpacked(EmbeddedRegistry.jars.folder)
    spark_classes.build()
    for name in names:
        if not go.is_built(name):
            _say(f"building {name}, once …")
        try:
            go.build(name)
        except go.NotBuilt as why:
            _say(f"{name} is not built, tests of it will skip: {why}")
    try:
        browser.fetch()
    except browser.NotFetched as why:
        _say(f"there is no browser, tests of the page will skip: {why}")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
