// Compare, evaluation, world, step, system, lab, decisions, data, chat.

import { Card, Empty, Interval, Table, Wait, address, ask, bytes, duration, html, moment, number, plural, setQuery, share, signed, useAddress, useAnswer, useEffect, useMemo, useRef, useState } from "/static/base.js";
import { Chart, Lines, axisOf, fetchSeries } from "/static/chart.js";
import { StepChoice } from "/static/rollouts.js";
import { Lane, RunHead, TimelineLanes, useLive } from "/static/run.js";

function useRow(run) {
  return useAnswer("run", { run });
}

// ------------------------------------------------------------------------------------------------------------- compare

export function ComparePage() {
  const { query } = useAddress();
  const list = useAnswer("runs", {});
  const ids = (query.runs || "").split(",").filter(Boolean);
  const found = useAnswer("compare", ids.length > 1 ? { run: ids, metric: query.metric } : null);
  if (!list.data) return html`<${Wait} error=${list.error} />`;
  const add = (id) => setQuery({ runs: [...ids, id].join(",") }, { push: true });
  const others = list.data.runs.filter((one) => !ids.includes(one.id));
  return html`<div class="title"><h1>Compare</h1></div>
    <div class="bar"><div class="chips">${ids.map((id) => html`<button onClick=${() => setQuery({ runs: ids.filter((one) => one !== id).join(",") })} title="take it out">${id} ×</button>`)}</div>
      <label>add <select aria-label="add a run" onChange=${(event) => event.target.value && add(event.target.value)}>${[html`<option value="" selected>choose a run</option>`, ...others.map((one) => html`<option value=${one.id}>${one.id}</option>`)]}</select></label>
      <label>metric <input value=${query.metric || ""} placeholder="score at the end" onChange=${(event) => setQuery({ metric: event.target.value })} /></label></div>
    ${ids.length < 2 ? html`<${Empty} title="Choose two runs or more">Runs that differ in their seed alone become one group, with a band.<//>` : found.data ? html`<${Comparison} data=${found.data} />` : html`<${Wait} error=${found.error} />`}`;
}

function Comparison({ data }) {
  const lines = (task) => data.groups.filter((one) => one.curves[task]).map((one) => ({ name: one.name, x: one.curves[task].x, y: one.curves[task].middle, low: one.curves[task].low, high: one.curves[task].high }));
  const profiles = data.groups.filter((one) => data.profiles[one.name]).map((one) => { const own = data.profiles[one.name]; return { name: one.name, x: own.x, y: own.middle, low: own.low, high: own.high }; });
  const keys = [...new Set(data.differences.flatMap((one) => Object.keys(one.settings)))];
  return html`
    <${Card} style="flush" title=${`Score: ${data.metric}`}><${Table} rows=${data.groups} columns=${[
      { title: "group", cell: (one) => html`<b>${one.name}</b> <small>${one.recipe}</small>` },
      { title: "runs", number: true, cell: (one) => one.runs.length },
      { title: "IQM, 95% interval", cell: (one) => html`<${Interval} ...${one.iqm} />` },
      { title: "median", number: true, cell: (one) => number(one.median.value) },
      { title: "mean", number: true, cell: (one) => number(one.mean.value) },
      ...data.tasks.filter((task) => data.groups.some((one) => one.reached[task])).map((task) => ({ title: `${data.curve.unit} to ${number(data.groups.find((one) => one.reached[task]).reached[task].threshold)}`, number: true, cell: (one) => (one.reached[task] ? `${one.reached[task].median === null ? "never" : number(one.reached[task].median)} (${one.reached[task].reached} of ${one.reached[task].runs})` : "–") })),
      { title: "time", number: true, cell: (one) => duration(one.runs.reduce((sum, run) => sum + (run.seconds || 0), 0) / one.runs.length) },
    ]} /><//>
    ${data.improvements.map((one) => html`<p><b>${one.after}</b> scores higher than <b>${one.before}</b> with probability <${Interval} ...${one.probability} />${one.probability.low !== null && one.probability.low <= 0.5 && one.probability.high >= 0.5 ? html` <span class="badge amber">not significant: the interval includes 0.5</span>` : null}</p>`)}
    ${data.paired.map((one) => html`<p>On the same ${plural(one.n, "question")}: ${one.after} against ${one.before} ${signed(one.difference)} (${number(one.low)} to ${number(one.high)}, paired p = ${number(one.p_value)})</p>`)}
    ${data.notes.map((one) => html`<p class="soft">Note: ${one}</p>`)}
    <div class="grid2" style=${{ marginTop: "14px" }}>
      ${data.tasks.map((task) => lines(task).length ? html`<${Card} title=${`${data.curve.metric}${data.tasks.length > 1 ? `, ${task}` : ""}`} note="interquartile mean over the seeds, with its 95% band"><${Lines} lines=${lines(task)} xLabel=${data.curve.unit} /><//>` : null)}
      ${profiles.length ? html`<${Card} title="Performance profile" note="share of runs that score above each value"><${Lines} lines=${profiles} xLabel="score" /><//>` : null}
    </div>
    <${Card} style="flush" title="Settings that differ">${keys.length ? html`<${Table} rows=${keys} columns=${[{ title: "key", style: "mono", cell: (key) => key }, ...data.differences.map((one) => ({ title: one.run, style: "mono", cell: (key) => one.settings[key] ?? "–" }))]} />` : html`<p class="pad soft">none</p>`}<//>`;
}

