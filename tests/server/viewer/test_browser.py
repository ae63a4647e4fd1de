"""The viewer in headless Chromium: list, run, graph, panels, keys, rewind, and many rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from sqlalchemy import insert

import phloem as ph
from phloem.server.http.keys import hash_key
from phloem.server.journal.schema import runs
from phloem.server.journal.store import Store
from phloem.server.trace.reader import TraceReader
from phloem.server.trace.readers.journal import JournalReader
from phloem.server.trace.readers.jsonl import JsonlReader
from phloem.server.viewer import render_run
from phloem.server.viewer.app import create_viewer
from tests.server.harness import Running, serving, tiny
from tests.server.viewer.samples import folder_of, hostile_run, long_run
from tests.server.viewer.test_pages import rows

playwright = pytest.importorskip("playwright.sync_api", reason="needs the extra `browser`")

pytestmark = pytest.mark.browser
expect = playwright.expect


@ph.function
def tour(s: ph.State, topic: str) -> str:
    """Chooses, generates, and forks."""
    s += ph.user(topic)
    s += ph.assistant(ph.select("mood", ["sunny", "grey"]))
    s += ph.user("Go on.")
    s += ph.assistant(
        ph.gen("said", regex="because of the [a-c]{3} user", logprobs=2, temperature=0)
    )
    forks = s.fork(2)
    for fork in forks:
        fork += ph.user("More.") + ph.assistant(ph.gen("more", max_tokens=4, temperature=0))
    forks.join()
    return s["said"]


@ph.function
def breaks(s: ph.State, topic: str) -> str:
    """Fails behind a step."""
    s += topic + ph.gen("word", max_tokens=3, temperature=0)
    table = {"known": s["word"]}
    return table[topic]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """A server with a run of each kind."""
    with serving(tiny(), [tour, breaks]) as running:
        running.run("breaks", args={"topic": "unknown"})
        running.run("tour", args={"topic": "the sea"})
        yield running


@contextmanager
def viewing(reader: TraceReader) -> Iterator[str]:
    """The viewer over a reader, on a port of its own."""
    server = uvicorn.Server(
        uvicorn.Config(create_viewer(reader), port=0, log_level="error", lifespan="off")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page; an error of a script or of its policy fails the test."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    page.expected = []
    yield page
    context.close()
    assert [p for p in problems if not any(known in p for known in page.expected)] == []


def open_run(page: Any, url: str, program: str) -> None:
    page.goto(f"{url}/traces")
    page.locator("tr[data-open]", has_text=program).first.click()
    expect(page.locator(".row").first).to_be_visible()
    expect(page.locator(".panel h3")).to_be_visible()


def row(page: Any, label: str) -> Any:
    return page.locator(".row", has_text=label).first


def test_the_list_is_filtered_and_searched(page: Any, server: Running) -> None:
    """Choosing a status and typing a text narrow the list, and the address says so."""
    page.goto(f"{server.url}/traces")
    expect(page.locator("tr[data-open]")).to_have_count(2)
    page.get_by_label("Status").select_option("failed")
    expect(page.locator("tr[data-open]")).to_have_count(1)
    expect(page.locator(".error-type")).to_have_text("KeyError")
    assert "status=failed" in page.url
    page.get_by_role("link", name="Clear").click()
    expect(page.locator("tr[data-open]")).to_have_count(2)
    page.get_by_role("searchbox", name="Search").fill("the sea")
    page.keyboard.press("Enter")
    expect(page.locator("tr[data-open]")).to_have_count(1)
    page.go_back()
    expect(page.locator("tr[data-open]")).to_have_count(2)


def test_a_run_shows_its_timeline_its_graph_and_its_steps(page: Any, server: Running) -> None:
    """Steps are rows, forks are lanes, the taken path is lit, and a step opens its panel."""
    open_run(page, server.url, "tour")
    expect(page.locator(".row.lane")).to_have_count(2)
    row(page, "said").click()
    panel = page.locator(".panel")
    expect(panel.locator("h3")).to_contain_text("said")
    expect(panel.locator(".output .forced").first).to_be_visible()
    assert panel.locator(".output .token").count() > 5
    assert panel.locator(".output").inner_text().startswith("because of the ")
    assert "the sea" in panel.locator(".prompt .reused").inner_text()
    assert "Go on." in panel.locator(".prompt .computed").inner_text()
    row(page, "mood").click()
    expect(panel.locator(".choices .chosen")).to_have_count(1)
    page.get_by_role("tab", name="Graph").click()
    expect(page.locator(".node.gen.taken", has_text="said")).to_be_visible()
    expect(page.locator(".rows")).to_be_hidden()
    page.locator(".node.gen.taken", has_text="said").click()
    expect(panel.locator("h3")).to_contain_text("said")
    page.reload()
    expect(panel.locator("h3")).to_contain_text("said")


def test_the_error_shows_the_failing_line_and_the_variables(page: Any, server: Running) -> None:
    """A failed run opens at its error: message, source with the line marked, values there."""
    open_run(page, server.url, "breaks")
    panel = page.locator(".panel")
    expect(panel.locator("h3.failed")).to_have_text("KeyError")
    expect(panel.locator(".here")).to_contain_text("return table[topic]")
    expect(panel.locator(".variables").first).to_contain_text("table")
    expect(panel.locator(".variables").first).to_contain_text("unknown")


def test_a_changed_choice_runs_on_and_is_seen_beside_the_old(page: Any, server: Running) -> None:
    """Rewinding a select to its other choice starts a run that is shown side by side."""
    open_run(page, server.url, "tour")
    row(page, "mood").click()
    page.get_by_text("Rewind: change this and run on").click()
    chosen = page.locator(".choices .chosen th").inner_text()
    other = "grey" if chosen == "sunny" else "sunny"
    page.locator("select[name=set]").select_option(other)
    page.get_by_role("button", name="Run on with this").click()
    expect(page.locator(".compare[data-status=succeeded]")).to_be_visible(timeout=15_000)
    first = page.locator(".pair").first
    expect(first.locator("mark.gone")).to_have_text(chosen)
    expect(first.locator("mark.came")).to_have_text(other)
    assert page.locator(".pair").count() == 5
    page.get_by_role("link").filter(has_text="run_").last.click()
    expect(page.get_by_role("link", name="Compare with the run")).to_be_visible()


def test_a_changed_text_must_fit(page: Any, server: Running) -> None:
    """A rewind to text that the program can't use shows the new run's failure beside the old."""
    open_run(page, server.url, "tour")
    row(page, "said").click()
    page.get_by_text("Rewind: change this and run on").click()
    page.locator("textarea[name=set]").fill("because of the abc user")
    page.get_by_role("button", name="Run on with this").click()
    expect(page.locator(".compare[data-status=succeeded]")).to_be_visible(timeout=15_000)
    expect(page.locator(".pair.same").first).to_contain_text("mood")


def test_an_edited_prompt_runs_on_and_is_seen_beside_the_old(page: Any, server: Running) -> None:
    """A text of a step's prompt is edited: what came before is marked as taken from the record, the
    step is run anew, and both prompts stand side by side with the difference marked."""
    open_run(page, server.url, "tour")
    row(page, "said").click()
    page.get_by_text("Edit the prompt and run on").click()
    field = page.get_by_label("Text 1 of the prompt")
    expect(field).to_have_value("Go on.")
    page.get_by_role("button", name="Run on with this prompt").click()
    expect(page.locator("#notice")).to_contain_text("No text of the prompt was changed")
    field.fill("Go <b>back</b>.")
    page.get_by_role("button", name="Run on with this prompt").click()
    expect(page.locator(".compare[data-status=succeeded]")).to_be_visible(timeout=15_000)
    mood, said = page.locator(".pair").nth(0), page.locator(".pair").nth(1)
    expect(mood).to_contain_text("from the record")
    expect(said).to_contain_text("run anew")
    expect(said.locator("details mark.gone").first).to_contain_text("on")
    expect(said.locator("details mark.came").first).to_contain_text("<b>back</b>")
    page.get_by_role("link").filter(has_text="run_").last.click()
    row(page, "mood").click()
    expect(page.locator(".panel .facts").first).to_contain_text("the record")


def test_a_run_can_be_made_again_with_other_arguments(page: Any, server: Running) -> None:
    """The overview starts the program anew and shows both runs; what is no JSON is refused."""
    open_run(page, server.url, "tour")
    page.get_by_role("tab", name="Overview").click()
    field = page.get_by_label("Arguments as JSON")
    field.fill("{")
    page.get_by_role("button", name="Run and compare").click()
    expect(page.locator("#notice")).to_contain_text("not JSON")
    field.fill('{"topic": "the hills"}')
    page.get_by_role("button", name="Run and compare").click()
    expect(page.locator(".compare[data-status=succeeded]")).to_be_visible(timeout=15_000)


def test_keys_alone_are_enough(page: Any, server: Running) -> None:
    """j, k, Enter, / and Esc go through list, run and panel."""
    page.goto(f"{server.url}/traces")
    expect(page.locator("tr[data-open]").first).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("tr.selected")).to_have_count(1)
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator(".row").first).to_be_visible()
    page.keyboard.press("j")
    expect(page.locator('.row[aria-selected="true"]')).to_have_attribute("data-row", "0")
    page.keyboard.press("j")
    expect(page.locator('.row[aria-selected="true"]')).to_have_attribute("data-row", "1")
    page.keyboard.press("Escape")
    expect(page.locator(".list")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator('[name="q"]')).to_be_focused()
    page.keyboard.type("jk")
    expect(page.locator('[name="q"]')).to_have_value("jk")
    page.keyboard.press("Escape")
    expect(page.locator('[name="q"]')).not_to_be_focused()


def test_everything_that_acts_has_a_name(page: Any, server: Running) -> None:
    """Fields, buttons, rows and nodes have accessible names."""
    open_run(page, server.url, "tour")
    row(page, "mood").click()
    expect(page.locator(".rewind")).to_have_count(2)
    nameless = page.evaluate(
        """() => [...document.querySelectorAll('button, input, select, textarea, a, [role=option], '
            + '[role=button], [role=listbox], [role=tab]')]
            .filter((e) => !e.getAttribute('aria-label') && !e.textContent.trim())
            .filter((e) => !e.labels?.length)
            .map((e) => e.outerHTML)"""
    )
    assert nameless == []
    options = page.get_by_role("listbox").get_by_role("option")
    assert "select mood" in (options.first.get_attribute("aria-label") or "")


LUMINANCE = """(selector) => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true});
  const light = (color) => {
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    const part = [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).map((v) => v / 255)
      .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part[0] + 0.7152 * part[1] + 0.0722 * part[2];
  };
  const paper = (e) => {
    const color = getComputedStyle(e).backgroundColor;
    return color === 'rgba(0, 0, 0, 0)' && e.parentElement ? paper(e.parentElement) : color;
  };
  return [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility()).map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(paper(e))];
    return [e.className || e.tagName, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)];
  });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out_in_light_and_dark(page: Any, server: Running, scheme: str) -> None:
    """All texts have a contrast of 4.5 or more with what is behind them (WCAG 2.2, 1.4.3)."""
    page.emulate_media(color_scheme=scheme)
    for program, label in (("tour", "said"), ("breaks", "word")):
        page.goto(f"{server.url}/traces")
        expect(page.locator("tr[data-open]").first).to_be_visible()
        measured = page.evaluate(LUMINANCE, "td, th, a, .status, .id, label, caption, kbd, button")
        open_run(page, server.url, program)
        measured += page.evaluate(LUMINANCE, ".banner *, .panel pre, .panel th, .panel td, .hint")
        row(page, label).click()
        expect(page.locator(".panel .output")).to_be_visible()
        measured += page.evaluate(
            LUMINANCE, ".row b, .row small, .took, .note, .panel span, dt, dd, h4"
        )
        measured += page.evaluate(
            LUMINANCE, ".panel mark, .panel pre, .panel small, .panel summary"
        )
        assert len(measured) > 50
        assert [(name, round(ratio, 2)) for name, ratio in measured if ratio < 4.5] == []


