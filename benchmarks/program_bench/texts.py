"""The texts that programs are run on, made from a seed.

What lives here: passages, reviews, orders, sums and chat turns. What does not: the programs that
read them. Equal seeds give equal texts on every engine and Python version; different seeds differ
from the first words on where nothing may be found in an engine's cache.
"""

from __future__ import annotations

import random

__all__ = [
    "FEELINGS",
    "chat_turns",
    "examples_of_feelings",
    "examples_of_orders",
    "handbook",
    "order",
    "problem",
    "review",
    "shuffled_passages",
    "solved_problems",
    "tool_results",
]

FEELINGS = (" joy", " anger", " fear", " sadness")

_WORDS = (
    *("the", "order", "was", "shipped", "from", "our", "warehouse", "and", "the", "customer"),
    *("may", "return", "any", "damaged", "item", "within", "thirty", "days", "of", "delivery"),
    *("with", "the", "original", "receipt", "a", "refund", "is", "issued", "to", "the", "card"),
    *("used", "for", "payment"),
)
_NAMES = ("Maria", "Tom", "Ingrid", "Paul", "Anna", "Peter", "Clara", "David")
_FAMILIES = ("Lopez", "Berg", "Novak", "Stone", "Rossi", "Meyer", "Hill", "Costa")
_ITEMS = ("garden chair", "desk lamp", "wool blanket", "water bottle", "book shelf", "tea cup")
_CITIES = ("Oslo", "Vienna", "Lisbon", "Dublin", "Prague", "Madrid")
_STATES = ("paid", "open", "late")
_SCENES = {
    FEELINGS[0]: ("The parcel came a day early and", "my daughter laughed all evening", "lovely"),
    FEELINGS[1]: ("They charged me twice again and", "nobody answers my messages", "outrageous"),
    FEELINGS[2]: ("The heater began to smoke and", "I hardly dare to sleep at home", "dangerous"),
    FEELINGS[3]: ("The old clock broke on its way and", "it was my mother's last gift", "lost"),
}


def shuffled_passages(seed: int, words: int = 560) -> str:
    """About `words` words in random order: nothing in them can be guessed."""
    rng = random.Random(seed)
    return " ".join(rng.choice(_WORDS) for _ in range(words))


def order(seed: int) -> dict[str, str]:
    """One order: its number, name, item, units, city and state."""
    rng = random.Random(f"order {seed}")
    return {
        "order": str(rng.randrange(100_000, 1_000_000)),
        "name": f"{rng.choice(_NAMES)} {rng.choice(_FAMILIES)}",
        "item": rng.choice(_ITEMS),
        "units": str(rng.randrange(10, 100)),
        "city": rng.choice(_CITIES),
        "state": rng.choice(_STATES),
    }


def _notice(found: dict[str, str]) -> str:
    return (
        f"{found['name']} asked us for {found['units']} pieces of the {found['item']}, to be sent "
        f"to {found['city']}. It is order {found['order']}, and the bill is {found['state']}."
    )


def examples_of_orders(salt: int, count: int = 3) -> str:
    """An instruction and `count` notices with their JSON."""
    lines = [f"Form {salt:09d}. Write each notice of the sales desk as JSON.\n"]
    for at in range(count):
        found = order(-salt - at - 1)
        fields = ", ".join(f'"{key}": "{value}"' for key, value in found.items())
        lines.append(f"Notice: {_notice(found)}\nJSON: {{{fields}}}\n")
    return "\n".join(lines)


def notice(seed: int) -> str:
    """The text of order `seed`."""
    return _notice(order(seed))