// ---------------------------------------------------------------------------------------------------------- evaluation

/** Longest common words of two texts, as pieces that were kept, taken away and added. */
export function wordDiff(before, after, most = 400) {
  const split = (text) => text.match(/\s+|[^\s]+/g) || [];
  const [one, other] = [split(before).slice(0, most), split(after).slice(0, most)];
  const lengths = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i -= 1) for (let j = other.length - 1; j >= 0; j -= 1) lengths[i][j] = one[i] === other[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
  const pieces = [];
  let i = 0;
  let j = 0;
  while (i < one.length || j < other.length) {
    if (i < one.length && j < other.length && one[i] === other[j]) { pieces.push(["same", one[i]]); i += 1; j += 1; }
    else if (j < other.length && (i === one.length || lengths[i][j + 1] >= lengths[i + 1][j])) { pieces.push(["added", other[j]]); j += 1; }
    else { pieces.push(["gone", one[i]]); i += 1; }
  }
  return pieces;
}

export function EvaluationPage({ run }) {
  const { query } = useAddress();
  const page = useRow(run);
  const found = useAnswer("evaluation", { run, before: query.before, after: query.after });
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const head = html`<${RunHead} of=${page.data} page="evaluation" />`;
  if (!found.data) return html`${head}<${Wait} error=${found.error} />`;
  const { scores, evaluations, steps, flips, search, side_by_side: sides, paired } = found.data;
  const others = scores.length ? Object.keys(scores[0]).filter((one) => one.includes("@")) : [];
  if (!scores.length && !evaluations.length && !steps.length && !search) return html`${head}<${Empty} title="Not evaluated yet">A table [evaluation] in the config scores checkpoints on held-out problems; hone eval does so afterwards.<//>`;
  return html`${head}
    <div class="grid2">
      ${scores.length ? html`<${Card} title="Held-out score per checkpoint" note="with its 95% interval"><${Lines} xLabel="steps" lines=${[{ name: "score", x: scores.map((one) => one.step), y: scores.map((one) => one.score), low: scores.map((one) => one.low), high: scores.map((one) => one.high) }, ...others.map((name) => ({ name, x: scores.map((one) => one.step), y: scores.map((one) => one[name]) }))]} /><//>` : null}
      ${evaluations.length ? html`<${Card} style="flush" title="Evaluations"><${Table} rows=${evaluations} columns=${[{ title: "policy", cell: (one) => one.stage }, { title: "metric", cell: (one) => one.metric }, { title: "mean, 95% interval", cell: (one) => html`<${Interval} value=${one.mean} low=${one.low} high=${one.high} />` }, { title: "n", number: true, cell: (one) => number(one.n) }]} />
        ${evaluations.flatMap((one) => one.warnings || []).map((one) => html`<p class="pad soft">${one}</p>`)}
        ${paired.map((one) => html`<p class="pad">${one.after} against ${one.before}: <b>${signed(one.difference)}</b> (${number(one.low)} to ${number(one.high)}), p = ${number(one.p_value)}</p>`)}<//>` : null}
    </div>
    ${search ? html`<${Search} search=${search} />` : null}
    ${flips ? html`<h2>Flips</h2>
      <div class="bar"><label>before <select onChange=${(event) => setQuery({ before: event.target.value })}>${steps.map((one) => html`<option value=${one} selected=${one === flips.before}>step ${one}</option>`)}</select></label>
        <label>after <select onChange=${(event) => setQuery({ after: event.target.value })}>${steps.map((one) => html`<option value=${one} selected=${one === flips.after}>step ${one}</option>`)}</select></label></div>
      <${Flips} flips=${flips} />` : null}
    ${!flips && sides.length ? html`<h2>Before and after</h2>${sides.slice(0, 20).map((one) => html`<${Card}><${Flip} one=${one} /><//>`)}` : null}`;
}

const FAMILIES = { pass: "pass@k: one of k answers is right", majority: "majority of k", best_of: "best of k by the scorer", weighted_vote: "vote weighted by the scorer", likeliest: "likeliest of k" };

/** Accuracy by the number of answers, of an evaluation that drew several for each problem. */
function Search({ search }) {
  const size = (one) => Number(one.plan.split(":").pop());
  const names = [...new Set(search.plans.map((one) => one.family))].filter((name) => search.plans.some((one) => one.family === name && size(one) > 1));
  const lines = names.map((name) => { const own = search.plans.filter((one) => one.family === name || one.plan === "pass:1").sort((one, other) => size(one) - size(other)); return { name: FAMILIES[name] || name, x: own.map(size), y: own.map((one) => one.mean), low: own.map((one) => one.low), high: own.map((one) => one.high) }; });
  return html`<h2>Several answers to a problem</h2><div class="grid2">
    ${lines.length ? html`<${Card} title="Accuracy by the number of answers" note=${`${plural(search.problems, "problem")}, with 95% intervals`}><${Lines} xLabel="answers to a problem" lines=${lines} /><//>` : null}
    <${Card} style="flush" title="Plans"><${Table} rows=${search.plans} columns=${[{ title: "plan", cell: (one) => (one.family === "pass" ? `pass@${size(one)}` : one.plan) }, { title: "accuracy, 95% interval", cell: (one) => html`<${Interval} value=${one.mean} low=${one.low} high=${one.high} />` }, { title: "tokens a problem", number: true, cell: (one) => number(Math.round(one.drawn_tokens + one.scored_tokens)) }]} />
      ${search.notes.map((one) => html`<p class="pad soft">${one}</p>`)}<//></div>`;
}

function Flips({ flips }) {
  const { test } = flips;
  if (!flips.common) return html`<p class="soft">the two evaluations have no question in common</p>`;
  const verdict = !test || flips.lost + flips.gained === 0 ? "No answer changed its score." : `${plural(flips.lost, "question")} lost, ${number(flips.gained)} gained of ${number(flips.common)}: the score moved by ${signed(test.difference)} (${number(test.low)} to ${number(test.high)}), exact sign test p = ${number(test.p_value)}${test.p_value < 0.05 ? "" : ", not significant"}.`;
  return html`<p><b>${verdict}</b></p>
    ${flips.tags.length ? html`<div class="card flush"><${Table} rows=${flips.tags} columns=${[{ title: "tag", cell: (one) => one.tag || "none" }, { title: "questions", number: true, cell: (one) => number(one.common) }, { title: "lost", number: true, cell: (one) => number(one.lost) }, { title: "gained", number: true, cell: (one) => number(one.gained) },
      { title: "before", cell: (one) => html`<${Interval} value=${one.before_mean.mean} low=${one.before_mean.low} high=${one.before_mean.high} />` }, { title: "after", cell: (one) => html`<${Interval} value=${one.after_mean.mean} low=${one.after_mean.low} high=${one.after_mean.high} />` },
      { title: "difference, 95% interval", cell: (one) => html`<${Interval} value=${one.test.difference} low=${one.test.low} high=${one.test.high} />` }, { title: "p", number: true, cell: (one) => number(one.test.p_value) }]} /></div>` : null}
    ${flips.rows.length ? html`<div class="card flush">${flips.rows.map((one) => html`<div class="flip"><${Flip} one=${one} /></div>`)}</div>` : null}`;
}

function Flip({ one }) {
  const pieces = useMemo(() => wordDiff(one.before, one.after), [one.before, one.after]);
  const lost = one.after_score < one.before_score;
  return html`<p><span class=${`badge ${lost ? "red" : "good"}`}>${lost ? "lost" : one.after_score > one.before_score ? "gained" : "same"}</span> <span class="mono">${one.prompt.slice(-300)}</span>${one.reference ? html` <small>reference ${one.reference.slice(0, 80)}</small>` : null}${one.tag ? html` <small>${one.tag}</small>` : null}</p>
    <div class="pair"><div><small>before, ${number(one.before_score)}</small><pre>${pieces.filter(([kind]) => kind !== "added").map(([kind, text]) => (kind === "gone" ? html`<del>${text}</del>` : text))}</pre></div>
      <div><small>after, ${number(one.after_score)}</small><pre>${pieces.filter(([kind]) => kind !== "gone").map(([kind, text]) => (kind === "added" ? html`<ins>${text}</ins>` : text))}</pre></div></div>`;
}

// --------------------------------------------------------------------------------------------------------------- world

export function WorldPage({ run }) {
  const { query } = useAddress();
  const page = useRow(run);
  const world = useAnswer("world", { run });
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const head = html`<${RunHead} of=${page.data} page="world" />`;
  if (!world.data) return html`${head}<${Wait} error=${world.error} />`;
  const { episode, map, robustness, steps } = world.data;
  const step = steps.includes(Number(query.step)) ? Number(query.step) : steps[steps.length - 1];
  if (!episode && !map && !robustness.length && !steps.length) return html`${head}<${Empty} title="No world to show">Runs in an environment have an episode, a map of a grid, and robustness here; language models have <a href=${address("rollouts", run)}>rollouts</a>.<//>`;
  return html`${head}
    <div class="grid2">
      ${episode ? html`<${Episode} run=${run} episode=${episode} />` : null}
      ${map ? html`<${PolicyMapCard} map=${map} />` : null}
      ${robustness.length ? html`<${Robustness} rows=${robustness} />` : null}
    </div>
    ${steps.length ? html`<h2>Episodes of training</h2><${StepChoice} step=${step} steps=${steps} /><${Episodes} run=${run} step=${step} />` : null}`;
}

function Episode({ run, episode }) {
  const [at, setAt] = useState(0);
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    const timer = setInterval(() => setAt((one) => (one + 1) % episode.frames), 80);
    return () => clearInterval(timer);
  }, [playing, episode.frames]);
  return html`<${Card} title=${`An episode of the policy of step ${number(episode.step)}`} note=${`return ${number(episode.score)}, ${plural(episode.steps, "decision")}. ${episode.note}`}>
    ${episode.frames ? html`<img class="frame" alt=${`frame ${at + 1}`} src=${`/api/frame?run=${encodeURIComponent(run)}&i=${at}`} />
      <div class="bar" style=${{ marginTop: "10px" }}><button onClick=${() => setPlaying(!playing)}>${playing ? "pause" : "play"}</button>
      <input class="scrub" style=${{ flex: 1 }} type="range" min="0" max=${episode.frames - 1} value=${at} aria-label="frame" onInput=${(event) => { setPlaying(false); setAt(Number(event.target.value)); }} /><small>${at + 1} / ${episode.frames}</small></div>` : null}<//>`;
}

