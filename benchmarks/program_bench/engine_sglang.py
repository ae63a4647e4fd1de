"""SGLang's own frontend over its own runtime, as an engine of the benchmark.

What lives here: `SGLangRunner`, for the environment that SGLang is installed in. What does not:
the programs (`frontend.py`), and starting the server (`engines.py`).
"""

from __future__ import annotations

from typing import Any

import sglang
from sglang.lang.backend import runtime_endpoint

from .engine_http import ended
from .frontend import program, step_of
from .shapes import SHAPES
from .tally import Outputs, Tally

__all__ = ["SGLangRunner"]


class SGLangRunner:
    """See `tally.Runner`. Requests are counted where the frontend makes them."""

    def __init__(self, url: str) -> None:
        self._tally = Tally()
        self._request = runtime_endpoint.http_request
        runtime_endpoint.http_request = self._counted
        self._shape = ""
        sglang.set_default_backend(sglang.RuntimeEndpoint(url))

    def info(self) -> dict[str, Any]:
        """See `Runner`."""
        return {"version": f"sglang {sglang.__version__}", "weights": "bfloat16"}

    def prepare(self, shape: str, shared: str) -> None:
        """See `Runner`."""
        self._program = program(sglang, shape, shared)
        self._shape = shape

    def one(self, row: dict[str, Any]) -> Outputs:
        """See `Runner`."""
        return self._value(self._program.run(**row, temperature=0))

    def many(self, rows: list[dict[str, Any]], at_once: int) -> list[Outputs]:
        """See `Runner`."""
        states = self._program.run_batch(rows, temperature=0, num_threads=at_once)
        return [self._value(state) for state in states]

    def tally(self) -> Tally:
        """See `Runner`."""
        found, self._tally = self._tally, Tally()
        return found

    def _value(self, state: Any) -> Outputs:
        state.sync()
        if state.error() is not None:
            raise state.error()
        outputs: Outputs = state.ret_value
        return outputs

    def _counted(self, url: str, *args: Any, **kwargs: Any) -> Any:
        """A request of the frontend, and what its answer says of tokens."""
        response = self._request(url, *args, **kwargs)
        body = kwargs.get("json")
        if not body or not url.endswith("/generate") or self._shape not in SHAPES:
            return response
        sampling = body["sampling_params"]
        if isinstance(sampling, list):
            sampling = sampling[0]
        tokens = sampling.get("max_new_tokens", 0)
        name = step_of(self._shape, tokens, sampling.get("regex")) if tokens else ""
        answers = response.json()
        for answer in answers if isinstance(answers, list) else [answers]:
            meta = answer["meta_info"]
            generated = meta["completion_tokens"] - ended(meta)
            self._tally.call(name, meta["prompt_tokens"], meta["cached_tokens"], generated)
        if isinstance(answers, list):
            self._tally.calls -= len(answers) - 1
        return response
