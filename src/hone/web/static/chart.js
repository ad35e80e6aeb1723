// Charts of a run: uPlot over buckets from the server, with a shared cursor, a brush, bands, marks of events and dots on
// spikes that a pale band would hide.

import { PALETTE, colour, duration, figure, html, ink, number, useEffect, useLayoutEffect, useMemo, useRef } from "/static/base.js";

// --------------------------------------------------------------------------------------------------------------- data

/** Decode an answer of `/api/series`. */
export function decode(buffer) {
  const view = new DataView(buffer);
  const size = view.getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, size)));
  let at = 4 + size + ((8 - ((4 + size) % 8)) % 8);
  const axes = {};
  for (const name of head.axes) {
    axes[name] = new Float64Array(buffer, at, head.count);
    at += 8 * head.count;
  }
  const metrics = {};
  const take = () => {
    const part = new Float32Array(buffer.slice(at, at + 4 * head.count));
    at += 4 * head.count;
    return part;
  };
  if (head.axes.length) for (const name of head.metrics) metrics[name] = head.exact ? { mean: take() } : { mean: take(), least: take(), greatest: take() };
  return { ...head, axes, metrics };
}

export async function fetchSeries(run, names, { from, to, px }) {
  const words = new URLSearchParams({ run, px });
  names.forEach((name) => words.append("m", name));
  if (from !== undefined) words.set("from", from);
  if (to !== undefined) words.set("to", to);
  const answer = await fetch(`/api/series?${words}`);
  if (!answer.ok) throw new Error((await answer.json()).error);
  return decode(await answer.arrayBuffer());
}

/** Exponential moving average of known values, corrected for its start: weights that are missing are divided out. */
export function smooth(values, weight) {
  if (!weight) return values;
  const result = new Array(values.length);
  let total = 0;
  let sum = 0;
  for (let place = 0; place < values.length; place += 1) {
    const value = values[place];
    if (value === null || Number.isNaN(value)) { result[place] = null; continue; }
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    result[place] = sum / total;
  }
  return result;
}

const list = (values) => Array.from(values, (one) => (Number.isNaN(one) ? null : one));

function median(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : 0;
}

/** Buckets whose greatest value is over six times farther from the mean than the median of 25 neighbours; so below. */
export function spikes({ mean, least, greatest }) {
  if (!least) return [];
  const found = [];
  for (const [edge, sign] of [[greatest, 1], [least, -1]]) {
    const gap = Array.from(edge, (one, place) => (one - mean[place]) * sign);
    for (let place = 0; place < gap.length; place += 1) {
      if (!(gap[place] > 0)) continue;
      const around = gap.slice(Math.max(0, place - 12), place + 13).filter((one) => !Number.isNaN(one));
      if (around.length > 5 && gap[place] > 6 * median(around)) found.push([place, edge[place]]);
    }
  }
  return found;
}

const AXIS_NAMES = { steps: "steps", seconds: "time", amount: "amount" };

export function axisOf(data, wanted) {
  return data.axes[wanted] ? wanted : "steps";
}

export function axisLabel(data, axis) {
  if (axis !== "amount") return AXIS_NAMES[axis];
  return data.amount === "rollout/tokens" ? "tokens" : "environment steps";
}

