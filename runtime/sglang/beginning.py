"""What the forks of a session begin with, computed once: by the first of them that takes a step.

What lives here: `Beginning`, and `turn`, in which a step takes part in some. What does not: when a
beginning is worth it, and requests (`session.py`).

Requests that begin alike and arrive together are each computed from where the server's cache ends.
So the others wait for the first one's first token: then the server has computed what they share.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from phloem.runtime.remote.limits import Limit

__all__ = ["Beginning", "Lead", "turn"]


class Beginning:
    """Tokens that no server has computed, as far as we know. At most one step leads: it computes
    them, and the others wait. If it fails, the next one leads."""

    def __init__(self) -> None:
        self.computed = False
        self._led: asyncio.Event | None = None
        """Set once the step that leads has computed it or failed; None while no step leads."""

    async def claim(self, limit: Limit) -> bool:
        """Whether the caller leads now, and so has to call `leave`; else it is computed."""
        while self._led is not None:
            await limit.wait(self._led.wait())
        if not self.computed:
            self._led = asyncio.Event()
        return self._led is not None

    def leave(self, *, computed: bool) -> None:
        """The step that leads has computed it, or has failed."""
        assert self._led is not None
        self.computed = computed
        self._led.set()
        self._led = None


class Lead:
    """The beginnings that a step leads."""

    def __init__(self) -> None:
        self._led: list[Beginning] = []

    def __bool__(self) -> bool:
        return bool(self._led)

    async def join(self, beginning: Beginning, limit: Limit) -> None:
        """Wait until it is computed or the step's to compute. Raises what ends the step."""
        if await beginning.claim(limit):
            self._led.append(beginning)

    def leave(self, *, computed: bool) -> None:
        """The step has computed them, or has failed."""
        while self._led:
            self._led.pop().leave(computed=computed)


@contextlib.asynccontextmanager
async def turn(beginnings: Sequence[Beginning], limit: Limit) -> AsyncIterator[Lead]:
    """A step's part in `beginnings`, each of which begins with the one before it: what it leads.
    What it has not computed at its end is left to others."""
    lead = Lead()
    try:
        for beginning in beginnings:
            await lead.join(beginning, limit)
        yield lead
    finally:
        lead.leave(computed=False)
