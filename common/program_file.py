"""Loading of a user's Python file, and of a function that `FILE:FUNCTION` names."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ..errors import NotFound, Usage
from .validation import find_program_file


def load_module(path: str | Path, code: CodeType | None = None) -> ModuleType:
    """Import a user's file as a module named after the file, with its folder on `sys.path`.

    With `code`, runs this instead of the file's code.
    Raises `NotFound` if there is no such file, `Usage` for a folder, and any error of the file's code.
    """
    file = find_program_file(path).resolve()
    spec = importlib.util.spec_from_file_location(file.stem.replace("-", "_"), file)
    if spec is None or spec.loader is None:
        raise Usage(f"{path} is not a Python file; expected one that declares a slackwater.App")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.parent))
    sys.modules[spec.name] = module
    if code is None:
        spec.loader.exec_module(module)
    else:
        exec(code, vars(module))  # noqa: S102  the user's program
    return module


def load_function(code: str, meaning: str, load: Callable[[str], ModuleType] = load_module) -> Callable[..., Any]:
    """Load the function that `FILE:FUNCTION` names. `meaning` is the hint of the error: the function's purpose.

    Raises `Usage` and `NotFound`, and the errors of `load`.
    """
    file, colon, name = code.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise Usage(f"{code!r} names no function; expected FILE:FUNCTION", hint=meaning)
    module = load(file)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [
            attribute for attribute, value in vars(module).items() if callable(value) and not attribute.startswith("_")
        ]
        raise NotFound(f"function of {file}", name, functions)
    return function  # type: ignore[no-any-return]
