"""What one version reached further on: the later stages that consumed it, and the keys that changed as they did."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from ...errors import Corruption, NotFound
from ...store.read.cache import SstCache
from ...store.versions import history
from ...store.versions.manifest import Manifest
from ..bisect.changed_keys import ChangedKeys, changed_keys
from ..cut.line import Line


@dataclass(frozen=True, slots=True)
class Reached:
    """A later stage that got something of the bad version's."""

    first: Manifest
    """The stage's first version that had consumed the bad one, directly or through stages between them."""
    newest: int
    """The stage's newest version: all between these two build on it."""
    rows: int
    """How many rows the first read of stages that had consumed the bad version, or are its stage; not all need be its.
    """
    keys: ChangedKeys | None
    """The keys whose rows the first changed, by whatever input; None for a stage without a table, and where its rows
    cannot be read."""


def reached(line: Line, cache: SstCache, version: Manifest) -> Iterator[Reached]:
    """Each stage that had consumed a version, senders before receivers.

    Args:
        line: the app's line, which may begin behind the version's predecessor.
        cache: where SSTs of a remote store come to lie.
        version: any on the line.

    Raises:
        Unavailable: storage did not answer.
    """
    firsts = line.dependents(version)
    for stage, first in firsts.items():
        yield Reached(
            first=first,
            newest=line.heads.stages[stage].version,
            rows=sum(read.rows for read in first.inputs.values() if read.upstream in (version.stage, *firsts)),
            keys=_changed(line, cache, first),
        )


def _changed(line: Line, cache: SstCache, version: Manifest) -> ChangedKeys | None:
    before = history.find(line.store, version.app, version.stage, version.version - 1) if version.version > 1 else None
    try:
        return changed_keys(line.store, cache, before, version, pa.table({}))
    except (NotFound, Corruption):
        return None
