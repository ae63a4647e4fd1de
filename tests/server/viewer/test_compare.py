"""Two runs side by side."""

from __future__ import annotations

from phloem.server.trace.steps import steps_of
from phloem.server.viewer.compare import LONGEST, pairs_of, parts
from tests.server.viewer.samples import Events, run_of_events


def steps(*said: tuple[str, str]):
    events = Events()
    events.begin(topic="x")
    for name, text in said:
        events.text(f" {name}: ")
        events.gen(name, text)
    return steps_of(run_of_events(events.events))


def test_steps_are_paired_by_their_place() -> None:
    """A step that only one run made stands alone, the others find each other."""
    pairs = pairs_of(steps(("a", "1"), ("b", "2")), steps(("a", "1"), ("x", "9"), ("b", "3")))
    assert [(p.old and p.old.name, p.new and p.new.name, p.same) for p in pairs] == [
        ("a", "a", True),
        (None, "x", False),
        ("b", "b", False),
    ]


def test_prompts_are_shown_from_their_first_difference() -> None:
    """Equal prompts are left out; a different one is marked where it differs."""
    first, second = pairs_of(steps(("a", "one"), ("b", "x")), steps(("a", "two"), ("b", "x")))
    assert first.old_prompt == first.new_prompt == ()
    assert [text for text, differs in second.old_prompt if differs] == [" one"]
    assert [text for text, differs in second.new_prompt if differs] == [" two"]
    assert second.same


def test_words_that_differ_are_marked() -> None:
    """Both sides joined are the texts; what is equal is equal on both."""
    old, new = parts("the red car stops", "the blue car stops now")
    assert "".join(text for text, _ in old) == "the red car stops"
    assert "".join(text for text, _ in new) == "the blue car stops now"
    assert old == (("the", False), (" red", True), (" car stops", False))
    assert [text for text, differs in new if differs] == [" blue", " now"]


def test_long_texts_are_not_compared_by_word() -> None:
    """Beyond a length the whole text counts as different."""
    text = "x" * (LONGEST + 1)
    assert parts(text, "y") == (((text, True),), (("y", True),))
