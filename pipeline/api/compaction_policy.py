"""How a stage's table is compacted, as a program says it. The words are those of RocksDB's options."""

from __future__ import annotations

from msgspec.structs import replace

from ...store.versions.limits import AMPLIFICATION_MOST, FANOUT_LEAST, FANOUT_MOST, MAX_FILE_BYTES, MAX_MERGE_RUNS
from ...store.versions.manifest import Policy
from ...validation import finite, whole

L0_SLOWDOWN = 20
L0_STOP = 36
"""RocksDB's defaults."""

_MIB = 1 << 20
_UNIVERSAL = Policy()


def universal(
    *,
    l0_trigger: int = _UNIVERSAL.l0_trigger,
    size_ratio: float = _UNIVERSAL.size_ratio,
    min_merge_width: int = _UNIVERSAL.min_merge_width,
    max_merge_width: int = _UNIVERSAL.max_merge_width,
    max_space_amplification: float = _UNIVERSAL.max_space_amplification,
    target_file_bytes: int = _UNIVERSAL.target_file_bytes,
) -> Policy:
    """Merge sorted runs of similar size: each row is rewritten seldom, and looked for in several runs. The default.

    Args:
        l0_trigger: Sorted runs of a state partition from which on some are merged; at least 2. More of it: less is
            written, more is searched.
        size_ratio: How much larger than all newer ones together a run may be that is merged with them; 0.1 is 10 %.
        min_merge_width: Fewest runs merged because they are of similar size; at least 2.
        max_merge_width: Most runs merged at once, unless all are.
        max_space_amplification: Once the newer runs take more than so many times the bytes of the oldest, all are
            merged; 1.0 lets a table take twice its size.
        target_file_bytes: A run of more bytes is several SSTs; at least 1 MiB.

    Raises:
        Usage: A number is not one that could work.
    """
    return _checked(
        Policy(
            "universal",
            l0_trigger=l0_trigger,
            size_ratio=size_ratio,
            min_merge_width=min_merge_width,
            max_merge_width=max_merge_width,
            max_space_amplification=max_space_amplification,
            target_file_bytes=target_file_bytes,
        )
    )


def leveled(
    *,
    l0_trigger: int = 4,
    level_base_bytes: int = 64 * _MIB,
    fanout: float = _UNIVERSAL.fanout,
    max_space_amplification: float = _UNIVERSAL.max_space_amplification,
    target_file_bytes: int = 16 * _MIB,
) -> Policy:
    """Keep levels of growing size, each one sorted run: more is rewritten, in small merges, and less is searched.

    Args:
        l0_trigger: Runs that batches wrote to a state partition from which on they go down to level 1; at least 2.
        level_base_bytes: What level 1 may hold in each state partition: best about what `l0_trigger` batches write to
            one, or some times as much.
        fanout: How much more than the level above it each further level may hold; at least 1.1.
        max_space_amplification: Once the levels between 0 and the last take more than so many times the bytes of the
            last, all of a state partition is merged.
        target_file_bytes: How large an SST becomes, and so how much is moved from one level to the next at once; at
            least 1 MiB. Best a quarter of `level_base_bytes` or less, so that a level goes down in parts.

    Raises:
        Usage: A number is not one that could work.
    """
    return _checked(
        Policy(
            "leveled",
            l0_trigger=l0_trigger,
            level_base_bytes=level_base_bytes,
            fanout=fanout,
            max_space_amplification=max_space_amplification,
            target_file_bytes=target_file_bytes,
        )
    )


def _checked(policy: Policy) -> Policy:
    what = f"{policy.kind} compaction: "
    counts = {
        "l0_trigger": (2, MAX_MERGE_RUNS),
        "min_merge_width": (2, MAX_MERGE_RUNS),
        "max_merge_width": (2, MAX_MERGE_RUNS),
        "level_base_bytes": (_MIB, MAX_FILE_BYTES),
        "target_file_bytes": (_MIB, MAX_FILE_BYTES),
    }
    ratios = ("size_ratio", "max_space_amplification")
    return replace(
        policy,
        **{knob: whole(what + knob, getattr(policy, knob), *limits) for knob, limits in counts.items()},
        **{knob: finite(what + knob, getattr(policy, knob), 0, AMPLIFICATION_MOST) for knob in ratios},
        fanout=finite(what + "fanout", policy.fanout, FANOUT_LEAST, FANOUT_MOST),
    )
