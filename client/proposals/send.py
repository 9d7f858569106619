"""Channels of a proposal: a webhook that accepts JSON, Slack's incoming webhooks, and a file for a GitHub issue."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import urllib3

from ...common.whole_file import atomic_file
from ...errors import Refused, Unavailable, Usage
from ..show.shown import encode_json
from .propose import Proposal

PostFormat = Literal["json", "slack"]
_TIMEOUT_S = 10.0


def post_proposal(proposal: Proposal, url: str, form: PostFormat) -> None:
    """POST a proposal, with retries. Errors show only the host of the URL, because the URL of a webhook is a secret.

    Raises:
        Usage: the URL's scheme is neither http nor https.
        Refused: the server rejects the message.
        Unavailable: the server does not answer.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Usage("the webhook is not a URL; expected https://…", hint="set SLACKWATER_WEBHOOK, or --post URL")
    content = {"text": f"*{proposal.heading}*\n{proposal.text}"}
    if form == "json":
        content = asdict(proposal) | {"title": proposal.heading} | content
    retries = urllib3.Retry(3, backoff_factor=0.2, status_forcelist=(502, 503), allowed_methods=("POST",))
    try:
        with urllib3.PoolManager(timeout=_TIMEOUT_S, retries=retries) as pool:
            answer = pool.request(
                "POST", url, body=encode_json(content), headers={"Content-Type": "application/json"}, redirect=False
            )
    except urllib3.exceptions.HTTPError as error:
        raise Unavailable(
            f"the webhook at {parts.hostname} does not answer ({type(error).__name__}); the proposal was not posted"
        ) from None
    if answer.status >= 300:
        raise Refused(f"the webhook at {parts.hostname} answered {answer.status}; the proposal was not posted")


def write_issue(proposal: Proposal, folder: Path) -> Path:
    """Write a proposal as Markdown text of a GitHub issue, and return the file. Creates the folder. Raises `Refused`.

    The first line is the title. The file is named after the failure, so the next report of the same failure overwrites
    it.
    """
    path = folder / f"{re.sub(r'[^A-Za-z0-9._-]', '-', f'{proposal.app}-{proposal.invariant}')}.issue.md"
    with atomic_file(path, "--issues") as temporary:
        folder.mkdir(parents=True, exist_ok=True)
        temporary.write_text(f"# {proposal.heading}\n\n{proposal.text}\n", encoding="utf-8")
    return path