def test_ten_thousand_runs_are_a_short_page(page: Any) -> None:
    """The list of 10,000 runs is two requests and a bounded document, on every page."""
    store = Store(None)
    store.write(lambda c: c.execute(insert(runs), rows(10_000)) and None).result()
    with viewing(JournalReader(store)) as url:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/traces")
        expect(page.locator("caption")).to_contain_text("10,000 traces")
        for _ in range(3):
            assert page.evaluate("document.getElementsByTagName('*').length") < 800
            last = page.locator("tr[data-open]").last.inner_text()
            page.get_by_role("link", name="Older").click()
            expect(page.locator("tr[data-open]").last).not_to_have_text(last)
        # The page, its script and style, and one piece for each of four pages.
        assert len([one for one in asked if not one.startswith("data:")]) == 3 + 4
        page.get_by_role("link", name="First page").click()
        expect(page.locator(".program").first).to_contain_text("run_09999")
    store.close()


def test_two_thousand_events_are_drawn_where_one_looks(page: Any, tmp_path: Path) -> None:
    """Of a long run only the rows near the visible ones are in the document, and are fetched once
    in pieces; a jump to the end fetches the end."""
    with viewing(JsonlReader(folder_of(tmp_path, [long_run(500)]))) as url:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/traces?run=run_long")
        expect(page.locator("#row-0")).to_be_visible()
        box = page.locator(".rows")
        assert int(box.get_attribute("data-count") or 0) == 500
        box.evaluate("(e) => { e.scrollTop = e.scrollHeight; }")
        expect(page.locator("#row-499")).to_be_visible()
        expect(page.locator("#row-0")).to_have_count(0)
        assert page.locator(".row").count() <= 300
        assert page.evaluate("document.getElementsByTagName('*').length") < 4000
        pieces = [one for one in asked if "/rows/" in one]
        assert len(pieces) <= 4
        page.locator("#row-499").click()
        expect(page.locator(".panel h3")).to_contain_text("step499")
        page.keyboard.press("k")
        expect(page.locator(".panel h3")).to_contain_text("step498")


