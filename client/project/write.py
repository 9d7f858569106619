"""Writer of a project that runs: a program, its settings, a feeder, a test and a workflow."""

import keyword
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from ... import __version__
from ...common import install
from ...common.whole_file import check_parent_folder
from ...errors import Refused
from ...store.versions.keys import check_name

_TEMPLATE = files(__package__) / "template"
_FILES = {
    "program.py.txt": "{module}.py",
    "test.py.txt": "test_{module}.py",
    "feed.py.txt": "feed.py",
    "slackwater.toml": "slackwater.toml",
    "requirements.txt": "requirements.txt",
    "workflow.yml": ".github/workflows/ci.yml",
    "gitignore": ".gitignore",
}
"""Path in the project, by template. Templates of Python files do not end in .py, because they are not modules."""
_TAKEN = {"feed", "slackwater", "pyspark", "confluent_kafka", "pytest"}
"""Modules that the written files import. A program with such a name would hide the module."""


@dataclass(frozen=True, slots=True)
class Project:
    """Files of a project, written or (in a dry run) to be written."""

    app: str
    module: str
    folder: Path
    written: tuple[str, ...]
    """Paths of new files, relative to the folder."""
    existing: tuple[str, ...]
    """Paths of files that already exist with the same text."""


def module_of(app: str) -> str:
    """Return the module name of an app's program, which differs from all modules that the program imports."""
    module = app.replace("-", "_")
    if module.isidentifier() and not keyword.iskeyword(module) and module not in _TAKEN | sys.stdlib_module_names:
        return module
    return f"app_{module}"


def write_project(app: str, folder: Path | None = None, *, dry_run: bool = False) -> Project:
    """Write the files of a new app into a folder, by default a folder with the app's name. Overwrites no file.

    Raises `Usage` for an invalid app name. Raises `Refused`, and writes nothing, if a file exists with other text or
    the folder cannot be created.
    """
    check_name("app", app)
    module, folder = module_of(app), folder or Path(app)
    names = {
        "app": app,
        "module": module,
        "requirement": install.requirement(__version__),
        "action": install.action(__version__),
    }
    texts = {path.format(module=module): _text(template, names) for template, path in _FILES.items()}
    existing = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    changed = [path for path in existing if not _has_text(folder / path, texts[path])]
    if folder.exists() and not folder.is_dir():
        raise Refused(f"{folder} is a file; nothing was written", hint="choose another --folder")
    check_parent_folder(folder.absolute(), "--folder")
    if changed:
        raise Refused(
            f"{folder} has other text in {', '.join(changed)}; nothing was written",
            hint="choose another name or --folder, or remove these files yourself",
        )
    written = tuple(path for path in texts if path not in existing)
    try:
        for path in () if dry_run else written:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            with (folder / path).open("x", encoding="utf-8") as file:
                file.write(texts[path])
    except OSError as error:
        raise Refused(f"{error.filename} cannot be written: {error.strerror}", hint="choose another --folder") from None
    return Project(app, module, folder, written, tuple(existing))


def _text(template: str, names: dict[str, str]) -> str:
    text = (_TEMPLATE / template).read_text(encoding="utf-8")
    for name, value in names.items():
        text = text.replace(f"@{name}@", value)
    return text


def _has_text(path: Path, text: str) -> bool:
    return path.is_file() and path.read_bytes() == text.encode()
