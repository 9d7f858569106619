"""A word to a stage's runner that a backfill's values are about to come: its next commit waits for them a while.

Values that take the place of what rows have are of one version. Those of an app that is never at rest would be of one
that is the newest no more when they are there. So a version is committed before they are computed to the end, which
changes nothing: a batch that was under way loses its number to it, and that it is the newest holds until the values
are there, or the runner has waited long enough.
"""

from ...store.versions.manifest import Manifest

PATIENCE_S = 60.0
"""How long a runner waits."""


def announces(manifest: Manifest) -> bool:
    """Whether values are to follow: a version of a backfill that brings none."""
    return manifest.kind == "backfill" and all(each.version != manifest.version for each in manifest.backfills)
