"""Standing invariants of an app: the watcher of the settings' invariants, and what is done about one that fails."""

import re
from collections.abc import Callable
from pathlib import Path

from ..errors import SlackwaterError, Usage
from ..moments.query.sql import names_channels
from ..moments.take.audit_log import record
from ..search.predicate import Where
from ..search.verdict import Evaluation, Verdict
from ..search.watcher import Findings, Invariant, Watcher, call
from ..store.versions.apps import folder_of
from .backends import Backends
from .history import AppHistory
from .searches import Reports


class WatchedApp(Watcher):
    """Watches an app's invariants. Raises `Usage` where the settings have none for it."""

    def __init__(self, client: Backends, app: str) -> None:
        invariants = [each for each in client.settings.invariants.values() if each.app in ("", app)]
        if not invariants:
            hint = 'write [invariants.NAME] into slackwater.toml, with where = "SELECT …" or check = "…"'
            raise Usage(f"nothing says what must hold of {app}", hint=hint)
        app = folder_of(client.store, app)
        invariants = [each.of(client.store, app) for each in invariants]
        reader = client.channels() if any(names_channels(each.where) for each in invariants) else None
        super().__init__(client.store, client.cache, app, invariants, by=client.by, reader=reader)
        self._client = client

    def record(self) -> None:
        """Write into the app's log that it is watched."""
        record(self.store, self.app, "watch", ", ".join(each.name for each in self.invariants), self.by)

    def bisect(self, invariant: Invariant, look: Findings, on_step: Callable[[Evaluation], None]) -> Verdict | None:
        """The commit that broke an invariant; None, and a note, where it is not found."""
        app, good = AppHistory(self._client, self.app), look.last_good or None
        try:
            return app.search(Where(invariant.where), good=good, bad=look.ref, on_step=on_step)
        except SlackwaterError as error:
            self._client.note(f"the commit that broke {invariant.name} was not found: {error.message}")
            return None

    def report(self, invariant: Invariant, verdict: Verdict, folder: Path) -> Path | None:
        """Report a failure in a file of the folder; None, and a note, where it cannot be written."""
        about = f"{self.app}-{invariant.name}-{verdict.stage}-v{verdict.bad_version}"
        path = folder.absolute() / f"{re.sub(r'[^A-Za-z0-9._-]', '-', about)}.html"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            Reports(path).write(self._client, verdict, None)
        except OSError as error:
            self._client.note(f"{path} cannot be written: {error.strerror or error}; choose another --reports")
            return None
        return path

    def call(self, invariant: Invariant, look: Findings, verdict: Verdict | None, report: Path | None) -> None:
        """Run the invariant's command, if it has one. Raises `Unavailable` as `watcher.call`."""
        if not invariant.on_failure:
            return
        about = {
            "SLACKWATER_STORE": self._client.root,
            "SLACKWATER_APP": self.app,
            "SLACKWATER_INVARIANT": invariant.name,
            "SLACKWATER_REF": look.ref,
            "SLACKWATER_LAST_GOOD": look.last_good,
            "SLACKWATER_FIRST_BAD": verdict.bad_ref if verdict is not None else "",
            "SLACKWATER_REPORT": str(report) if report is not None else "",
        }
        call(invariant.on_failure, about)