const ARROWS = { left: "←", right: "→", up: "↑", down: "↓", north: "↑", south: "↓", east: "→", west: "←" };

function PolicyMapCard({ map }) {
  const worths = map.slices.flatMap((one) => one.cells.map((cell) => cell.worth).filter((one) => one !== null));
  const [low, high] = [Math.min(...worths), Math.max(...worths)];
  return html`<${Card} title=${`Map of the policy of step ${number(map.step)}`} note=${`${map.worth_is}: ${number(low)} to ${number(high)}, fuller colour is higher`}>
    ${map.slices.map((one) => html`<figure style=${{ margin: 0, display: "inline-block" }}><figcaption class="soft">${one.title}</figcaption>
      <div class="map" style=${{ gridTemplateColumns: `repeat(${one.columns}, 34px)` }}>${one.cells.map((cell) => {
        const moves = Object.entries(cell.moves);
        const part = cell.worth === null ? 0 : 0.1 + 0.8 * ((cell.worth - low) / (high - low || 1));
        const name = moves.length ? moves[0][0] : "";
        return html`<span title=${cell.worth === null ? "" : `${number(cell.worth)}; ${moves.map(([move, chance]) => `${move} ${share(chance)}`).join(", ")}`}
          style=${{ background: cell.worth === null ? "" : `color-mix(in srgb, var(--p0) ${Math.round(100 * part)}%, var(--card))`, color: part > 0.55 ? "var(--card)" : "" }}><u>${cell.mark.trim()}</u>${ARROWS[name] || name.slice(0, 3)}</span>`;
      })}</div></figure>`)}<//>`;
}

