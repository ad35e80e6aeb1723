// The list of runs: state, time left, score, alarms; a filter that is typed; seeds folded into a row.

import { Empty, Interval, Spark, State, Wait, address, ask, duration, html, number, plural, setQuery, useAddress, useEffect, useMemo, useRef, useState } from "/static/base.js";

// -------------------------------------------------------------------------------------------------------------- filter

const COMPARE = {
  ">": (one, other) => one > other, "<": (one, other) => one < other, ">=": (one, other) => one >= other,
  "<=": (one, other) => one <= other, "=": (one, other) => one === other, "!=": (one, other) => one !== other,
};
const OWN = ["name", "recipe", "state", "score", "step", "steps", "seed", "alarms"];

function valueOf(run, key) {
  if (key === "alarms") return run.alarms.filter((one) => one.raised).length;
  if (OWN.includes(key)) return run[key];
  return run.settings[key];
}

/** `recipe:grpo score>0.8 learner.lr<1e-4 -state:crashed word` -> a predicate and the parts that are not understood. */
export function parseFilter(text) {
  const tests = [];
  const faults = [];
  for (const raw of text.trim().split(/\s+/).filter(Boolean)) {
    const not = raw.startsWith("-") && raw.length > 1 && !/^-?\d/.test(raw);
    const word = not ? raw.slice(1) : raw;
    const match = /^([\w./-]+?)(>=|<=|!=|>|<|=|:)(.*)$/.exec(word);
    let test;
    if (!match) test = (run) => `${run.name} ${run.recipe} ${run.id}`.toLowerCase().includes(word.toLowerCase());
    else {
      const [, key, sign, wanted] = match;
      if (!wanted) { faults.push(raw); continue; }
      if (sign === ":") test = (run) => String(valueOf(run, key) ?? "").toLowerCase().includes(wanted.toLowerCase());
      else if (wanted !== "" && !Number.isNaN(Number(wanted))) test = (run) => { const own = valueOf(run, key); return typeof own === "number" && COMPARE[sign](own, Number(wanted)); };
      else if (sign === "=" || sign === "!=") test = (run) => COMPARE[sign](String(valueOf(run, key) ?? ""), wanted);
      else { faults.push(raw); continue; }
    }
    tests.push(not ? (run) => !test(run) : test);
  }
  return { keeps: (run) => tests.every((test) => test(run)), faults };
}

const LEARNING = /^(learner|algorithm|rollout|batch|model)\b/;
const CLIPPED = 24;

/** Config keys in which the shown runs differ, without those that every run has of its own; those of learning first. */
export function differingKeys(runs, most = 4) {
  const skip = /^(name$|seed$|steps$|run\.|recipe$)/;
  const seen = new Map();
  for (const run of runs) for (const [key, value] of Object.entries(run.settings)) {
    if (skip.test(key)) continue;
    if (!seen.has(key)) seen.set(key, new Map());
    const text = JSON.stringify(value);
    seen.get(key).set(text, (seen.get(key).get(text) || 0) + 1);
  }
  return [...seen].filter(([, values]) => values.size > 1 && values.size < Math.max(3, runs.length))
    .filter(([, values]) => [...values.values()].reduce((sum, one) => sum + one, 0) > runs.length / 2)
    .sort((one, other) => Number(!LEARNING.test(one[0])) - Number(!LEARNING.test(other[0])) || one[1].size - other[1].size).slice(0, most).map(([key]) => key);
}

const ORDER = ["stalled", "running", "diverged", "crashed", "interrupted", "finished"];
const ROW_HEIGHT = 44;
const MOST_ROWS = 30;

function fold(runs) {
  const groups = new Map();
  for (const run of runs) { if (!groups.has(run.group)) groups.set(run.group, []); groups.get(run.group).push(run); }
  return [...groups.values()];
}

const SORTS = {
  newest: (one, other) => other[0].last_line_s - one[0].last_line_s,
  score: (one, other) => (best(other) ?? -Infinity) - (best(one) ?? -Infinity),
  state: (one, other) => ORDER.indexOf(one[0].state) - ORDER.indexOf(other[0].state),
  name: (one, other) => one[0].name.localeCompare(other[0].name),
};

function best(members) {
  const known = members.map((one) => one.score).filter((one) => one !== null);
  return known.length ? Math.max(...known) : null;
}

