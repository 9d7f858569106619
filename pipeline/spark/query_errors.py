"""What stopped a query, in one sentence: errors cross from Spark's workers as text, and Spark wraps them in its own."""

from __future__ import annotations

import re

from ... import errors
from ...errors import Refused, SlackwaterError

_RAISED = re.compile(r"^\s*((?!org\.apache\.spark\.api\.)[\w.]+(?:Error|Exception)\b: .*)", re.MULTILINE)
_ENDED = re.compile(r"terminated with exception: (.*)")
_OURS = re.compile(rf"{re.escape(errors.__name__)}\.(\w+): (.*)")

_HINTS = {"Gone": "they outlived the topic's retention; the same command with --accept-loss goes on without them"}
"""By kind, the next step of who runs an app."""


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
    raised = _RAISED.findall(text)
    ended = _ENDED.findall(text)
    reason = (raised or ended or ["no reason given"])[-1].strip()
    return Refused(
        f"stage {stage!r} stopped: {reason}",
        hint="the batch was dropped whole and nothing is lost; fix the cause and run again "
        "(SLACKWATER_DEBUG=1 shows Spark's own words)",
    )
