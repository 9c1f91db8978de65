// The page of `sumpter console`. Everything shown is the text of an element, never markup: names
// come from members of jobs. Elements are kept from look to look, so that focus, selection and
// scrolling stay.

import { makeChart } from "./chart.js";

const HELD = "sumpter-secret"; // sessionStorage: of this tab and this port alone
const POINTS = 600;
const EVENTS = 200;
const LONGEST_WAIT_S = 5; // so that it is soon seen that the console has gone
const BIG = ["goodput", "of the optimum"];
const LABELS = { n: "GPU machines (n)", k: "CPU machines (k)" };
// Where the button is, so that a phone shows it without scrolling.
const DRAIN = 2;

const at = (id) => document.getElementById(id);
const known = { session: "", number: 0, points: new Map() };
const jobs = new Map();
let secret = sessionStorage.getItem(HELD) ?? "";
let readOnly = true;
let paused = false;
let timer = 0;

/** An element of a class with a text. */
function make(tag, name = "", text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text) element.textContent = text;
  return element;
}

/** Sets a text if it is another one, so that nothing is read out or selected anew. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Gives `parent` a child for each key, in order, and keeps those that are there. */
function sync(parent, keys, create) {
  const present = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set(keys);
  for (const [key, child] of present) if (!wanted.has(key)) child.remove();
  let place = parent.firstElementChild;
  return keys.map((key) => {
    let child = present.get(key);
    if (!child) {
      child = create(key);
      child.dataset.key = key;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
    return child;
  });
}

// Tables

/** Shows a table; the rows of one that may drain have a button each. */
function fillTable(table, { columns, rows }, drain) {
  const shown = [...columns];
  if (drain) shown.splice(DRAIN, 0, { name: "drain", title: "Drain", number: false });
  const keys = shown.map((column) => column.name);
  sync(table.tHead.rows[0], keys, () => make("th")).forEach((cell, i) => {
    cell.scope = "col";
    cell.classList.toggle("number", shown[i].number);
    say(cell, shown[i].title);
  });
  const lines = sync(table.tBodies[0], rows.map((row) => String(row.number)), () => make("tr"));
  lines.forEach((line, i) => {
    const texts = [...rows[i].cells];
    if (drain) texts.splice(DRAIN, 0, null);
    fillRow(line, rows[i], shown, texts);
  });
}

function fillRow(line, row, columns, texts) {
  const cells = sync(line, columns.map((column) => column.name), (key) => {
    const cell = make(key === "rank" || key === "server" ? "th" : "td");
    if (cell.tagName === "TH") cell.scope = "row";
    if (key === "drain") cell.append(drainButton(row));
    return cell;
  });
  cells.forEach((cell, i) => {
    if (texts[i] === null) {
      cell.firstChild.disabled = row.draining;
      return;
    }
    cell.classList.toggle("number", columns[i].number);
    cell.title = texts[i].length > 24 ? texts[i] : "";
    say(cell, texts[i] || "-");
  });
}

function makeTable() {
  const table = make("table");
  table.createTHead().insertRow();
  table.createTBody();
  return table;
}

// Jobs

function makeJob(key) {
  const section = make("section");
  const title = make("div", "title");
  const name = make("h2", "name");
  name.id = `job-${jobs.size}-${Date.now()}`;
  section.setAttribute("aria-labelledby", name.id);
  const state = make("span", "state");
  const tune = make("button", "", "Tune");
  tune.type = "button";
  tune.addEventListener("click", () => act(() => openTuning(key)));
  title.append(name, state, tune);
  const [facts, faults, notes] = [make("dl"), make("div"), make("div")];
  faults.setAttribute("role", "alert");
  const panels = make("div", "panels");
  const curve = make("figure", "panel");
  curve.append(make("h3", "", "Goodput"));
  const chart = makeChart();
  const legend = make("figcaption", "key");
  const optimum = make("span", "optimum", "the links' optimum");
  legend.append(make("span", "", "goodput"), optimum);
  curve.append(chart.element, legend);
  const waiting = make("div", "panel");
  const waits = make("ul", "waits");
  const none = make("p", "note", "No rank kept the others waiting.");
  waiting.append(make("h3", "", "Ranks that the others waited for"), waits, none);
  panels.append(curve, waiting);
  const scroll = make("div", "scroll");
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Workers");
  const table = makeTable();
  scroll.append(table);
  section.append(title, facts, faults, notes, panels, make("h3", "", "Workers"), scroll);
  jobs.set(key, { name, state, tune, facts, faults, notes, chart, optimum, waits, none, table });
  return section;
}

function fillJob(job, now) {
  const own = jobs.get(job.key);
  own.settings = job.settings;
  say(own.name, job.name);
  say(own.state, job.state);
  own.state.dataset.state = job.state;
  own.tune.setAttribute("aria-label", `Tune job ${job.name}`);
  own.tune.hidden = readOnly;
  const order = [...BIG, ...Object.keys(job.facts).filter((name) => !BIG.includes(name))];
  sync(own.facts, order, (name) => {
    const pair = make("div", BIG.includes(name) ? "big" : "");
    pair.append(make("dt", "", LABELS[name] ?? name), make("dd"));
    return pair;
  }).forEach((pair, i) => say(pair.lastChild, job.facts[order[i]]));
  fillLines(own.faults, job.faults, "fault text");
  fillLines(own.notes, job.notes, "note text");
  own.optimum.hidden = !own.chart.draw(known.points.get(job.key) ?? [], now);
  own.none.hidden = job.waits.length > 0;
  sync(own.waits, job.waits.map((wait) => String(wait.rank)), (rank) => {
    const line = make("li");
    const bar = make("div", "bar");
    bar.append(make("div"));
    line.append(make("span", "", `rank ${rank}`), bar, make("span", "amount"));
    return line;
  }).forEach((line, i) => {
    const { share, time } = job.waits[i];
    line.children[1].firstChild.style.width = `${(100 * share).toFixed(1)}%`;
    say(line.lastChild, `${Math.round(100 * share)}%, ${time}`);
  });
  fillTable(own.table, job.members, false);
}

function fillLines(parent, lines, name) {
  sync(parent, lines.map((_, i) => `${i}`), () => make("p", name))
    .forEach((line, i) => say(line, lines[i]));
}

// The whole page

function show(seen) {
  if (seen.session !== known.session) {
    known.points.clear();
    at("events").replaceChildren();
  }
  known.session = seen.session;
  known.number = seen.number;
  readOnly = seen.read_only;
  for (const [name, points] of Object.entries(seen.points)) {
    const all = [...(known.points.get(name) ?? []), ...points];
    known.points.set(name, all.slice(-POINTS));
  }
  for (const name of known.points.keys()) if (!(name in seen.points)) known.points.delete(name);
  const keys = seen.jobs.map((job) => job.key);
  sync(at("jobs"), keys, makeJob);
  for (const key of jobs.keys()) if (!keys.includes(key)) jobs.delete(key);
  for (const job of seen.jobs) fillJob(job, seen.now_s);
  showIdle(seen);
  at("servers").hidden = seen.servers.rows.length === 0;
  const place = at("servers").querySelector(".scroll");
  if (!place.firstChild) place.append(makeTable());
  fillTable(place.firstChild, seen.servers, !readOnly);
  seen.events.forEach(addEvent);
  at("quiet").hidden = at("events").children.length > 0;
  showAccess();
  showConnection(seen);
}

function showIdle(seen) {
  const idle = at("idle");
  idle.hidden = seen.jobs.length > 0 || seen.trouble !== "";
  if (idle.hidden) return;
  const ended = seen.ended.length ? ` Ended: ${seen.ended.join(", ")}.` : "";
  const what = seen.job ? `No job ${seen.job} runs` : "No job runs";
  say(idle, `${what}. Start one: sumpter run -n 2 -s 1 -- python train.py${ended}`);
}

function addEvent(event) {
  const list = at("events");
  const line = make("li");
  line.dataset.kind = event.kind;
  const time = make("time", "", new Date(event.time_s * 1000).toLocaleTimeString());
  time.dateTime = new Date(event.time_s * 1000).toISOString();
  const text = event.job ? `${event.job}: ${event.text}` : event.text;
  line.append(time, make("span", "kind", event.kind), make("span", "text", text));
  list.prepend(line);
  while (list.children.length > EVENTS) list.lastChild.remove();
}

function showConnection(seen) {
  const trouble = at("trouble");
  const age = Math.max(0, Math.round(seen.now_s - seen.seen_s));
  const late = age > 5 + 3 * seen.interval_s;
  trouble.hidden = seen.trouble === "" && !late;
  if (seen.trouble) {
    say(trouble, `${seen.trouble}. The figures are the last ones; the page goes on by itself.`);
  } else if (late) {
    say(trouble, "The coordinator has not answered for a while. The figures are the last ones; "
      + "the page goes on by itself.");
  }
  const every = `every ${seen.interval_s} s`;
  const mode = readOnly ? ", read-only" : "";
  const state = seen.trouble || late ? `Last look ${age} s ago` : `Live, ${every}${mode}`;
  say(at("connection"), paused ? `Paused${mode}` : state);
}

function showAccess() {
  at("access").hidden = readOnly;
  say(at("access"), secret ? "Lock" : "Unlock");
}

async function look() {
  clearTimeout(timer);
  if (paused) return;
  let wait = 1000;
  try {
    const asked = new URLSearchParams({ session: known.session, after: known.number });
    const answer = await fetch(`/view?${asked}`, { signal: AbortSignal.timeout(10000) });
    if (!answer.ok) throw new Error((await answer.json()).error);
    const seen = await answer.json();
    wait = 1000 * Math.min(seen.interval_s, LONGEST_WAIT_S);
    if (!paused) show(seen);
  } catch (error) {
    at("trouble").hidden = false;
    const silent = error instanceof TypeError || error.name === "TimeoutError";
    say(at("trouble"), silent
      ? "The console does not answer: start sumpter console again. The page goes on by itself."
      : String(error.message));
    say(at("connection"), "Not connected");
  }
  timer = setTimeout(look, wait);
}

// What buttons do

async function post(path, body) {
  const answer = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Sumpter-Secret": secret },
    body: JSON.stringify(body),
  });
  const said = await answer.json();
  if (answer.status === 401) hold("");
  if (!answer.ok) throw new Error(said.error);
  return said;
}

