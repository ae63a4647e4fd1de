"""The tables of the journal.

What lives here: SQLAlchemy table definitions and the version of their layout. What does not:
reading and writing them (`store.py`). Plain SQL types only, so that another database than
SQLite can follow.
"""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

__all__ = ["LAYOUT", "batches", "effects", "meta", "metadata", "runs"]

LAYOUT = 1
"""Raised when the tables change; a journal of another layout is refused."""

metadata = MetaData()

meta = Table(
    "meta",
    metadata,
    Column("name", String(40), primary_key=True),
    Column("value", Text, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("program", String(200), nullable=False),
    Column("program_hash", String(64), nullable=False),
    Column("graph", JSON, nullable=False),
    Column("fingerprint", String(100), nullable=False),
    Column("args", JSON, nullable=False),
    Column("options", JSON, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("background", Boolean, nullable=False),
    Column("caller", String(100)),
    Column("idempotency_key", String(200)),
    Column("request_digest", String(64)),
    Column("parent", String(40)),
    Column("trace_id", String(32), nullable=False),
    Column("status", String(20), nullable=False),
    Column("attempt", Integer, nullable=False, default=1),
    Column("created_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("result", JSON),
    Column("error", JSON),
    Column("events", JSON),
    UniqueConstraint("caller", "idempotency_key"),
    Index("runs_by_time", "created_at"),
    Index("runs_by_status", "status"),
)
"""One row a run. `graph` is the program's at the start, to show what changed since.
`events` is filled when the run ends; while it runs they are in memory only."""

effects = Table(
    "effects",
    metadata,
    Column("run", String(40), ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
    Column("path", String(200), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("position", Integer, nullable=False),
    Column("entry", JSON),
)
"""One row an effect: its address (path, seq) and its place in the run's order (`position`).
`entry` is null while a tool call is under way: begun, and not known to have ended."""

batches = Table(
    "batches",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("program", String(200), nullable=False),
    Column("caller", String(100)),
    Column("created_at", Float, nullable=False),
    Column("runs", JSON, nullable=False),
)
"""One row a batch: the ids of its runs in the order of its lines."""