function Robustness({ rows }) {
  return html`<${Card} style="flush" title="Robustness" note="score under one perturbation at a time, 95% intervals"><${Table} rows=${rows} columns=${[
    { title: "perturbation", cell: (one) => one.name }, { title: "score", cell: (one) => html`<${Interval} value=${one.mean} low=${one.low} high=${one.high} />` },
    { title: "difference", number: true, cell: (one) => (one.difference === null ? "–" : signed(one.difference)) }, { title: "p", number: true, cell: (one) => number(one.p_value) }]} /><//>`;
}

function Episodes({ run, step }) {
  const { query } = useAddress();
  const found = useAnswer("episodes", { run, step });
  const row = query.row !== undefined ? Number(query.row) : found.data?.traces[0]?.row;
  const trace = useAnswer("trace", row === undefined ? null : { run, step, row });
  if (!found.data) return html`<${Wait} error=${found.error} />`;
  return html`<div class="split"><div class="card flush"><${Table} rows=${found.data.episodes} empty="no episodes in this step" chosen=${(one) => one.row === row} onRow=${(one) => setQuery({ row: one.row })} columns=${[
    { title: "return", number: true, cell: (one) => number(one.score) }, { title: "decisions", number: true, cell: (one) => number(one.decisions) }, { title: "end", cell: (one) => one.end }, { title: "environment", number: true, cell: (one) => number(one.group) }]} /></div>
    <div>${trace.data ? html`<${Trace} trace=${trace.data} />` : html`<${Wait} error=${trace.error} />`}</div></div>`;
}

