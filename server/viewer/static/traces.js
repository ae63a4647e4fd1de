// The behaviour of the trace pages. HTML comes from the server (or from the file itself), where
// every text was escaped; here text is only ever set as text.
"use strict";

const ROW = 28; // height of a row of the timeline, as in the style
const POLL_MS = 1000;
const view = document.getElementById("view");
const standalone = "standalone" in view.dataset;
let running = null; // the timer of a page that shows a run which goes on

// --- asking

function headers() {
  const key = sessionStorage.getItem("phloem-key");
  return key ? { authorization: `Bearer ${key}` } : {};
}

function notice(text) {
  const place = document.getElementById("notice");
  if (place) place.textContent = text;
}

async function html(path) {
  const reply = await fetch(path, { headers: headers() });
  if (reply.ok) return reply.text();
  if (reply.status === 401) throw new Error("The server asks for an API key.");
  throw new Error((await reply.json()).error.message);
}

async function post(path, body) {
  const reply = await fetch(path, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers() },
    body: JSON.stringify(body),
  });
  const answer = await reply.json();
  if (!reply.ok) throw new Error([answer.error.message, answer.error.hint].filter(Boolean).join(" "));
  return answer;
}

// A fragment: a stored piece of this file, or the server's.
function fragment(text) {
  const holder = document.createElement("template");
  holder.innerHTML = text;
  return holder.content;
}

// --- pages

const query = () => new URLSearchParams(location.search);

async function show() {
  clearTimeout(running);
  const asked = query();
  try {
    if (asked.has("with")) {
      await showCompare(asked.get("run"), asked.get("with"));
    } else if (asked.has("run")) {
      const path = `traces/runs/${encodeURIComponent(asked.get("run"))}`;
      view.replaceChildren(fragment(await html(path)));
      new RunPage(view.querySelector(".run"), (name) => html(`${path}/${name}`)).start();
    } else {
      await showList(asked);
    }
    notice("");
  } catch (error) {
    view.replaceChildren();
    notice(error.message);
  }
}

function go(search) {
  history.pushState(null, "", search ? `traces${search}` : "traces");
  scrollTo(0, 0);
  return show();
}

async function showList(asked) {
  document.title = "phloem traces";
  lastList = location.search;
  line = -1;
  view.replaceChildren(fragment(await html(`traces/list?${asked}`)));
  const form = view.querySelector(".filters");
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value) wanted.set(name, value);
    go(wanted.size ? `?${wanted}` : "");
  });
  for (const field of form.querySelectorAll("select")) field.addEventListener("change", () => form.requestSubmit());
  for (const row of view.querySelectorAll("[data-open]")) {
    row.addEventListener("click", (event) => {
      if (!event.target.closest("a")) go(row.dataset.open);
    });
  }
}

async function showCompare(old, fresh) {
  document.title = "phloem: side by side";
  const page = await html(`traces/compare?${new URLSearchParams({ old, new: fresh })}`);
  view.replaceChildren(fragment(page));
  if (isOpen(view.querySelector(".compare").dataset.status)) running = setTimeout(show, POLL_MS);
  else view.querySelector(".pair.differs")?.scrollIntoView({ block: "nearest" });
}

const isOpen = (status) => status === "running" || status === "queued";

// --- a run

class RunPage {
  constructor(article, load) {
    this.article = article;
    this.load = load;
    this.panel = article.querySelector(".panel");
    this.rows = new Rows(article.querySelector(".rows"), load, (row) => this.open(row.dataset.opens, row));
    this.opened = "";
  }

  start() {
    document.title = `${this.article.querySelector("h2").textContent.trim()} · phloem`;
    page = this;
    this.article.addEventListener("click", (event) => this.clicked(event));
    for (const tab of this.article.querySelectorAll("[role=tab]")) {
      tab.addEventListener("keydown", (event) => {
        if (event.key === "ArrowRight" || event.key === "ArrowLeft") this.otherTab(tab, event.key === "ArrowRight" ? 1 : -1);
      });
    }
    for (const node of this.article.querySelectorAll(".node.taken")) {
      node.addEventListener("keydown", (event) => {
        if (event.key === "Enter" || event.key === " ") this.openNode(node);
      });
    }
    this.rows.draw();
    this.open(location.hash.slice(1) || this.article.dataset.panel);
    if (!standalone && isOpen(this.article.dataset.status)) running = setTimeout(show, POLL_MS);
  }

