// One run: health, alarms, families of charts under one cursor, the step as a timeline, settings, log.

import { Card, Interval, State, Wait, address, ask, duration, figure, html, moment, number, plural, setQuery, share, useAddress, useAnswer, useEffect, useMemo, useRef, useState } from "/static/base.js";
import { Chart, Heat, axisLabel, axisOf, fetchSeries } from "/static/chart.js";

export const TABS = [
  ["run", "charts"], ["rollouts", "rollouts"], ["preferences", "preferences"], ["evaluation", "evaluation"], ["world", "world"], ["lanes", "step"],
  ["system", "system"], ["data", "data"],
];

/** Head of a run's pages, `of` its view: pages without anything to show have no tab. */
export function RunHead({ of, page }) {
  const { row } = of;
  const shown = TABS.filter(([name]) => name === page || !of.without.includes(name));
  return html`<div class="title"><h1>${row.name}</h1><${State} state=${row.state} />
      <span class="soft">${row.recipe}</span>
      <span class="soft">step ${number(row.step)}${row.steps ? ` of ${number(row.steps)}` : ""}${row.left_s !== null ? `, ${duration(row.left_s)} left` : ""}</span></div>
    <nav class="bar chips" aria-label="pages of the run">${shown.map(([name, words]) => html`<a href=${address(name, row.id)}><button aria-pressed=${name === page ? "true" : "false"} tabindex="-1">${words}</button></a>`)}</nav>`;
}

/** Rows of a run as they grow: a number that changes with each event of the stream. */
export function useLive(run) {
  const [rows, setRows] = useState(0);
  const [lost, setLost] = useState(false);
  useEffect(() => {
    // A browser opens six connections to a server: a tab that nobody looks at holds none of them.
    let stream = null;
    const look = () => {
      if (stream) stream.close();
      stream = null;
      if (document.visibilityState !== "visible") return;
      stream = new EventSource(`/api/live?run=${encodeURIComponent(run)}`);
      stream.addEventListener("rows", (event) => { const data = JSON.parse(event.data); setRows(data.generation * 1e9 + data.rows); setLost(false); });
      stream.onerror = () => setLost(true);
    };
    look();
    document.addEventListener("visibilitychange", look);
    return () => { document.removeEventListener("visibilitychange", look); stream?.close(); };
  }, [run]);
  return { rows, lost };
}

export function RunPage({ run }) {
  const { query } = useAddress();
  const live = useLive(run);
  const [page, setPage] = useState(null);
  const [error, setError] = useState("");
  const asked = useRef({ at: 0, timer: 0 });
  useEffect(() => {
    // The newest rows are on the charts at once; all else of the page is asked for every two seconds at most.
    if (asked.current.timer || (live.rows && asked.current.rows === live.rows)) return;
    asked.current.timer = setTimeout(() => {
      asked.current = { at: Date.now(), timer: 0 };
      ask("run", { run }).then((data) => { asked.current.rows = data.rows; setPage(data); setError(""); }, (fault) => setError(fault.message));
    }, Math.max(0, asked.current.at + 2000 - Date.now()));
  }, [run, live.rows]);
  useEffect(() => () => clearTimeout(asked.current.timer), []);
  if (!page) return html`<${Wait} error=${error} />`;
  return html`<${RunHead} of=${page} page="run" />
    ${live.lost ? html`<p class="fault" role="status">the server does not answer; the page goes on as soon as it does</p>` : null}
    <${Health} page=${page} />
    <${Cause} cause=${page.diagnosis} />
    <${Alarms} row=${page.row} run=${run} />
    ${page.problems.length ? html`<p class="fault">${page.problems.join("\n")}</p>` : null}
    ${page.findings.map((one) => html`<div class="alarm"><p>${one}</p></div>`)}
    <${Curves} run=${run} page=${page} live=${live.rows} query=${query} />
    <${Timelines} timelines=${page.timelines} />
    <div class="grid2">
      <${Events} events=${page.events} />
      <${Settings} page=${page} />
    </div>
    <${Log} lines=${page.log} />`;
}

