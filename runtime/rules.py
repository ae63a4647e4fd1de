"""Refusing the first value that breaks a rule.

What lives here: `require`. What does not: the rules (`place.py`, `engine/params.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from phloem.errors import ConfigError

__all__ = ["require"]


def require(values: object, rules: Iterable[tuple[str, bool, str]]) -> None:
    """Check `rules`: the name of an attribute of `values`, whether its rule holds, what is allowed.

    Raises `ConfigError` for the first that does not hold.
    """
    for name, holds, allowed in rules:
        if not holds:
            raise ConfigError(
                f"{name} is {getattr(values, name)!r}; it must be {allowed}",
                hint=f"change {name}",
                param=name,
            )
