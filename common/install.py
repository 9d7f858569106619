"""Install command of slackwater, and the repository of its releases, for messages, templates and pages.

If `REPOSITORY` changes, `python -m docs.install` updates pages, examples and `pyproject.toml`.
"""

import re

REPOSITORY = ""
"""`owner/name` of the GitHub repository whose releases are on PyPI; empty before the first release."""
VENDORED = "vendor/slackwater"
"""Folder of a project that has slackwater's repository as a submodule, before the first release."""


def install_command(*extras: str, repository: str = REPOSITORY) -> str:
    """Return the command that installs slackwater with these extras."""
    target = ("slackwater" if repository else ".") + (f"[{','.join(extras)}]" if extras else "")
    return f"pip install {'' if repository else '-c constraints.txt '}" + (f"'{target}'" if extras else target)


def install_source(repository: str = REPOSITORY) -> str:
    """Return the source from which `install_command` installs, as a phrase for messages."""
    return "from PyPI" if repository else "in a clone of the repository (no release is on PyPI yet)"


def install_hint(extras: str) -> str:
    """Return a hint on how to install these extras, comma-separated."""
    return f"{install_source()}: {install_command(extras)}"


def requirement(version: str, repository: str = REPOSITORY) -> str:
    """Return the line of a project's requirements.txt that installs this version of slackwater, with Spark and Java."""
    if repository:
        return f"slackwater[local]=={version}"
    return f"./{VENDORED}[local]  # git submodule add URL {VENDORED}: no release is on PyPI yet"


def action(version: str, repository: str = REPOSITORY) -> str:
    """Return the GitHub action that tries a program in a project's workflow."""
    return f"{repository}@v{version}" if repository else f"./{VENDORED}"


def with_absolute_links(page: str, repository: str = REPOSITORY) -> str:
    """Return a page in which relative links to files and pictures are replaced by links to the repository.

    PyPI shows the page without the repository's other files.
    """

    def lead(match: re.Match[str]) -> str:
        return f"{match[0]}https://github.com/{repository}/{'raw' if match[1] else 'blob'}/main/"

    return re.sub(r"(!?)\[[^\]]*\]\((?!\w+:|#)", lead, page) if repository else page
