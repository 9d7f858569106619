"""From a user's program, in a file or in this process, to a running app."""

import importlib.util
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from pyspark import cloudpickle

from ...common.validation import program_file
from ...errors import Usage
from ...store.objects.protocol import ObjectStore
from ...store.versions.apps import folder_of
from ..api.app import App
from ..listener import Listener
from ..spark.conf import check_py_files, check_settings, on_path
from ..spark.user_errors import as_user_error
from .options import Options
from .runner import run
from .stopping import Stop


def load_app(path: str, *, name: str | None = None, store: ObjectStore | None = None) -> App:
    """The app that a Python file declares; with a `name`, as the app of that name, for example as a clone.

    With a `store`, under the name of the folder that this app has there. Raises as `module_of`, and `Usage` where it
    declares no app, several, or one without a stage.
    """
    module = module_of(path)
    found = {id(value): value for value in vars(module).values() if isinstance(value, App)}
    if not found:
        raise Usage(
            f"{path} declares no app; expected one slackwater.App(...)",
            hint='write app = slackwater.App("NAME") at the top level of the file',
        )
    if len(found) > 1:
        names = " and ".join(repr(app.name) for app in found.values())
        raise Usage(
            f"{path} declares {len(found)} apps, {names}; expected one slackwater.App(...)",
            hint="give each app a file of its own; one that another file declares is imported there as a module",
        )
    (app,) = found.values()
    app.check_declared()
    called = name or app.name
    return replace(app, name=folder_of(store, called) if store is not None else called, file=Path(path).resolve())


def module_of(path: str) -> ModuleType:
    """The module that a user's file is, under a name of its own, its folder on `sys.path`.

    Raises `NotFound` where there is none, `Refused` where it raises an error, and `Usage` where it is a folder.
    """
    file = program_file(path).resolve()
    spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file)
    if spec is None or spec.loader is None:
        raise Usage(f"{path} is not a Python file; expected one that declares a slackwater.App")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[spec.name] = module
    with as_user_error("the program"):
        spec.loader.exec_module(module)
    _send_by_value(module)
    return module


def run_app(app: App, options: Options, listener: Listener) -> None:
    """Run an app that this process declares. Raises as `runner.run` does, and `Usage` for what is said to Spark."""
    conf, files = check_settings(options.spark_conf, "spark_conf"), check_py_files(options.py_files, "py_files")
    on_path(files)
    for name in {stage.transform.__module__ for stage in app.stages.values()} - {"__main__"}:
        # A module that was loaded by hand need not be known by its name.
        if (module := sys.modules.get(name)) is not None:
            _send_by_value(module)
    run(app, replace(options, spark_conf=conf, py_files=files), listener)


def _send_by_value(module: ModuleType) -> None:
    """Have a program's functions travel to workers by value: they do not have its file."""
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def run_file(
    path: str,
    *,
    app: str | None,
    options: Options,
    listener: Listener,
    stop: Stop | None = None,
) -> None:
    """Run the app that a file declares. Arguments as of `runner.run`; raises as `load_app` and that do."""
    with stop.at_once() if stop is not None else nullcontext():
        on_path(options.py_files)
        program = load_app(path, name=app)
    run(program, options, listener, stop=stop)
