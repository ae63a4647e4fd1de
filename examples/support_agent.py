"""A support agent in five steps, in state style. `make demo` runs it; by hand:

    phloem index add examples/handbook --index handbook
    phloem run examples/support_agent.py:support --question "..." --temperature 0 --trace

Every step continues the same session, so no step computes again what an earlier one has seen.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

import phloem as ph


class Answer(BaseModel):
    """One sentence, the numbers of the passages it rests on, and how sure the agent is."""

    answer: str = Field(pattern=r"^[A-Z][^.;]{10,120}[a-z]\.$")
    sources: list[int] = Field(min_length=1, max_length=4)
    confidence: Literal["low", "medium", "high"]


@ph.function
def support(s: ph.State, question: str) -> Any:
    """Answer a customer's question from the handbook, then judge the answer."""
    s += ph.system("You are a support agent of Fernwood Software. Answer from the handbook.")

    # 1. What does the customer want?
    s += ph.user(f"{question}\n\nIs this query_knowledge (a question) or a greeting?")
    s += ph.assistant(ph.select("intent", ["query_knowledge", "greeting"]))
    if s["intent"] == "greeting":
        s += ph.user("Then answer in one friendly sentence.")
        s += ph.assistant(ph.gen("answer", max_tokens=64))
        return s["answer"]

    # 2. What does the handbook say?
    docs = ph.retrieve("docs", question, index="handbook", k=4)

    # 3. The answer, as JSON.
    s += ph.user(
        ph.passages(docs, max_tokens=600)
        + f"\n\nUse the passages. Answer in one short sentence: {question}"
    )
    s += ph.assistant(ph.gen("answer", schema=Answer, max_tokens=200))

    # 4. Is it any good?
    s += ph.user("Do the passages support this answer? Say yes or no, and why.")
    s += ph.assistant(ph.gen("verdict", regex=r"(yes|no), because [a-z ,]{10,60}\.", max_tokens=40))

    # 5. A friendly end.
    s += ph.user("Write a friendly closing sentence for the customer.")
    s += ph.assistant(ph.gen("closing", max_tokens=48))
    return s["answer"]