  clicked(event) {
    const tab = event.target.closest("[role=tab][aria-controls]");
    if (tab) return this.select(tab);
    const node = event.target.closest(".node.taken");
    if (node) return this.openNode(node);
    const link = event.target.closest("[data-opens]");
    if (link && !link.closest(".rows")) {
      event.preventDefault();
      return this.open(link.dataset.opens);
    }
    return undefined;
  }

  select(tab) {
    for (const other of this.article.querySelectorAll("[role=tab][aria-controls]")) {
      const on = other === tab;
      other.setAttribute("aria-selected", String(on));
      other.tabIndex = on ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !on;
    }
    if (tab.id === "tab-timeline") this.rows.draw();
  }

  otherTab(tab, by) {
    const tabs = [...this.article.querySelectorAll("[role=tab]")];
    tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length].focus();
  }

  openNode(node) {
    for (const other of this.article.querySelectorAll(".node.selected")) other.classList.remove("selected");
    node.classList.add("selected");
    return this.open(node.dataset.opens);
  }

  // Show a panel. Of two that were asked for, the later stays.
  async open(name, row) {
    if (!name || name === this.opened) return;
    this.opened = name;
    let content;
    try {
      content = fragment(await this.load(`panels/${name}`));
    } catch (error) {
      this.opened = "";
      notice(error.message);
      return;
    }
    if (this.opened !== name) return;
    history.replaceState(null, "", `${location.search}#${name}`);
    this.panel.replaceChildren(content);
    this.panel.scrollTop = 0;
    // What is new in a prompt is at its end.
    for (const prompt of this.panel.querySelectorAll(".prompt")) prompt.scrollTop = prompt.scrollHeight;
    if (!row) this.rows.selectOpening(name);
    for (const form of this.panel.querySelectorAll("form")) this.listen(form);
  }

  listen(form) {
    const rewinds = form.closest(".rewind");
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const send = rewinds ? this.rewind(form, true) : this.again(form);
      send.catch((error) => notice(error.message));
    });
    form.querySelector(".ask")?.addEventListener("click", () => {
      this.rewind(form, false).catch((error) => notice(error.message));
    });
  }

  async rewind(form, changes) {
    const { run, path, seq } = form.dataset;
    const body = { path, seq: Number(seq), ...(changes ? changeOf(form) : {}) };
    const fresh = await post(`v1/runs/${encodeURIComponent(run)}/rewind`, body);
    await go(`?${new URLSearchParams({ run, with: fresh.id })}`);
  }

  async again(form) {
    const { run, program } = form.dataset;
    const body = { args: parsed(form.elements.args.value), background: true };
    const fresh = await post(`v1/programs/${encodeURIComponent(program)}/runs`, body);
    await go(`?${new URLSearchParams({ run, with: fresh.id })}`);
  }
}

// What the form of a rewind changes: the step's value, or texts of its prompt (null: as it was).
function changeOf(form) {
  const texts = [...form.querySelectorAll("[name=prompt]")];
  if (texts.length) {
    if (!texts.some(isEdited)) throw new Error("No text of the prompt was changed.");
    return { prompt: texts.map((one) => (isEdited(one) ? one.value : null)) };
  }
  const text = form.elements.set.value;
  return { set: ["gen", "select"].includes(form.dataset.kind) ? text : parsed(text) };
}

// The value of a field has other line ends than its text may have.
const isEdited = (field) => field.value !== field.defaultValue.replace(/\r\n?/g, "\n");

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`This is not JSON: ${error.message}`);
  }
}

