"""The commands as typer sees them: names, options, help texts.

What lives here: declarations only. Each command hands its arguments to a module of the same
name, imported when the command runs. What does not: any work.
"""

from __future__ import annotations

import importlib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from phloem.server.cli import trace_app

__all__ = ["app"]

app = typer.Typer(
    name="phloem",
    help="Run structured language-model programs on an engine that keeps their KV cache.",
    epilog="--debug, anywhere on the line, shows the traceback of an error.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
index = typer.Typer(help="Store and search documents.", no_args_is_help=True)
model = typer.Typer(help="Fetch and find models.", no_args_is_help=True)
grammar = typer.Typer(help="Look into constraints.", no_args_is_help=True)
app.add_typer(index, name="index")
app.add_typer(model, name="model")
app.add_typer(grammar, name="grammar")
app.add_typer(trace_app.trace, name="trace")
app.command("trace-proxy")(trace_app.trace_proxy)


class BackendKind(StrEnum):
    """What runs the model."""

    embedded = "embedded"
    sglang = "sglang"


Target = Annotated[str, typer.Argument(metavar="FILE:FUNCTION", help="a program in a file")]
Index = Annotated[str, typer.Option("--index", "-i", help="name of the index")]
Paths = Annotated[list[Path], typer.Argument(help="files, or folders of files")]
Embed = Annotated[
    bool, typer.Option("--embed", help="keep vectors, so that the index can be searched by meaning")
]


EsUrl = Annotated[
    str | None,
    typer.Option(
        "--es-url", help="Elasticsearch server (default: PHLOEM_ES_URL, else the embedded index)"
    ),
]
Arguments = Annotated[
    list[str] | None,
    typer.Option("--arg", metavar="NAME=VALUE", help="an argument, where --NAME is an option here"),
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="name, GGUF file or safetensors folder of a model"),
]
Engine = Annotated[
    BackendKind | None,
    typer.Option("--backend", help="embedded, or sglang [by whether --sglang-url is given]"),
]
Urls = Annotated[
    list[str] | None,
    typer.Option("--sglang-url", help="address of an SGLang server; several share the work"),
]
Temperature = Annotated[
    float | None, typer.Option(help="default of the program's gen steps; 0 is greedy")
]
Seed = Annotated[int | None, typer.Option(help="makes sampling repeatable")]
MaxTokens = Annotated[int | None, typer.Option(help="default of the program's gen steps")]
_PROGRAM = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Options that are not the command's own are the program's arguments."""


class GraphFormat(StrEnum):
    """How `phloem graph` writes a graph."""

    mermaid = "mermaid"
    json = "json"


class SearchMode(StrEnum):
    """How `phloem index search` ranks."""

    bm25 = "bm25"
    knn = "knn"
    hybrid = "hybrid"


class FindingFormat(StrEnum):
    """How `phloem check` writes findings; `github` makes annotations in a workflow."""

    text = "text"
    github = "github"


def _command(module: str, function: str, *arguments: Any) -> None:
    """Call `function` of the command module `phloem.server.cli.MODULE`."""
    getattr(importlib.import_module(f"phloem.server.cli.{module}"), function)(*arguments)


def _sampling(
    temperature: float | None, seed: int | None, max_tokens: int | None
) -> dict[str, float]:
    given = {"temperature": temperature, "seed": seed, "max_new_tokens": max_tokens}
    return {name: value for name, value in given.items() if value is not None}


@app.command(context_settings=_PROGRAM)
def run(
    context: typer.Context,
    target: Target,
    arg: Arguments = None,
    model: ModelName = None,
    temperature: Temperature = None,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    backend: Engine = None,
    sglang_url: Urls = None,
    trace: Annotated[bool, typer.Option("--trace", help="print what each step reused")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="print only the returned value")
    ] = False,
) -> None:
    """Run a program, its text shown as it comes.

    The program's arguments are options by their names: --question "How do I ...?".
    """
    sampling = _sampling(temperature, seed, max_tokens)
    engine = {"model": model, "backend": backend, "sglang_url": sglang_url}
    _command("run", "run", target, context.args, arg or [], sampling, engine, trace, quiet)


@app.command(context_settings=_PROGRAM)
def dev(
    context: typer.Context,
    target: Target,
    arg: Arguments = None,
    model: ModelName = None,
    temperature: Temperature = None,
    seed: Seed = None,
    max_tokens: MaxTokens = None,
    once: Annotated[bool, typer.Option("--once", help="run once and end")] = False,
) -> None:
    """Run a program again at every save of its file, from the first step that changed."""
    sampling = _sampling(temperature, seed, max_tokens)
    _command("dev", "dev", target, context.args, arg or [], sampling, model, once)


@app.command()
def graph(target: Target, format: GraphFormat = GraphFormat.mermaid) -> None:  # noqa: A002
    """Print the state graph that a program compiles to."""
    _command("graph", "show", target, format.value)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a file with programs")],
    format: FindingFormat = FindingFormat.text,  # noqa: A002
) -> None:
    """Find mistakes in programs without running them; exit code 1 if there are errors."""
    _command("graph", "check", file, format.value)


@app.command()
def serve(
    files: Annotated[
        list[str] | None, typer.Argument(metavar="[FILE[:FUNCTION]]...", help="programs to serve")
    ] = None,
    model: Annotated[str | None, typer.Option(help="name or path of the model")] = None,
    backend: Engine = None,
    sglang_url: Urls = None,
    dtype: Annotated[
        str | None, typer.Option(help="weights: auto, float32, bfloat16, int8 or int4 [auto]")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, or cuda[:N] [auto]")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="a setting of the engine: max_running=64"),
    ] = None,
    tp: Annotated[
        int | None, typer.Option(min=1, help="GPUs of the SGLang server that is started")
    ] = None,
    mem_fraction_static: Annotated[
        float | None, typer.Option(min=0, max=1, help="their share for weights and KV")
    ] = None,
    sglang_arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="any other argument of it")
    ] = None,
    index: Annotated[Path | None, typer.Option(help="folder of the embedded indexes")] = None,
    es_url: Annotated[str | None, typer.Option(help="address of Elasticsearch")] = None,
    host: Annotated[str | None, typer.Option(help="address to listen on [127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="port to listen on [8000]")] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="hashed keys, one a line")] = None,
    journal: Annotated[Path | None, typer.Option(help="SQLite file that runs survive in")] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings")] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="no process of its own for the engine")
    ] = False,
    reload: Annotated[bool, typer.Option("--reload", help="restart when a file changes")] = False,
    hash_key: Annotated[
        str | None, typer.Option(metavar="NAME", help="make a key, print its line, and end")
    ] = None,
) -> None:
    """Serve programs, and OpenAI's API beside them, over HTTP.

    Every setting can also be given as PHLOEM_<NAME> in the environment or in the TOML file.
    """
    given = {
        "programs": tuple(files or ()) or None, "model": model, "index_dir": index,
        "es_url": es_url, "host": host, "port": port, "api_key_file": api_key_file,
        "journal": journal, "engine_process": False if in_process else None,
        "backend": backend, "dtype": dtype, "device": device,
        "engine": tuple(engine or ()) or None,
        "sglang_url": tuple(sglang_url or ()) or None,
        "sglang_tp": tp, "sglang_mem_fraction_static": mem_fraction_static,
        "sglang_args": tuple(sglang_arg or ()) or None,
    }  # fmt: skip
    _command("serve", "serve", given, config, reload, hash_key)


@app.command()
def doctor(sglang_url: Urls = None) -> None:
    """Say what is installed and works here: device, model, memory, search, SGLang servers."""
    _command("doctor", "doctor", sglang_url or [])


@app.command()
def plan(
    model: Annotated[
        str, typer.Option(help="config.json, folder, GGUF file, or a name such as llama-3-8b")
    ],
    gpu_mem: Annotated[str, typer.Option(help="memory of one GPU: 80, 80GiB, 141GB")],
    context: Annotated[int, typer.Option(help="tokens of a request, prompt and output")] = 8192,
    concurrency: Annotated[int, typer.Option(help="requests at once")] = 16,
    weight_bits: Annotated[
        float | None, typer.Option(help="bits of a weight [as stored, else 16]")
    ] = None,
    kv_bits: Annotated[float, typer.Option(help="bits of a key or value")] = 16,
    json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say how many GPUs a model needs: weights, KV per token, batch, mem_fraction_static."""
    _command("plan", "plan", model, gpu_mem, context, concurrency, weight_bits, kv_bits, json)