function hold(given) {
  secret = given;
  if (secret) sessionStorage.setItem(HELD, secret);
  else sessionStorage.removeItem(HELD);
  showAccess();
}

/** Runs `next` now, or once the buttons are unlocked. */
function act(next) {
  if (secret) next();
  else openDialog(at("unlocking"), unlock, next);
}

/** Shows a dialog. `send` does its work and gives what to say; then it closes, and `next` runs. */
function openDialog(dialog, send, next = () => {}) {
  const form = dialog.querySelector("form");
  const error = dialog.querySelector(".error");
  say(error, "");
  form.onsubmit = async (event) => {
    event.preventDefault();
    const button = form.querySelector("[type=submit]");
    button.disabled = true;
    try {
      const said = await send();
      dialog.close();
      say(at("said"), said);
      next();
    } catch (problem) {
      say(error, problem instanceof TypeError ? "The console does not answer" : problem.message);
    } finally {
      button.disabled = false;
    }
  };
  dialog.querySelector(".cancel").onclick = () => dialog.close();
  dialog.showModal();
}

async function unlock() {
  const field = at("token");
  try {
    hold((await post("/unlock", { token: field.value.trim() })).secret);
  } finally {
    field.value = "";
    field.focus();
  }
  return "The buttons are unlocked in this tab.";
}