/** Columns and series of one chart, as uPlot takes them. */
function columns(chart, data, axis, weight) {
  const x = list(data.axes[axis]);
  const series = [];
  const bands = [];
  const main = data.metrics[chart.main];
  if (!main) return null;
  if (chart.kind === "stack") {
    const names = [chart.main, ...chart.others].filter((name) => data.metrics[name]);
    let below = x.map(() => 0);
    const layers = names.map((name) => {
      below = below.map((sum, place) => sum + (Number.isNaN(data.metrics[name].mean[place]) ? 0 : data.metrics[name].mean[place]));
      return below;
    });
    layers.forEach((layer, place) => series.push({ name: names[place], values: layer, colour: place, own: data.metrics[names[place]].mean }));
    for (let place = series.length - 1; place > 0; place -= 1) bands.push({ series: [place + 1, place], tone: place });
    return { x, series, bands, floor: true };
  }
  let line = list(main.mean);
  let low = null;
  let high = null;
  if (chart.kind === "interval" && data.metrics[chart.low] && data.metrics[chart.high]) {
    low = list(data.metrics[chart.low].mean);
    high = list(data.metrics[chart.high].mean);
  } else if (chart.kind === "spread" && data.metrics[chart.spread]) {
    const width = data.metrics[chart.spread].mean;
    low = line.map((one, place) => (one === null || Number.isNaN(width[place]) ? null : one - width[place]));
    high = line.map((one, place) => (one === null || Number.isNaN(width[place]) ? null : one + width[place]));
  } else if (main.least) {
    low = list(main.least);
    high = list(main.greatest);
  }
  const others = chart.others.filter((name) => data.metrics[name]).map((name) => [name, list(data.metrics[name].mean)]);
  // A metric of few steps, as of evaluations, stands on the steps that it has: a band does not cross a gap.
  const there = x.map((_, place) => place).filter((place) => line[place] !== null);
  let dots = weight ? [] : spikes(main);
  let at = x;
  if (there.length < x.length / 2) {
    const pick = (values) => there.map((place) => values[place]);
    [at, line, low, high] = [pick(x), pick(line), low && pick(low), high && pick(high)];
    others.forEach((one) => { one[1] = pick(one[1]); });
    dots = [];
  }
  if (low) {
    series.push({ name: "high", values: high, hidden: true }, { name: "low", values: low, hidden: true });
    bands.push({ series: [1, 2], tone: 0 });
  }
  if (weight) series.push({ name: "raw", values: line, colour: 0, faint: true });
  series.push({ name: chart.main, values: smooth(line, weight), colour: 0, sparse: true });
  others.forEach(([name, values], place) => series.push({ name, values: smooth(values, weight), colour: place + 1, dashed: place > 6 }));
  return { x: at, series, bands, dots };
}

// -------------------------------------------------------------------------------------------------------------- drawing

const alpha = (tone, share) => {
  const value = tone.replace("#", "");
  const part = (at) => parseInt(value.slice(at, at + 2), 16);
  return `rgba(${part(0)},${part(2)},${part(4)},${share})`;
};

export function limits(low, high, unit, log) {
  if (low === null || high === null || !Number.isFinite(low) || !Number.isFinite(high)) return [0, 1];
  if (log) return low > 0 ? [low / 1.15, high * 1.15] : [1e-6, Math.max(high, 1e-5)];
  const room = (high - low) * 0.07 || Math.abs(high) * 0.1 || 1;
  const bounds = [low - room, high + room];
  if (unit === "fraction" && low >= 0 && high <= 1) return [Math.max(-0.02, bounds[0]), Math.min(1.02, bounds[1])];
  return bounds;
}

