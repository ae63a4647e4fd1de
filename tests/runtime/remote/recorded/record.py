"""Record what a running SGLang server answers: `python record.py URL cumulative|incremental`.

What lives here: the requests of `test_recorded.py` and the writing of `sglang_MODE.json` beside
this file. What does not: the server. Start it with SmolLM2-135M-Instruct, for "incremental" with
--incremental-streaming-output.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

PROMPT = [504, 3575, 282, 4649, 314]
"""The capital of France is"""
GREEDY = {"max_new_tokens": 12, "temperature": 0}
ENDLESS = {**GREEDY, "max_new_tokens": 400, "ignore_eos": True}
REQUESTS: dict[str, dict[str, Any]] = {
    "length": {
        "sampling_params": {**GREEDY, "max_new_tokens": 6, "ignore_eos": True},
        "stream": True, "return_logprob": True, "top_logprobs_num": 2,
    },
    "stop_text": {"sampling_params": {**GREEDY, "stop": ["\n"]}, "stream": True},
    "eos": {"sampling_params": {**GREEDY, "regex": " (Paris|Rome)\\."}, "stream": True},
    "score": {
        "input_ids": [PROMPT, [*PROMPT, 4092]],
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True, "logprob_start_len": [4, 4], "top_logprobs_num": 1,
        "token_ids_logprob": [[7042, 4528], [30]],
    },
    "bad_regex": {"sampling_params": {**GREEDY, "regex": "[ab"}},
    "aborted": {"sampling_params": ENDLESS, "stream": True, "rid": "gone"},
}  # fmt: skip


def main() -> None:
    """Ask everything and write the answers."""
    url, mode = sys.argv[1:]
    with httpx.Client(base_url=url, timeout=120) as client:
        info = client.get("/server_info").json()
        about = f"SGLang {info['version']}, {info['model_path']}, {info['device']}, {mode} streams"
        found: dict[str, Any] = {"server": about}
        aborting = threading.Thread(target=abort, args=(client,))
        for name, request in REQUESTS.items():
            if name == "aborted":
                aborting.start()
            body = {"input_ids": PROMPT} | request
            reply = client.post("/generate", json=body)
            found[name] = {"request": body, "status": reply.status_code, "body": reply.text}
        aborting.join()
    blocks = [block for block in found["aborted"]["body"].split("\n\n") if block]
    found["aborted"]["body"] = "\n\n".join(blocks[:2] + blocks[-2:]) + "\n\n"
    target = Path(__file__).parent / f"sglang_{mode}.json"
    target.write_text(json.dumps(found, indent=1) + "\n")


def abort(client: httpx.Client) -> None:
    """End the endless request once it runs."""
    time.sleep(1)
    client.post("/abort_request", json={"rid": "gone"})


if __name__ == "__main__":
    main()