function Trace({ trace }) {
  const [at, setAt] = useState(0);
  const count = trace.rewards.length;
  useEffect(() => setAt(0), [trace]);
  const x = trace.rewards.map((_, place) => place);
  const total = trace.rewards.reduce((sums, one) => [...sums, (sums[sums.length - 1] || 0) + one], []);
  const actions = (trace.actions[0] || []).map((_, dim) => ({ name: trace.actions[0].length > 1 ? `action ${dim}` : "action", x, y: trace.actions.map((one) => one[dim]) }));
  const seen = trace.observations ? trace.observations[0].slice(0, 8).map((_, dim) => ({ name: `observation ${dim}`, x, y: trace.observations.map((one) => one[dim]) })) : [];
  const place = Math.min(at, count - 1);
  const cell = (title, value) => html`<div><span>${title}</span> <b>${value}</b></div>`;
  const show = (values) => values.map(number).join(", ");
  return html`<${Card} title=${`Return ${number(trace.score)}, ${plural(count, "decision")}`}>
    <input class="scrub" type="range" min="0" max=${count - 1} value=${place} aria-label="decision" onInput=${(event) => setAt(Number(event.target.value))} />
    <div class="token-read" role="status" style=${{ marginTop: 0, border: 0 }}>${cell("decision", `${place + 1} of ${count}`)}${cell("action", show(trace.actions[place]))}${cell("reward", number(trace.rewards[place]))}${cell("so far", number(total[place]))}
      ${trace.values ? cell("value", number(trace.values[place])) : null}${trace.advantages ? cell("advantage", signed(trace.advantages[place])) : null}${trace.logp ? cell("log-probability", number(trace.logp[place])) : null}${trace.observations ? cell("observation", show(trace.observations[place])) : null}</div>
    ${trace.values ? html`<h3>Value</h3><${Lines} height=${130} xLabel="decision" lines=${[{ name: "value", x, y: trace.values }]} cursor=${(one) => one !== null && one !== undefined && setAt(one)} />` : null}
    <h3>Reward</h3><${Lines} height=${130} xLabel="decision" lines=${[{ name: "reward", x, y: trace.rewards }]} cursor=${(one) => one !== null && one !== undefined && setAt(one)} />
    <h3>Action</h3><${Lines} height=${130} xLabel="decision" lines=${actions} />
    ${seen.length ? html`<h3>Observation</h3><${Lines} height=${170} xLabel="decision" lines=${seen} />` : null}<//>`;
}

// ---------------------------------------------------------------------------------------------------------------- lanes

export function LanesPage({ run }) {
  const { query } = useAddress();
  const page = useRow(run);
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const { row, rollouts } = page.data;
  const kept = Object.keys(rollouts).filter((one) => rollouts[one] === "answers").map(Number);
  const steps = kept.length ? kept : row.step ? [row.step] : [];
  const step = steps.includes(Number(query.step)) ? Number(query.step) : steps[steps.length - 1];
  return html`<${RunHead} of=${page.data} page="lanes" />${steps.length ? html`<${StepChoice} step=${step} steps=${steps} /><${Swimlanes} run=${run} step=${step} />` : html`<${Empty} title="No step yet">Lanes of a step appear with its line of metrics.<//>`}`;
}

/** An answer's time: writing, then what it waited for its environment, in all. */
function answerSpans(one, start_s, colour, title) {
  const waited = one.world_seconds || 0;
  const writing = { name: "answer", start_s, seconds_s: one.seconds - waited, colour, title };
  return waited ? [writing, { name: "environment", start_s: start_s + one.seconds - waited, seconds_s: waited, colour, pale: true, title: `${duration(waited)} waiting for the environment` }] : [writing];
}

