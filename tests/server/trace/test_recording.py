"""What is recorded of exchanges: meaning of bodies, groups, times."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phloem.server.trace.frames import Frame, FrameReader, Kind, encode
from phloem.server.trace.record import exchange_from_json
from phloem.server.trace.recorder.asked import constraint_of
from phloem.server.trace.recorder.exchange import Reading
from phloem.server.trace.recorder.links import LinkReader
from phloem.server.trace.recorder.raw import RawExchange
from phloem.server.trace.recorder.redact import Redactor
from phloem.server.trace.recorder.replies import read_reply

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def sent(body: Any = None, path: str = "/v1/chat/completions", **headers: str) -> bytes:
    data = json.dumps(CHAT if body is None else body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: h", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def came(
    body: bytes | str, kind: str = "application/json", status: int = 200, **more: str
) -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", f"content-length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in more.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def exchanges(*steps: tuple[Kind, bytes], limit: int = 10_000) -> Iterator[RawExchange]:
    """What a link's frames give; a second passes between two of them."""
    link = LinkReader(limit)
    frames = [(Kind.OPEN, b"1.2.3.4:5"), (Kind.CONNECTED, b"1.5"), *steps, (Kind.CLOSED, b"")]
    for at, (kind, payload) in enumerate(frames):
        yield from link.feed(Frame(kind, 1, float(at), payload))


def passed(request: bytes, *answer: bytes, end: Kind | None = None) -> RawExchange:
    head, found, body = request.partition(b"\r\n\r\n")
    frames = [(Kind.HEAD, head + found), (Kind.REQUEST, body)]
    frames += [(Kind.RESPONSE, piece) for piece in answer]
    if end is not None:
        frames.append((end, b""))
    [raw] = exchanges(*frames)
    return raw


def read(raw: RawExchange, bodies: float = 1.0) -> Any:
    return exchange_from_json(Reading(Redactor(), "http://up", bodies).read(raw))


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(1, 50))
def test_frames_survive_any_cut(payloads: list[bytes], size: int) -> None:
    """Frames come out as they went in, however the socket cuts them."""
    data = b"".join(encode(Kind.RESPONSE, 7, 1.5, payload) for payload in payloads)
    reader = FrameReader()
    found = [f for at in range(0, len(data), size) for f in reader.feed(data[at : at + size])]
    assert found == [Frame(Kind.RESPONSE, 7, 1.5, payload) for payload in payloads]


def events(*data: Any) -> str:
    blocks = [one if isinstance(one, str) else json.dumps(one) for one in data]
    return "".join(f"data: {block}\n\n" for block in blocks)


def delta(text: str | None = None, **more: Any) -> dict[str, Any]:
    return {"model": "m1", "choices": [{"index": 0, "delta": {"content": text}, **more}]}