function Health({ page }) {
  const { row, health } = page;
  const raised = row.alarms.filter((one) => one.raised).length;
  return html`<div class="card strip">
    <div class="tile"><b><${Interval} value=${row.score} low=${row.low} high=${row.high} /></b><span>${row.score_is || "no score yet"}</span></div>
    <div class="tile"><b>${raised ? html`<span class=${`badge ${row.alarms.some((one) => one.raised && one.level === "red") ? "red" : "amber"}`}>${plural(raised, "alarm")}</span>` : "none"}</b><span>alarms</span></div>
    <div class="tile"><b>${duration(row.median_step_s)}</b><span>a step, median</span></div>
    ${health.filter((one) => one.value !== null).map((one) => html`<div class="tile"><b>${figure(one.value, one.unit)}
      ${one.start !== null && Math.abs(one.start - one.value) > 0.02 * Math.abs(one.start) ? html`<small class="soft"> from ${figure(one.start, one.unit)}</small>` : null}</b>
      <span>${one.caption}</span></div>`)}
  </div>`;
}

function Cause({ cause }) {
  return cause ? html`<div class="alarm red cause" role="alert"><p>${cause[0].toUpperCase() + cause.slice(1)}</p></div>` : null;
}

export function Alarms({ row, run }) {
  return row.alarms.map((one) => html`<div class=${`alarm ${one.level} ${one.raised ? "" : "ended"}`} role=${one.raised ? "alert" : "note"}>
    <p><b>${one.name.replaceAll("_", " ")}</b> <span class="soft">${one.raised ? "since" : "ended at"} step ${number(one.step)}</span>: ${one.words}
      ${one.remedy ? html`<br /><span class="soft">To try: ${one.remedy}</span>` : null}
      ${" "}<a href=${address("rollouts", run, { step: one.step })}>answers near that step</a></p></div>`);
}

// -------------------------------------------------------------------------------------------------------------- curves

const SMOOTHING = [0, 0.6, 0.9, 0.97];

