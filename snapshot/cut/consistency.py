"""Making a cut consistent: nothing is received in it that was not sent.

Every manifest says what it consumed and what it produced, so any versions become a consistent cut after the fact: raise
every sender to what its receivers had consumed (Chandy and Lamport 1985), or take receivers back.
"""

from collections.abc import Callable, Mapping

from ...store.versions.manifest import Manifest
from .graph import consumed, descendants, order
from .timeline import newest_where


def raise_senders(stages: Mapping[str, Manifest], read: Callable[[str, int], Manifest]) -> dict[str, Manifest]:
    """The least consistent cut with each of these versions or a later one. `read` gets a stage's version."""
    raised = dict(stages)
    settled = False
    while not settled:
        settled = True
        # Receivers first: a raised sender may itself have consumed more.
        for receiver in reversed(order(raised)):
            for sender, version in consumed(raised[receiver]).items():
                if version > (raised[sender].version if sender in raised else 0):
                    raised[sender] = read(sender, version)
                    settled = False
    return raised


def lower_receivers(
    stages: Mapping[str, Manifest],
    pinned: str,
    read: Callable[[str, int], Manifest],
    first: Callable[[str], int],
) -> dict[str, Manifest]:
    """Take back every stage that got something of `pinned`'s that `pinned` has not sent at its version.

    Versions that were taken by time need it where the clocks of two machines differ. With `raise_senders`
    after it, the result is consistent and has `pinned` exactly as given. `first` is the lowest version a
    stage may go back to; a stage that would have to go further is left out.
    """
    lowered = dict(stages)
    bound = {pinned} | descendants(stages, pinned)
    for receiver in order(stages):
        if receiver == pinned or receiver not in bound:
            continue
        limits = {stage: lowered[stage].version if stage in lowered else 0 for stage in bound}

        def within(manifest: Manifest, limits: dict[str, int] = limits) -> bool:
            return all(version <= limits.get(stage, version) for stage, version in consumed(manifest).items())

        kept = newest_where(read, first, lowered.pop(receiver), within)
        if kept is not None:
            lowered[receiver] = kept
    return lowered
