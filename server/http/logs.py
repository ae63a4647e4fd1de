"""Logs as JSON lines on standard error, without secrets.

What lives here: the configuration of structlog and of the standard library's loggers (the web
server's go the same way). What does not: what is logged; each module logs events by name with
ids and numbers, and text of prompts only where `log_prompts` is asked.
"""

from __future__ import annotations

import base64
import logging
import sys
from collections.abc import Sequence
from typing import Any

import structlog
from structlog.typing import EventDict, Processor

from phloem.server.settings import Settings

__all__ = ["configure_logging", "configure_logs", "masker"]


def masker(secrets: Sequence[str]) -> Processor:
    """A processor that replaces each secret, and its base64 form, by `***` in every text."""
    forms = [form for secret in secrets if secret for form in _forms(secret)]

    def mask(value: Any) -> Any:
        if isinstance(value, str):
            for form in forms:
                value = value.replace(form, "***")
            return value
        if isinstance(value, dict):
            return {key: mask(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [mask(item) for item in value]
        return value

    def processor(_: Any, __: str, line: EventDict) -> EventDict:
        return {key: mask(value) for key, value in line.items()}

    return processor


def _forms(secret: str) -> list[str]:
    encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
    # The password of a URL is a secret of its own.
    _, at, _ = secret.rpartition("@")
    inner = secret.partition("://")[2].partition("@")[0].partition(":")[2] if at else ""
    return [secret, encoded, *(_forms(inner) if inner else [])]


def configure_logs(settings: Settings) -> None:
    """The log of a server with these settings."""
    configure_logging(settings.log_level, settings.secrets())


def configure_logging(level: str, secrets: Sequence[str]) -> None:
    """Send everything at or above the level, as one JSON object a line, to standard error."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.stdlib.ExtraAdder(),
        masker(secrets),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.PositionalArgumentsFormatter(),
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.PositionalArgumentsFormatter(), *shared],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.EventRenamer("message"),
                masker(secrets),
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logging.getLogger(name).handlers = []
        logging.getLogger(name).propagate = True
    # Its access log shows queries; ours does not (`context.py`).
    logging.getLogger("uvicorn.access").handlers = []
    logging.getLogger("uvicorn.access").propagate = False
    # The clients of search and model servers log URLs at these levels.
    for name in ("elastic_transport", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
