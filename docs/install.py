"""Update the installation commands in pages and examples, and the project's URLs in pyproject.toml.

.venv/bin/python -m docs.install        # after a change of REPOSITORY in common/install.py
"""

import re
import sys
from pathlib import Path

from slackwater.common import install

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "pyproject.toml"
TEXTS = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.py")))
_COMMAND = re.compile(r"pip install (?:-c constraints\.txt )?('?)(?:\.|slackwater)(?:\[([\w,]+)\])?\1(?=[\s`;,)\"]|$)")
_SOURCE = re.compile("|".join(re.escape(install.install_source(repository)) for repository in ("", "owner/name")))
_URLS = re.compile(r"(?<=^\[project\.urls\]\n)(?:.+\n)*", re.MULTILINE)


def written(text: str, repository: str = install.REPOSITORY) -> str:
    """Return a text with this repository's installation commands."""

    def command(match: re.Match[str]) -> str:
        return install.install_command(*filter(None, (match[2] or "").split(",")), repository=repository)

    return _SOURCE.sub(install.install_source(repository), _COMMAND.sub(command, text))


def with_urls(project: str, repository: str = install.REPOSITORY) -> str:
    """Return the text of pyproject.toml with this repository's URLs."""
    root = f"https://github.com/{repository}"
    urls = {"Source": root, "Issues": f"{root}/issues", "Changelog": f"{root}/blob/main/CHANGELOG.md"}
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items()) if repository else ""
    return _URLS.sub(lines, project)


def main() -> None:
    """Update all texts, and print which changed."""
    after = {path: written(path.read_text(encoding="utf-8")) for path in TEXTS}
    after[PROJECT] = with_urls(PROJECT.read_text(encoding="utf-8"))
    for path, text in after.items():
        if text != path.read_text(encoding="utf-8"):
            path.write_text(text, encoding="utf-8")
            sys.stdout.write(f"wrote {path.relative_to(ROOT)}\n")


if __name__ == "__main__":
    main()
