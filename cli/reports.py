"""Writing reports to files, when they are asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Usage
from ..instants import now_ms
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
    md: Path | None
    """For Markdown."""
    show_values: bool

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
        """Write them, and say so.

        Args:
            session: has the store.
            verdict: what bisect found.
            guilty: the record behind it, None where nothing was replayed.

        Raises:
            Refused: a file cannot be written.
            NotFound: a manifest around the verdict was collected meanwhile.
            Corruption: one is not readable.
            Unavailable: storage did not answer.
        """
        # These know Arrow, which no help needs.
        from ..results import html, markdown
        from ..results.report.contents import Case, document
        from ..results.report.masking import Mask

        formats = (self.report, "--report", html.render), (self.md, "--md", markdown.render)
        wanted = [(path, option, render) for path, option, render in formats if path is not None]
        if not wanted:
            return
        from ..search.evidence import collect
        from ..store.versions.apps import free_name

        reader = session.client.channels() if verdict.predicate.channels else None
        evidence = collect(session.store, session.cache, verdict, reader)
        clone = free_name(session.store, f"{verdict.app}-staging")
        made = document(Case(verdict, guilty, evidence, clone, session.flags, now_ms()), Mask(self.show_values))
        for path, option, render in wanted:
            with whole_file(path, option) as temporary:
                temporary.write_text(render(made), encoding="utf-8")
            session.note(f"the report is in {path}")
