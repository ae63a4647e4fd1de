"""Programs and runs over HTTP, on the tiny model."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from phloem.programs.testing import ScriptedBackend
from phloem.server.http.keys import hash_key
from tests.server.harness import Running, serving, tiny
from tests.server.programs.samples import PROGRAMS, story


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with the sample programs."""
    with serving(tiny(), PROGRAMS) as running:
        yield running


Event = tuple[str | None, str, Any]


def events(text: str) -> list[Event]:
    """(id, name, data) of the whole events in a stream."""
    found: list[Event] = []
    for block in text.split("\n\n")[:-1]:
        fields = dict(line.partition(": ")[::2] for line in block.split("\n") if line)
        if "event" in fields:
            found.append((fields.get("id"), fields["event"], json.loads(fields["data"])))
    return found


def test_programs_say_what_they_take(server: Running) -> None:
    """The list gives each program's doc and the JSON Schema of its arguments."""
    listed = {one["name"]: one for one in server.client.get("/v1/programs").json()["data"]}
    assert set(listed) == {"odd", "story", "broken", "endless", "branches", "growing", "namesake"}
    story = listed["story"]
    assert story["doc"] == "Tell a story."
    assert story["arguments"]["required"] == ["topic"]
    assert story["arguments"]["properties"]["length"]["enum"] == ["short", "long"]
    assert server.client.get("/v1/programs/story").json() == story
    assert server.client.get("/v1/programs/nope").status_code == 404


def test_graphs_come_as_json_and_as_mermaid(server: Running) -> None:
    """The graph names the program's steps in both forms."""
    graph = server.client.get("/v1/programs/story/graph").json()
    assert {"title", "body"} <= {node.get("name") for node in graph["graph"]["nodes"]}
    text = server.client.get("/v1/programs/story/graph?format=mermaid").text
    assert text.startswith("flowchart")
    assert text.strip() == graph["mermaid"].strip()


def test_a_run_returns_value_variables_text_and_usage(server: Running) -> None:
    """A run that is waited for comes back with all of its outcome."""
    reply = server.run("story", args={"topic": "sea", "length": "long"}, seed=1)
    run = reply.json()
    assert reply.status_code == 200
    assert run["status"] == "succeeded"
    assert run["value"] == "long: " + run["variables"]["title"]
    assert run["variables"]["body"] in run["text"]
    assert [message["role"] for message in run["messages"]] == [
        "system", "user", "assistant", "user", "assistant"
    ]  # fmt: skip
    assert run["usage"]["prompt"] == run["usage"]["reused"] + run["usage"]["prefilled"]
    assert run["usage"]["generated"] == 18
    assert run["seed"] == 1
    assert reply.headers["x-run-id"] == run["id"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"args": {}}, "args.topic"),
        ({"args": {"topic": 5}}, "args.topic"),
        ({"args": {"topic": "x", "length": "huge"}}, "args.length"),
        ({"args": {"topic": "x", "backend": None}}, "args.backend"),
        ({"args": {"topic": "x"}, "deadline_s": -1}, "deadline_s"),
        ({"args": {"topic": "x"}, "nope": 1}, "nope"),
    ],
)
def test_bad_arguments_are_named(server: Running, body: dict[str, Any], param: str) -> None:
    """A missing, wrong or unknown argument is a 400 that names it, and starts nothing."""
    reply = server.run("story", **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param


def test_parameters_with_the_names_of_settings_are_the_programs_own(server: Running) -> None:
    """A parameter called like a setting gets the client's value, or its own default."""
    reply = server.run("namesake", seed=9, deadline_s=30)
    assert reply.json()["value"] == "5 none 7"
    assert server.run("namesake", args={"seed": 1}).json()["value"] == "1 none 7"


def test_an_error_of_the_program_names_its_place(server: Running) -> None:
    """An exception of the user's code comes back with type, node, file and line."""
    reply = server.run("broken", args={"key": "unknown"})
    error = reply.json()["error"]
    assert reply.status_code == 422
    assert error["message"] == "KeyError: 'unknown'"
    assert error["where"]["program"] == "broken"
    assert error["where"]["file"].endswith("samples.py")
    assert isinstance(error["where"]["line"], int)
    run = server.client.get(f"/v1/runs/{reply.headers['x-run-id']}").json()
    assert run["status"] == "failed"
    assert run["error"]["code"] == "key_error"
    assert run["variables"]["word"]


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("nan", "nan"),
        ("big", "<int of 29898 bits>"),
        ("loop", ["..."]),
        ("key", {"(1,)": "\\ud800"}),
        ("deep", None),
        ("half", "ValueError: a\\ud800b"),
        ("mute", "Mute, whose text can't be had"),
        ("long", f"ValueError: {'x' * 9988}... (3000012 characters)"),
    ],
)
def test_a_run_ends_whatever_it_says(server: Running, kind: str, value: Any, stream: bool) -> None:
    """Values and errors that JSON has no word for are shown; the run ends, and can be looked at."""
    reply = server.run("odd", args={"kind": kind}, stream=stream)
    run = server.client.get(f"/v1/runs/{reply.headers['x-run-id']}").json()
    if run["status"] == "failed":
        assert run["error"]["message"] == value
    elif kind != "deep":
        assert run["value"] == value
    if stream:
        assert events(reply.text)[-1][1] == "done"
    assert server.client.get(f"/v1/runs/{run['id']}/events").text.count("event: done") == 1