const short = (value) => {
  const size = Math.abs(value);
  if (size >= 1e9) return `${+(value / 1e9).toFixed(2)}G`;
  if (size >= 1e6) return `${+(value / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  if (size && size < 1e-3) return value.toExponential(1).replace(".0e", "e");
  return `${+value.toPrecision(4)}`;
};

const EVENT_TONES = { alarm: "minus", failure: "minus", refused_update: "minus", resume: "warn", stop: "warn", notice: "faint" };

function marks(chart, options) {
  return {
    hooks: {
      draw: [
        (plot) => {
          const { events, dots } = options.current;
          const { ctx, bbox } = plot;
          ctx.save();
          ctx.beginPath();
          ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
          ctx.clip();
          for (const event of events) {
            const left = Math.round(plot.valToPos(event.x, "x", true)) + 0.5;
            if (left < bbox.left || left > bbox.left + bbox.width) continue;
            ctx.strokeStyle = ink(EVENT_TONES[event.kind] || "faint");
            ctx.globalAlpha = EVENT_TONES[event.kind] ? 0.85 : 0.35;
            ctx.setLineDash(EVENT_TONES[event.kind] ? [] : [3, 3]);
            ctx.lineWidth = devicePixelRatio;
            ctx.beginPath();
            ctx.moveTo(left, bbox.top);
            ctx.lineTo(left, bbox.top + bbox.height);
            ctx.stroke();
          }
          ctx.globalAlpha = 1;
          ctx.fillStyle = ink("p4");
          for (const [place, value] of dots) {
            ctx.beginPath();
            ctx.arc(plot.valToPos(plot.data[0][place], "x", true), plot.valToPos(value, "y", true), 2.6 * devicePixelRatio, 0, 7);
            ctx.fill();
          }
          ctx.restore();
        },
      ],
    },
  };
}

function make(node, chart, shown, options) {
  const { data, axis, log } = options.current;
  const grid = { stroke: ink("rule"), width: 1 };
  const font = "11px system-ui, sans-serif";
  const common = { stroke: ink("soft"), grid, ticks: { show: false }, font, gap: 4 };
  return new uPlot(
    {
      width: Math.max(120, node.clientWidth),
      height: Math.max(80, node.clientHeight),
      padding: [6, 16, 0, 0],
      legend: { show: false },
      focus: { prox: -1 },
      cursor: {
        sync: { key: "run", scales: ["x", null] },
        drag: { x: true, y: false, setScale: false },
        points: { size: 6 },
        bind: { dblclick: () => () => { options.current.onZoom(null); return null; } },
      },
      scales: {
        x: { time: false, range: () => { const own = options.current.data.axes[options.current.axis]; const [low, high] = [own[0], own[own.length - 1]]; return low === high ? [low - 1, high + 1] : [low, high]; } },
        y: { distr: log ? 3 : 1, range: (plot, low, high) => limits(shown.floor ? Math.min(0, low ?? 0) : low, high, chart.unit, log) },
      },
      axes: [
        { ...common, size: 26, space: 64, values: (plot, values) => values.map((one) => (axis === "seconds" ? duration(one) : short(one))) },
        { ...common, size: 52, space: 30, values: (plot, values) => values.map((one) => (one === null ? "" : short(one))) },
      ],
      series: [
        {},
        ...shown.series.map((one) =>
          one.hidden
            ? { stroke: "transparent", width: 0, points: { show: false }, show: true }
            : {
                stroke: one.faint ? alpha(colour(one.colour), 0.35) : colour(one.colour),
                width: one.faint ? 1 : 1.7,
                dash: one.dashed ? [5, 4] : undefined,
                spanGaps: true,
                points: { show: one.sparse ? (plot, place) => plot.data[place].filter((value) => value !== null).length < 24 : false, size: 5 },
                fill: shown.floor && one.colour === 0 ? alpha(colour(0), 0.35) : undefined,
              },
        ),
      ],
      bands: shown.bands.map((one) => ({ series: one.series, fill: alpha(colour(one.tone), shown.floor ? 0.35 : 0.17) })),
      plugins: [marks(chart, options)],
      hooks: {
        setSelect: [
          (plot) => {
            if (plot.select.width < 4) return;
            const ends = [plot.select.left, plot.select.left + plot.select.width].map((left) => plot.posToVal(left, "x"));
            plot.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
            options.current.onZoom(ends);
          },
        ],
        setCursor: [(plot) => options.current.onCursor(plot.cursor.idx)],
      },
    },
    [shown.x, ...shown.series.map((one) => one.values)],
    node,
  );
}

/** Draw a chart anew where its place has another size than the chart. */
function fit(plot, width, height) {
  if (plot.width !== width || plot.height !== height) plot.setSize({ width, height });
}

/** What a reader who cannot see the chart is told: name, value, trend. */
export function spoken(chart, data) {
  const known = data.metrics[chart.main] ? list(data.metrics[chart.main].mean).filter((one) => one !== null) : [];
  if (!known.length) return `${chart.title}: no values`;
  const tenth = Math.max(1, Math.floor(known.length / 10));
  const mean = (part) => part.reduce((sum, one) => sum + one, 0) / part.length;
  const [begin, end] = [mean(known.slice(0, tenth)), mean(known.slice(-tenth))];
  const spread = Math.max(...known) - Math.min(...known);
  const trend = Math.abs(end - begin) < 0.05 * (spread || 1) ? "level" : end > begin ? "rising" : "falling";
  return `${chart.title}: ${figure(known[known.length - 1], chart.unit)}, ${trend}, from ${figure(Math.min(...known), chart.unit)} to ${figure(Math.max(...known), chart.unit)}`;
}

/** One chart. Its read-out is a node of its own: text that is set by hand never stands in a node that Preact fills. */
export function Chart({ chart, data, axis, weight, log, events, onZoom, chosen, onChoose, tabled, big = false }) {
  const place = useRef(null);
  const read = useRef(null);
  const plot = useRef(null);
  const options = useRef({});
  const drawn = useRef(null);
  const shown = useMemo(() => (data ? columns(chart, data, axis, weight) : null), [JSON.stringify(chart), data, axis, weight]);
  const known = shown ? shown.series.filter((one) => !one.hidden && !one.faint) : [];
  const write = (at) => {
    if (!read.current) return;
    const away = at === null || at === undefined || !shown;
    if (away && known.length < 2) { read.current.textContent = chart.meaning; return; }
    const x = away ? "" : `${axis === "seconds" ? duration(shown.x[at]) : number(shown.x[at])}: `;
    if (known.length < 2) { read.current.textContent = `${x}${known.map((one) => figure(one.values[at], chart.unit)).join("")}`; return; }
    const parts = known.map((one) => {
      const part = document.createElement("span");
      part.className = `k${one.colour % 8}`;
      const name = one.name.split("/").pop().replace(/_s$/, "");
      part.textContent = `${name}${away ? "" : ` ${figure((one.own || one.values)[at], chart.unit)}`}  `;
      return part;
    });
    read.current.replaceChildren(x, ...parts);
  };
  options.current = { data, axis, log, events, dots: shown ? shown.dots || [] : [], onZoom, onCursor: write };

  useLayoutEffect(() => {
    if (!place.current || !shown || tabled) return undefined;
    const made = make(place.current, chart, shown, options);
    plot.current = made;
    drawn.current = { shown, events };
    made.root.ownerChart = chart.main;
    place.current.plot = made;
    write(null);
    const sized = new ResizeObserver(() => place.current && fit(made, place.current.clientWidth, place.current.clientHeight));
    sized.observe(place.current);
    return () => { sized.disconnect(); made.destroy(); plot.current = null; };
  }, [chart.main, shown !== null, shown ? shown.series.length : 0, axis, log, tabled, Boolean(weight), matchMedia("(prefers-color-scheme: dark)").matches]);

  useEffect(() => {
    const before = drawn.current;
    if (!plot.current || !shown || (before.shown === shown && before.events === events)) return;
    if (before.shown === shown) plot.current.redraw(false);
    else plot.current.setData([shown.x, ...shown.series.map((one) => one.values)]);
    drawn.current = { shown, events };
  }, [shown, events]);

  const total = shown && shown.floor ? known[known.length - 1] : known[0];
  const last = total && total.values.length ? [...total.values].reverse().find((one) => one !== null && !Number.isNaN(one)) : undefined;
  return html`
    <section class=${`chart ${chosen ? "chosen" : ""} ${big ? "big" : ""}`} tabindex="0" role="group" data-metric=${chart.main}
      aria-label=${data ? spoken(chart, data) : chart.title} title=${chart.meaning} onFocus=${onChoose}>
      <header><span>${chart.title}</span><b>${last === undefined ? "" : figure(last, chart.unit)}</b></header>
      <div class="read" ref=${read} aria-hidden="true"></div>
      ${tabled && shown ? html`<${ChartTable} shown=${shown} axis=${axis} known=${known} />` : html`<div class="plot" ref=${place}></div>`}
    </section>`;
}

function ChartTable({ shown, axis, known }) {
  const stride = Math.max(1, Math.ceil(shown.x.length / 60));
  const rows = shown.x.map((x, place) => place).filter((place) => place % stride === 0 || place === shown.x.length - 1);
  return html`<div class="plot scroll log"><table><thead><tr><th>${axis}</th>${known.map((one) => html`<th class="n">${one.name}</th>`)}</tr></thead>
    <tbody>${rows.map((place) => html`<tr><td>${axis === "seconds" ? duration(shown.x[place]) : number(shown.x[place])}</td>
      ${known.map((one) => html`<td class="n">${number((one.own || one.values)[place])}</td>`)}</tr>`)}</tbody></table></div>`;
}

/** Lines with bands that come with the page's own figures: seeds, episodes, checkpoints. */
export function Lines({ lines, xLabel, height = 260, cursor, yLabel = "" }) {
  const place = useRef(null);
  const key = JSON.stringify(lines);
  useLayoutEffect(() => {
    if (!place.current || !lines.length) return undefined;
    const all = [...new Set(lines.flatMap((one) => one.x))].filter((one) => one !== null).sort((one, other) => one - other);
    const at = new Map(all.map((one, index) => [one, index]));
    const spread = (x, values) => { const result = new Array(all.length).fill(null); x.forEach((one, index) => { if (one !== null) result[at.get(one)] = values[index]; }); return result; };
    const data = [all];
    const series = [{}];
    const bands = [];
    lines.forEach((one, index) => {
      if (one.low && one.high) {
        bands.push({ series: [series.length, series.length + 1], fill: alpha(colour(index), 0.15) });
        data.push(spread(one.x, one.high), spread(one.x, one.low));
        series.push({ stroke: "transparent", width: 0, spanGaps: true, points: { show: false } }, { stroke: "transparent", width: 0, spanGaps: true, points: { show: false } });
      }
      data.push(spread(one.x, one.y));
      series.push({ stroke: colour(index), width: 1.8, spanGaps: true, dash: index >= 8 ? [5, 4] : undefined, points: { show: one.x.length < 24, size: 6 } });
    });
    const font = "11px system-ui, sans-serif";
    const common = { stroke: ink("soft"), grid: { stroke: ink("rule"), width: 1 }, ticks: { show: false }, font, gap: 4 };
    const made = new uPlot({
      width: place.current.clientWidth, height, padding: [8, 18, 0, 0], legend: { show: false }, cursor: { drag: { x: false, y: false }, points: { size: 6 } },
      scales: { x: { time: false, range: (plot, low, high) => (low === high ? [low - 1, high + 1] : [low, high]) }, y: { range: (plot, low, high) => limits(low, high, "", false) } },
      axes: [{ ...common, size: 24, space: 70, label: xLabel, labelSize: 15, labelGap: 0, labelFont: font, values: (plot, values) => values.map(short) },
        { ...common, size: 56, label: yLabel || undefined, labelSize: 16, labelFont: font, values: (plot, values) => values.map(short) }],
      series, bands,
      plugins: cursor ? [{ hooks: { setCursor: [(plot) => cursor(plot.cursor.idx)] } }] : [],
    }, data, place.current);
    place.current.plot = made;
    const sized = new ResizeObserver(() => place.current && fit(made, place.current.clientWidth, height));
    sized.observe(place.current);
    return () => { sized.disconnect(); made.destroy(); };
  }, [key, height, matchMedia("(prefers-color-scheme: dark)").matches]);
  return html`<div>
    ${lines.length > 1 ? html`<div class="legend">${lines.map((one, index) => (one.name ? html`<span><i class=${index < PALETTE ? `c${index}` : `dashed k${index % PALETTE}`}></i>${one.name}</span>` : null))}</div>` : null}
    <div class="lines" ref=${place} role="img" aria-label=${lines.map((one) => one.name).join(", ")}></div>
  </div>`;
}

/** A heat map over steps: a column a step, fuller of colour where more values lie. */
export function Heat({ data }) {
  const place = useRef(null);
  useLayoutEffect(() => {
    const canvas = place.current;
    if (!canvas) return;
    const across = data.heat.length;
    const down = data.heat[0].length;
    canvas.width = across;
    canvas.height = down;
    const context = canvas.getContext("2d");
    const most = Math.max(...data.heat.map((one) => Math.max(...one))) || 1;
    const tone = colour(0);
    data.heat.forEach((column, x) => column.forEach((value, y) => {
      if (!value) return;
      context.fillStyle = alpha(tone, Math.min(1, 0.08 + 0.92 * Math.sqrt(value / most)));
      context.fillRect(x, down - 1 - y, 1, 1);
    }));
  }, [data]);
  const name = `histogram of ${data.name}`;
  return html`<section class="chart" role="img" aria-label=${`${name} over steps, values from ${number(data.low)} to ${number(data.high)}`}>
    <header><span>${name}</span><b>${number(data.low)} to ${number(data.high)}</b></header>
    <div class="read">steps ${number(data.steps[0])} to ${number(data.steps[data.steps.length - 1])}; fuller colour: more values</div>
    <div class="plot"><canvas class="heat" ref=${place}></canvas></div></section>`;
}
