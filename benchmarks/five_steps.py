"""Times the demo's five-step program in one process: first run, second question, repeated run.

What a run reuses is the point: the second question finds the shared prefix in the cache, the
repeated one its whole prompt. Run by `make bench`, on the model and the index of `make demo`.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

from support_agent import support  # noqa: E402 - the path is set above

from phloem.programs import registry  # noqa: E402
from phloem.programs.events import RunFinished  # noqa: E402
from phloem.retrieval import admin  # noqa: E402

FIRST = "Which browsers are supported?"
SECOND = "When is the chat open?"


def main() -> None:
    """Print a line for each run: seconds, and tokens by where they came from."""
    asyncio.run(admin.add([ROOT / "examples" / "handbook"], index="handbook"))
    capabilities = registry.default("backend").capabilities  # loads the model
    print(f"{capabilities.model}, greedy; seconds without loading the model")
    print(f"{'run':<18}{'seconds':>8}{'prompt':>8}{'reused':>8}{'computed':>9}{'generated':>10}")
    for name, question in (("first", FIRST), ("second question", SECOND), ("repeated", FIRST)):
        events = support.stream(question=question, temperature=0)
        end = next(event for event in events if isinstance(event, RunFinished))
        use = end.usage
        counts = f"{use.prompt:>8}{use.reused:>8}{use.prefilled:>9}{use.generated:>10}"
        print(f"{name:<18}{end.at:>8.2f}{counts}")


if __name__ == "__main__":
    main()
