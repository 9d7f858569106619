"""The source of installations is defined once, in `common/install.py`, and all texts agree with it."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import slackwater
import yaml
from slackwater.common import install

from docs.install import PROJECT, TEXTS, with_urls, written
from tests.documents.pages.test_links import PAGES, page_id
from tests.support.static import PARTS, ROOT

REPOSITORY = "owner/slackwater"
every_text = pytest.mark.parametrize("path", TEXTS, ids=page_id)


@every_text
def test_every_text_equals_its_generators_output(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert written(text) == text, "run: python -m docs.install"


@every_text
def test_setting_a_repository_rewrites_every_text_and_can_be_undone(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    released = written(text, REPOSITORY)
    assert written(released, "") == written(text, "")
    assert "PyPI yet" not in released
    assert not re.findall(r"pip install [^`\n]*constraints\.txt", released)


def test_no_other_text_or_message_has_installation_commands() -> None:
    folders = (*PARTS, "deploy", ".github")
    sources = (path for part in folders for path in (ROOT / part).rglob("*") if path.is_file())
    sources = (path for path in (*PAGES, *sources) if "__pycache__" not in path.parts and path not in TEXTS)
    # The image is built from the sources, and the action installs its own slackwater.
    own = re.compile(r"pip install[^\n`]*(slackwater|constraints\.txt)(?!/constraints)[^\n`]*")
    found = {page_id(path): own.search(path.read_text(encoding="utf-8", errors="replace")) for path in sources}
    assert {path for path, match in found.items() if match} == {"common/install.py", "deploy/Dockerfile"}


def test_the_urls_of_the_project_are_those_of_the_repository() -> None:
    text = PROJECT.read_text(encoding="utf-8")
    assert with_urls(text) == text, "run: python -m docs.install"
    released = tomllib.loads(with_urls(text, REPOSITORY))["project"]
    assert released["urls"]["Source"] == f"https://github.com/{REPOSITORY}"
    assert with_urls(with_urls(text, REPOSITORY), "") == with_urls(text, "")


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["version"]
    chart = yaml.safe_load((ROOT / "deploy" / "helm" / "slackwater" / "Chart.yaml").read_text(encoding="utf-8"))
    assert {slackwater.__version__, chart["version"], chart["appVersion"]} == {version}
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_a_new_project_requires_the_release_that_created_it() -> None:
    assert install.requirement("0.1.0", REPOSITORY) == "slackwater[local]==0.1.0"
    assert install.action("0.1.0", REPOSITORY) == f"{REPOSITORY}@v0.1.0"
    assert install.requirement("0.1.0", "").startswith("./vendor/slackwater[local] ")
    assert install.action("0.1.0", "") == "./vendor/slackwater"


def test_the_description_on_pypi_leads_to_the_repository() -> None:
    page = "![a](docs/images/a.svg) [b](docs/b.md#c) [d](https://d.org) [e](#e)"
    root = f"https://github.com/{REPOSITORY}"
    shown = f"![a]({root}/raw/main/docs/images/a.svg) [b]({root}/blob/main/docs/b.md#c) [d](https://d.org) [e](#e)"
    assert install.with_absolute_links(page, REPOSITORY) == shown
    assert install.with_absolute_links(page, "") == page


def release_version(tag: str, repository: str) -> subprocess.CompletedProcess[str]:
    """Run the first step of the release workflow."""
    environment = {**os.environ, "GITHUB_REF_NAME": tag, "GITHUB_REPOSITORY": repository}
    words = [sys.executable, ROOT / ".ci" / "release_version.py"]
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def test_a_tag_or_repository_that_does_not_match_is_not_released() -> None:
    done = release_version("v9.9.9", install.REPOSITORY)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"the tag is v9.9.9, pyproject.toml has {slackwater.__version__}" in done.stderr
    done = release_version(f"v{slackwater.__version__}", "somebody/else")
    assert (done.returncode, done.stdout) == (1, "")
    assert "REPOSITORY in common/install.py" in done.stderr
    done = release_version(f"v{slackwater.__version__}", install.REPOSITORY)
    assert f"version={slackwater.__version__}\n" in done.stdout
