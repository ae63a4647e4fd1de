"""The prompt templates of a value-style program.

What lives here: `Templates`: finding a template by name and rendering it. What does not: where
the rendered text goes (`value_style.py`). Templates are Jinja2; a variable that does not exist
is an error, and hits of a retrieval render as numbered passages. What a template renders is
ordinary text: a special token spelled in a variable (or in the template) stays text.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta

from phloem.errors import CompileError
from phloem.programs.api.passages import render
from phloem.retrieval.base import Hits

__all__ = ["Templates"]

SUFFIXES = (".j2", ".jinja", ".jinja2", ".txt", ".md", "")


class Templates:
    """Templates from a mapping of names to texts, or from a folder of files."""

    def __init__(self, prompts: Mapping[str, str] | str | Path | None, base: Path) -> None:
        self._base = base
        loader: jinja2.BaseLoader
        if prompts is None or isinstance(prompts, Mapping):
            self._where = "prompts="
            for name, text in (prompts or {}).items():
                if not isinstance(text, str):
                    raise CompileError(
                        f"the prompt {name!r} is no text but {type(text).__name__}",
                        hint='write prompts={"name": "text"}',
                    )
            loader = jinja2.DictLoader(dict(prompts or {}))
        else:
            folder = base / prompts
            if not folder.is_dir():
                raise CompileError(
                    f"the prompts folder {folder} does not exist",
                    hint="paths are relative to the file of the program",
                )
            self._where = str(folder)
            loader = jinja2.FileSystemLoader(folder)
        self._environment = jinja2.Environment(
            loader=loader,
            undefined=jinja2.StrictUndefined,
            autoescape=False,
            keep_trailing_newline=False,
            finalize=_finalize,
        )

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def names(self) -> list[str]:
        """All template names."""
        return self._environment.list_templates()

    def sources(self) -> dict[str, str]:
        """Every template's text by name, for the program's hash."""
        loader = self._environment.loader
        assert loader is not None
        return {name: loader.get_source(self._environment, name)[0] for name in self.names()}

    def _find(self, name: str) -> str | None:
        known = set(self.names())
        return next((name + suffix for suffix in SUFFIXES if name + suffix in known), None)

    def variables(self, name: str) -> set[str] | None:
        """The variables that the template uses; None if it has other templates in it, whose
        variables are not known here, or can't be read."""
        loader, found = self._environment.loader, self._find(name)
        if loader is None or found is None:
            return None
        try:
            tree = self._environment.parse(loader.get_source(self._environment, found)[0])
        except jinja2.TemplateSyntaxError:
            return None
        if next(jinja2.meta.find_referenced_templates(tree), "") != "":
            return None
        return jinja2.meta.find_undeclared_variables(tree)

    def render(self, name: str, variables: Mapping[str, Any]) -> str:
        """The prompt `name`. Raises `CompileError` for an unknown name or variable, or a
        template that can't be parsed (its line given)."""
        found = self._find(name)
        if found is None:
            raise CompileError(
                f"there is no prompt template {name!r}",
                hint=f"known in {self._where}: {', '.join(self.names()) or 'none'}; add it with "
                "@function(prompts={...}) or name the state `s` to write prompts in place",
                template=name,
            )
        try:
            return self._environment.get_template(found).render(variables)
        except jinja2.TemplateSyntaxError as error:
            raise CompileError(
                f"the prompt template {name!r} can't be parsed, line {error.lineno}: {error}",
                hint="see the Jinja2 template documentation",
            ) from error
        except jinja2.UndefinedError as error:
            raise CompileError(
                f"the prompt template {name!r} uses a variable it is not given: {error}",
                hint="give it as a keyword of the step; the program's arguments are given always",
            ) from error


def _finalize(value: Any) -> Any:
    return render(value) if isinstance(value, Hits) else value
