"""phloem: a stateful runtime for structured language-model programs.

What lives here: the public names, each loaded when first used, and the names of the default
parts. What does not: any code of its own. `import phloem` imports neither torch nor a client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from phloem.grammar.defaults import set_default_tokenizer
from phloem.programs import registry

if TYPE_CHECKING:
    from phloem.programs.api.citations import cited as cited
    from phloem.programs.api.defaults import flush_cache as flush_cache
    from phloem.programs.api.defaults import set_default_backend as set_default_backend
    from phloem.programs.api.defaults import set_default_retriever as set_default_retriever
    from phloem.programs.api.function import Program as Program
    from phloem.programs.api.function import function as function
    from phloem.programs.api.passages import Passages as Passages
    from phloem.programs.api.primitives import gen as gen
    from phloem.programs.api.primitives import gen_int as gen_int
    from phloem.programs.api.primitives import gen_string as gen_string
    from phloem.programs.api.primitives import passages as passages
    from phloem.programs.api.primitives import retrieve as retrieve
    from phloem.programs.api.primitives import select as select
    from phloem.programs.api.quotes import quote as quote
    from phloem.programs.api.roles import assistant as assistant
    from phloem.programs.api.roles import assistant_begin as assistant_begin
    from phloem.programs.api.roles import assistant_end as assistant_end
    from phloem.programs.api.roles import image as image
    from phloem.programs.api.roles import parallel as parallel
    from phloem.programs.api.roles import separate_reasoning as separate_reasoning
    from phloem.programs.api.roles import special as special
    from phloem.programs.api.roles import system as system
    from phloem.programs.api.roles import system_begin as system_begin
    from phloem.programs.api.roles import system_end as system_end
    from phloem.programs.api.roles import user as user
    from phloem.programs.api.roles import user_begin as user_begin
    from phloem.programs.api.roles import user_end as user_end
    from phloem.programs.api.roles import video as video
    from phloem.programs.api.state import ProgramState as ProgramState
    from phloem.programs.api.state import State as State
    from phloem.programs.api.tools import Tool as Tool
    from phloem.programs.api.tools import call_schema as call_schema
    from phloem.programs.api.tools import call_tool as call_tool
    from phloem.programs.api.tools import now as now
    from phloem.programs.api.tools import tool as tool
    from phloem.programs.choices import greedy_token_selection as greedy_token_selection
    from phloem.programs.choices import likelihood as likelihood
    from phloem.programs.choices import token_length_normalized as token_length_normalized
    from phloem.programs.choices import (
        unconditional_likelihood_normalized as unconditional_likelihood_normalized,
    )
    from phloem.programs.executor.values import register_codec as register_codec
    from phloem.programs.graph import StateGraph as StateGraph
    from phloem.programs.quoted import Quote as Quote
    from phloem.retrieval.base import Document as Document
    from phloem.retrieval.base import Hit as Hit
    from phloem.retrieval.base import Hits as Hits
    from phloem.retrieval.base import Query as Query
    from phloem.runtime.openai.backend import OpenAI as OpenAI
    from phloem.runtime.sglang.backend import RuntimeEndpoint as RuntimeEndpoint
    from phloem.runtime.sglang.launch import Runtime as Runtime

__version__ = "0.1.0"

registry.register("backend", "phloem.runtime.embedded:EmbeddedBackend")
registry.register("analyser", "phloem.grammar.analyser:default_analyser")
registry.register("retriever", "phloem.retrieval:default_retriever")
set_default_tokenizer("phloem.runtime.model.text:load_model_text")

_ROLES = ["system", "user", "assistant"]
_MODULES: dict[str, list[str]] = {
    "programs.api.citations": ["cited"],
    "programs.api.defaults": ["flush_cache", "set_default_backend", "set_default_retriever"],
    "programs.api.function": ["Program", "function"],
    "programs.api.passages": ["Passages"],
    "programs.api.primitives": [
        "gen", "gen_int", "gen_string", "passages", "retrieve", "select",
    ],
    "programs.api.quotes": ["quote"],
    "programs.api.roles": [
        *_ROLES,
        *(f"{role}_{edge}" for role in _ROLES for edge in ("begin", "end")),
        "image", "parallel", "separate_reasoning", "special", "video",
    ],
    "programs.api.state": ["ProgramState", "State"],
    "programs.api.tools": ["Tool", "call_schema", "call_tool", "now", "tool"],
    "programs.choices": [
        "greedy_token_selection", "likelihood", "token_length_normalized",
        "unconditional_likelihood_normalized",
    ],
    "programs.executor.values": ["register_codec"],
    "programs.graph": ["StateGraph"],
    "programs.quoted": ["Quote"],
    "retrieval.base": ["Document", "Hit", "Hits", "Query"],
    "runtime.openai.backend": ["OpenAI"],
    "runtime.sglang.backend": ["RuntimeEndpoint"],
    "runtime.sglang.launch": ["Runtime"],
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [*sorted(_HOMES), "__version__"]  # noqa: PLE0604 - all are names


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'phloem' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"phloem.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return list(__all__)
