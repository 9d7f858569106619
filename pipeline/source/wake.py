"""What a runner tells the planners of its stages' inputs: in files, at which these look."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4


@dataclass(frozen=True, slots=True)
class Asked:
    """The ids of the snapshots that are asked for, as the runner found them: one file for all of its planners."""

    path: Path

    def tell(self, ids: Iterable[str]) -> None:
        """These are asked for now."""
        _write(self.path, " ".join(ids))

    def ids(self) -> tuple[str, ...]:
        """What was told last, oldest first."""
        try:
            return tuple(self.path.read_text().split())
        except FileNotFoundError:
            return ()


@dataclass(frozen=True, slots=True)
class Committed:
    """The newest version of a stage that runs here, for the planners of what reads its channels."""

    path: Path

    def tell(self, version: int) -> None:
        """This one is committed."""
        _write(self.path, str(version))

    def version(self) -> int | None:
        """The one that was told last; None where the stage does not run here."""
        try:
            return int(self.path.read_text())
        except FileNotFoundError:
            return None


@dataclass(frozen=True, slots=True)
class Needed:
    """The columns that a stage needs of its users' topics, by the input's name; all of what is not named."""

    path: Path

    def tell(self, columns: Mapping[str, Collection[str]]) -> None:
        """These are needed."""
        _write(self.path, json.dumps({name: sorted(each) for name, each in columns.items()}))

    def columns(self, name: str) -> frozenset[str] | None:
        """Those of an input; None for all."""
        try:
            known = json.loads(self.path.read_text()).get(name)
        except FileNotFoundError:
            return None
        return None if known is None else frozenset(known)


@dataclass(frozen=True, slots=True)
class Wake:
    """Something to be done at a time, by the batch after a version."""

    path: Path

    def ask(self, version: int, at_ms: int) -> None:
        """Have a batch start at this time or later, in ms since 1970; `version` is the one before it."""
        _write(self.path, f"{version} {at_ms}")

    def forget(self) -> None:
        """Nothing is to be done."""
        self.path.unlink(missing_ok=True)

    def asked(self, handled: int, now_ms: int) -> int:
        """The version after which a batch is to start now; 0 for none, and up to the one that was `handled`."""
        try:
            version, at_ms = map(int, self.path.read_text().split())
        except FileNotFoundError:
            return 0
        return version if version > handled and at_ms <= now_ms else 0


@dataclass(frozen=True, slots=True)
class PlannerFiles:
    """What a runner tells the planners of all of its stages, in files of a folder."""

    folder: Path

    @property
    def asked(self) -> Asked:
        """The snapshots that are asked for."""
        return Asked(self.folder / "asked")

    def committed(self, stage: str) -> Committed:
        """The newest version of a stage."""
        return Committed(self.folder / "committed" / stage)

    def needed(self, stage: str) -> Needed:
        """The columns that a stage needs."""
        return Needed(self.folder / "needed" / stage)


def _write(path: Path, text: str) -> None:
    """All of it or nothing is there to be read."""
    path.parent.mkdir(parents=True, exist_ok=True)  # before the query has begun
    # Several threads tell the same.
    whole = path.with_name(f"{path.name}.{uuid4().hex}")
    whole.write_text(text)
    whole.replace(path)
