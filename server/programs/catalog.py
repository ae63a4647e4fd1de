"""The programs that a server offers.

What lives here: loading them from files, their typed arguments, and the hash that says whether
a program is still the same. What does not: running them (`manager.py`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from phloem.errors import ConfigError
from phloem.programs.api.function import Program
from phloem.server.cli.target import load_module, load_program, programs_in
from phloem.server.http.replies import RequestError
from phloem.server.programs.graph_program import graph_program

__all__ = ["Catalog", "Registered", "load_catalog"]


@dataclass(frozen=True, slots=True)
class Registered:
    """A program with the model of its arguments and its hash."""

    program: Program
    arguments: type[BaseModel]
    hash: str

    @property
    def name(self) -> str:
        """The name in paths."""
        return self.program.name

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments."""
        return self.arguments.model_json_schema()

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as Python values. Raises `RequestError` naming the one at fault."""
        try:
            parsed = self.arguments.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            place = ".".join(["args", *map(str, first["loc"])])
            raise RequestError(
                400, f"{place}: {first['msg']}", code="invalid_arguments", param=place
            ) from None
        fields = type(parsed).model_fields
        return {
            str(field.alias): getattr(parsed, name)
            for name, field in fields.items()
            if name in parsed.model_fields_set
        }


class Catalog:
    """Programs by name. The interpreter of graphs is one of them, but not listed."""

    def __init__(self, programs: Iterable[Program]) -> None:
        self._programs: dict[str, Registered] = {}
        for program in [graph_program, *programs]:
            if program.name in self._programs:
                raise ConfigError(
                    f"two programs are named {program.name!r}",
                    hint="give one another name: @function(name=...)",
                )
            made = Registered(program, _arguments(program), program.identity())
            self._programs[program.name] = made

    def __iter__(self) -> typing.Iterator[Registered]:
        return (one for one in self._programs.values() if one.program is not graph_program)

    def __contains__(self, name: str) -> bool:
        return name in self._programs

    def get(self, name: str, param: str = "program") -> Registered:
        """The program. Raises `RequestError` (404) with the field that named it."""
        if name not in self._programs:
            raise RequestError(
                404,
                f"there is no program {name[:100]!r}",
                code="program_not_found",
                param=param,
                hint=f"this server has: {', '.join(one.name for one in self) or 'none'}",
            )
        return self._programs[name]


def load_catalog(targets: Iterable[str]) -> Catalog:
    """The programs of `FILE.py` (all) and `FILE.py:FUNCTION` targets.

    Raises `ConfigError` naming what is missing, and what the files raise when imported.
    """
    found: list[Program] = []
    for target in targets:
        path, _, name = target.partition(":")
        if name:
            found.append(load_program(target))
            continue
        programs = list(programs_in(load_module(Path(path))).values())
        if not programs:
            raise ConfigError(f"{path} holds no program", hint="mark functions with @function")
        found += programs
    # A program that one file imports from another is the same object.
    return Catalog(dict.fromkeys(found))


def _arguments(program: Program) -> type[BaseModel]:
    """A model with a field for each parameter, typed by its annotation where JSON can say it."""
    signature = inspect.signature(program.function)
    try:
        hints = typing.get_type_hints(program.function, include_extras=True)
    except (NameError, TypeError):
        # An annotation that can't be resolved says nothing; the program itself will.
        hints = {}
    fields: dict[str, Any] = {}
    for number, name in enumerate(program.parameters):
        parameter = signature.parameters[name]
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            # A free name could be one of run()'s own settings: not from a client.
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        # Field names of pydantic may not begin with "_" or shadow its own: use the alias.
        fields[f"arg{number}"] = (
            _json_type(hints.get(name, Any)), Field(default, alias=name)
        )  # fmt: skip
    config = ConfigDict(extra="forbid")
    model = create_model(f"{program.name}_arguments", __config__=config, **fields)
    return typing.cast("type[BaseModel]", model)


def _json_type(hint: Any) -> Any:
    """`hint` if pydantic can read it from JSON, else anything."""
    try:
        create_model("Probe", value=(hint, ...)).model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError):
        return Any
    return hint