def test_a_stream_is_put_together() -> None:
    """Text, model, finish reason, usage and pauses of a streamed chat."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    stream = events(delta("He"), delta("llo"), delta(finish_reason="stop"))
    stream += events({"choices": [], "usage": usage}, "[DONE]")
    answer = came(stream, "text/event-stream")
    one = read(passed(sent(), answer[:200], answer[200:260], answer[260:]))
    assert (one.output, one.model, one.finish_reason) == ("Hello", "m1", "stop")
    assert one.usage == usage
    assert one.stream
    assert one.timing.connect_ms == 1.5
    assert one.timing.first_byte_ms == 2000
    assert one.timing.total_ms == 4000
    assert one.timing.gaps_ms == (1000, 1000)
    assert one.outcome == "succeeded"
    assert json.loads(one.request.text) == CHAT


def test_an_error_inside_of_a_200_stream_is_a_failure() -> None:
    """The status says 200, the record says failed, and with what."""
    error = {"error": {"message": "out of memory", "code": "oom", "hint": "less"}}
    one = read(passed(sent(), came(events(delta("He"), error), "text/event-stream")))
    assert one.status == 200
    assert one.outcome == "failed"
    assert [(e.type, e.message, e.hint) for e in one.errors] == [("oom", "out of memory", "less")]
    assert one.output == "He"


@pytest.mark.parametrize(
    ("end", "outcome", "types"),
    [
        (Kind.CLIENT_GONE, "cancelled", []),
        (Kind.UPSTREAM_GONE, "failed", ["broken_off"]),
    ],
)
def test_who_went_away_first(end: Kind, outcome: str, types: list[str]) -> None:
    """A half answer is a cancel if the client left, and a failure if the server did."""
    half = came(events(delta("He")) * 5, "text/event-stream")[:150]
    one = read(passed(sent(), half, end=end))
    assert one.outcome == outcome
    assert [error.type for error in one.errors] == types


def test_frames_that_are_missing_are_told() -> None:
    """An exchange of which frames were lost says so, and the next one is whole again."""
    head, found, body = sent().partition(b"\r\n\r\n")
    whole = [(Kind.HEAD, head + found), (Kind.REQUEST, body), (Kind.RESPONSE, came("{}"))]
    raws = list(exchanges(*whole[:2], (Kind.LOST, b""), (Kind.RESPONSE, b"garbage"), *whole))
    assert [raw.problem for raw in raws] == ["the recorder was too slow", None]
    assert [raw.status for raw in raws] == [0, 200]


def test_compressed_and_cut_bodies() -> None:
    """gzip is undone; a body over the limit is kept in part; what is no text is left out."""
    packed = came(gzip.compress(b'{"error": "no"}'), content_encoding="gzip", status=500)
    one = read(passed(sent(), packed))
    assert one.response.text == '{"error": "no"}'
    assert one.errors[0].message == "no"
    binary = read(passed(sent(), came(b"\0\1\2", "image/png")))
    assert binary.response.text is None
    assert binary.response.size == 3


def test_bodies_off_and_sampled() -> None:
    """Off records no text at all; a share keeps whole groups, and all that failed."""
    answer = came(json.dumps({"choices": [{"index": 0, "message": {"content": "secret"}}]}))
    one = read(passed(sent(), answer), bodies=0.0)
    assert one.request.text is one.response.text is one.output is None
    assert one.request.size > 0
    kept = [read(passed(sent(), answer), bodies=0.5).output for _ in range(60)]
    assert {None, "secret"} == set(kept)
    failed = [read(passed(sent(), came("{}", status=500)), bodies=0.01) for _ in range(5)]
    assert all(one.response.text == "{}" for one in failed)


def test_groups_by_conversation_trace_and_run() -> None:
    """Messages that go on are one conversation, a traceparent is a trace, x-run-id is a run."""
    reading = Reading(Redactor(), "http://up", 1.0)

    def group(body: Any, **headers: str) -> tuple[str, str]:
        found = reading.read(passed(sent(body, **headers), came("{}")))
        return found["group"], found["group_kind"]

    first = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    longer = [*first, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    other = [first[0], {"role": "user", "content": "z"}]
    one = group({"messages": first})
    assert group({"messages": longer}) == one
    assert group({"messages": other}) != one
    assert group({"messages": longer}, authorization="Bearer another-caller-1") != one
    prompt = group({"prompt": "Once upon"})
    assert group({"prompt": "Once upon a time"}) == prompt
    assert group({"input_ids": [1, 2]}) == group({"input_ids": [1, 2, 30]})
    assert group({"input_ids": [7, 3]}) != group({"input_ids": [7, 31]})
    trace = "0af7651916cd43dd8448eb211c80319c"
    assert group(CHAT, traceparent=f"00-{trace}-b7ad6b7169203331-01") == (trace, "trace")
    raw = passed(sent(path="/v1/programs/p/runs"), came("{}", x_run_id="run_0123abcd"))
    found = reading.read(raw)
    assert (found["group"], found["group_kind"], found["program"]) == ("run_0123abcd", "run", "p")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "json_schema"),
        ({"response_format": {"type": "text"}}, None),
        ({"guided_regex": "a+"}, "regex"),
        ({"sampling_params": {"ebnf": "root ::= a"}}, "grammar"),
        ({"structured_outputs": {"choice": ["a"]}}, "choice"),
        ({"tools": [{}], "tool_choice": "required"}, "tools"),
        ({"tools": [{}], "tool_choice": {"type": "function"}}, "tools"),
        ({"tools": [{}]}, None),
        ({}, None),
    ],
)  # fmt: skip
def test_constraints_of_several_servers(body: dict[str, Any], kind: str | None) -> None:
    """What phloem, vLLM, SGLang and llama.cpp call a constraint is found."""
    found = constraint_of(body)
    assert (found and found["kind"]) == kind


@pytest.mark.parametrize(
    ("text", "kind", "output", "reason"),
    [
        (
            events({"text": "He", "meta_info": {"finish_reason": None}},
                   {"text": "Hello", "meta_info": {"finish_reason": {"type": "length"}}}),
            "text/event-stream", "Hello", "length",
        ),
        (
            events({"content": "He", "stop": False}, {"content": "y", "stop": True}),
            "text/event-stream", "Hey", "stop",
        ),
        (
            "event: response.output_text.delta\n"
            + events({"type": "response.output_text.delta", "delta": "Hi"})
            + events({"type": "response.completed", "response": {"status": "completed"}}),
            "text/event-stream", "Hi", "completed",
        ),
        (
            events(delta(None, finish_reason=None),
                   {"choices": [{"index": 0, "delta": {"tool_calls": [
                       {"index": 0, "function": {"name": "f", "arguments": '{"a'}}]}}]},
                   {"choices": [{"index": 0, "finish_reason": "tool_calls", "delta": {
                       "tool_calls": [{"index": 0, "function": {"arguments": '": 1}'}}]}}]}),
            "text/event-stream", 'f{"a": 1}', "tool_calls",
        ),
        (
            json.dumps({"choices": [{"index": 0, "text": "abc", "finish_reason": "stop"}]}),
            "application/json", "abc", "stop",
        ),
    ],
)  # fmt: skip
def test_answers_of_several_servers(text: str, kind: str, output: str, reason: str) -> None:
    """SGLang's, llama.cpp's and OpenAI's forms give their text and their finish reason."""
    reply = read_reply(text, kind)
    assert (reply.output, reply.finish_reason) == (output, reason)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "raw deflate", "br", "zstd", "gzip, br"])
def test_a_body_is_decoded_or_that_is_told(coding: str) -> None:
    """Of a body in a coding that nobody here knows the record says so; it is not just empty."""
    text = b'{"error": "no"}'
    raw = zlib.compressobj(wbits=-15)
    packed = {
        "gzip": gzip.compress(text),
        "deflate": zlib.compress(text),
        "raw deflate": raw.compress(text) + raw.flush(),
    }.get(coding, b"\x8b\x07\x80")
    header = coding.removeprefix("raw ")
    found = read(passed(sent(), came(packed, content_encoding=header, status=500)))
    if coding in {"br", "zstd", "gzip, br"}:
        assert found.response.text is None
        assert found.incomplete is not None
        assert repr(header) in found.incomplete
    else:
        assert found.response.text == text.decode()
        assert found.incomplete is None


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_of_a_stream_end_in_any_way(end: str) -> None:
    """A stream of events may end its lines as the specification allows."""
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "a"}}]})
    lines = [": hello", "", f"data: {chunk}", "", f"data:{chunk}", "", "data: [DONE]", "", ""]
    found = read(passed(sent(), came(end.join(lines), "text/event-stream")))
    assert found.output == "aa"
