"""The steps a program is written with: gen, select, retrieve and their kin.

What lives here: the functions of the public face that make effects. What does not: roles and
media (`roles.py`) or doing the effects (`executor/`). In state style `gen` and `select` return
an expression for `s += ...`; in value style they act at once and return the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from phloem.errors import CompileError, ProgramError
from phloem.programs import choices as rules
from phloem.programs import constraints, registry
from phloem.programs.api import passages as text_of
from phloem.programs.api import value_style
from phloem.programs.effects import AddLater, Choose, Expression, Generate, Search, well_formed
from phloem.programs.executor import hub
from phloem.programs.executor.deferred import PendingHits
from phloem.programs.executor.frame import asynchronous, current, value_frame
from phloem.programs.executor.run import Run
from phloem.programs.marks import check_keywords, check_name, mark, mark_text
from phloem.programs.sampling import STEP_OPTIONS, clean
from phloem.retrieval.base import Filter, Hit, Hits, Mode, Reranker

__all__ = ["gen", "gen_int", "gen_string", "passages", "retrieve", "select"]

F = TypeVar("F", bound=Callable[..., Any])


@mark("gen")
def gen(
    name: str | None = None,
    max_tokens: int | None = None,
    min_tokens: int | None = None,
    n: int | None = None,
    stop: str | Sequence[str] | None = None,
    stop_token_ids: Sequence[int] | None = None,
    stop_regex: str | Sequence[str] | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    top_k: int | None = None,
    min_p: float | None = None,
    frequency_penalty: float | None = None,
    presence_penalty: float | None = None,
    ignore_eos: bool | None = None,
    return_logprob: bool | None = None,
    logprob_start_len: int | None = None,
    top_logprobs_num: int | None = None,
    return_text_in_logprobs: bool | None = None,
    dtype: type | str | None = None,
    choices: Sequence[str] | None = None,
    choices_method: rules.ChoicesMethod | None = None,
    regex: str | None = None,
    json_schema: str | Mapping[str, Any] | None = None,
    *,
    schema: Any = None,
    type: Any = None,  # noqa: A002 - the name says what it takes
    grammar: str | None = None,
    after: str | None = None,
    finish: str | None = None,
    whitespace: bool | None = None,
    repetition_penalty: float | None = None,
    seed: int | None = None,
    logprobs: int | None = None,
    fresh: bool = False,
    timeout: float | None = None,
    retries: int = 0,
    **variables: Any,
) -> Any:
    """Generate text, and keep its value under `name`.

    Sampling arguments override those of `run()` one by one; SGLang's defaults hold for the rest
    (128 tokens, temperature 1). At most one of these says what the text must be: `regex`,
    `json_schema`, `grammar` (Lark) and `dtype` (int, float, bool, str) give text; `schema` (JSON
    Schema, pydantic model, dataclass, ...) and `type` (any Python type, `Literal`, `Enum`) give
    the parsed value. `choices` scores the given texts instead of generating. `n` samples make
    the value a list, the first of which the text goes on with.

    With a constraint, `after` lets it begin only behind that text (a reasoning block's end),
    `finish="force"` takes the shortest way to its end before `max_tokens` runs out (the default for
    JSON Schemas; "free" does not), and `whitespace=True` allows white space between JSON's parts.
    The text ends before any of `stop` (texts), a match of `stop_regex`, or a token of
    `stop_token_ids`. `seed` makes the draw repeatable; `logprobs` (a number, or SGLang's
    `return_logprob` and `top_logprobs_num`) puts those of as many likely tokens into
    `get_meta_info(name)`.

    `timeout` (seconds) and `retries` limit this step. In value style further keywords are
    variables of the prompt template `name`, and `fresh=True` gives the step its own session.

    Raises `CompileError` for arguments that don't fit together, `ConstraintError` for a
    constraint that can't be enforced, `TruncatedOutput` if `max_tokens` or a stop text cut a parsed
    value.
    """
    given = dict(locals())
    frame = value_frame()
    if frame is None:
        check_keywords("gen", gen, variables)
    check_name(name)
    if choices is not None:
        # SGLang's gen(choices=...) ignores sampling arguments, but for the temperature.
        for key in (*constraints.ARGUMENTS, "n"):
            if given[key] is not None:
                raise CompileError(
                    f"{key}= and choices= can't both be given to gen()",
                    hint="leave one of them out",
                )
        return select(
            name,
            choices,
            temperature,
            choices_method,
            fresh=fresh,
            timeout=timeout,
            retries=retries,
            **variables,
        )
    wanted = {key: given[key] for key in constraints.ARGUMENTS if given[key] is not None}
    if isinstance(dtype, str):
        wanted["dtype"] = {"int": int, "float": float, "bool": bool, "str": str}.get(dtype, dtype)
    built = constraints.build(Run.analyser(), wanted) if wanted else constraints.Built()
    options = clean({key: given[key] for key in STEP_OPTIONS if key in given})
    if built.stop:
        options["stop"] = (*options.get("stop", ()), *built.stop)
    effect = Generate(
        name,
        options,
        built.constraint,
        built.parse,
        built.target,
        _samples(n),
        timeout=timeout,
        retries=retries,
    )
    if frame is not None:
        return value_style.step(frame, effect, variables, fresh=fresh)
    return Expression((effect,))


def _samples(n: int | None) -> int | None:
    if n is None:
        return None
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise CompileError(f"n={n!r} is not a number of samples", hint="give 1 or more")
    return n


@mark("gen", dtype=int, takes=None)
def gen_int(name: str | None = None, max_tokens: int | None = None, **arguments: Any) -> Any:
    """`gen(dtype=int)`: the text of a whole number. Takes gen's other arguments."""
    return gen(name, max_tokens, dtype=int, **arguments)


@mark("gen", dtype=str, takes=None)
def gen_string(name: str | None = None, max_tokens: int | None = None, **arguments: Any) -> Any:
    """`gen(dtype=str)`: a text in double quotes. Takes gen's other arguments."""
    return gen(name, max_tokens, dtype=str, **arguments)


@mark("select")
def select(
    name: str | None = None,
    choices: Sequence[str] | None = None,
    temperature: float | None = 0.0,
    choices_method: rules.ChoicesMethod | None = None,
    *,
    fresh: bool = False,
    timeout: float | None = None,
    retries: int = 0,
    **variables: Any,
) -> Any:
    """Append one of `choices`, the one that scores best, and keep it under `name`.

    The result is always exactly one of the strings. The rule is `likelihood` unless
    `choices_method` says otherwise (see `programs/choices.py`); a `temperature` above 0 draws
    from softmax(scores / temperature) instead of taking the best. Scores are in
    `get_meta_info(name)`. Raises `CompileError` without choices, for choices that aren't text, and
    for a temperature or a method that is none.
    """
    check_name(name)
    texts = _texts(name, choices)
    heat = clean({"temperature": temperature}).get("temperature", 0.0)
    if choices_method is not None and not isinstance(choices_method, rules.ChoicesMethod):
        raise CompileError(
            f"choices_method={choices_method!r} is no rule to choose by",
            hint="give phloem.likelihood, phloem.token_length_normalized, "
            "phloem.greedy_token_selection or phloem.unconditional_likelihood_normalized itself",
        )
    effect = Choose(name, texts, choices_method, float(heat), timeout, retries)
    frame = value_frame()
    if frame is not None:
        return value_style.step(frame, effect, variables, fresh=fresh)
    check_keywords("select", select, variables)
    return Expression((effect,))


def _texts(name: str | None, given: Iterable[str] | None) -> tuple[str, ...]:
    choices = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else given
    if not isinstance(choices, tuple) or not choices:
        raise CompileError(
            f"the choice {name!r} needs a list of texts, not {choices!r}",
            hint='write choices=["yes", "no"]',
        )
    for choice in choices:
        if not isinstance(choice, str):
            raise CompileError(
                f"the choice {name!r} has {choice!r}, which is not text",
                hint="write the texts that the model shall say",
            )
        if not choice:
            raise CompileError(
                f"the choice {name!r} has an empty text, which nothing can be compared with",
                hint='write a text for it, such as "none"',
            )
        well_formed(choice, f"the choice {name!r}")
    return tuple(dict.fromkeys(choices))


def _search(
    name_or_query: str,
    query: str | None = None,
    /,
    *,
    index: str | None = None,
    k: int | None = None,
    mode: Mode | None = None,
    filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002 - Elasticsearch's word
    fields: Sequence[str] | None = None,
    min_score: float | None = None,
    highlight: bool | None = None,
    rerank: Reranker | None = None,
    raw: Mapping[str, Any] | None = None,
    allow_partial: bool | None = None,
    timeout: float | None = None,
    retries: int = 0,
) -> Search:
    """The effect of `retrieve` with these arguments."""
    name, text = (None, name_or_query) if query is None else (name_or_query, query)
    check_name(name)
    fields = (fields,) if isinstance(fields, str) else fields
    given = {
        "index": index,
        "k": k,
        "mode": mode,
        "filter": filter,
        "fields": tuple(fields) if fields is not None else None,
        "min_score": min_score,
        "highlight": highlight,
        "rerank": rerank,
        "raw": raw,
        "allow_partial": allow_partial,
    }
    options = {key: value for key, value in given.items() if value is not None}
    return Search(name, text, options, timeout, retries)


@mark("retrieve", effect=_search)
def retrieve(
    name_or_query: str,
    query: str | None = None,
    /,
    *,
    index: str | None = None,
    k: int | None = None,
    mode: Mode | None = None,
    filter: Filter | Mapping[str, Any] | None = None,  # noqa: A002 - Elasticsearch's word
    fields: Sequence[str] | None = None,
    min_score: float | None = None,
    highlight: bool | None = None,
    rerank: Reranker | None = None,
    raw: Mapping[str, Any] | None = None,
    allow_partial: bool | None = None,
    timeout: float | None = None,
    retries: int = 0,
) -> Hits:
    """Search, and return the hits; `retrieve(name, query)` also keeps them as a variable.

    The arguments are those of `retrieval.base.Query`. Acts at once in both styles, but for
    retrievals inside `parallel()` and beside the open branches of a fork: these run side by side,
    and whoever reads their hits waits for them. An async program may await it, and must do so in
    the tasks that it starts, where several run side by side too. A retrieval
    that is certain to run, with arguments that are known, may be started before its place,
    beside the steps before it; its error is raised at its place. Raises the kinds of
    `RetrievalError`, and `ProgramError` outside of a program.
    """
    effect = _search(
        name_or_query,
        query,
        index=index,
        k=k,
        mode=mode,
        filter=filter,
        fields=fields,
        min_score=min_score,
        highlight=highlight,
        rerank=rerank,
        raw=raw,
        allow_partial=allow_partial,
        timeout=timeout,
        retries=retries,
    )
    frame = current()
    if frame is not None:
        return frame.search(effect)
    beside = asynchronous()
    if beside is not None:
        return beside.begin(effect)
    raise ProgramError(
        "retrieve() works inside a running program",
        hint="ask the retriever itself elsewhere: await retriever.search(Query(...))",
    )


@mark_text
def passages(
    docs: Sequence[Hit],
    max_tokens: int | None = None,
    order: text_of.Order = "score",
    cite: bool = True,
) -> Any:
    """Retrieved documents as text, numbered [1], [2], …; see `passages.render` for `order`.

    With `max_tokens` the text is cut to fit, at the ends of sentences, as the run's own tokenizer
    counts. The value is a `str` whose `sources` are the hits by their numbers. Where it is put
    right into a state (`s += ph.user(ph.passages(docs))`) while the hits are still to come, it is
    an expression that waits for them in the state's own lane.
    """
    frame = current()
    if isinstance(docs, PendingHits) and not docs.deferred.done and frame and frame.may_defer:
        run, deferred = frame.run, docs.deferred

        async def later() -> str:
            hits = await deferred.result()
            count = (await run.backend()).count if max_tokens is not None else None
            return text_of.render(hits, max_tokens=max_tokens, order=order, cite=cite, count=count)

        return Expression((AddLater(later),))
    count = None
    if max_tokens is not None:
        backend = hub.wait(frame.run.backend()) if frame else registry.default("backend")
        count = backend.count
    return text_of.render(docs, max_tokens=max_tokens, order=order, cite=cite, count=count)
