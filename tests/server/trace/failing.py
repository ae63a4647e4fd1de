"""A program whose third step fails, for `phloem serve` and tests."""

from __future__ import annotations

import phloem as ph


@ph.function
def helpdesk(s: ph.State, question: str, api_token: str = "") -> str:
    """Classify, rephrase, look up."""
    s += ph.user(question)
    s += ph.assistant(ph.gen("intent", max_tokens=3, temperature=0))
    s += ph.assistant(ph.gen("wording", max_tokens=4, temperature=0))
    tries = 2 + len(question)
    found = ph.retrieve("found", s["wording"] + question, index="manuals", k=tries)
    s += ph.assistant(ph.gen("answer", docs=found))
    return s["answer"]