function drainButton(row) {
  const button = make("button", "", "Drain");
  button.type = "button";
  button.setAttribute("aria-label", `Drain server ${row.number} on ${row.host}`);
  button.addEventListener("click", () => act(() => {
    say(at("draining-text"), `Server ${row.number} on ${row.host} leaves all jobs, which go on `
      + "without it, and then ends. To have it back, start it again.");
    openDialog(at("draining"), async () => {
      return (await post("/drain", { server: String(row.number) })).said.join("; ");
    });
  }));
  return button;
}

function openTuning(key) {
  const dialog = at("tuning");
  const job = jobs.get(key);
  if (!job) return;
  dialog.querySelector("form").reset();
  say(at("tuning-title"), `Tune job ${job.name.textContent}`);
  for (const field of dialog.querySelectorAll("[name]")) {
    const value = job.settings[field.name] ?? job.settings[`${field.name}_bytes`];
    say(dialog.querySelector(`[for=${field.id}] .now`), value ? `(now ${value})` : "");
  }
  openDialog(dialog, async () => {
    const changes = Object.fromEntries(new FormData(dialog.querySelector("form")));
    const asked = { ...changes, job: key, reset: at("take-back").checked };
    return (await post("/tune", asked)).said.join("; ");
  });
}

at("access").addEventListener("click", () => {
  if (!secret) {
    openDialog(at("unlocking"), unlock);
    return;
  }
  post("/lock", {}).catch(() => {});
  hold("");
  say(at("said"), "The buttons are locked.");
});
at("pause").addEventListener("click", () => {
  paused = !paused;
  at("pause").setAttribute("aria-pressed", String(paused));
  if (paused) say(at("connection"), "Paused");
  look();
});
for (const dialog of document.querySelectorAll("dialog")) {
  dialog.addEventListener("close", () => {
    at("token").value = "";
  });
}
look();
