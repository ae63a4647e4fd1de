"""The server's settings: one model, filled from arguments, environment and a TOML file.

What lives here: names, types, defaults and the order of sources. What does not: what a
setting does (its own module says so) and the options of `phloem serve` (server/cli).

A value given in code or on the command line wins over `PHLOEM_<NAME>` in the environment,
that over the TOML file named by `PHLOEM_CONFIG` (or `config=`), that over the default.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    Field,
    SecretStr,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from phloem.errors import ConfigError
from phloem.runtime.engine.config import EngineConfig

__all__ = ["Settings", "load_settings"]


class Settings(BaseSettings):
    """All settings of `phloem serve`. Times are seconds, sizes bytes."""

    model_config = SettingsConfigDict(env_prefix="PHLOEM_", extra="forbid", frozen=True)

    programs: Annotated[tuple[str, ...], NoDecode] = ()
    """Files of programs: `FILE.py` (all its programs) or `FILE.py:FUNCTION`."""
    model: str | None = None
    """Name or path of the model; None is the default model."""
    backend: Literal["embedded", "sglang"] | None = None
    """What runs the model; None: SGLang if `sglang_url` is set, else the embedded engine."""
    sglang_url: Annotated[tuple[str, ...], NoDecode] = ()
    """SGLang servers of one model. None, with the backend "sglang": one is started here."""
    sglang_api_key: SecretStr | None = None
    sglang_python: str | None = None
    """Interpreter of the environment that has sglang, for the server that is started."""
    sglang_tp: int = Field(1, ge=1)
    """GPUs that share the model there."""
    sglang_mem_fraction_static: float | None = Field(None, gt=0, lt=1)
    """Share of their memory for weights and KV."""
    sglang_args: Annotated[tuple[str, ...], NoDecode] = ()
    """Other arguments of that server: NAME=VALUE, or NAME for a flag."""
    index_dir: Path | None = None
    """Folder of the embedded indexes; None is the one of `phloem index`."""
    es_url: SecretStr | None = None
    """Elasticsearch; takes the place of the embedded indexes. May hold a password: a secret."""

    dtype: Literal["auto", "float32", "bfloat16", "int8", "int4"] = "auto"
    """How weights are held."""
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$")] = "auto"
    """Where the embedded engine computes: auto, cpu, or cuda[:N]."""
    engine: Annotated[EngineConfig, NoDecode] = EngineConfig()
    """The embedded engine's own settings, `EngineConfig`: a table of the TOML file, or
    NAME=VALUE, separated by commas. Its `max_running` bounds the steps computed together, the
    server's the requests that are let in."""
    engine_process: bool = True
    """Run the engine in a child process, which is replaced when it dies, hangs or leaks."""
    engine_memory_bytes: int | None = Field(None, ge=2**20)
    """Memory of that process's own (mapped weights do not count) above which it is replaced; None
    is what it has once the model is loaded, plus the KV pool, plus 2 GiB."""
    engine_stuck_s: float = Field(30.0, gt=0)
    """Without a sign of life for this long it is replaced."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    root_path: str = ""
    """Prefix that a proxy in front strips."""
    cors_origins: Annotated[tuple[str, ...], NoDecode] = ()

    api_key: SecretStr | None = None
    """One key, for a single user; more keys go into `api_key_file`."""
    api_key_file: Path | None = None
    """Lines `NAME:sha256:HEX`, as `phloem serve --hash-key` prints them."""
    requests_per_minute: int = Field(0, ge=0)
    """Per key (or client address, without keys); 0 is no limit."""
    concurrent_requests: int = Field(0, ge=0)
    """POST requests of one key (or address) under way at once; more get a 429. 0 is no limit.
    A background run's request is over with its 202."""
    isolate_keys: bool = False
    """Never share KV between keys: no key can time another's prompts out of the cache."""

    max_body_bytes: int = Field(4 * 2**20, ge=1024)
    max_running: int = Field(256, ge=1)
    """Requests that may use the engine at once."""
    max_queued: int = Field(1024, ge=0)
    """Requests that may wait for that; more are refused with 503 and `Retry-After`."""
    max_n: int = Field(16, ge=1)
    """Candidates per request."""
    request_timeout_s: float = Field(600.0, gt=0)
    """Deadline of a request, from its arrival, if it does not set an earlier one."""
    heartbeat_s: float = Field(10.0, gt=0)
    """Longest silence of an event stream; a comment line fills it."""
    early_headers_s: float = Field(0.5, gt=0)
    """A stream waits this long for its first event, so that an early error gets its status."""
    send_timeout_s: float = Field(60.0, gt=0)
    """A reader that takes nothing for this long is cut off."""
    shutdown_s: float = Field(20.0, ge=0)
    """How long running requests may finish after a stop signal."""

    journal: Path | None = None
    """SQLite file of runs; None keeps runs in memory only."""
    keep_runs: int = Field(10_000, ge=1)
    """Finished runs kept; the oldest go first."""
    trace_values: bool | None = None
    """Whether events of runs also tell the program's variables, what steps ask for, and the
    source at an error. None: on a server without keys, where only its owner reads them."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_prompts: bool = False
    """Put prompts and outputs into the log; off, no log line holds any."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments, environment, TOML; neither dotenv nor secret folders."""
        del dotenv_settings, file_secret_settings
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))

    @field_validator("programs", "cors_origins", "sglang_url", "sglang_args", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """A text (an environment variable) is a list separated by commas."""
        return tuple(filter(None, value.split(","))) if isinstance(value, str) else value

    @field_validator("engine", mode="wrap")
    @classmethod
    def _engine(cls, value: Any, check: ValidatorFunctionWrapHandler) -> Any:
        """A text, or texts, of NAME=VALUE are a table too."""
        if isinstance(value, str):
            value = value.split(",")
        if isinstance(value, list | tuple):
            pairs = [one.partition("=") for one in value if one]
            value = {name.strip(): text.strip() for name, _, text in pairs}
        known = [one.name for one in dataclasses.fields(EngineConfig)]
        if isinstance(value, dict) and (unknown := [name for name in value if name not in known]):
            raise ValueError(f"there is no {unknown[0]!r}; there are {', '.join(known)}")
        try:
            return check(value)
        except ConfigError as error:
            raise ValueError(error.message) from error

    @model_validator(mode="after")
    def _engine_is_embedded(self) -> Self:
        if self.remote and self.sets_engine:
            raise ValueError(
                "engine, dtype and device are for the embedded engine; those of an SGLang server "
                "that is started here go into sglang_args"
            )
        return self

    @property
    def sets_engine(self) -> bool:
        """Whether anything of the embedded engine is not as by default."""
        return (self.engine, self.dtype, self.device) != (EngineConfig(), "auto", "auto")

    @property
    def remote(self) -> bool:
        """Whether SGLang runs the model."""
        return self.backend == "sglang" or (self.backend is None and bool(self.sglang_url))

    def secrets(self) -> list[str]:
        """Texts that must never appear in a log."""
        kept = (self.api_key, self.es_url, self.sglang_api_key)
        return [secret.get_secret_value() for secret in kept if secret is not None]


def load_settings(config: Path | None = None, **given: Any) -> Settings:
    """The settings from `given` (None: not given), the environment and a TOML file.

    Raises `ConfigError` that names each wrong setting and says what is wrong with it.
    """
    named = config or os.environ.get("PHLOEM_CONFIG")
    if named is not None and not Path(named).is_file():
        raise ConfigError(f"there is no settings file {named}")

    class FromFile(Settings):
        """`Settings` that also reads this file."""

        model_config = SettingsConfigDict(toml_file=named)

    try:
        return FromFile(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        wrong = [
            ": ".join(filter(None, (".".join(map(str, item["loc"])), _said(item["msg"]))))
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise ConfigError(
            "wrong settings: " + "; ".join(wrong),
            hint="settings come from options, PHLOEM_* variables and the TOML file",
        ) from None


def _said(message: str) -> str:
    """A validator's own words."""
    return message.removeprefix("Value error, ")
