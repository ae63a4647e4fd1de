"""The command line: `phloem run`, `graph`, `check`, `index`, `model`, `grammar`, `bench`, `doctor`.

What lives here: the entry point `main` and how an error ends a command. `app.py` declares the
commands; the module of a command is imported only when that command runs, so `phloem --help`
loads neither torch nor a program. What does not live here: anything a program could not do
itself through `import phloem`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from phloem.errors import PhloemError
from phloem.server.cli.app import app
from phloem.server.cli.report import report

__all__ = ["main"]

DEBUG = "--debug"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command that `arguments` (by default the process's own) name.

    Always ends with `SystemExit`: code 0, 2 for an error that phloem explains, 1 for any other
    (an exception of the user's own code, or a bug), 130 for an interrupt. With `--debug`
    anywhere, errors are raised with their traceback instead.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = DEBUG in given
    try:
        app([argument for argument in given if argument != DEBUG])
    except Exception as error:
        if debug:
            raise
        report(error)
        sys.exit(2 if isinstance(error, PhloemError) else 1)
