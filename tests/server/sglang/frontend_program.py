"""A program in SGLang's own frontend, run by an interpreter that has it (`test_frontend.py`).

What lives here: gen, select, roles, fork, regex, streaming and a batch against the server whose
address is the first argument; the outcome is one JSON line. What does not: phloem.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import sglang as sgl


@sgl.function
def agent(s: Any, question: str) -> None:
    """Two roles, a choice, a fork, a constrained number."""
    s += sgl.system("You answer briefly.")
    s += sgl.user(question)
    s += sgl.assistant("Verdict: " + sgl.select("verdict", choices=["yes", "no", "perhaps"]))
    forks = s.fork(2)
    for i, fork in enumerate(forks):
        fork += sgl.user(f"Reason {i}?")
        fork += sgl.assistant(sgl.gen("reason", max_tokens=6, temperature=0, ignore_eos=True))
    s += sgl.user("A number?")
    s += sgl.assistant(sgl.gen("number", regex="[0-9]{3}", max_tokens=20))
    s["reasons"] = [fork["reason"] for fork in forks]


@sgl.function
def choose(s: Any, method: Any) -> None:
    """One choice by one of the frontend's three methods."""
    s += "Is grass green? "
    s += sgl.select("verdict", choices=["yes", "no"], choices_method=method)


@sgl.function
def plain(s: Any, text: str) -> None:
    """One free step."""
    s += text
    s += sgl.gen("rest", max_tokens=8, temperature=0, ignore_eos=True)


def main() -> None:
    """Run everything against the server and print what came of it."""
    # Its "default" template, which it takes for unknown models, has no suffixes and crashes.
    backend = sgl.RuntimeEndpoint(sys.argv[1], chat_template_name="chatml")
    sgl.set_default_backend(backend)
    state = agent.run(question="Is grass green?")
    streamed = plain.run(text="Once upon", stream=True)
    pieces = list(streamed.text_iter("rest"))
    batch = plain.run_batch([{"text": "Once upon"}, {"text": "A second"}], num_threads=2)
    methods = [
        sgl.token_length_normalized, sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ]  # fmt: skip
    found = {
        "choices": [choose.run(method=method)["verdict"] for method in methods],
        "verdict": state["verdict"],
        "number": state["number"],
        "reasons": state["reasons"],
        "meta": sorted(state.get_meta_info("verdict")),
        "pieces": len(pieces),
        "streamed": "".join(pieces),
        "batch": [one["rest"] for one in batch],
        "cached": backend.get_server_info()["product"],
    }
    backend.flush_cache()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