function Swimlanes({ run, step }) {
  const found = useAnswer("lanes", { run, step });
  if (!found.data) return html`<${Wait} error=${found.error} />`;
  const { timeline, answers } = found.data;
  if (!timeline) return html`<${Empty} title="No times">This step has no time/ metrics.<//>`;
  const most = Math.max(timeline.step_s, ...answers.map((one) => one.seconds));
  const collect = timeline.loop.find((one) => one.name === "collect");
  const begin = collect ? collect.start_s : 0;
  const groups = [...new Set(answers.map((one) => one.group))];
  const shown = answers.slice(0, 256);
  const median = [...answers].sort((one, other) => one.seconds - other.seconds)[Math.floor(answers.length / 2)];
  const longest = answers.reduce((top, one) => (top && top.seconds >= one.seconds ? top : one), null);
  return html`<${Card} title=${`Step ${number(step)}: ${duration(timeline.step_s)}`} note="one part of the loop after another; below, each answer from its request to its end, in the colour of its group; its pale end is the time that it waited for its environment">
    <${TimelineLanes} one=${timeline} />
    ${longest && median && longest.seconds > 1.5 * median.seconds ? html`<p>The longest answer took ${duration(longest.seconds)}, ${(longest.seconds / median.seconds).toFixed(1)} times the median: group ${number(longest.group)}, answer ${number(longest.sample)}.</p>` : null}
    ${shown.length ? shown.map((one) => html`<${Lane} thin=${true} title=${`group ${one.group}, ${one.sample}`} whole=${most} spans=${answerSpans(one, begin, groups.indexOf(one.group) % 8, `${duration(one.seconds)}, ${plural(one.tokens, "token")}, ${one.calls ? `${plural(one.calls, "call")}, ` : ""}score ${number(one.score)}, version ${number(one.version)}, ${one.finish}`)} />`)
      : html`<p class="soft">The answers of this step were written without their times.</p>`}
    ${answers.length > shown.length ? html`<p class="soft">${number(shown.length)} of ${number(answers.length)} answers</p>` : null}<//>`;
}

// --------------------------------------------------------------------------------------------------------------- system

export function SystemPage({ run }) {
  const page = useRow(run);
  const live = useLive(run);
  const found = useAnswer("system", { run }, Math.floor(live.rows / 10));
  const [series, setSeries] = useState(null);
  const charts = found.data ? Object.values(found.data.families).flat() : [];
  const names = charts.flatMap((one) => [one.main, one.low, one.high, one.spread, ...one.others].filter(Boolean));
  useEffect(() => { if (names.length) fetchSeries(run, names, { px: 340 }).then(setSeries, () => {}); }, [run, names.join(), live.rows]);
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const head = html`<${RunHead} of=${page.data} page="system" />`;
  if (!found.data) return html`${head}<${Wait} error=${found.error} />`;
  const { memory, speed, families } = found.data;
  return html`${head}
    ${speed ? html`<p><b>${speed[0].toUpperCase() + speed.slice(1)}.</b></p>` : null}
    ${memory ? html`<${MemoryCard} memory=${memory} />` : html`<${Empty} title="Memory is measured at the end">hone plan tells what a run will need; a finished run shows what it took beside it.<//>`}
    ${Object.entries(families).map(([family, own]) => html`<h2>${family}</h2><div class="charts">${own.map((chart) => html`<${Chart} key=${chart.main} chart=${chart} data=${series} axis=${series ? axisOf(series, "steps") : "steps"} weight=${0} events=${[]} onZoom=${() => {}} onChoose=${() => {}} />`)}</div>`)}`;
}

function MemoryCard({ memory }) {
  const parts = Object.entries(memory.components);
  const most = Math.max(memory.taken_bytes, parts.reduce((sum, [, size]) => sum + size, 0), 1);
  let begin = 0;
  const spans = parts.map(([name, size], place) => { const one = { name, start_s: begin, seconds_s: size, colour: place % 8, pale: place >= 8, title: `${name}: ${bytes(size)}` }; begin += size; return one; });
  return html`<${Card} title="Memory, planned and measured" note=${memory.words}>
    ${parts.length ? html`<${Lane} title="planned" spans=${spans} whole=${most} />` : null}
    <${Lane} title="measured" spans=${[{ name: bytes(memory.taken_bytes), start_s: 0, seconds_s: memory.taken_bytes, colour: 7, title: bytes(memory.taken_bytes) }]} whole=${most} />
    <div class="legend">${parts.map(([name, size], place) => html`<span><i class=${`c${place % 8} ${place >= 8 ? "pale" : ""}`}></i>${name} ${bytes(size)}</span>`)}</div><//>`;
}

