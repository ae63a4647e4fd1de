// The page's behaviour: forms to runs, events to steps. Text is only ever set as text.
"use strict";

const keyName = "phloem-key";

function headers() {
  const key = sessionStorage.getItem(keyName);
  return key ? { authorization: `Bearer ${key}` } : {};
}

function notice(text) {
  document.getElementById("notice").textContent = text;
}

async function showPrograms() {
  const reply = await fetch("page/programs", { headers: headers() });
  if (reply.status === 401) {
    notice("The server asks for an API key.");
    return;
  }
  notice("");
  const main = document.getElementById("programs");
  main.innerHTML = await reply.text();
  for (const section of main.querySelectorAll(".program")) {
    section.querySelector("form").addEventListener("submit", (event) => {
      event.preventDefault();
      run(section);
    });
  }
}

// The arguments of a form; an empty field that is not needed is left to its default.
function argumentsOf(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name) continue;
    const kind = field.dataset.kind;
    if (kind === "boolean") found[field.name] = field.checked;
    else if (field.value === "" && !field.required) continue;
    else if (kind === "text") found[field.name] = field.value;
    else found[field.name] = JSON.parse(field.value);
  }
  return found;
}

async function run(section) {
  const view = new View(section);
  const stopper = new AbortController();
  const stop = section.querySelector(".stop");
  stop.disabled = false;
  stop.onclick = () => stopper.abort();
  try {
    const body = { args: argumentsOf(section.querySelector("form")), stream: true };
    const reply = await fetch(`v1/programs/${encodeURIComponent(section.dataset.program)}/runs`, {
      method: "POST",
      headers: { "content-type": "application/json", ...headers() },
      body: JSON.stringify(body),
      signal: stopper.signal,
    });
    if (!reply.ok) {
      view.failed((await reply.json()).error);
      return;
    }
    for await (const [name, data] of events(reply.body)) view.show(name, data);
  } catch (error) {
    view.failed({ message: error.name === "AbortError" ? "stopped" : String(error) });
  } finally {
    stop.disabled = true;
  }
}

// (name, data) of each event of a stream; comment lines are skipped.
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + value).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const fields = {};
      for (const line of block.split("\n")) {
        const at = line.indexOf(": ");
        if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
      }
      if (fields.event) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

class View {
  constructor(section) {
    this.steps = section.querySelector(".steps");
    this.outcome = section.querySelector(".outcome");
    this.steps.replaceChildren();
    this.outcome.textContent = "";
    this.outcome.classList.remove("failed");
    this.open = new Map();
  }

  show(name, data) {
    const key = `${data.path}/${data.name}`;
    if (name === "step_started") this.open.set(key, this.add(data));
    else if (name === "token") this.item(key, data).append(data.text);
    else if (name === "step_finished") this.item(key, data).textContent = data.text || JSON.stringify(data.value);
    else if (name === "retrieved") this.item(key, data).textContent = data.hits.map((hit) => hit.title || hit.id).join(", ") || "nothing found";
    else if (name === "step_failed") this.item(key, data).parentElement.classList.add("failed");
    else if (name === "restarted") {
      this.steps.replaceChildren();
      this.open.clear();
    }
    else if (name === "error") this.failed(data);
    else if (name === "done" && data.status === "succeeded") {
      this.outcome.textContent = typeof data.value === "string" ? data.value : JSON.stringify(data.value);
    }
  }

  item(key, data) {
    if (!this.open.has(key)) this.open.set(key, this.add(data));
    return this.open.get(key);
  }

  add(data) {
    const item = document.createElement("li");
    const name = document.createElement("div");
    name.className = "name";
    name.textContent = [data.path, data.kind, data.name, data.line && `line ${data.line}`].filter(Boolean).join(" · ");
    const text = document.createElement("div");
    text.className = "text";
    item.append(name, text);
    this.steps.append(item);
    return text;
  }

  failed(error) {
    const where = error.where ? ` (${error.where.file}:${error.where.line})` : "";
    this.outcome.textContent = [error.message + where, error.hint].filter(Boolean).join("\n");
    this.outcome.classList.add("failed");
  }
}

document.getElementById("key")?.addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(keyName, document.getElementById("key-text").value);
  showPrograms();
});
showPrograms();
