"""A fault that can be planted."""

from dataclasses import dataclass

__all__ = ["Fault"]


@dataclass(frozen=True, slots=True)
class Fault:
    """`new` in the place of `old`, which `file` has exactly once."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
