"""What crosses the border between the processes, and how it is packed."""

from __future__ import annotations

import math
import socket
import threading
import time

import pytest

from phloem import errors
from phloem.errors import ConfigError, EngineError, Overloaded, PhloemError, Where
from phloem.grammar.spec import Constraint
from phloem.programs.protocol import SamplingParams, Timing, TokenEvent, TokenLogprob, Usage
from phloem.runtime.engine.messages import Computed, Generated, Progress, Scored
from phloem.runtime.engine.stats import Stats
from phloem.runtime.engine.tokens import Choice
from phloem.runtime.engine.work import Flush, Generate, Pin, Score
from phloem.runtime.host import wire
from phloem.runtime.host.channel import Channel, coalesced
from phloem.runtime.place import Place
from phloem.surrogates import spelled

PLACE = Place("s", "tenant", 1.25, 3, "b.0")
LOGPROB = TokenLogprob(7, "é", -math.inf, ((7, "é", -0.1 + 0.2), (8, "\ufffd", -3e-300)))


def progress(text: str, *tokens: int) -> Progress:
    return Progress(TokenEvent(text, tokens, len(tokens), (LOGPROB,), ((0, len(text)),)), 4)


@pytest.mark.parametrize(
    "work",
    [
        Generate(
            [1, 2], PLACE, SamplingParams(seed=2**63 - 1, stop=("\n",)), 2**63 - 1, None, True
        ),
        Generate([], PLACE, SamplingParams(), 0, Constraint("regex", "a+", finish="force")),
        Score([1], PLACE, [Choice(" yes", [3, 4]), Choice("", [])], True),
        Pin([5, 6], "n"),
        Flush(),
    ],
    ids=lambda work: work.kind,
)
def test_work_arrives_as_it_was(work):
    """Every kind of work is equal on the other side."""
    sent = [wire.Submit(1, 2, work), wire.Cancel(1), wire.Expect(2, None), wire.Ping(3)]
    frame = wire.frame_to_child([wire.encode_to_child(one) for one in sent])
    assert wire.decode_to_child(frame) == sent


def test_replies_arrive_as_they_were():
    """Every kind of reply is equal on the other side: floats to the last bit, infinities too."""
    done = Generated(
        3, (1, 2), "x", "forced", None, (LOGPROB,), Usage(prompt=3), Timing(0.1), 5, reusable=2
    )
    stats = Stats(passes=3)
    stats.errors["Overloaded"] += 1
    stats.first_token_s.observe(0.3)
    sent = [
        wire.Reply(1, progress("é\u2028", 9)),
        wire.Reply(1, done),
        wire.Reply(2, Scored((), Usage(), Timing())),
        wire.Reply(3, Computed(4)),
        wire.Pong(1, stats),
        wire.Pong(2, None),
        wire.Log("x", 20, spelled("a\udc80")),
    ]
    assert wire.decode_from_child(wire.encode_from_child(sent)) == sent


def test_errors_arrive_as_they_were():
    """Class, hint, place and details; of a class that is nobody's, the nearest that is known."""

    class Own(Overloaded):
        """Known here only."""

    where = Where("p", line=3)
    error = Own("full \udc80", hint="wait", where=where, retry_after_s=2.5, odd=object())
    record = wire.ErrorRecord.of(error)
    (sent,) = wire.decode_from_child(wire.encode_from_child([wire.Broken(1, record)]))
    assert isinstance(sent, wire.Broken)
    found = sent.error.error()
    assert type(found) is Overloaded
    assert (found.message, found.hint, found.where) == ("full \\udc80", "wait", where)
    assert found.details["retry_after_s"] == 2.5
    assert "object" in found.details["odd"]
    unknown = wire.ErrorRecord("NoSuch", "m", None, None, {}).error()
    assert type(unknown) is EngineError
    for name in errors.__all__:
        cls = getattr(errors, name)
        if isinstance(cls, type) and issubclass(cls, PhloemError):
            assert type(wire.ErrorRecord.of(cls("m")).error()) is cls


def test_text_that_is_none_is_refused_by_its_sender():
    """A lone surrogate is an error of the one request, not of the connection."""
    work = Generate([1], PLACE, SamplingParams(stop=("\ud800",)), 1)
    with pytest.raises(ConfigError, match="surrogate"):
        wire.encode_to_child(wire.Submit(1, 1, work))


def test_tokens_that_wait_become_one_message():
    """Progress of a job is joined, in its place; nothing else is, and no outcome is overtaken."""
    done = wire.Broken(1, wire.ErrorRecord.of(EngineError("m")))
    sent = [
        wire.Reply(1, progress("ab", 1)),
        wire.Reply(2, progress("x", 2)),
        wire.Pong(1, None),
        wire.Reply(1, progress("c", 3, 4)),
        done,
    ]
    first, second, pong, last = coalesced(sent)
    joined = TokenEvent("abc", (1, 3, 4), 3, (LOGPROB, LOGPROB), ((0, 2), (2, 3)))
    assert first == wire.Reply(1, Progress(joined, 4))
    assert (second, pong, last) == (sent[1], sent[2], done)


def test_a_channel_packs_what_waits_and_ends_with_its_peer():
    """While a frame is on its way, what is put waits and goes out together; nothing is lost."""
    ours, theirs = socket.socketpair()
    frames: list[list[bytes]] = []
    gate = threading.Event()

    def encode(messages):
        frames.append(list(messages))
        if len(frames) == 1:
            gate.wait(10)
        return b"".join(messages)

    sender: Channel[bytes] = Channel(ours, encode)
    receiver: Channel[bytes] = Channel(theirs, b"".join)
    got: list[bytes] = []
    reading = threading.Thread(target=lambda: got.extend(receiver.frames()))
    reading.start()
    sender.put(b"0")
    while not frames:
        time.sleep(0.001)
    big = b"x" * 3_000_000
    for part in (b"1", big, b"2"):
        sender.put(part)
    gate.set()
    sender.finish(10)
    assert frames == [[b"0"], [b"1", big, b"2"]]
    sender.close()
    reading.join(10)
    assert got == [b"0", b"1" + big + b"2"]
    assert list(sender.frames()) == []
