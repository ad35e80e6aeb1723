// The queue of runs: shares against entitlements, claims on a time axis, what each run cost.

import { Card, Empty, Table, Wait, colour, duration, html, number, plural, share, useAnswer, useEffect, useState } from "/static/base.js";
import { Lines } from "/static/chart.js";

const LANE = 22;
const AGAIN_MS = 5000;

export function QueuePage() {
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setTurn((one) => one + 1), AGAIN_MS);
    return () => clearInterval(timer);
  }, []);
  const { data, error } = useAnswer("queue", {}, turn);
  if (!data) return html`<div class="title"><h1>Queue</h1></div><${Wait} error=${error} />`;
  if (!data.tenants) return html`<div class="title"><h1>Queue</h1></div><${Empty} title="No queue">hone watch --queue FILE shows the queue of hone queue.<//>`;
  const place = new Map(data.tenants.map((one, index) => [one.name, index]));
  return html`<div class="title"><h1>Queue</h1></div>
    <div class="grid2">
      <${Card} style="flush" title="Shares against entitlements"><${Table} rows=${data.tenants} empty="no tenant yet" columns=${[
        { title: "tenant", style: "line", cell: (one) => html`<${Dot} place=${place.get(one.name)} /> <b>${one.name}</b>` },
        { title: "weight", number: true, cell: (one) => number(one.weight) },
        { title: "entitled", number: true, cell: (one) => share(one.entitled) },
        { title: "used", number: true, cell: (one) => share(one.used) },
        { title: "slot time", number: true, cell: (one) => duration(one.seconds) },
        { title: "beside it", cell: (one) => html`<small>${one.use}</small>` },
        { title: "running", number: true, cell: (one) => `${number(one.running)}${one.slots ? ` of ${number(one.slots)}` : ""}` },
        { title: "queued", number: true, cell: (one) => number(one.queued) },
      ]} /><//>
      ${data.curves.x.length ? html`<${Card} title="Share of what was used so far" note="dashed: the tenant's entitlement"><${Lines} xLabel="seconds since the first claim" lines=${curves(data)} /><//>` : null}
    </div>
    ${data.spans.length ? html`<${Card} title="Claims" note="a lane for each slot that was in use; a run that gave way comes back in another span"><${Gantt} spans=${data.spans} place=${place} /><//>` : null}
    <${Card} style="flush" title="Runs and what they cost"><${Table} rows=${[...data.jobs].reverse()} empty="no job yet" columns=${[
      { title: "job", number: true, cell: (one) => one.id },
      { title: "run", cell: (one) => html`<${Dot} place=${place.get(one.tenant)} /> ${one.name} <small>${one.tenant}</small>` },
      { title: "state", cell: (one) => html`<span class=${`badge ${{ done: "good", failed: "red", running: "amber" }[one.state] || ""}`}>${one.state}</span>` },
      { title: "slot time", number: true, cell: (one) => (one.claims ? duration(one.seconds) : "–") },
      { title: "of all", number: true, cell: (one) => (one.claims ? share(one.part) : "–") },
      { title: "claims", number: true, cell: (one) => number(one.claims) },
      { title: "why, and when", cell: (one) => html`<small>${one.why}${one.wait_s === null ? "" : `; starts in about ${duration(one.wait_s)}`}</small>` },
    ]} /><//>`;
}

function Dot({ place }) {
  return html`<span aria-hidden="true" style=${{ display: "inline-block", width: "9px", height: "9px", borderRadius: "2px", background: colour(place) }}></span>`;
}

function curves(data) {
  const used = data.tenants.map((one) => ({ name: one.name, x: data.curves.x, y: data.curves.used[one.name] }));
  const ends = [data.curves.x[0], data.curves.x[data.curves.x.length - 1]];
  const padding = Array.from({ length: (8 - (used.length % 8)) % 8 }, () => null);
  // Colours repeat dashed from the ninth line on: a tenant's entitlement is the line eight places further.
  const entitled = data.tenants.map((one) => ({ name: `${one.name}, entitled`, x: ends, y: [one.entitled, one.entitled] }));
  return [...used, ...padding.map(() => ({ name: "", x: [], y: [] })), ...entitled];
}

function Gantt({ spans, place }) {
  const [first, last] = [Math.min(...spans.map((one) => one.from_s)), Math.max(...spans.map((one) => one.to_s))];
  const whole = Math.max(last - first, 1e-6);
  const lanes = 1 + Math.max(...spans.map((one) => one.lane));
  return html`<svg viewBox=${`0 0 1000 ${lanes * LANE}`} width="100%" height=${lanes * LANE} preserveAspectRatio="none" role="img" aria-label=${`${plural(spans.length, "claim")} in ${plural(lanes, "lane")}`}>
      ${spans.map((one) => html`<rect x=${(1000 * (one.from_s - first)) / whole} y=${one.lane * LANE + 2} width=${Math.max(1, (1000 * (one.to_s - one.from_s)) / whole - 1)} height=${LANE - 4} rx="2" fill=${colour(place.get(one.tenant))}><title>${one.name} of ${one.tenant}: ${duration(one.to_s - one.from_s)}</title></rect>`)}
    </svg>
    <div class="bar"><small>${duration(first)}</small><span style=${{ flex: 1 }}></span><small>${duration(last)} since the first claim</small></div>`;
}