def test_hostile_texts_do_nothing(page: Any, tmp_path: Path) -> None:
    """Prompts, names and sources that are markup are shown, on the server and in a file."""
    run = hostile_run()
    file = tmp_path / "run.html"
    file.write_text(render_run(run, standalone=True))
    folder = folder_of(tmp_path / "traces", [run])
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    with viewing(JsonlReader(folder)) as url:
        for address in (f"{url}/traces?run=run_hostile", file.as_uri()):
            page.goto(address)
            expect(page.locator(".row").first).to_be_visible()
            for number in range(page.locator(".row").count()):
                page.locator(f"#row-{number}").click()
                expect(page.locator(".panel")).to_contain_text("onerror")
            page.get_by_role("tab", name="Graph").click()
            page.get_by_role("tab", name="Overview").click()
            expect(page.locator(".panel")).to_contain_text("<script>")
            assert page.locator("main img, main script, template img").count() == 0
            assert page.title() != "owned"
    assert dialogs == []


def test_a_key_opens_the_traces(page: Any, tmp_path: Path) -> None:
    """With keys the page shows traces once a good key is typed, those of that key."""
    page.expected = ["401"]
    file = tmp_path / "keys"
    file.write_text(hash_key("a", "good-key"))
    with serving(tiny(), [tour], api_key_file=file) as server:
        server.client.headers["authorization"] = "Bearer good-key"
        server.run("tour", args={"topic": "secret"})
        page.goto(f"{server.url}/traces")
        expect(page.locator("#notice")).to_contain_text("API key")
        page.locator("#key-text").fill("good-key")
        page.get_by_role("button", name="Use").click()
        expect(page.locator("tr[data-open]")).to_have_count(1)
