"""Loading of a user's program from a file, and running of an app from a file or from this process."""

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import CodeType, ModuleType

from pyspark import cloudpickle

from ...common.program_file import load_module
from ...common.validation import find_program_file
from ...errors import Usage
from ...store.objects.protocol import ObjectStore
from ...store.versions.apps import folder_of
from ..api.app import App
from ..listener import Listener
from ..spark.conf import add_to_python_path, check_py_files, check_settings
from ..spark.user_errors import as_user_error
from .options import Options
from .runner import run
from .stopping import StopEvent


def load_app(
    path: str, *, name: str | None = None, store: ObjectStore | None = None, code: CodeType | None = None
) -> App:
    """Return the app that a Python file declares, renamed to `name` if given, for example for a clone.

    With a `store`, the app gets the name of its folder in the store instead. With `code`, runs this instead of the
    file's code. Raises the errors of `import_program`, and `Usage` for a file with no app, with several apps, or with
    an app that has no stage.
    """
    module = import_program(path, code)
    apps = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if not apps:
        raise Usage(
            f"{path} declares no app; expected one slackwater.App(...)",
            hint='write app = slackwater.App("NAME") at the top level of the file',
        )
    if len(apps) > 1:
        names = " and ".join(repr(app.name) for app in apps.values())
        raise Usage(
            f"{path} declares {len(apps)} apps, {names}; expected one slackwater.App(...)",
            hint="give each app a file of its own; import another app by `import file`, not by `from file import app`",
        )
    (app,) = apps.values()
    app.check_has_stages()
    app_name = name or app.name
    return replace(app, name=folder_of(store, app_name) if store is not None else app_name, file=Path(path).resolve())


def import_program(path: str, code: CodeType | None = None) -> ModuleType:
    """Import a user's file as a module named after the file, with its folder on `sys.path`.

    Raises `NotFound` if there is no such file, `Refused` if its code raises an error, and `Usage` for a folder.
    """
    file = find_program_file(path)
    with as_user_error("the program"):
        module = load_module(file, code)
    _pickle_by_value(module)
    return module


def run_app(app: App, options: Options, listener: Listener, *, stop: StopEvent | None = None) -> None:
    conf, files = check_settings(options.spark_conf, "spark_conf"), check_py_files(options.py_files, "py_files")
    add_to_python_path(files)
    for name in {stage.transform.__module__ for stage in app.stages.values()} - {"__main__"}:
        # A module that was loaded by hand may be missing in `sys.modules`.
        if (module := sys.modules.get(name)) is not None:
            _pickle_by_value(module)
    run(app, replace(options, spark_conf=conf, py_files=files), listener, stop=stop)


def _pickle_by_value(module: ModuleType) -> None:
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def run_file(
    path: str,
    *,
    app: str | None,
    options: Options,
    listener: Listener,
    stop: StopEvent | None = None,
) -> None:
    with stop.interruptible() if stop is not None else nullcontext():
        add_to_python_path(options.py_files)
        program = load_app(path, name=app)
    run(program, options, listener, stop=stop)
