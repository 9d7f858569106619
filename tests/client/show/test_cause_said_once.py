"""Evidence of a cause appears once: in its sentence or in the table below it."""

from __future__ import annotations

import pytest
from slackwater.client.show.document import TableBlock
from slackwater.client.show.shown import format_plain
from slackwater.client.show.verdict import cause_facts, evidence_rows
from slackwater.snapshot.bisect.causes import Cause, ProgramChange, deploy_cause
from slackwater.store.versions.manifest import Program

OLD, NEW = Program("app.py", "0" * 32), Program("app.py", "1" * 32)
CHANGE = ProgramChange("legs", 47, 0, OLD, NEW, 9, 0)


def said(cause: Cause) -> str:
    tables = [each for each in cause_facts(cause) if isinstance(each, TableBlock)]
    return "\n".join([cause.sentence, *map(format_plain, tables)])


@pytest.mark.parametrize("add", [None, OLD])
def test_a_deploy_names_each_program_and_the_version_once(add: Program | None) -> None:
    because = ": the batch is good with the old program, and bad with the new one"
    text = said(deploy_cause(CHANGE, how="both programs", proved=add is None, suffix=because, old_program=add))
    for word in (OLD.checksum, NEW.checksum, "legs", "47"):
        assert text.count(word) == 1, word
    assert "both programs" not in text  # the sentence says it in words


def test_evidence_that_the_sentence_lacks_is_in_the_table() -> None:
    """The sentence has `[0]@31` and v20. Their substrings, such as `[0]@3` and v2, do not count as mentioned."""
    evidence = {"late": "t[0]@3", "watermark": "2025-01-01T00:00:00Z", "moved_version": "legs@v2", "moved_by": "t[1]@7"}
    sentence = "t[0]@31 is the first late record of legs@v20: the watermark was 2025-01-01T00:00:00Z; t[1]@7 moved it"
    cause = Cause("watermark", proved=True, sentence=sentence, evidence=evidence)
    assert dict(evidence_rows(cause)) == {"late": "t[0]@3", "moved version": "legs@v2"}