// The rows of a timeline: only those near the visible part are in the document.
class Rows {
  constructor(box, load, opened) {
    this.box = box;
    this.load = load;
    this.opened = opened;
    this.count = Number(box.dataset.count);
    this.size = Number(box.dataset.chunk);
    this.chunks = new Map();
    this.at = -1; // the selected row
    this.space = box.querySelector(".space");
    this.space.style.height = `${this.count * ROW}px`;
    box.addEventListener("scroll", () => this.draw(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(box);
    box.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) this.select(Number(row.dataset.row), true);
    });
  }

  draw() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW / this.size));
    const last = Math.floor((this.box.scrollTop + this.box.clientHeight) / ROW / this.size);
    for (const [number, chunk] of this.chunks) {
      if (number < first - 1 || number > last + 1) {
        chunk.remove();
        this.chunks.delete(number);
      }
    }
    const wanted = [];
    for (let number = first; number <= last && number * this.size < this.count; number += 1) wanted.push(this.chunk(number));
    return Promise.all(wanted);
  }

  async chunk(number) {
    if (this.chunks.has(number)) return;
    const place = document.createElement("div");
    place.className = "chunk";
    place.setAttribute("role", "presentation");
    place.style.top = `${number * this.size * ROW}px`;
    this.chunks.set(number, place);
    this.box.append(place);
    place.append(fragment(await this.load(`rows/${number}`)));
    this.mark();
  }

  // Select the row that opens a panel, if it is in the document.
  selectOpening(name) {
    this.at = -1;
    for (const row of this.box.querySelectorAll("[data-opens]")) {
      if (row.dataset.opens === name) this.at = Number(row.dataset.row);
    }
    this.mark();
  }

  mark() {
    for (const row of this.box.querySelectorAll('[aria-selected="true"]')) row.setAttribute("aria-selected", "false");
    const row = document.getElementById(`row-${this.at}`);
    if (!row) return null;
    row.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", row.id);
    return row;
  }

  async select(at, opens) {
    if (!this.count) return;
    this.at = Math.min(this.count - 1, Math.max(0, at));
    const top = this.at * ROW;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    await this.draw();
    const row = this.mark();
    if (opens && row?.dataset.opens) this.opened(row);
  }
}

// --- keys

let page = null; // the run that is shown
let line = -1; // the selected line of the list
let lastList = ""; // the filters and the page of the list that was seen last

function moveInList(by) {
  const lines = [...view.querySelectorAll("tr[data-open]")];
  if (!lines.length) return;
  line = Math.min(lines.length - 1, Math.max(0, line + by));
  for (const [at, one] of lines.entries()) one.classList.toggle("selected", at === line);
  lines[line].querySelector("a").focus({ preventScroll: true });
  lines[line].scrollIntoView({ block: "nearest" });
}

function moveInPairs(by) {
  const pairs = [...view.querySelectorAll(".pair")];
  const at = pairs.indexOf(document.activeElement);
  const next = pairs[Math.min(pairs.length - 1, Math.max(0, at + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

function move(by) {
  if (view.querySelector(".run")) page.rows.select(page.rows.at + by, true);
  else if (view.querySelector(".compare")) moveInPairs(by);
  else moveInList(by);
}

function back() {
  if (standalone) return page.open(page.article.dataset.panel);
  const onList = view.querySelector(".list") !== null;
  return onList && !query().size ? undefined : go(onList ? "" : lastList);
}

document.addEventListener("keydown", (event) => {
  const field = event.target.closest("input, textarea, select");
  if (event.key === "Escape") {
    event.preventDefault();
    if (field) field.blur();
    else back();
    return;
  }
  if (field || event.ctrlKey || event.metaKey || event.altKey) return;
  const does = { j: () => move(1), k: () => move(-1), "/": focusSearch };
  if (event.target.closest(".rows")) {
    does.ArrowDown = does.j;
    does.ArrowUp = does.k;
  }
  if (event.key === "Enter" && view.querySelector(".run") && !event.target.closest("a, button, summary, .node")) does.Enter = () => page.panel.focus();
  if (does[event.key]) {
    event.preventDefault();
    does[event.key]();
  }
});

async function focusSearch() {
  if (standalone) return;
  if (!view.querySelector(".filters")) await go("");
  view.querySelector('[name="q"]')?.focus();
}

// --- start

document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="traces"]');
  if (!link || standalone || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(link.getAttribute("href").slice("traces".length));
});

document.getElementById("key")?.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("phloem-key", document.getElementById("key-text").value);
  show();
});

if (standalone) {
  const stored = (name) => {
    const found = [...document.querySelectorAll("template[data-name]")].find((one) => one.dataset.name === name.replace(/^panels\//, ""));
    return found ? Promise.resolve(found.innerHTML) : Promise.reject(new Error(`this file has no ${name}`));
  };
  new RunPage(view.querySelector(".run"), stored).start();
} else {
  addEventListener("popstate", () => show());
  show();
}
