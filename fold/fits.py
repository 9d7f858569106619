"""What a program declares of an app, as far as it is stored: values, without Spark."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..store.versions.manifest import Table


@dataclass(frozen=True, slots=True)
class DeclaredStage:
    """One stage of a program."""

    name: str
    inputs: Mapping[str, str]
    """By declared name the stage that writes it; empty for a user's topic."""
    outputs: Mapping[str, str]
    """The channels that it writes, by declared name, and their columns as Spark DDL."""
    table: Table | None
    """As the program would make it. `Column.default` is what it says of rows from before."""


@dataclass(frozen=True, slots=True)
class Declared:
    """A program, as an app of some name."""

    app: str
    stages: Mapping[str, DeclaredStage]
    file: str = ""
    """The file that declares it, for messages."""
