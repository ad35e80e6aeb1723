// Rollouts: groups of answers left, one answer right, with its tokens, its turns, its group, and its prompt over time.

import { Card, Empty, Wait, address, duration, html, number, plural, setQuery, share, signed, useAddress, useAnswer, useEffect, useMemo, useState } from "/static/base.js";
import { Lines } from "/static/chart.js";
import { RunHead, useLive } from "/static/run.js";
import { TokenView } from "/static/tokens.js";

const NAMES = { solved: "solved groups", failed: "failed groups", missing: "missing", truncated: "truncated", longest: "longest", clipped: "most clipped", mismatch: "mismatch", repeats: "repeats itself", new: "new since the file before" };

/** Reasons why an answer ended that are worth a word; one that ended by itself is as it should be. */
const ENDS = { length: "cut at the limit", max_tokens: "cut at the limit", context: "cut: context full", turns: "cut: last turn", deadline: "deadline", world_died: "environment died" };

export function RolloutsPage({ run }) {
  const { query } = useAddress();
  const live = useLive(run);
  const page = useAnswer("run", { run }, Math.floor(live.rows / 5));
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const { rollouts } = page.data;
  const steps = Object.keys(rollouts).map(Number).sort((one, other) => one - other);
  const head = html`<${RunHead} of=${page.data} page="rollouts" />`;
  if (!steps.length) return html`${head}<${Empty} title="No rollouts are kept">A run writes them with its metrics: run.rollouts_every sets how often, run.rollouts_keep_mb how many stay.<//>`;
  const asked = Number(query.step);
  const step = steps.includes(asked) ? asked : asked > 0 ? steps.reduce((near, one) => (Math.abs(one - asked) < Math.abs(near - asked) ? one : near)) : steps[steps.length - 1];
  const body = rollouts[step] === "episodes" ? html`<${EpisodesHint} run=${run} step=${step} />` : html`<${Answers} run=${run} step=${step} steps=${steps} query=${query} />`;
  return html`${head}<${StepChoice} step=${step} steps=${steps} />${body}`;
}

