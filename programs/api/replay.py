"""Running a program again from the record of a run.

What lives here: `replay`, `resume`, `rewind` as `Program` offers them. What does not: the
record (`executor/record.py`) or storing it (the server's journal).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phloem.errors import NonDeterminism
from phloem.programs.api import start
from phloem.programs.executor.record import Mode, Record
from phloem.programs.executor.values import decode

__all__ = ["again"]


def again(
    program: start.Startable,
    record: Record,
    mode: Mode,
    settings: Mapping[str, Any],
    *,
    changed: bool,
) -> start.Started:
    """A run of `program` with the record's arguments, answered from the record first.

    Raises `NonDeterminism` if the record is of another program, unless `changed` allows it.
    """
    own = program.identity()
    if record.program_hash != own and not changed:
        raise NonDeterminism(
            f"the record is of another version of {record.program!r}",
            hint="pass changed=True to go on as long as every effect still matches",
            recorded=record.program_hash,
            now=own,
        )
    copy = record.copy(mode)
    # What was recorded is about the code as it was; what is added is about the code as it is.
    copy.program_hash = own
    arguments = {name: decode(value) for name, value in record.args.items()}
    return start.prepare(program, (), {**arguments, **settings}, record=copy)
