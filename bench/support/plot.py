"""The table as a chart: how each figure compares with its limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .row import Row


def draw(rows: Sequence[Row], path: Path) -> None:
    """Write an SVG with one bar per row: to the right if the figure is better than required, to the left if worse."""
    from matplotlib.figure import Figure

    drawn = [(row, value) for row in reversed(rows) if (value := row.against_asked) is not None]
    figure = Figure(figsize=(13, 1 + 0.42 * len(drawn)), layout="constrained")
    axes = figure.subplots()
    colours = ["#2a7f62" if row.reached else "#b3423a" for row, _ in drawn]
    # Starting at 1, on a scale on which twice as good and half as good have the same distance.
    bars = axes.barh(range(len(drawn)), [value - 1 for _, value in drawn], left=1, color=colours)
    axes.bar_label(bars, [f" {row.ratio:.3g} (asked {row.asked}) " for row, _ in drawn], fontsize=8)
    axes.set_yticks(range(len(drawn)), [row.what for row, _ in drawn], fontsize=8)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} x")
    low = min((value for _, value in drawn), default=1)
    high = max((value for _, value in drawn), default=1)
    # Room for the words beside the bars.
    axes.set_xlim(min(0.5, low / 3), max(2, high * 4))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as good as asked")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
