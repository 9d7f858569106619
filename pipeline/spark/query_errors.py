"""What stopped a query, in one sentence: errors cross from Spark's workers as text, and Spark wraps them in its own."""

from __future__ import annotations

import re

from ... import errors
from ...errors import Refused, SlackwaterError

_RAISED = re.compile(r"^\s*((?!org\.apache\.spark\.api\.)[\w.]+(?:Error|Exception)\b: .*)", re.MULTILINE)
_ENDED = re.compile(r"terminated with exception: (.*)")
_CRASHED = re.compile(r"Exception: Python worker (exited unexpectedly|failed to connect back)")
"""As Spark raises it: a record's text, in what the program raised of it, may have the same words."""
_FAULT = re.compile(r"Fatal Python error: (.*)")
_OURS = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")

_HINTS = {"Gone": "they outlived the topic's retention; the same command with --accept-loss goes on without them"}
"""By kind, the next step of who runs an app."""
_DROPPED = "the batch was dropped whole and nothing is lost"


def translate(stage: str, text: str) -> SlackwaterError:
    """The error behind what Spark says of a stage's query; one of ours where it was one."""
    ours = _OURS.findall(text)
    if ours:
        kind, message = ours[-1]
        known = getattr(errors, kind, None)
        error = known.__new__(known) if isinstance(known, type) and issubclass(known, SlackwaterError) else Refused("")
        # A hint does not cross.
        SlackwaterError.__init__(error, f"stage {stage!r}: {message.strip()}", hint=_HINTS.get(kind, ""))
        return error
    if crashed := _CRASHED.search(text):
        return _crash(stage, crashed[1], _FAULT.search(text))
    raised = _RAISED.findall(text)
    ended = _ENDED.findall(text)
    reason = (raised or ended or ["no reason given"])[-1].strip()
    return Refused(
        f"stage {stage!r} stopped: {reason}",
        hint=f"{_DROPPED}; fix the cause and run again (SLACKWATER_DEBUG=1 shows Spark's own words)",
    )


def _crash(stage: str, how: str, fault: re.Match[str] | None) -> Refused:
    """The error of a Python worker that went without a word of its own; `fault` is what Python said of it."""
    if how.startswith("failed"):
        return Refused(
            f"stage {stage!r} stopped: a Python process of Spark's did not come up in time",
            hint=f"is the machine too busy, or short of memory? {_DROPPED}: run again",
        )
    if fault is None:
        return Refused(
            f"stage {stage!r} stopped: a Python worker of Spark's was killed in the middle of a batch",
            hint="most often for want of memory: the kernel's log (dmesg) names the process then; "
            f"{_DROPPED}: run again",
        )
    return Refused(
        f"stage {stage!r} stopped: a Python worker of Spark's crashed: {fault[1].strip()}",
        hint=f"SLACKWATER_DEBUG=1 shows where in Python that was; {_DROPPED}: run again",
    )
