"""Plan, execute side by side, reflect: an agent with loops, a fork, and a budget.

    phloem run examples/plan_execute_reflect.py --task "Describe a good cup of tea." --temperature 0

The steps of the plan are written in branches of one session, so they share its KV and decode in one
batch; the reflection is a choice, scored and not generated, that decides whether to go round again.
"""

import phloem as ph

ROUNDS = 2
STEPS = 3


@ph.function
def plan_execute_reflect(s: ph.State, task: str) -> str:
    """Do a task in parts, and again if the result does not hold up."""
    s += ph.system("You are a careful writer.")
    s += ph.user(f"Task: {task}")
    for attempt in range(1, ROUNDS + 1):
        s += ph.user(f"Attempt {attempt}. Name {STEPS} aspects, one line each.")
        s += ph.assistant(ph.gen("plan", regex=r"(- [A-Za-z ]{3,40}\n){3}", max_tokens=64))
        aspects = s["plan"].strip().split("\n")
        branches = s.fork(len(aspects))
        for branch, aspect in zip(branches, aspects, strict=True):
            branch += ph.user(f"One sentence about: {aspect[2:]}")
            branch += ph.assistant(ph.gen("part", max_tokens=32, stop="\n"))
        branches.join()
        s += ph.user("Together: " + " ".join(s["part"]))
        s += ph.user("Does this fulfil the task?")
        s += ph.assistant(ph.select("verdict", ["yes", "no"]))
        if s["verdict"] == "yes":
            break
    return " ".join(s["part"])