// ---------------------------------------------------------------------------------------------------------------- page

export function RunsPage() {
  const { query } = useAddress();
  const [answer, setAnswer] = useState(null);
  const [error, setError] = useState("");
  const [open, setOpen] = useState(new Set());
  const [marked, setMarked] = useState(new Set());
  const [top, setTop] = useState(0);
  const filter = useRef(null);
  useEffect(() => {
    let current = true;
    const look = () => ask("runs").then((data) => current && (setAnswer(data), setError("")), (fault) => current && setError(fault.message));
    look();
    const again = setInterval(() => document.visibilityState === "visible" && look(), 3000);
    const keys = (event) => {
      if (event.target.closest("input, select, textarea")) return;
      if (event.key === "/") { event.preventDefault(); filter.current?.focus(); }
      if (event.key === "c") document.querySelector("[data-compare]")?.click();
    };
    const scrolled = () => setTop(scrollY);
    addEventListener("keydown", keys);
    addEventListener("scroll", scrolled, { passive: true });
    return () => { current = false; clearInterval(again); removeEventListener("keydown", keys); removeEventListener("scroll", scrolled); };
  }, []);
  const text = query.q || "";
  const sort = SORTS[query.sort] ? query.sort : "newest";
  const parsed = useMemo(() => parseFilter(text), [text]);
  const shown = useMemo(() => (answer ? answer.runs.filter(parsed.keeps) : []), [answer, parsed]);
  const keys = useMemo(() => (shown.length > 1 ? differingKeys(shown) : []), [shown]);
  if (!answer) return html`<${Wait} error=${error} />`;
  if (!answer.runs.length) return html`<${Empty} title="No runs yet">Runs appear here as soon as one begins: hone train CONFIG.toml. hone watch --demo shows two recorded ones.<//>`;
  const groups = fold(shown).sort(SORTS[sort]);
  const rows = [];
  for (const members of groups) {
    const folded = members.length > 1;
    rows.push({ members, folded });
    if (folded && open.has(members[0].group)) members.forEach((one) => rows.push({ members: [one], member: true }));
  }
  const first = Math.max(0, Math.min(rows.length - MOST_ROWS, Math.floor((top - 120) / ROW_HEIGHT) - 5));
  const drawn = rows.slice(first, first + MOST_ROWS);
  const wide = 9 + keys.length;
  const mark = (ids) => { const fresh = new Set(marked); const all = ids.every((id) => fresh.has(id)); ids.forEach((id) => (all ? fresh.delete(id) : fresh.add(id))); setMarked(fresh); };
  const counts = ORDER.map((state) => [state, answer.runs.filter((one) => one.state === state).length]).filter(([, count]) => count);
  return html`
    <div class="title"><h1>Runs</h1><span class="soft" role="status">${shown.length === answer.runs.length ? plural(shown.length, "run") : `${number(shown.length)} of ${plural(answer.runs.length, "run")}`}</span>
      ${counts.map(([state, count]) => html`<a class="soft" href=${address("runs", "", { ...query, q: `state:${state}` })}><${State} state=${state} /> ${count}</a>`)}</div>
    <div class="bar">
      <input type="search" ref=${filter} value=${text} placeholder="filter: recipe:grpo score>0.8 learner.lr<1e-4" aria-label="filter runs"
        onInput=${(event) => setQuery({ q: event.target.value })} />
      <label>order <select onChange=${(event) => setQuery({ sort: event.target.value })}>
        ${Object.keys(SORTS).map((one) => html`<option value=${one} selected=${one === sort}>${one}</option>`)}</select></label>
      <span class="spring"></span>
      <a data-compare href=${address("compare", "", { runs: [...marked].join(",") })} hidden=${marked.size < 2}><button class="on">compare ${marked.size} runs</button></a>
    </div>
    ${parsed.faults.length ? html`<p class="fault">not understood: ${parsed.faults.join(" ")}</p>` : null}
    ${error ? html`<p class="fault" role="alert">${error}; shown is what was known before</p>` : null}
    ${rows.length ? html`<div class="card flush"><div class="scroll"><table class="runs">
      <thead><tr><th></th><th>run</th><th>recipe</th><th>state</th><th>progress</th><th>left</th><th>score</th><th>course</th><th>alarms</th>
        ${keys.map((key) => html`<th title=${key}>${key}</th>`)}</tr></thead>
      <tbody>
        ${first > 0 ? html`<tr style=${{ height: `${first * ROW_HEIGHT}px` }}><td colspan=${wide}></td></tr>` : null}
        ${drawn.map((row) => html`<${Row} key=${row.members[0].id + (row.folded ? "+" : "")} row=${row} keys=${keys} open=${open} setOpen=${setOpen} marked=${marked} mark=${mark} folds=${answer.folds} />`)}
        ${first + MOST_ROWS < rows.length ? html`<tr style=${{ height: `${(rows.length - first - MOST_ROWS) * ROW_HEIGHT}px` }}><td colspan=${wide}></td></tr>` : null}
      </tbody></table></div></div>` : html`<${Empty} title="No run passes the filter">Its parts are words, key:text, or a key, a comparison and a number: ${"score>0.8"}.<//>`}`;
}