// -------------------------------------------------------------------------------------------------- lab, decisions, data

export function LabPage() {
  const found = useAnswer("lab", {});
  if (!found.data) return html`<${Wait} error=${found.error} />`;
  if (!found.data.length) return html`<div class="title"><h1>Lab</h1></div><${Empty} title="No findings yet">hone lab all --out RUNS/lab runs every experiment of a minute.<//>`;
  return html`<div class="title"><h1>Lab</h1><span class="soft">${plural(found.data.length, "finding")}, ${number(found.data.filter((one) => one.holds).length)} hold</span></div>
    ${found.data.map((one) => html`<${Card}><h3><span class=${`badge ${one.holds ? "good" : "red"}`}>${one.holds ? "holds" : "fails"}</span> ${one.name} <small>margin ${share(one.margin)}</small></h3>
      <p>${one.verdict}</p>
      ${(one.claims || []).map((claim) => html`<p class="note">${claim.says}: <b>${number(claim.value)}</b>, ${claim.at_least !== null ? `at least ${number(claim.at_least)}` : `at most ${number(claim.at_most)}`}</p>`)}
      ${one.table ? html`<details><summary>table</summary><${Table} rows=${one.table.rows} columns=${one.table.header.map((title, place) => ({ title, cell: (row) => row[place] }))} /></details>` : null}
      <p class="mono soft">${one.command}</p><//>`)}`;
}

export function DecisionsPage() {
  const found = useAnswer("decisions", {});
  if (!found.data) return html`<div class="title"><h1>Decisions</h1></div><${Wait} error=${found.error} />`;
  const { data } = found;
  if (!data.service) return html`<div class="title"><h1>Decisions</h1></div><${Empty} title="No service">hone watch --service FILE.toml shows the decisions, rewards, versions and rollouts of a service.<//>`;
  return html`<div class="title"><h1>${data.service}</h1><span class="soft">policy ${data.policy}</span></div>
    ${data.tenants.map((one) => html`<${Tenant} one=${one} />`)}
    ${data.rollouts.map((one) => html`<${RolloutCard} one=${one} />`)}
    ${data.versions.length ? html`<${Card} style="flush" title="Versions"><${Table} rows=${data.versions} columns=${[{ title: "version", style: "mono", cell: (one) => one.id }, { title: "stage", cell: (one) => (one.live ? html`<span class="badge good">live</span>` : one.stage) }, { title: "evidence", cell: (one) => one.evidence.map((row) => `${row.kind ?? ""} ${row.verdict ?? ""} ${row.words ?? ""}`).join("; ") || "–" }]} /><//>` : null}`;
}

function Tenant({ one }) {
  const { summary } = one;
  return html`<${Card} title=${`Tenant ${one.tenant}`} note=${one.words}>
    ${one.fault ? html`<p class="fault">${one.fault}</p>` : null}
    ${summary ? html`<div class="strip" style=${{ padding: "4px 0 12px" }}>
      <div class="tile"><b>${number(summary.actions.reduce((sum, each) => sum + each.decisions, 0))}</b><span>decisions of ${plural(summary.units, "unit")}</span></div>
      <div class="tile"><b>${number(summary.mean_reward)}</b><span>mean reward</span></div>
      <div class="tile"><b>${share(summary.open_share)}</b><span>windows still open</span></div>
      <div class="tile"><b>${duration(summary.delays.median_s)}</b><span>median delay of a reward</span></div>
      <div class="tile"><b>${number(summary.smallest_p)}</b><span>least probability</span></div></div>
      <${Table} rows=${summary.actions} columns=${[{ title: "action", cell: (each) => each.name }, { title: "decisions", number: true, cell: (each) => number(each.decisions) },
        { title: "share", cell: (each) => { const all = summary.actions.reduce((sum, other) => sum + other.decisions, 0); return html`<span class="meter"><i style=${{ width: `${(100 * each.decisions) / all}%` }}></i></span>${share(each.decisions / all)}`; } },
        { title: "reward, 95% interval", cell: (each) => html`<${Interval} value=${each.mean} low=${each.low} high=${each.high} />` }]} />
      <p class="note" style=${{ marginTop: "8px" }}>${moment(summary.begin_s)} to ${moment(summary.end_s)}; versions ${summary.versions.join(", ")}</p>` : null}<//>`;
}

