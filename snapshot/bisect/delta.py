"""Which of several records made something wrong: searches that know nothing of records but whether a set is bad. Pure.

Halving finds where a sequence turns bad. Delta debugging finds a set of which no member can be left out (Zeller and
Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002: `ddmin`).
"""

from collections.abc import Callable, Sequence


def turning_point(count: int, is_bad: Callable[[int], bool]) -> int:
    """The number of an item with which a sequence of `count` turns bad: up to it, it is bad, and without it, not.

    Args:
        count: how many items there are, at least 1.
        is_bad: whether the first so many items are bad. It holds for all, and not for none: neither is asked.

    Returns:
        From 0. It is the only such place if what is bad stays bad; otherwise one of them. `is_bad` was asked at most
        log2(count), rounded up, times.
    """
    good, bad = 0, count
    while bad - good > 1:
        middle = (good + bad) // 2
        if is_bad(middle):
            bad = middle
        else:
            good = middle
    return good


def smallest(items: Sequence[int], is_bad: Callable[[Sequence[int]], bool], *, most: int) -> tuple[Sequence[int], bool]:
    """Some of the items that are bad together, of which none can be left out: delta debugging.

    Args:
        items: they are bad together.
        is_bad: whether a choice of them, in their order, is.
        most: how often `is_bad` may be asked.

    Returns:
        The items that are left; and whether it is known that each of them is needed, false when `most` did not suffice.
    """
    asked, parts = 0, 2
    while len(items) > 1:
        size = -(-len(items) // parts)
        chunks = [items[at : at + size] for at in range(0, len(items), size)]
        rests = [[item for other in chunks if other is not chunk for item in other] for chunk in chunks]
        # Of two parts, each is the other's rest.
        candidates = [*chunks, *(rests if len(chunks) > 2 else ())]
        for number, candidate in enumerate(candidates):
            if asked == most:
                return items, False
            asked += 1
            if is_bad(candidate):
                items, parts = candidate, 2 if number < len(chunks) else max(len(chunks) - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(items), 2 * parts)
    return items, True
