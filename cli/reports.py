"""Writing reports to files, when they are asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Usage
from ..whole_file import check_folder, whole_file
from .session import Session

if TYPE_CHECKING:
    from ..search.verdict import Guilty, Verdict

_ENDINGS = {"--report": (".html", ".htm"), "--md": (".md", ".markdown")}


@dataclass(frozen=True, slots=True)
class Reports:
    """The files that were asked for."""

    report: Path | None
    """For HTML."""
    md: Path | None = None
    """For Markdown."""
    show_values: bool = False

    def check(self) -> None:
        """Before the search: raise `Usage` or `Refused` where they could not be written."""
        for option, path in (("--report", self.report), ("--md", self.md)):
            if path is None:
                continue
            if path.suffix.lower() not in _ENDINGS[option]:
                expected = " or ".join(_ENDINGS[option])
                raise Usage(f"{option} {path} has another format: expected a name that ends with {expected}")
            check_folder(path, option)
        if self.show_values and self.report is None and self.md is None:
            raise Usage("--show-values says what is in a report", hint="give --report FILE or --md FILE with it")

    def write(self, session: Session, verdict: "Verdict", guilty: "Guilty | None") -> None:
        """Write them, and say so; `guilty` is the record behind what bisect found, None where nothing was replayed.

        Raises:
            Refused: a file cannot be written. Others as `report_of`.
        """
        if self.report is None and self.md is None:
            return
        from ..client.searches import report_of
        from ..results import html, markdown

        made = report_of(session.client, verdict, guilty, show_values=self.show_values)
        for option, path, render in (("--report", self.report, html.render), ("--md", self.md, markdown.render)):
            if path is not None:
                with whole_file(path, option) as temporary:
                    temporary.write_text(render(made), encoding="utf-8")
                session.note(f"the report is in {path}")