function Row({ row, keys, open, setOpen, marked, mark, folds }) {
  const { members, folded, member } = row;
  const run = members[0];
  const ids = members.map((one) => one.id);
  const whole = folds[run.group];
  const mean = whole && whole.count === members.length ? whole.iqm : null; // of all seeds, or of none
  const scores = members.map((one) => one.score).filter((one) => one !== null);
  const raised = members.flatMap((one) => one.alarms.filter((alarm) => alarm.raised));
  const states = [...new Set(members.map((one) => one.state))];
  const toggle = () => { const fresh = new Set(open); fresh.has(run.group) ? fresh.delete(run.group) : fresh.add(run.group); setOpen(fresh); };
  const done = members.reduce((sum, one) => sum + (one.steps ? Math.min(1, one.step / one.steps) : 0), 0) / members.length;
  const left = Math.max(...members.map((one) => one.left_s ?? -1));
  const values = (key) => [...new Set(members.map((one) => JSON.stringify(one.settings[key]) ?? "–"))];
  return html`<tr class=${member ? "member" : ""} style=${{ height: `${ROW_HEIGHT}px` }}>
    <td><input type="checkbox" aria-label=${`mark ${run.name}`} checked=${ids.every((id) => marked.has(id))} onChange=${() => mark(ids)} /></td>
    <td>${folded ? html`<button class="fold" aria-expanded=${open.has(run.group)} aria-label="show the seeds" onClick=${toggle}>${open.has(run.group) ? "▾" : "▸"}</button>` : null}
      ${folded ? html`<b>${stem(members)}</b> <small>${members.length} seeds</small>` : html`<a href=${address("run", run.id)}>${run.id}</a>`}
      ${run.fault ? html`<br /><small class="fault">${run.fault}</small>` : null}</td>
    <td class="soft">${run.recipe}</td>
    <td>${states.map((one) => html`<${State} state=${one} />${" "}`)}</td>
    <td style=${{ whiteSpace: "nowrap" }}><span class="meter"><i style=${{ width: `${100 * done}%` }}></i></span><small>${folded ? `${Math.round(100 * done)}%` : `${number(run.step)}${run.steps ? ` / ${number(run.steps)}` : ""}`}</small></td>
    <td class="soft">${left >= 0 ? duration(left) : ""}</td>
    <td title=${run.score_is}>${folded ? html`<span class="interval" title="interquartile mean, and the worst and best seed"><b>${number(mean)}</b>${scores.length > 1 ? html`<small>seeds ${number(Math.min(...scores))} to ${number(Math.max(...scores))}</small>` : null}</span>` : html`<${Interval} value=${run.score} low=${run.low} high=${run.high} />`}</td>
    <td><${Spark} values=${run.spark} /></td>
    <td>${raised.length ? html`<span class=${`badge ${raised.some((one) => one.level === "red") ? "red" : "amber"}`} title=${raised.map((one) => one.words).join("\n")}>${raised[0].name.replaceAll("_", " ")}${raised.length > 1 ? ` +${raised.length - 1}` : ""}</span>` : null}</td>
    ${keys.map((key) => { const all = values(key).slice(0, 3).join(" "); return html`<td class="mono setting" title=${all}>${all.length > CLIPPED ? `${all.slice(0, CLIPPED)}…` : all}</td>`; })}
  </tr>`;
}

function stem(members) {
  return members[0].id.replace(/[-_.]?(seed)?[-_.]?\d+$/, "") || members[0].id;
}
