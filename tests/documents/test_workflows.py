"""Workflows of this repository and of new projects, and the action for trials: checks that need no CI runner."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from slackwater import __version__
from slackwater.client.project.write import write_project
from slackwater.common.install import VENDORED, action

from tests.programs.go import built
from tests.support.static import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())
ACTION = ROOT / "action.yml"
TEMPLATE = ROOT / "client" / "project" / "template" / "workflow.yml"
TRIAL = ROOT / "deploy" / "ci" / "trial.sh"
MAY_WRITE = {
    "pypi": {"id-token", "attestations"},
    "image": {"packages", "id-token", "attestations"},
    "chart": {"packages", "id-token", "attestations"},
    "github": {"contents"},
}
"""Write permissions of each release job. All other jobs have only read permissions."""


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a new project as a repository with slackwater as a submodule, as before the first release."""
    folder = tmp_path / "shop"
    write_project("shop", folder)
    workflow = folder / ".github" / "workflows" / "ci.yml"
    text = workflow.read_text().replace(f"uses: {action(__version__)}\n", f"uses: ./{VENDORED}\n")
    workflow.write_text(text)
    subprocess.run(["git", "init", "--quiet", folder], check=True)
    (folder / VENDORED).parent.mkdir()
    (folder / VENDORED).symlink_to(ROOT)
    return folder


def actionlint(folder: Path) -> tuple[int, str]:
    """Lint the workflows of a repository, with the inputs of their actions."""
    workflows = sorted((folder / ".github" / "workflows").glob("*.yml"))
    words = [built("actionlint"), "-no-color", *workflows]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=180)
    return done.returncode, done.stdout + done.stderr


def test_actionlint_finds_nothing_wrong_with_the_workflows() -> None:
    assert actionlint(ROOT) == (0, "")


def test_actionlint_finds_nothing_wrong_with_the_workflow_of_a_new_project(project: Path) -> None:
    assert actionlint(project) == (0, "")
    workflow = project / ".github" / "workflows" / "ci.yml"
    workflow.write_text(workflow.read_text().replace("          program: shop.py\n", "          programme: shop.py\n"))
    code, said = actionlint(project)
    assert code == 1
    assert '"programme" is not defined' in said


def test_every_action_is_pinned_to_one_commit() -> None:
    used = "".join(path.read_text(encoding="utf-8") for path in (*WORKFLOWS, ACTION, TEMPLATE))
    uses = [words for words in re.findall(r"uses: (.+)", used) if not words.startswith(("./", "@action@"))]
    pins = {re.fullmatch(r"([\w./-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", words) for words in uses}
    assert None not in pins
    assert len({pin[1] for pin in pins if pin}) == len({pin.groups() for pin in pins if pin}) > 5


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_job_has_only_the_permissions_that_it_needs(path: Path) -> None:
    workflow = loaded(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        rights = {right for right, access in job.get("permissions", {}).items() if access == "write"}
        assert rights == (MAY_WRITE.get(name, set()) if path.name == "release.yml" else set()), name


def test_publishing_jobs_depend_on_the_gate() -> None:
    jobs = loaded(ROOT / ".github" / "workflows" / "release.yml")["jobs"]
    needs = {
        name: {*([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", []))}
        for name, job in jobs.items()
    }

    def before(name: str) -> set[str]:
        return needs[name].union(*map(before, needs[name]))

    assert [name for name in MAY_WRITE if "gate" not in before(name)] == []
    assert jobs["gate"]["uses"] == "./.github/workflows/gate.yml"
    assert jobs["pypi"]["environment"] == "pypi"


def test_the_packages_are_tried_on_each_python_version() -> None:
    packages = loaded(ROOT / ".github" / "workflows" / "gate.yml")["jobs"]["packages"]
    assert packages["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    for step in packages["steps"]:
        for script in re.findall(r"\.ci/[\w-]+", step.get("run", "")):
            assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize("form", ["bug", "feature"])
def test_every_issue_form_has_questions(form: str) -> None:
    issue = loaded(ROOT / ".github" / "ISSUE_TEMPLATE" / f"{form}.yml")
    assert {"name", "description", "body"} <= issue.keys()
    assert [part["attributes"]["label"] for part in issue["body"]]


GH = """#!/bin/sh
echo "$@" > "$GH_CALL"
while [ "$1" != --body-file ]; do shift; done
cp "$2" "$GH_BODY"
"""


@pytest.fixture
def pull_request(tmp_path: Path) -> dict[str, str]:
    """Return the action's environment on a pull request; a fake `gh` records its arguments and the comment."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gh").write_text(GH)
    (tools / "gh").chmod(0o755)
    return {
        **os.environ,
        "PATH": f"{tools}:{Path(os.sys.executable).parent}:{os.environ['PATH']}",
        "GH_CALL": str(tmp_path / "call"),
        "GH_BODY": str(tmp_path / "body"),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "SLACKWATER_STORE": str(tmp_path / "store"),
        "APP": "shop",
        "PROGRAM": "shop.py",
        "FROM": "-1d",
        "ARGS": "--keys\n1%\n",
        "PULL_REQUEST": "7",
    }


def test_a_failed_trial_is_reported_in_the_comment(project: Path, pull_request: dict[str, str], tmp_path: Path) -> None:
    commit = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "Begin"]
    subprocess.run(["git", "add", "shop.py"], cwd=project, check=True)
    subprocess.run(commit, cwd=project, check=True)
    environment = pull_request | {"BASE": "HEAD"}
    done = subprocess.run([TRIAL], cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no app named 'shop'" in done.stderr
    body = (tmp_path / "body").read_text()
    assert body.startswith("The trial of `shop.py` failed:\n```\nerror: ")
    assert (tmp_path / "summary").read_text() == body
    assert (tmp_path / "call").read_text().startswith("pr comment 7 --body-file ")
    assert (tmp_path / "call").read_text().endswith(" --edit-last --create-if-none\n")
    assert "before this pull request" not in done.stderr
    worktrees = subprocess.run(["git", "worktree", "list"], cwd=project, capture_output=True, text=True, check=True)
    assert len(worktrees.stdout.splitlines()) == 1