@app.command()
def bench(
    model: ModelName = None,
    dtype: Annotated[
        str, typer.Option(help="how weights are held: auto, float32, bfloat16, int8 or int4")
    ] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="default: torch's own number")] = None,
    json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Measure the engine on this machine: tokens per second, latencies, reuse of prefixes."""
    _command("bench", "bench", model, dtype, threads, json)


@index.command("add")
def index_add(
    paths: Paths, index: Index = "default", embed: Embed = False, es_url: EsUrl = None
) -> None:
    """Add files and folders; what is there already and has not changed is left alone."""
    _command("index", "add", paths, index, embed, es_url)


@index.command("create")
def index_create(
    index: Annotated[str, typer.Argument(help="name of the index")],
    fields: Annotated[
        str | None, typer.Option(metavar="FILE.py:MODEL", help="pydantic model of the metadata")
    ] = None,
    es_url: EsUrl = None,
) -> None:
    """Make an empty index; only needed where metadata have types of their own."""
    _command("index", "create", index, fields, es_url)


@index.command("rebuild")
def index_rebuild(
    paths: Paths, index: Index = "default", embed: Embed = False, es_url: EsUrl = None
) -> None:
    """Put files and folders in place of all that an index holds, without a gap for searches."""
    _command("index", "rebuild", paths, index, embed, es_url)


@index.command("search")
def index_search(
    query: str,
    index: Index = "default",
    hits: Annotated[int, typer.Option("--hits", "-k", min=1, help="how many")] = 5,
    mode: Annotated[SearchMode, typer.Option(help="by words, by meaning, or both")] = (
        SearchMode.bm25
    ),
    es_url: EsUrl = None,
) -> None:
    """Print the documents that match best."""
    _command("index", "search", query, index, hits, mode.value, es_url)


@index.command("list")
def index_list(es_url: EsUrl = None) -> None:
    """List the indexes and how many documents each has."""
    _command("index", "list_indexes", es_url)


@index.command("show")
def index_show(
    index: Annotated[str, typer.Argument(help="name of the index")] = "default",
    sample: Annotated[int, typer.Option(min=0, help="how many documents to print")] = 3,
    es_url: EsUrl = None,
) -> None:
    """Print what is known of an index, and its first documents."""
    _command("index", "show", index, sample, es_url)


@index.command("delete")
def index_delete(
    index: Annotated[str, typer.Argument(help="name of the index")],
    ids: Annotated[list[str] | None, typer.Argument(help="ids of documents")] = None,
    es_url: EsUrl = None,
) -> None:
    """Delete documents by id, or the whole index if no id is given."""
    _command("index", "delete", index, ids or [], es_url)


@model.command("pull")
def model_pull(name: Annotated[str | None, typer.Argument(help="default: SmolLM2")] = None) -> None:
    """Download a model and verify it; nothing happens if it is there."""
    _command("model", "pull", name)


@model.command("list")
def model_list() -> None:
    """List the models on this machine."""
    _command("model", "list_models")


@model.command("path")
def model_path(name: Annotated[str | None, typer.Argument(help="default: SmolLM2")] = None) -> None:
    """Print where a model's weights are."""
    _command("model", "path", name)


@grammar.command("check")
def grammar_check(
    file: Annotated[Path, typer.Argument(help="a JSON Schema (.json), else a regex")],
) -> None:
    """Explain a schema or regex: lengths, what can't be enforced, sample texts."""
    _command("grammar", "check", file)
