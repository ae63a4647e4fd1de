"""Takes the screenshots of docs/viewer.md again: `python docs/screenshots.py`.

Serves examples/support_agent.py (greedy, and asking for log-probabilities) on the default model
with the handbook indexed in a temporary folder, runs it, rewinds a step, and lets headless Chromium
(CHROMIUM, or `chromium` on the path) look. Needs the extra `browser` and Pillow. The pictures have
a palette, so they are small.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import httpx
from PIL import Image
from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parent.parent
IMAGES = ROOT / "docs" / "images"
PHLOEM = str(Path(sys.executable).parent / "phloem")
COLOURS = 255
SIZE = {"width": 1320, "height": 800}
QUESTIONS = [
    "Can I pay by invoice?",
    "How long are backups kept?",
    "Which browsers are supported?",
]

FAILING = '''
"""Asks an index that is not there: a failing run for the screenshots."""

import phloem as ph


@ph.function
def triage(s, ticket: str):
    """Sort a ticket, then look its product up."""
    s += ph.system("You sort support tickets.")
    s += ph.user(ticket)
    s += ph.assistant("Product: " + ph.select("product", ["Fern", "Moss"]))
    s += ph.user("How urgent is it?")
    s += ph.assistant(ph.gen("urgency", regex="low|medium|high", temperature=0))
    words = ticket.lower().split()
    index = f"{s['product'].lower()}-manual"
    docs = ph.retrieve("docs", " ".join(words), index=index, k=3)
    s += ph.user(ph.passages(docs))
    s += ph.assistant(ph.gen("answer", max_tokens=40))
    return s["answer"]


@ph.function
def survey(s, topic: str):
    """Asks for three views at once."""
    s += ph.user(f"Say one thing about {topic}.")
    views = s.fork(3)
    for number, view in enumerate(views):
        view += ph.assistant(f"View {number + 1}: " + ph.gen("view", max_tokens=24, logprobs=2))
    views.join()
    s += ph.assistant("The best is number " + ph.select("best", ["1", "2", "3"]))
    return s["view"]
'''


def main() -> None:
    """Serve, run, look."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, server(Path(folder)) as url:
        fill(url)
        with sync_playwright() as started:
            binary = os.environ.get("CHROMIUM") or shutil.which("chromium")
            browser = started.chromium.launch(executable_path=binary, args=["--no-sandbox"])
            for scheme in ("light", "dark"):
                context = browser.new_context(
                    viewport=SIZE, color_scheme=scheme, reduced_motion="reduce"
                )
                look(context.new_page(), url, scheme)
            browser.close()


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """A server of its own, with its own index and journal."""
    (folder / "demo.py").write_text(FAILING)
    environment = {**os.environ, "PHLOEM_INDEX_DIR": str(folder / "indexes")}
    add = [PHLOEM, "index", "add", str(ROOT / "examples" / "handbook"), "--index", "handbook"]
    subprocess.run(add, env=environment, check=True, stdout=subprocess.DEVNULL)
    agent = (ROOT / "examples" / "support_agent.py").read_text()
    greedy = re.sub(r'(ph\.gen\("\w+", )', r"\1temperature=0, logprobs=2, ", agent)
    (folder / "support_agent.py").write_text(greedy)
    files = [str(folder / "support_agent.py"), str(folder / "demo.py")]
    command = [PHLOEM, "serve", *files, "--port", "8471"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    url = "http://127.0.0.1:8471"
    try:
        until = time.monotonic() + 300
        while not ready(url):
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not start")
            time.sleep(0.5)
        yield url
    finally:
        process.terminate()
        process.wait()


def ready(url: str) -> bool:
    """Whether the server can be used."""
    try:
        return httpx.get(f"{url}/ready").status_code == 200
    except httpx.HTTPError:
        return False


def fill(url: str) -> None:
    """Runs of all kinds."""
    runs = [("support", {"question": question}) for question in QUESTIONS]
    runs.insert(1, ("triage", {"ticket": "The Moss app does not sync my notes"}))
    runs.insert(2, ("survey", {"topic": "forests"}))
    for program, args in runs:
        body = {"args": args, "seed": 7}
        httpx.post(f"{url}/v1/programs/{program}/runs", json=body, timeout=300)


def look(page: Page, url: str, scheme: str) -> None:
    """The pictures of one colour scheme; the dark one is shown once."""
    if scheme == "dark":
        open_run(page, url, "survey")
        page.locator(".row", has_text="view").nth(1).click()
        page.locator(".panel .output").wait_for()
        shoot(page, "dark")
        return
    page.goto(f"{url}/traces")
    page.locator("tr[data-open]").first.wait_for()
    page.keyboard.press("j")
    shoot(page, "list")
    open_run(page, url, "triage")
    page.locator(".panel .here").wait_for()
    shoot(page, "error")
    open_run(page, url, "support")
    page.locator(".row", has_text="docs").click()
    page.locator(".hits").wait_for()
    shoot(page, "timeline")
    open_step(page, "verdict")
    shoot(page, "step")
    open_step(page, "answer")
    page.locator("#tab-graph").click()
    shoot(page, "graph")
    page.locator("#tab-timeline").click()
    open_step(page, "verdict")
    page.locator(".rewind summary").first.click()
    page.locator("textarea[name=set]").fill("no, because the passages say nothing of it.")
    page.get_by_role("button", name="Run on with this").click()
    page.locator(".compare[data-status=succeeded]").wait_for(timeout=120_000)
    shoot(page, "rewind")


def open_run(page: Page, url: str, program: str) -> None:
    """The newest run of a program."""
    page.goto(f"{url}/traces?program={program}")
    page.locator("tr[data-open]").first.click()
    page.locator(".row").first.wait_for()
    page.locator(".panel h3").wait_for()


def open_step(page: Page, name: str) -> None:
    """The panel of a generation."""
    page.locator(".row.gen", has_text=name).click()
    page.locator(".panel h3", has_text=name).wait_for()


def shoot(page: Page, name: str) -> None:
    """A picture with few colours."""
    page.mouse.move(0, 0)
    page.wait_for_timeout(300)
    image = Image.open(BytesIO(page.screenshot())).convert("RGB")
    few = image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    path = IMAGES / f"viewer-{name}.png"
    few.save(path, optimize=True)
    sys.stdout.write(f"{path.relative_to(ROOT)} {path.stat().st_size // 1024} KB\n")


if __name__ == "__main__":
    main()