function RolloutCard({ one }) {
  return html`<${Card} title=${`Rollout ${one.name}: ${one.stage}`} note=${one.words}>
    <div class="bars">${(one.plan.stages || []).map((stage) => html`<span>${share(stage)}</span><i style=${{ width: `${100 * stage}%` }}></i><small></small>`)}</div>
    <${Table} rows=${one.transitions} empty="no move yet" columns=${[{ title: "when", cell: (each) => moment(each.at_s) }, { title: "from", cell: (each) => each.before }, { title: "to", cell: (each) => each.after }, { title: "reason", cell: (each) => each.words }]} />
    <p class="note">e-value ${number(one.e_value)} of ${number(one.limit)}; ${plural(one.units, "unit")}</p><//>`;
}

export function DataPage({ run }) {
  const page = useRow(run);
  const found = useAnswer("data", { run, rows: 8 });
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const head = html`<${RunHead} of=${page.data} page="data" />`;
  if (!found.data) return html`${head}<${Wait} error=${found.error} what="tokenizing the first rows …" />`;
  const { rows, notes, fault } = found.data;
  if (fault) return html`${head}<${Empty} title="The data cannot be shown here">${fault}<//>`;
  const untrained = rows.length && !rows.some((one) => one.spans.some((span) => span.kind === "end"));
  return html`${head}
    <div class="legend spans"><span class="context">context</span><span class="trained">trained</span><span class="end">end, trained</span></div>
    ${notes.map((one) => html`<div class="alarm"><p>${one}</p></div>`)}
    ${untrained && rows.some((one) => one.spans.some((span) => span.kind === "trained")) ? html`<div class="alarm red" role="alert"><p>No end token is trained in these rows: the policy will not learn to stop.</p></div>` : null}
    ${rows.map((one) => html`<${Card} title=${one.title}><div class="spans mono">${one.spans.map((span) => html`<span class=${span.kind} title=${`${span.kind}, ${plural(span.tokens, "token")}`}>${span.text}</span>`)}</div><//>`)}`;
}

// ---------------------------------------------------------------------------------------------------------------- chat

export function ChatPage({ run }) {
  const page = useRow(run);
  const [messages, setMessages] = useState([]);
  const [text, setText] = useState("");
  const [steps, setSteps] = useState(null);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [heat, setHeat] = useState("1");
  const known = useAnswer("checkpoints", { run });
  if (!page.data || !known.data) return html`<${Wait} error=${page.error || known.error} />`;
  const all = known.data.steps;
  const chosen = steps || [all[0], all[all.length - 1]].filter((one, place, list) => list.indexOf(one) === place);
  const send = async (event) => {
    event.preventDefault();
    if (!text.trim() || busy) return;
    setBusy(true);
    setError("");
    try {
      const answer = await fetch("/api/chat", { method: "POST", headers: { "content-type": "application/json", "x-hone-watch": "1" }, body: JSON.stringify({ run, steps: chosen, text, temperature: Number(heat) }) });
      const body = await answer.json();
      if (!answer.ok) throw new Error(body.error);
      setMessages([...messages, { text, answers: body.answers }]);
      setText("");
    } catch (fault) { setError(fault.message); }
    setBusy(false);
  };
  if (!all.length) return html`<${RunHead} of=${page.data} page="chat" /><${Empty} title="No checkpoints">A chat needs a checkpoint of a language model.<//>`;
  return html`<${RunHead} of=${page.data} page="chat" />
    <p class="note">Each message is asked by itself, as hone sample --prompt does.</p>
    <div class="bar">${chosen.map((one, place) => html`<label>${place ? "right" : "left"} <select onChange=${(event) => setSteps(chosen.map((each, at) => (at === place ? Number(event.target.value) : each)))}>${all.map((each) => html`<option value=${each} selected=${each === one}>step ${each}</option>`)}</select></label>`)}
      <label>temperature <select onChange=${(event) => setHeat(event.target.value)}>${["0", "0.7", "1"].map((one) => html`<option value=${one} selected=${one === heat}>${one}</option>`)}</select></label></div>
    ${messages.map((one) => html`<div class="turn"><b>you</b><pre>${one.text}</pre></div><div class="chat">${one.answers.map((each) => html`<div class="card"><small>step ${number(each.step)}</small><pre>${each.text}</pre></div>`)}</div>`)}
    ${error ? html`<p class="fault" role="alert">${error}</p>` : null}
    <form class="bar" onSubmit=${send}><textarea rows="3" style=${{ flex: 1 }} value=${text} aria-label="message" onInput=${(event) => setText(event.target.value)}></textarea><button class="on" disabled=${busy}>${busy ? "writing …" : "send"}</button></form>`;
}