function Curves({ run, page, live, query }) {
  const [series, setSeries] = useState(null);
  const [heats, setHeats] = useState([]);
  const [error, setError] = useState("");
  const [chosen, setChosen] = useState(0);
  const [logs, setLogs] = useState({});
  const [tables, setTables] = useState({});
  const [help, setHelp] = useState(false);
  const [closed, setClosed] = useState(new Set());
  const busy = useRef({ running: false, again: false });
  const from = query.from === undefined ? undefined : Number(query.from);
  const to = query.to === undefined ? undefined : Number(query.to);
  const weight = SMOOTHING.includes(Number(query.smooth)) ? Number(query.smooth) : 0;
  const words = (query.q || "").toLowerCase();
  const families = useMemo(() => Object.entries(page.families)
    .map(([name, charts]) => [name, charts.filter((one) => !words || one.title.toLowerCase().includes(words))])
    .filter(([, charts]) => charts.length), [JSON.stringify(page.families), words]);
  const open = families.filter(([name]) => !closed.has(name));
  const charts = open.flatMap(([, own]) => own);
  const names = [...new Set(charts.flatMap((one) => [one.main, one.low, one.high, one.spread, ...one.others].filter(Boolean)))];
  const key = JSON.stringify([run, names, from, to]);

  useEffect(() => {
    // One request at a time; what changed meanwhile is asked for by the next one.
    if (live && series && busy.current.key === key && series.generation * 1e9 + series.rows === live) return;
    busy.current.key = key;
    busy.current.wanted = { names, from, to };
    const fetchOnce = () => {
      if (busy.current.running) { busy.current.again = true; return; }
      busy.current.running = true;
      busy.current.again = false;
      const wanted = busy.current.wanted;
      const px = Math.max(200, Math.min(900, Math.round((document.querySelector(".plot")?.clientWidth || 340) - 68)));
      fetchSeries(run, wanted.names, { ...wanted, px }).then(
        (data) => { setSeries(data); setError(""); performance.mark("hone-series"); },
        (fault) => setError(fault.message),
      ).finally(() => { busy.current.running = false; if (busy.current.again) fetchOnce(); });
    };
    fetchOnce();
  }, [key, live]);

  useEffect(() => {
    let current = true;
    Promise.all(page.histograms.map((name) => ask("histogram", { run, name }).catch(() => null))).then((all) => current && setHeats(all.filter(Boolean)));
    return () => { current = false; };
  }, [run, page.histograms.join(), Math.floor(page.row.step / 25)]);

  const axis = series ? axisOf(series, query.x || "steps") : "steps";
  const nextAxis = () => { const own = series ? series.axes : {}; const all = ["steps", "seconds", "amount"].filter((one) => own[one]); setQuery({ x: all[(all.indexOf(axis) + 1) % all.length] }); };
  const toSteps = (value) => {
    const { steps } = series.axes;
    if (axis === "steps") return Math.round(value);
    const place = series.axes[axis].findIndex((one) => one >= value);
    return steps[place < 0 ? steps.length - 1 : place];
  };
  const zoom = (ends) => setQuery(ends ? { from: toSteps(ends[0]), to: toSteps(ends[1]) } : { from: undefined, to: undefined }, { push: true });

  const state = useRef({});
  state.current = { charts, chosen, axis, nextAxis, zoom };
  useEffect(() => {
    const pressed = (event) => {
      if (event.target.closest("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
      const { charts: own, chosen: at } = state.current;
      const choose = (place) => { const safe = Math.max(0, Math.min(own.length - 1, place)); setChosen(safe); document.querySelectorAll(".chart[data-metric]")[safe]?.focus(); };
      const name = own[at]?.main;
      switch (event.key) {
        case "/": event.preventDefault(); document.querySelector("[data-filter]")?.focus(); break;
        case "j": choose(at + 1); break;
        case "k": choose(at - 1); break;
        case "l": if (name) setLogs((old) => ({ ...old, [name]: !old[name] })); break;
        case "t": if (name) setTables((old) => ({ ...old, [name]: !old[name] })); break;
        case "x": state.current.nextAxis(); break;
        case "c": location.hash = address("compare", "", { runs: run }); break;
        case "Escape": if (state.current) state.current.zoom(null); break;
        case "?": setHelp(true); break;
        default:
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [run]);

  const events = useMemo(() => {
    if (!series || !series.axes.steps) return [];
    const { steps } = series.axes;
    const own = series.axes[axis];
    return page.events.filter((one) => one.step > 0 && !["finish", "start", "diagnosis"].includes(one.kind)).map((one) => {
      const place = Array.prototype.findIndex.call(steps, (step) => step >= one.step);
      return { kind: one.kind, x: axis === "steps" ? one.step : own[place < 0 ? own.length - 1 : place] };
    });
  }, [series, JSON.stringify(page.events), axis]);

  return html`
    <div class="bar" style=${{ marginTop: "18px" }}>
      <input type="search" data-filter value=${query.q || ""} placeholder="filter charts" aria-label="filter charts" onInput=${(event) => setQuery({ q: event.target.value })} />
      <label>over <select aria-label="axis" onChange=${(event) => setQuery({ x: event.target.value })}>
        ${Object.keys(series ? series.axes : { steps: 1 }).map((one) => html`<option value=${one} selected=${one === axis}>${series ? axisLabel(series, one) : one}</option>`)}</select></label>
      <label>smoothing <select aria-label="smoothing" onChange=${(event) => setQuery({ smooth: Number(event.target.value) || undefined })}>
        ${SMOOTHING.map((one) => html`<option value=${one} selected=${one === weight}>${one ? one : "none"}</option>`)}</select></label>
      <span class="spring"></span>
      ${from !== undefined ? html`<span class="soft" role="status">steps ${number(from)} to ${number(to)}</span><button onClick=${() => zoom(null)}>whole run</button>` : html`<span class="soft">drag over a chart to zoom</span>`}
      <button onClick=${() => setHelp(true)} aria-label="keys">?</button>
    </div>
    ${error ? html`<p class="fault" role="alert">${error}</p>` : null}
    ${!families.length ? html`<p class="soft">${words ? "no chart has such a name" : "no metric has moved yet"}</p>` : null}
    ${families.map(([family, own]) => html`<section key=${family}>
      <h2><button class="fold" aria-expanded=${!closed.has(family)} aria-label=${`fold ${family}`} onClick=${() => { const fresh = new Set(closed); fresh.has(family) ? fresh.delete(family) : fresh.add(family); setClosed(fresh); }}>${closed.has(family) ? "▸" : "▾"}</button>${family} <small>${own.length}</small></h2>
      ${closed.has(family) ? null : html`<div class="charts">
        ${own.map((chart) => html`<${Chart} key=${chart.main} chart=${chart} data=${series} axis=${axis} weight=${weight} log=${Boolean(logs[chart.main])} tabled=${Boolean(tables[chart.main])}
          events=${events} onZoom=${zoom} chosen=${charts[chosen] === chart} onChoose=${() => setChosen(charts.indexOf(chart))} />`)}
        ${family === "Outcome" ? heats.filter((one) => one.name === "reward").map((one) => html`<${Heat} key=${one.name} data=${one} />`) : null}
        ${family === "Policy" ? heats.filter((one) => ["ratio", "entropy", "advantage"].includes(one.name)).map((one) => html`<${Heat} key=${one.name} data=${one} />`) : null}
        ${family === "Lengths" ? heats.filter((one) => one.name === "length").map((one) => html`<${Heat} key=${one.name} data=${one} />`) : null}
      </div>`}
    </section>`)}
    <${Constants} constants=${page.constants} />
    ${help ? html`<${Keys} close=${() => setHelp(false)} />` : null}`;
}

function Keys({ close }) {
  const box = useRef(null);
  useEffect(() => { box.current?.showModal(); }, []);
  const keys = [["/", "filter"], ["j k", "next chart, chart before"], ["l", "logarithmic scale"], ["x", "axis: steps, time, tokens"], ["t", "table of the chart"], ["c", "compare"], ["[ ]", "step before, next step (rollouts)"], ["← →", "token before, next token (rollouts)"], ["Esc", "whole run"], ["?", "these keys"]];
  return html`<dialog ref=${box} onClose=${close}><h3>Keys</h3><dl>${keys.map(([key, words]) => html`<dt>${key.split(" ").map((one) => html`<kbd>${one}</kbd> `)}</dt><dd>${words}</dd>`)}</dl>
    <button onClick=${() => box.current.close()}>close</button></dialog>`;
}

function Constants({ constants }) {
  const known = constants.filter((one) => one.value !== null);
  const nothing = constants.filter((one) => one.value === null).map((one) => one.name);
  if (!constants.length) return null;
  return html`<${Card} title="The same at every step" note=${nothing.length ? `never a finite number: ${nothing.join(", ")}` : ""}>
    <ul class="words">${known.map((one) => html`<li title=${one.meaning}><span>${one.name}</span><b>${figure(one.value, one.unit)}</b></li>`)}</ul><//>`;
}

// ------------------------------------------------------------------------------------------------------------ timeline

const PART_ORDER = ["collect", "values", "credit", "update", "publish", "distance", "evaluate", "save", "other", "decode", "prefill", "bookkeeping", "tools", "rewards", "episodes", "held"];
export const partColour = (name, place) => { const at = PART_ORDER.indexOf(name); return at < 0 ? place % 8 : at % 8; };

/** Share of a lane from which on a block has room for its name. */
const NAMED = 0.06;

export function Lane({ title, spans, whole, thin = false }) {
  return html`<div class="lane"><span title=${title}>${title}</span><div class=${`blocks ${thin ? "thin" : ""}`}>
    ${spans.map((one, place) => html`<i class=${`c${one.colour ?? partColour(one.name, place)} ${one.pale ? "pale" : ""}`} title=${one.title || `${one.name}: ${duration(one.seconds_s)}, ${share(one.seconds_s / whole)}`}
      style=${{ left: `${(100 * one.start_s) / whole}%`, width: `${(100 * one.seconds_s) / whole}%` }}>${!thin && one.seconds_s / whole > NAMED ? one.name : ""}</i>`)}
  </div></div>`;
}

export function TimelineLanes({ one }) {
  const longest = Math.max(one.step_s, ...one.overlapping.map((span) => span.start_s + span.seconds_s));
  const small = [...one.loop, ...one.collect_parts].filter((span) => span.seconds_s / longest <= NAMED && span.seconds_s / longest > 0.002);
  return html`<${Lane} title="a step" spans=${one.loop} whole=${longest} />
    ${one.collect_parts.length ? html`<${Lane} title="collect" spans=${one.collect_parts} whole=${longest} />` : null}
    ${one.overlapping.length ? html`<${Lane} title="beside it" spans=${one.overlapping} whole=${longest} />` : null}
    ${small.length ? html`<div class="legend">${small.map((span) => html`<span><i class=${`c${partColour(span.name, 0)}`}></i>${span.name} ${duration(span.seconds_s)}</span>`)}</div>` : null}`;
}

function Timelines({ timelines }) {
  const [shown, setShown] = useState(0);
  if (!timelines.length) return null;
  const one = timelines[Math.min(shown, timelines.length - 1)];
  return html`<h2>Time of a step</h2><div class="card">
    <div class="bar chips">${timelines.map((each, place) => html`<button aria-pressed=${place === shown ? "true" : "false"} onClick=${() => setShown(place)}>${each.title}</button>`)}</div>
    <p><b>${one.bottleneck}</b></p>
    <${TimelineLanes} one=${one} />
    ${one.waits.length ? html`<p class="note">${one.waits.map((wait) => `${wait.waiter} waited ${duration(wait.seconds_s)} for ${wait.waited_for}`).join("; ")}</p>` : null}
  </div>`;
}

// --------------------------------------------------------------------------------------------- events, settings, log

function Events({ events }) {
  const shown = [...events].reverse().slice(0, 200);
  return html`<section class="card flush" style=${{ marginTop: "14px" }}><h3>Events</h3>${shown.length ? html`<div class="log scroll"><table><tbody>${shown.map((one) => html`<tr><td class="n">${number(one.step)}</td>
    <td class="soft" style=${{ whiteSpace: "nowrap" }}>${moment(one.at_s)}</td><td><span class=${`badge ${["failure", "alarm"].includes(one.kind) ? "red" : ""}`}>${one.kind.replace("_", " ")}</span></td><td>${one.words}</td></tr>`)}</tbody></table></div>`
    : html`<p class="soft pad">this run wrote no events: it is of an earlier version, or has just begun</p>`}</section>`;
}

function Settings({ page }) {
  const [all, setAll] = useState(false);
  const shown = page.config.filter((one) => all || one.origin !== "default");
  return html`<section class="card flush" style=${{ marginTop: "14px" }}><h3>Settings <button onClick=${() => setAll(!all)} style=${{ float: "right" }}>${all ? "own only" : `all ${page.config.length}`}</button></h3>
    <p class="note">${page.about.machine}; hone ${page.about.versions.hone}</p>
    ${page.changes.map((one) => html`<p class="pad soft">changed after step ${number(one.step)}: ${one.words}</p>`)}
    <div class="log scroll"><table><tbody>${shown.map((one) => html`<tr><td class="mono">${one.key}</td><td class="mono">${one.value}</td><td class="soft">${one.origin}</td></tr>`)}</tbody></table></div></section>`;
}

function Log({ lines }) {
  if (!lines.length) return null;
  return html`<${Card} title="Log"><pre class="log">${lines.map((one) => html`<span class=${/ (ERROR|WARNING) /.test(one) ? "bad" : ""}>${one}${"\n"}</span>`)}</pre><//>`;
}
