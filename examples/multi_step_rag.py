"""The support agent in value style: primitives return values, the session is implicit.

    phloem index add examples/handbook --index handbook
    phloem run examples/multi_step_rag.py --user-query "..." --temperature 0 --trace

The first argument of `gen` names a prompt template; other keyword arguments are its variables.
"""

from typing import Literal

from pydantic import BaseModel, Field

from phloem import function, gen, retrieve


class Answer(BaseModel):
    """What the agent says, the numbers of the passages it used, and how sure it is."""

    answer: str = Field(max_length=300)
    sources: list[int] = Field(max_length=4)
    confidence: Literal["low", "medium", "high"]


PROMPTS = {
    "classify_intent": (
        "A customer of Fernwood Software writes: {{ user_query }}\n"
        "Does the answer need the handbook (query_knowledge) or not (smalltalk)?"
    ),
    "answer_with_docs": "{{ docs }}\n\nAnswer as JSON: {{ user_query }}",
    "verdict": "Do the passages support this answer? Say yes or no, and why.",
    "closing": "Write one friendly closing sentence to the customer.",
    "default_reply": "Then answer in one friendly sentence.",
}


@function(prompts=PROMPTS)
def multi_step_rag(user_query: str):
    """Answer a customer's question from the handbook, then judge the answer."""
    intent = gen(
        "classify_intent",
        user_query=user_query,
        max_tokens=10,
        choices=["query_knowledge", "smalltalk"],
    )
    if intent == "query_knowledge":
        docs = retrieve(user_query, index="handbook", k=4)
        answer = gen(
            "answer_with_docs", docs=docs, user_query=user_query, schema=Answer, max_tokens=256
        )
        gen("verdict", regex=r"(yes|no), because [a-z ,]{10,60}\.", max_tokens=40)
        gen("closing", max_tokens=48)
    else:
        answer = gen("default_reply", max_tokens=128)
    return answer
