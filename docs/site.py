"""Build the documentation as a site: the README, the pages of `docs`, and the files to which they link.

    make docs          # into build/docs/site
    make docs-serve    # show it, and build it again after each change

Zensical reads a folder of symbolic links to these files. It has the structure of the repository, so that each link
leads to the same page in both places. The navigation is the table of the README's section "Documentation".
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")))
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")
_CONFIG = """\
[project]
site_name = "slackwater"
site_description = "A time machine for the state of streaming applications on Spark"
copyright = "Apache-2.0"
docs_dir = "pages"
extra_css = ["{css}"]
nav = [
{nav}
]

[project.theme]
font = false  # nothing is loaded from elsewhere, except Mermaid on pages with a diagram
features = ["navigation.indexes", "navigation.sections", "navigation.top", "search.highlight"]

[[project.theme.palette]]
scheme = "default"
toggle.icon = "lucide/moon"
toggle.name = "Dark"

[[project.theme.palette]]
scheme = "slate"
toggle.icon = "lucide/sun"
toggle.name = "Light"

[project.markdown_extensions.tables]
[project.markdown_extensions.toc]
permalink = true
slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}  # as GitHub
[project.markdown_extensions.pymdownx.highlight]
[project.markdown_extensions.pymdownx.superfences]
custom_fences = [{{ name = "mermaid", class = "mermaid", format = "pymdownx.superfences.fence_code_format" }}]
"""
_CSS = "extra.css"
_COPIED = ".highlight .gp, .highlight .go { user-select: none; }"
"""Style of console blocks, whose copies have only the commands, without prompts and outputs."""


def prose(page: Path) -> str:
    """Return a page without its code blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the text, the file and the anchor of each link to one of the repository's files."""
    for text, target in _LINK.findall(prose(page)):
        if "://" not in target:
            path, _, anchor = target.partition("#")
            yield text, (page.parent / path).resolve() if path else page, anchor


def navigation() -> dict[str, dict[str, Path]]:
    """Return the pages of each group, by title. A page that the README does not list follows its parent page."""
    groups: dict[str, dict[str, Path]] = {}
    table = README.read_text(encoding="utf-8").partition("\n## Documentation\n")[2].partition("\n## ")[0]
    listed = {ROOT / target for _, target in _LINK.findall(table)}
    for row in re.findall(r"^\| (.*?) \|", table, re.MULTILINE):
        if "[" not in row:
            title = row.strip("*").capitalize()
            groups[title] = {}
        for text, target in _LINK.findall(row):
            if (page := ROOT / target).suffix == ".md":
                groups[title][text] = page
                for detail in sorted({*page.parent.glob(f"{page.stem}-*.md")} - listed):
                    groups[title][detail.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")] = detail
    return groups


def prepare(folder: Path) -> Path:
    """Write the configuration, and links to all pages, into a folder. Returns the configuration's path."""
    for file in {*PAGES, *(path for page in PAGES for _, path, _ in links(page))}:
        link = folder / "pages" / file.relative_to(ROOT)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(file)
    (folder / "pages" / _CSS).write_text(_COPIED, encoding="utf-8")
    groups = {
        group: [{title: str(page.relative_to(ROOT))} for title, page in pages.items()]
        for group, pages in {"Overview": {"slackwater": README}, **navigation()}.items()
    }
    # A JSON list whose colons are replaced is a TOML list.
    entries = (json.dumps({group: pages}, separators=(", ", " = ")) for group, pages in groups.items())
    config = folder / "zensical.toml"
    config.write_text(_CONFIG.format(nav=",\n".join(entries), css=_CSS), encoding="utf-8")
    return config


def command(folder: Path, *words: str) -> list[str | Path]:
    """Return the command that runs zensical on the prepared folder. With `--strict`, a dead link is an error."""
    return [sys.executable, "-m", "zensical", words[0], "--config-file", prepare(folder), *words[1:]]


if __name__ == "__main__":
    raise SystemExit(subprocess.run(command(ROOT / "build" / "docs", *sys.argv[1:]), check=False).returncode)