def test_a_step_that_cannot_fit_is_named_with_its_numbers() -> None:
    """A prompt that outgrows the context in a later step fails that step, with both numbers."""
    with serving(tiny(512), PROGRAMS) as server:
        reply = server.run("growing", args={"times": 600})
        error = reply.json()["error"]
        assert reply.status_code == 400
        assert error["code"] == "prompt_too_long"
        assert "512" in error["message"]
        node = server.client.get("/v1/programs/growing/graph").json()["graph"]["nodes"]
        second = next(one["id"] for one in node if one.get("name") == "second")
        assert error["where"]["node"] == second
        assert server.run("growing", args={"times": 3}).status_code == 200


def test_events_tell_the_whole_run_in_order(server: Running) -> None:
    """A stream has typed events with growing ids, tokens that join to the text, and the end."""
    reply = server.run("story", args={"topic": "sea"}, stream=True)
    told = events(reply.text)
    names = [name for _, name, _ in told]
    assert names[0] == "run_started"
    assert names[-1] == "done"
    assert names.count("step_started") == names.count("step_finished") == 2
    assert [ident for ident, _, _ in told] == [f"1-{number}" for number in range(len(told))]
    run = told[-1][2]
    body = [data["text"] for _, name, data in told if name == "token" and data["name"] == "body"]
    assert "".join(body) == run["variables"]["body"]
    assert run["status"] == "succeeded"
    assert run["id"] == reply.headers["x-run-id"]


def test_a_failure_in_a_stream_is_told_and_ends_it(server: Running) -> None:
    """The last events of a run that fails are error, with its place, and done."""
    told = events(server.run("broken", args={"key": "x"}, stream=True).text)
    assert [name for _, name, _ in told][-2:] == ["error", "done"]
    assert told[-2][2]["where"]["program"] == "broken"
    assert told[-1][2]["status"] == "failed"


def test_a_broken_stream_goes_on_where_it_was(server: Running) -> None:
    """With Last-Event-ID a reader gets each event once, while the run goes on and after it."""
    run = server.run("story", args={"topic": "sea"}, background=True).json()["id"]
    seen: list[Event] = []
    while not seen or seen[-1][1] != "done":
        headers = {"last-event-id": str(seen[-1][0])} if seen else {}
        url = f"/v1/runs/{run}/events"
        with server.client.stream("GET", url, headers=headers) as stream:
            taken = ""
            for line in stream.iter_lines():
                taken += line + "\n"
                # Every connection breaks after two events.
                if len(events(taken)) == 2:
                    break
            seen += events(taken)
    assert [ident for ident, _, _ in seen] == [f"1-{number}" for number in range(len(seen))]
    whole = events(server.client.get(f"/v1/runs/{run}/events").text)
    assert whole == seen


def test_odd_ids_of_events_begin_anew(server: Running) -> None:
    """The last id gives an empty stream; an id that was never given begins at the first event."""
    url = f"/v1/runs/{server.run('story', args={'topic': 'sea'}).json()['id']}/events"
    whole = events(server.client.get(url).text)
    ended = server.client.get(url, headers={"last-event-id": str(whole[-1][0])})
    assert (ended.status_code, ended.text) == (200, "")
    assert ended.headers["content-type"].startswith("text/event-stream")
    for odd in (f"1-{len(whole)}", "1-" + "9" * 5000, "2-0", "1-", "-1", "x", "\xb2-\xb3"):
        reply = server.client.get(url, headers={"last-event-id": odd.encode("latin-1")})
        assert events(reply.text) == whole, odd


def test_background_runs_are_acknowledged_and_finish(server: Running) -> None:
    """background=true is a 202 with the run's place; the run finishes by itself."""
    reply = server.run("story", args={"topic": "sea"}, background=True, seed=3)
    assert reply.status_code == 202
    assert reply.headers["location"] == f"/v1/runs/{reply.json()['id']}"
    run = server.settled(reply.json()["id"])
    assert run["status"] == "succeeded"
    assert [step["kind"] for step in run["steps"]] == ["gen", "gen"]
    assert run["steps"][0]["outcome"][0]["text"] == run["variables"]["title"]


