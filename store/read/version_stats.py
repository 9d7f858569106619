"""What a version says that it took: requests and bytes of every process that worked for its stage, look-ups, SSTs.

Everything that came after the version before was written up, and before this one was: so the put of a manifest is
counted by the version after it, and what a runner does after its last commit by none. A version whose writer counts
nothing (a clone, a rescale) has no `stats`; the `totals` go on from it.
"""

from msgspec.structs import replace

from ..objects.stats import Stats
from ..versions.aside import all_ssts
from ..versions.manifest import Manifest
from .read_stats import Reads

_OF_LOOK_UPS = ("keys", "searched", "filtered", "cache_hits", "cache_misses", "row_groups")


def charged(before: Manifest, manifest: Manifest, taken: Stats) -> Manifest:
    """The manifest that follows `before`, with what it took in `stats`, and added to `totals`.

    That is `taken`, and the bytes of the SSTs that are new, which are counted here.
    """
    known = {sst.object for sst in all_ssts(before)}
    new = [sst for sst in all_ssts(manifest) if sst.object not in known]
    flushed = sum(sst.bytes for sst in new if sst.level == 0)
    stats = taken + Stats(flushed_bytes=flushed, compacted_bytes=sum(sst.bytes for sst in new) - flushed)
    return replace(manifest, stats=stats, totals=(before.totals or Stats()) + stats)


def looked_up(reads: Reads) -> Stats:
    """The counters of look-ups. Their requests are not among them: the store counts those."""
    return Stats(**{name: getattr(reads, name) for name in _OF_LOOK_UPS})