def handbook(seed: int) -> str:
    """Four passages of about 100 tokens, the facts of which depend on the seed."""
    rng = random.Random(f"handbook {seed}")
    days, fee, hours = rng.randrange(10, 99), rng.randrange(10, 99), rng.randrange(10, 99)
    found = order(seed)
    return (
        f"[1] Order {found['order']} of {found['name']} is {found['state']}. It holds "
        f"{found['units']} pieces of the {found['item']} and goes to {found['city']} by train, "
        "since the road over the pass is closed in winter; the driver calls an hour before.\n"
        f"[2] A damaged item may be sent back within {days} days of its delivery. The customer "
        "needs the receipt or the number of the order, and the parcel is picked up at the door "
        "without any cost; the money goes back to the card that was used.\n"
        f"[3] Whoever sends an item back for another reason pays a fee of {fee} per cent, which "
        "falls away where the item was never opened, where the shop closes for good, or where a "
        "newer edition came out in the same week.\n"
        f"[4] Questions are answered within {hours} hours on working days. Letters are answered "
        "in the order in which they came, and whoever writes twice moves to the end of the line, "
        "so one letter with all that matters is the fastest way.\n"
    )


def review(seed: int) -> tuple[str, str]:
    """A sentence or two, and the feeling it was written from."""
    rng = random.Random(f"review {seed}")
    feeling = rng.choice(FEELINGS)
    start, end, word = _SCENES[feeling]
    return (
        f"{start} {end}, said {rng.choice(_NAMES)} from {rng.choice(_CITIES)} about the "
        f"{rng.choice(_ITEMS)} number {rng.randrange(100, 1000)}: simply {word}.",
        feeling,
    )


def examples_of_feelings(salt: int, count: int = 14) -> str:
    """An instruction and `count` labelled reviews, about 600 tokens."""
    lines = [f"Sheet {salt:09d}. Name the feeling of each text: joy, anger, fear or sadness.\n"]
    for at in range(count):
        text, feeling = review(-1000 * salt - at - 1)
        lines.append(f"Text: {text}\nFeeling:{feeling}\n")
    return "\n".join(lines)


def problem(seed: int) -> str:
    """A sum in words."""
    rng = random.Random(f"problem {seed}")
    first, second, third = (rng.randrange(2, 5) for _ in range(3))
    return (
        f"{rng.choice(_NAMES)} has {first} boxes of {rng.choice(_ITEMS)}s, buys {second} more and "
        f"gives {min(third, first)} to {rng.choice(_NAMES)}. How many boxes are left?"
    )


def solved_problems(salt: int, count: int = 6) -> str:
    """An instruction and `count` problems with their reasoning, about 450 tokens."""
    lines = [f"Book {salt:09d}. Solve each problem step by step.\n"]
    for at in range(count):
        rng = random.Random(f"solved {salt} {at}")
        have, more = rng.randrange(2, 5), rng.randrange(2, 5)
        name, item = rng.choice(_NAMES), rng.choice(_ITEMS)
        lines.append(
            f"Problem: {name} has {have} boxes of {item}s and buys {more} more. How many?\n"
            f"Thoughts: {name} begins with {have} boxes. After buying {more} more there are "
            f"{have} + {more} = {have + more} boxes, and none is given away.\n"
            f"Answer: {have + more}\n"
        )
    return "\n".join(lines)


def tool_results(seed: int, turns: int = 6) -> list[str]:
    """What the tools of a recorded run said, about 50 tokens each."""
    results = []
    for turn in range(turns):
        found = order(100 * seed + turn)
        results.append(
            f"row {turn + 1} of {turns}: {_notice(found)} The next row is number "
            f"{(seed * 7 + turn * 13) % 90 + 10}."
        )
    return results


def chat_turns(seed: int, turns: int = 4) -> list[str]:
    """What a customer says, turn by turn."""
    found = order(seed)
    said = [
        f"Hello, this is {found['name']}. I ordered {found['units']} pieces of the "
        f"{found['item']} two weeks ago and heard nothing since.",
        f"The number is {found['order']}, and it should go to {found['city']}. Can you see where "
        "the parcel is at the moment, and who has it?",
        "One more thing: two of the pieces of my last order were broken. What do I have to do to "
        "get the money back for these?",
        "Thank you. Please sum up for me in two sentences what happens next, and what I must do.",
    ]
    return said[:turns]
