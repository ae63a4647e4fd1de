"""A ReAct agent: thoughts, tool calls that can't be malformed, and a bound on everything.

    phloem run examples/react_agent.py --question "What is 17 times 23?" --temperature 0

The model's call is generated under the schema of the tools, so it always names a tool that exists
with arguments that fit. A tool's error is text for the model to read; `token_budget=` and the loop
bound what an unlucky run can cost. (Yao et al., "ReAct", 2022, is the idea.)
"""

import phloem as ph

TURNS = 4


@ph.tool
def multiply(a: int, b: int) -> int:
    """The product of two whole numbers."""
    return a * b


@ph.tool
def add(a: int, b: int) -> int:
    """The sum of two whole numbers."""
    return a + b


@ph.tool(name="finish")
def finish(answer: str) -> str:
    """Give the final answer."""
    return answer


TOOLS = [multiply, add, finish]
CALL = ph.call_schema(*TOOLS)


@ph.function
def react(s: ph.State, question: str) -> str:
    """Answer a question with the tools at hand."""
    described = "\n".join(f"- {tool.name}: {tool.description}" for tool in TOOLS)
    s += ph.system(f"You solve problems with these tools:\n{described}")
    s += ph.user(question)
    for _ in range(TURNS):
        s += ph.assistant("Thought: " + ph.gen("thought", max_tokens=32, stop="\n"))
        s += ph.user("Now call one tool.")
        s += ph.assistant(ph.gen("call", schema=CALL, max_tokens=64))
        result = ph.call_tool(s["call"], TOOLS)
        if s["call"]["name"] == "finish":
            return str(result)
        s += ph.user(f"The tool says: {result}")
    s += ph.user("Give the final answer.")
    s += ph.assistant(ph.gen("answer", max_tokens=32, stop="\n"))
    return str(s["answer"])
