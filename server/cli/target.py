"""FILE:FUNCTION to a program: load the file, find the function, or say what there is.

What lives here: importing a user's file as `python FILE` would, and the look-up. What does
not: the arguments of the program (`arguments.py`).
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from phloem.errors import ConfigError
from phloem.programs.api.function import Program

__all__ = ["load_module", "load_program", "programs_in"]


def load_program(target: str) -> Program:
    """The program that FILE:FUNCTION names; FILE alone will do if it holds one program.

    Raises `ConfigError` naming what is missing and what is there.
    """
    path, _, name = target.partition(":")
    programs = programs_in(load_module(Path(path)))
    if not programs:
        raise ConfigError(
            f"{path} holds no program", hint="mark a function of the file with @phloem.function"
        )
    if name in programs:
        return programs[name]
    listed = ", ".join(f"{path}:{known}" for known in programs)
    if not name:
        if len(programs) == 1:
            return next(iter(programs.values()))
        raise ConfigError(f"{path} holds {len(programs)} programs", hint=f"name one: {listed}")
    close = difflib.get_close_matches(name, programs, n=1)
    hint = f"did you mean {path}:{close[0]}?" if close else f"the file has {listed}"
    raise ConfigError(f"{path} holds no program {name!r}", hint=hint)


def programs_in(module: ModuleType) -> dict[str, Program]:
    """The programs a module defines or imports, by their names in it, in order."""
    return {name: value for name, value in vars(module).items() if isinstance(value, Program)}


def load_module(path: Path) -> ModuleType:
    """Import the file at `path`, its folder first on the module path, as `python FILE` does."""
    if not path.is_file():
        raise ConfigError(
            f"there is no file {path}",
            hint=f"the path is taken from {Path.cwd()}; write FILE.py:FUNCTION",
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file", hint="its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(
            f"{path} is not valid Python: {error.msg} (line {error.lineno})",
            hint="the line is in the file named, or in one it imports",
        ) from error
    return module
