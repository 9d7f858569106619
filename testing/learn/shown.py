"""Output of `learn-tests`: the file, and the branches that no record reaches."""

from __future__ import annotations

from collections.abc import Iterator

from ...client.show import formats
from ...client.show.document import Block, TableBlock, Title
from ...client.show.shown import Result, attributes
from .learn import Learned


def learned_result(learned: Learned) -> Result:
    """Return the result of `learn-tests`."""
    data = {
        **attributes(learned, "app", "file", "sampled", "shown", "runs"),
        "tests": [
            {
                "records": len(test.records),
                "branches": [str(branch) for branch in sorted(test.branches)],
                "effects": sorted(test.effects),
            }
            for test in learned.tests
        ],
        "branches": len(learned.reached) + len(learned.unreached),
        "reached": len(learned.reached),
        "unreached": [str(branch) for branch in learned.unreached],
    }
    return Result(data, *_blocks(learned))


def _blocks(learned: Learned) -> Iterator[Block]:
    every, tests = len(learned.reached) + len(learned.unreached), formats.plural(len(learned.tests), "test")
    yield Title(f"{tests} in {learned.file}: {len(learned.reached)} of {every} branches")
    records = formats.plural(len(learned.tests[-1].records), "record")
    yield f"{records} of {learned.sampled:,} that were tried, in {formats.plural(learned.runs, 'run')}"
    if learned.shown:
        yield f"not masked, as branches depend on their values: {', '.join(learned.shown)}"
    if learned.unreached:
        yield ""
        yield TableBlock.from_rows(
            (">line", "never", "condition"),
            ((branch.line, "true" if branch.outcome else "false", branch.text) for branch in learned.unreached),
        )
