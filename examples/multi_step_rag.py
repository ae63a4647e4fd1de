"""The support agent in value style: primitives return values, the session is implicit.

    phloem index add examples/handbook --index handbook
    phloem run examples/multi_step_rag.py --user-query "..." --temperature 0 --trace

The first argument of `gen` names a prompt template, which sees the program's arguments and the
step's other keyword arguments.
"""

from typing import Any, Literal

from pydantic import BaseModel, Field

from phloem import function, gen, retrieve


class Answer(BaseModel):
    """One sentence, the numbers of the passages it rests on, and how sure the agent is."""

    answer: str = Field(pattern=r"^[A-Z][^.;]{10,120}[a-z]\.$")
    sources: list[int] = Field(min_length=1, max_length=4)
    confidence: Literal["low", "medium", "high"]


PROMPTS = {
    "system": "You are a support agent of Fernwood Software. Answer from the handbook.",
    "classify_intent": "{{ user_query }}\n\nIs this query_knowledge (a question) or a greeting?",
    "answer_with_docs": (
        "{{ docs }}\n\nUse the passages. Answer in one short sentence: {{ user_query }}"
    ),
    "verdict": "Do the passages support this answer? Say yes or no, and why.",
    "closing": "Write a friendly closing sentence for the customer.",
    "default_reply": "Then answer in one friendly sentence.",
}


@function(prompts=PROMPTS)
def multi_step_rag(user_query: str) -> Any:
    """Answer a customer's question from the handbook, then judge the answer."""
    intent = gen("classify_intent", max_tokens=10, choices=["query_knowledge", "greeting"])
    if intent == "query_knowledge":
        docs = retrieve(user_query, index="handbook", k=4)
        answer = gen("answer_with_docs", docs=docs, schema=Answer, max_tokens=256)
        gen("verdict", regex=r"(yes|no), because [a-z ,]{10,60}\.", max_tokens=40)
        gen("closing", max_tokens=48)
    else:
        answer = gen("default_reply", max_tokens=128)
    return answer
