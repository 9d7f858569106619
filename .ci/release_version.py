"""Checks that tag, repository and sources of a release agree, and prints its version and the registry of its image."""

import os
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "common"))
import install

VERSION = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]


def main(tag: str, repository: str) -> None:
    """Print `version=…` and `registry=…`. Exits with an error message if they do not agree."""
    if tag != f"v{VERSION}":
        sys.exit(f"the tag is {tag}, pyproject.toml has {VERSION}: push v{VERSION}, or change the version")
    if repository != install.REPOSITORY:
        sys.exit(
            f"REPOSITORY in common/install.py is {install.REPOSITORY!r}, the workflow runs in {repository!r}: "
            "change it, run `python -m docs.install`, and commit"
        )
    sys.stdout.write(f"version={VERSION}\nregistry=ghcr.io/{repository.partition('/')[0].lower()}\n")


if __name__ == "__main__":
    main(os.environ["GITHUB_REF_NAME"], os.environ["GITHUB_REPOSITORY"])