export function StepChoice({ step, steps }) {
  const at = steps.indexOf(step);
  const go = (place) => setQuery({ step: steps[Math.max(0, Math.min(steps.length - 1, place))], row: undefined, page: undefined });
  useEffect(() => {
    const pressed = (event) => { if (event.target.closest("input, select, textarea")) return; if (event.key === "[") go(at - 1); if (event.key === "]") go(at + 1); };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [at, steps.join()]);
  return html`<div class="bar"><button onClick=${() => go(at - 1)} disabled=${at <= 0} aria-label="step before">‹</button>
    <b>step ${number(step)}</b><button onClick=${() => go(at + 1)} disabled=${at >= steps.length - 1} aria-label="next step">›</button>
    <input type="range" class="scrub" style=${{ maxWidth: "420px" }} min="0" max=${steps.length - 1} value=${at} aria-label="step" onInput=${(event) => go(Number(event.target.value))} />
    <small>${plural(steps.length, "file")} kept, steps ${number(steps[0])} to ${number(steps[steps.length - 1])}</small></div>`;
}

const EpisodesHint = ({ run, step }) => html`<${Empty} title="Episodes of an environment"><a href=${address("world", run, { step })}>The world's page</a> plays them decision by decision.<//>`;

function Answers({ run, step, steps, query }) {
  const chip = query.chip || "";
  const text = query.text || "";
  const at = Number(query.page || 0);
  const table = useAnswer("rollouts", { run, step, chip, text, page: at });
  const rows = table.data ? table.data.rows : [];
  const groups = useMemo(() => { const made = []; for (const one of rows) { const last = made[made.length - 1]; if (last && last[0].group === one.group) last.push(one); else made.push([one]); } return made; }, [table.data]);
  const row = query.row !== undefined ? Number(query.row) : rows[0]?.row;
  const most = Math.max(1e-9, ...rows.map((one) => Math.abs(one.advantage ?? 0)));
  if (!table.data) return html`<${Wait} error=${table.error} />`;
  const { data } = table;
  return html`
    <div class="bar"><input type="search" value=${text} placeholder="search prompts and answers" aria-label="search answers" onChange=${(event) => setQuery({ text: event.target.value, page: undefined, row: undefined })} />
      <div class="chips" role="group" aria-label="filters">${Object.keys(data.chips).map((one) => html`<button title=${data.chips[one]} aria-pressed=${one === chip ? "true" : "false"}
        onClick=${() => setQuery({ chip: one === chip ? undefined : one, page: undefined, row: undefined })}>${NAMES[one] || one}</button>`)}</div></div>
    <p class="note" role="status">${number(data.selected)} of ${plural(data.total, "answer")} in ${plural(data.groups, "group")};
      ${" "}${data.flat_groups ? `${number(data.flat_groups)} groups teach nothing: all their scores are equal` : "every group has scores that differ"}</p>
    ${!rows.length ? html`<${Empty} title="No answer is left">${chip ? data.chips[chip] : "The search found nothing."}<//>` : html`
    <div class="split"><div>
      ${groups.map((own) => html`<div class="group" key=${`${own[0].group}-${own[0].row}`}><header><span class="mono" title=${own[0].prompt}>${own[0].prompt.slice(-160)}</span>
        <small>${own[0].group_mean === null ? "no score" : `mean ${number(own[0].group_mean)}`}${own[0].group_count > 1 ? `, spread ${number(own[0].group_spread)}` : ""}</small></header>
        ${own.map((one) => html`<div class=${`reply ${one.row === row ? "chosen" : ""}`} role="button" tabindex="0" onClick=${() => setQuery({ row: one.row })}
          onKeyDown=${(event) => event.key === "Enter" && setQuery({ row: one.row })}>
          <${Score} one=${one} most=${most} /><span class="mono">${one.completion || " "}</span><small>${plural(one.tokens, "token")}${ENDS[one.finish] ? `, ${ENDS[one.finish]}` : ""}</small></div>`)}
      </div>`)}
      <${Pages} data=${data} at=${at} />
    </div><div class="answer">${row === undefined ? null : html`<${Answer} run=${run} step=${step} row=${row} steps=${steps} />`}</div></div>`}`;
}

function Score({ one, most }) {
  if (one.score === null) return html`<span class="badge amber" title=${one.status}>${one.status}</span>`;
  const push = (one.advantage ?? 0) / most;
  return html`<span class=${`score ${push > 0.05 ? "up" : push < -0.05 ? "down" : ""}`} title=${one.advantage === null ? "" : `advantage ${signed(one.advantage)}`}>${number(one.score)}</span>`;
}

function Pages({ data, at }) {
  const count = Math.ceil(data.selected / data.page_rows);
  if (count < 2) return null;
  const go = (place) => setQuery({ page: place || undefined, row: undefined });
  return html`<div class="bar"><button disabled=${at <= 0} onClick=${() => go(at - 1)}>‹ before</button><span class="soft">page ${number(at + 1)} of ${number(count)}</span>
    <button disabled=${at >= count - 1} onClick=${() => go(at + 1)}>next ›</button></div>`;
}

// -------------------------------------------------------------------------------------------------------- preferences

export function PreferencesPage({ run }) {
  const { query } = useAddress();
  const live = useLive(run);
  const page = useAnswer("run", { run }, Math.floor(live.rows / 5));
  if (!page.data) return html`<${Wait} error=${page.error} />`;
  const { rollouts } = page.data;
  const steps = Object.keys(rollouts).filter((one) => rollouts[one] === "answers").map(Number).sort((one, other) => one - other);
  const head = html`<${RunHead} of=${page.data} page="preferences" />`;
  if (!steps.length) return html`${head}<${Empty} title="No pairs are kept">A run on preferences writes them with its metrics: run.rollouts_every sets how often.<//>`;
  const step = steps.includes(Number(query.step)) ? Number(query.step) : steps[steps.length - 1];
  return html`${head}<${StepChoice} step=${step} steps=${steps} /><${Pairs} run=${run} step=${step} at=${Number(query.page || 0)} />`;
}

function Pairs({ run, step, at }) {
  const found = useAnswer("pairs", { run, step, page: at });
  if (!found.data) return html`<${Wait} error=${found.error} />`;
  const { data } = found;
  if (!data.rows.length) return html`<${Empty} title="No pair">No group of this step has answers whose scores differ.<//>`;
  return html`<p><b>${data.known ? `${number(data.known - data.wrong)} of ${plural(data.known, "pair")} in the right order; mean margin ${signed(data.mean)} nats.` : "The margins of this step were not written."}</b></p>
    <p class="note">Margin: log-ratio of the policy to the reference (without one, log-probability), chosen less rejected, before the step's update. The smallest stands first.</p>
    <div class="card flush">${data.rows.map((one) => html`<div class="flip"><p>${one.margin === null ? null : html`<span class=${`badge ${one.margin < 0 ? "red" : "good"}`}>margin ${signed(one.margin)} nats</span> `}<span class="mono">${one.prompt.slice(-300)}</span></p>
      <div class="pair">${one.answers.map((each, place) => html`<div><small>${place ? "rejected" : "chosen"}, ${plural(each.tokens, "token")}${each.log_ratio === null ? "" : `, log-ratio ${signed(each.log_ratio)} nats`} <a href=${address("rollouts", run, { step, row: each.row })}>tokens</a></small><pre>${each.text}</pre></div>`)}</div></div>`)}</div>
    <${Pages} data=${data} at=${at} />`;
}

// ------------------------------------------------------------------------------------------------------------- answer

const VIEWS = { tokens: "tokens", text: "text", group: "group side by side", time: "prompt over time" };

function Answer({ run, step, row }) {
  const { query } = useAddress();
  const answer = useAnswer("answer", { run, step, row });
  if (!answer.data) return html`<${Card}><${Wait} error=${answer.error} /><//>`;
  const { data } = answer;
  const views = Object.keys(VIEWS).filter((one) => one !== "tokens" || data.tokens_of);
  const view = views.includes(query.view) ? query.view : views[0];
  const components = Object.entries(data.components || {});
  return html`<div class="card">
    <div class="bar"><b>group ${number(data.group)}, answer ${number(data.sample)}</b>
      <span class="soft">score ${number(data.score)}${data.advantage !== null ? `, advantage ${signed(data.advantage)}` : ""}, ${plural(data.tokens, "token")}${ENDS[data.finish] ? `, ${ENDS[data.finish]}` : ""}${data.seconds ? `, took ${duration(data.seconds)}` : ""}${data.world_seconds ? `, of which it waited ${duration(data.world_seconds)} for its environment` : ""}${data.calls ? `, ${plural(data.calls, "tool call")}` : ""}</span></div>
    ${components.length ? html`<p class="note">${components.map(([name, value]) => `${name} ${number(value)}`).join("  ·  ")}</p>` : null}
    ${data.reference !== null && data.reference !== undefined ? html`<p class="note">reference: <span class="mono">${data.reference}</span></p>` : null}
    <div class="bar chips" role="tablist">${views.map((one) => html`<button role="tab" aria-selected=${one === view} aria-pressed=${one === view ? "true" : "false"} onClick=${() => setQuery({ view: one })}>${VIEWS[one]}</button>`)}</div>
    ${view === "tokens" ? html`<${TokenView} answer=${data} />` : null}
    ${view === "text" ? html`<${Conversation} data=${data} />` : null}
    ${view === "group" ? html`<div class="siblings">${data.siblings.map((one) => html`<div class=${one.row === row ? "chosen" : ""} role="button" tabindex="0" onClick=${() => setQuery({ row: one.row })}>
      <b>${number(one.score)}</b> <small>${one.advantage === null ? "" : `advantage ${signed(one.advantage)}`}, ${plural(one.tokens, "token")}</small><pre>${one.completion}</pre></div>`)}</div>` : null}
    ${view === "time" ? html`<${OverTime} run=${run} step=${step} row=${row} />` : null}
    ${!data.tokens_of ? html`<p class="note">This run kept no tokens: it is of a version before rollouts had them.</p>` : null}
  </div>`;
}

/** Tokens of the policy's turns: runs of sampled tokens, where they are as many as its texts; else none. */
function turnTokens(tokens, count) {
  const runs = [];
  if (tokens) tokens.mask.forEach((own, place) => { if (own && (place === 0 || !tokens.mask[place - 1])) runs.push([place, place + 1]); else if (own) runs[runs.length - 1][1] = place + 1; });
  return runs.length === count ? runs : [];
}

/** Figures of one turn in words: tokens, the weights' version, the critic's value at its first and last token, advantage. */
function turnWords(tokens, [begin, end], advantage) {
  const part = (column) => (tokens[column] || []).slice(begin, end).filter((one) => one !== null && one !== undefined);
  const [versions, values, advantages] = [[...new Set(part("versions"))], part("values"), part("advantages")];
  const mean = advantages.length ? advantages.reduce((sum, one) => sum + one, 0) / advantages.length : advantage;
  return [plural(end - begin, "token"), versions.length ? `version ${versions.map(number).join(" to ")}` : "",
    values.length ? `value ${number(values[0])} to ${number(values[values.length - 1])}` : "", mean === null ? "" : `advantage ${signed(mean)}`].filter(Boolean).join(", ");
}

const CALL = /^\s*(\{[\s\S]*"name"\s*:|<tool_call>|<function)/;

export function Conversation({ data }) {
  const turns = data.turns.length ? data.turns : [["policy", data.completion]];
  const runs = turnTokens(data.tokens_of, turns.filter(([speaker]) => speaker === "policy").length);
  let spoken = -1;
  const versions = data.tokens_of ? [...new Set(data.tokens_of.versions.filter((one) => one !== null))] : [data.version];
  return html`<div class="turn"><b>prompt</b><pre>${data.prompt}</pre></div>
    ${turns.map(([speaker, text], place) => html`<div class=${`turn ${speaker}`}><b>${speaker === "policy" ? `policy, turn ${Math.floor(place / 2) + 1}` : speaker}${CALL.test(text) ? ", a call" : ""}</b>${speaker === "policy" && runs[(spoken += 1)] ? html` <small>${turnWords(data.tokens_of, runs[spoken], data.advantage)}</small>` : null}
      ${speaker === "policy" && !CALL.test(text) ? html`<pre>${text}</pre>` : html`<details open=${text.length < 400}><summary>${text.slice(0, 80).replaceAll("\n", " ")}</summary><pre>${text}</pre></details>`}</div>`)}
    <p class="note">written by ${plural(versions.length, "version")} of the weights: ${versions.map(number).join(", ")}</p>`;
}

function OverTime({ run, step, row }) {
  const answer = useAnswer("prompt", { run, step, row });
  if (!answer.data) return html`<${Wait} error=${answer.error} />`;
  const { steps } = answer.data;
  const known = steps.filter((one) => one.mean !== null);
  return html`<p class="note">The same prompt at ${plural(steps.length, "step")}.</p>
    ${known.length > 1 ? html`<${Lines} height=${150} xLabel="steps" lines=${[{ name: "mean score", x: known.map((one) => one.step), y: known.map((one) => one.mean) }]} />` : null}
    ${[...steps].reverse().map((one) => html`<h3 style=${{ marginTop: "12px" }}><a href=${address("rollouts", run, { step: one.step, row: one.answers[0].row, view: "time" })}>step ${number(one.step)}</a> <small>mean ${number(one.mean)}</small></h3>
      ${one.answers.slice(0, 8).map((each) => html`<div class="reply" onClick=${() => { location.hash = address("rollouts", run, { step: one.step, row: each.row, view: "time" }); }}><span class="score">${number(each.score)}</span><span class="mono">${each.completion}</span><small>${plural(each.tokens, "token")}</small></div>`)}`)}`;
}
