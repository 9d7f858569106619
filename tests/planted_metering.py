"""Faults in counting what versions take, for `planted.py`."""

from tests.fault import Fault

__all__ = ["METERING_FAULTS"]

METERING = ("test_metering.py",)
USAGE = ("test_usage.py",)

METERING_FAULTS = (
    Fault(
        "planners' requests are told again by each version",
        "pipeline/batch/meter.py",
        "self._since, self._planned, self._puts = now, planned, Stats()",
        "self._since, self._puts = now, Stats()",
        METERING,
    ),
    Fault(
        "requests are told again by each version",
        "store/objects/counting.py",
        "self._not_taken.clear()",
        "pass",
        METERING,
    ),
    Fault(
        "what a commit that lost its number took is told by nobody",
        "pipeline/batch/committer.py",
        "taken += self._meter.take()",
        "taken = change.taken + self._meter.take()",
        METERING,
    ),
    Fault(
        "totals begin anew with each version",
        "store/read/version_stats.py",
        "totals=(before.totals or Stats()) + stats",
        "totals=stats",
        METERING,
    ),
    Fault(
        "SSTs that were there before count as written",
        "store/read/version_stats.py",
        "if sst.object not in known]",
        "]",
        METERING,
    ),
    Fault(
        "versions without counters tell those of the version before again",
        "store/versions/commit.py",
        "        stats=None,\n",
        "",
        METERING,
    ),
    Fault(
        "requests to the root that a clone points at are not counted",
        "store/objects/wrapper.py",
        "        return other\n",
        "        return other._inner\n",
        METERING,
    ),
    Fault(
        "a clone is charged with its source's past",
        "snapshot/clone/clone.py",
        "        totals=None,\n",
        "",
        METERING,
    ),
    Fault(
        "a counter file that another process began starts at zero",
        "store/objects/shared_counts.py",
        'with file.open("a+b") as opened:',
        'with file.open("w+b") as opened:',
        METERING,
    ),
    Fault(
        "what is stored is only what was written in the window",
        "store/versions/usage.py",
        "stored_bytes=max(sst_bytes, at_first + since_first.bytes_written)",
        "stored_bytes=max(sst_bytes, (now - (base.totals or Stats())).bytes_written)",
        USAGE,
    ),
    Fault(
        "the version before the window counts as one of it",
        "store/versions/usage.py",
        "versions=head.version - base.version,",
        "versions=head.version - base.version + 1,",
        USAGE,
    ),
)