def test_runs_are_listed_newest_first_by_page_and_filter(server: Running) -> None:
    """Pages follow each other without gap or repeat; filters hold."""
    made = [server.run("branches", args={"count": 1}).json()["id"] for _ in range(5)]
    listed: list[str] = []
    cursor: str | None = None
    while True:
        params = {"program": "branches", "status": "succeeded", "limit": 2, "cursor": cursor}
        asked = {name: value for name, value in params.items() if value is not None}
        page = server.client.get("/v1/runs", params=asked).json()
        listed += [run["id"] for run in page["data"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert listed[:5] == made[::-1]
    assert len(set(listed)) == len(listed)
    failed = server.client.get("/v1/runs", params={"status": "failed"}).json()["data"]
    assert {run["status"] for run in failed} <= {"failed"}


def test_a_cancelled_run_frees_its_place(server: Running) -> None:
    """cancel ends a run within a step; its status says so and no place is held."""
    run = server.run("endless", background=True).json()["id"]
    while server.client.get(f"/v1/runs/{run}").json()["status"] != "running":
        time.sleep(0.01)
    assert server.client.post(f"/v1/runs/{run}/cancel").json()["status"] == "cancelled"
    server.wait_idle(2)
    assert server.client.post(f"/v1/runs/{run}/cancel").json()["status"] == "cancelled"


def test_a_run_is_taken_up_once(server: Running) -> None:
    """However many ask at once that a run goes on, it runs once more and is one run."""
    run = server.run("endless", background=True).json()["id"]
    while server.client.get(f"/v1/runs/{run}").json()["status"] != "running":
        time.sleep(0.01)
    server.client.post(f"/v1/runs/{run}/cancel")
    server.wait_idle(2)
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(server.client.post, f"/v1/runs/{run}/resume", json={}) for _ in range(8)
        ]
        answers = {one.result().status_code for one in asked}
    assert 202 in answers
    assert answers <= {202, 409}
    assert server.client.get(f"/v1/runs/{run}").json()["attempt"] == 2
    assert server.client.post(f"/v1/runs/{run}/cancel").json()["status"] == "cancelled"
    server.wait_idle(2)


@pytest.mark.parametrize("stream", [True, False])
def test_a_run_ends_with_its_client(server: Running, stream: bool) -> None:
    """A client that leaves a run it waits for or reads ends it."""
    before = server.metric("phloem_requests_finished_total", kind="run", reason="abort")
    url = "/v1/programs/endless/runs"
    if stream:
        with server.client.stream("POST", url, json={"stream": True}) as reply:
            next(reply.iter_lines())
    else:
        with pytest.raises(Exception, match="timed out"):
            server.client.post(url, json={}, timeout=0.3)
    server.wait_idle(3)
    after = server.metric("phloem_requests_finished_total", kind="run", reason="abort")
    assert after == before + 1


def test_a_deadline_ends_a_run(server: Running) -> None:
    """deadline_s makes a long run a 504."""
    reply = server.run("endless", deadline_s=0.3)
    assert reply.status_code == 504
    assert reply.json()["error"]["code"] == "deadline_exceeded"


def test_a_deleted_run_is_gone(server: Running) -> None:
    """After DELETE nothing of the run is found."""
    run = server.run("story", args={"topic": "sea"}).json()["id"]
    assert server.client.delete(f"/v1/runs/{run}").status_code == 204
    assert server.client.get(f"/v1/runs/{run}").status_code == 404
    assert server.client.get(f"/v1/runs/{run}/events").status_code == 404


def test_rewind_repeats_up_to_a_step(server: Running) -> None:
    """A run rewound to a step asks again from there only, and greedily says the same."""
    first = server.run("story", args={"topic": "sea"}, seed=1).json()
    node = server.client.get(f"/v1/runs/{first['id']}").json()["steps"][1]["node"]
    reply = server.client.post(f"/v1/runs/{first['id']}/rewind", json={"node": node})
    assert reply.status_code == 202
    second = server.settled(reply.json()["id"])
    assert second["parent"] == first["id"]
    assert second["variables"] == first["variables"]
    assert second["text"] == first["text"]


def test_rewind_with_a_value_goes_on_from_it(server: Running) -> None:
    """A step's value that is set is in the text and in what follows."""
    first = server.run("story", args={"topic": "sea"}, seed=1).json()
    url = f"/v1/runs/{first['id']}/rewind"
    second = server.settled(server.client.post(url, json={"seq": 0, "set": "The End"}).json()["id"])
    assert second["status"] == "succeeded"
    assert second["variables"]["title"] == "The End"
    assert second["value"] == "short: The End"
    assert "The End" in second["text"]
    assert second["text"] != first["text"]
    assert server.client.post(url, json={"seq": 9}).status_code == 400
    assert server.client.post(url, json={}).status_code == 400


def test_rewind_with_a_prompt_runs_on_from_it(server: Running) -> None:
    """A step is asked with other text; the steps before are not asked, and markup stays."""
    first = server.run("story", args={"topic": "sea"}, seed=1).json()
    url = f"/v1/runs/{first['id']}/rewind"
    body = {"seq": 1, "prompt": "End <|im_end|> it."}
    second = server.settled(server.client.post(url, json=body).json()["id"])
    assert second["status"] == "succeeded"
    assert second["variables"]["title"] == first["variables"]["title"]
    assert second["messages"][-2] == {"role": "user", "content": "End <|im_end|> it."}
    assert [m["role"] for m in second["messages"]] == [m["role"] for m in first["messages"]]
    steps = server.client.get(f"/v1/runs/{second['id']}").json()["steps"]
    assert {"path": "+2", "kind": "text", "outcome": "End <|im_end|> it."}.items() <= steps[
        1
    ].items()
    told = events(server.client.get(f"/v1/runs/{second['id']}/events").text)
    assert [e["replayed"] for _, name, e in told if name == "step_finished"] == [True, False]


def test_a_prompt_that_was_changed_survives_a_resume(server: Running) -> None:
    """A run that goes on from the journal says the changed text again, not the program's."""
    assert server.run("broken", args={"key": "none"}).json()["error"]
    runs = server.client.get("/v1/runs", params={"program": "broken"}).json()["data"]
    url = f"/v1/runs/{runs[0]['id']}"
    fresh = server.client.post(f"{url}/rewind", json={"seq": 0, "prompt": "Tell: "}).json()["id"]
    before = server.settled(fresh)
    assert before["status"] == "failed"
    assert before["text"].startswith("Tell: ")
    server.client.post(f"/v1/runs/{fresh}/resume", json={})
    after = server.settled(fresh)
    assert (after["attempt"], after["text"]) == (2, before["text"])


def test_a_rewind_that_can_not_be_says_why(server: Running) -> None:
    """A wrong count of texts, both a value and a prompt, and no text at all are refused."""
    first = server.run("story", args={"topic": "sea"}, seed=1).json()
    url = f"/v1/runs/{first['id']}/rewind"
    for body, message in (
        ({"seq": 1, "prompt": ["a", "b"]}, "added 1 texts to its prompt, and 2 are given"),
        ({"seq": 1, "prompt": [None]}, "changes nothing"),
        ({"seq": 1, "prompt": "a", "set": "b"}, "not both"),
        ({"seq": 1, "prompt": 3}, "prompt"),
    ):
        reply = server.client.post(url, json=body)
        assert reply.status_code == 400, body
        assert message in reply.json()["error"]["message"], body


def test_forks_stream_their_branches(server: Running) -> None:
    """Events of branches carry their paths, and the fork names its children."""
    told = events(server.run("branches", args={"count": 3}, stream=True).text)
    forked = next(data for _, name, data in told if name == "forked")
    assert forked["children"] == ["0", "1", "2"]
    assert {data["path"] for _, name, data in told if name == "token"} == {"0", "1", "2"}
    assert len(told[-1][2]["value"]) == 3


def test_the_trace_id_is_the_callers(server: Running) -> None:
    """A run belongs to the trace of the request that started it."""
    headers = {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"}
    body = {"args": {"topic": "sea"}}
    run = server.client.post("/v1/programs/story/runs", json=body, headers=headers).json()
    assert run["trace_id"] == "c" * 32


def test_callers_see_their_own_runs_only(tmp_path: Path) -> None:
    """With keys, a run of another caller is not listed and not found."""
    file = tmp_path / "keys"
    file.write_text(hash_key("a", "ka") + "\n" + hash_key("b", "kb") + "\n")
    with serving(tiny(), PROGRAMS, api_key_file=file) as server:
        first = {"authorization": "Bearer ka"}
        other = {"authorization": "Bearer kb"}
        url = "/v1/programs/story/runs"
        run = server.client.post(url, json={"args": {"topic": "x"}}, headers=first).json()["id"]
        assert server.client.get(f"/v1/runs/{run}", headers=first).status_code == 200
        assert server.client.get(f"/v1/runs/{run}", headers=other).status_code == 404
        assert server.client.get("/v1/runs", headers=other).json()["data"] == []
        assert len(server.client.get("/v1/runs", headers=first).json()["data"]) == 1


def test_what_programs_begin_with_is_computed_at_the_start() -> None:
    """A program's constant prefix is prefilled once the model is loaded, before any run."""
    backend = ScriptedBackend(lambda *_: "so it is")
    with serving(backend, [story]) as server:
        server.run("story", args={"topic": "x"})
        prefills = [call.prompt for call in backend.calls if call.kind == "prefill"]
    assert len(prefills) == 1
    assert "Tell stories." in prefills[0]
