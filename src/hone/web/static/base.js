// What every page uses: elements, numbers in words, requests, and the state in the address.

import { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState } from "/static/vendor/htm-preact.js";

export { html, render, useEffect, useLayoutEffect, useMemo, useRef, useState };

// ------------------------------------------------------------------------------------------------------------ numbers

const MINUS = "\u2212";
const WHOLE = new Intl.NumberFormat("en-US");

export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : `${MINUS}∞`;
  const size = Math.abs(value);
  let text;
  if (value === Math.trunc(value) && size < 1e6) text = WHOLE.format(value);
  else if (size >= 1e6 || size < 1e-3) {
    const [digits, exponent] = value.toExponential(2).split("e");
    text = `${digits.replace(/\.?0+$/, "")}e${Number(exponent)}`;
  } else if (size >= 1000) text = WHOLE.format(Math.round(value));
  else text = value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3);
  return text.replace("-", MINUS);
}

export function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value === 0 ? 0 : value);
}

export function share(value) {
  return value === null || value === undefined ? "–" : `${String(Math.round(1000 * value) / 10).replace("-", MINUS)}%`;
}

/** A number with its unit, as the catalogue of metrics names it. */
export function figure(value, unit) {
  if (value === null || value === undefined || !Number.isFinite(value)) return number(value);
  if (unit === "fraction" || unit === "share") return share(value);
  if (unit === "s") return duration(value);
  if (unit === "bytes") return bytes(value);
  return UNITS.includes(unit) ? `${number(value)} ${unit}` : number(value);
}

const UNITS = ["nats", "tokens", "FLOP", "nats per episode", "nats per answer", "nats per token"];

export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  if (Math.abs(seconds) < 0.001 && seconds !== 0) return `${number(seconds * 1e6)} µs`;
  if (Math.abs(seconds) < 0.0995) return `${+(seconds * 1000).toPrecision(2)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${Math.round(seconds % 60)} s`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} min`;
  return `${(seconds / 86400).toFixed(1)} days`;
}

export function bytes(count) {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let place = 0;
  while (count >= 1024 && place < units.length - 1) { count /= 1024; place += 1; }
  return `${count.toFixed(place && count < 100 ? 1 : 0)} ${units[place]}`;
}

export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

export const plural = (count, word) => `${number(count)} ${word}${count === 1 ? "" : "s"}`;

// ----------------------------------------------------------------------------------------------------------- requests

export async function ask(name, query = {}) {
  const words = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (Array.isArray(value)) value.forEach((one) => words.append(key, one));
    else if (value !== undefined && value !== null && value !== "") words.set(key, value);
  }
  const answer = await fetch(`/api/${name}?${words}`);
  const body = await answer.json().catch(() => ({ error: `${answer.status} ${answer.statusText}` }));
  if (!answer.ok) throw new Error(body.error || `${answer.status}`);
  return body;
}

/** Result of a request as state: `{data, error}`; asked again when a value of `query` or `again` changes. */
export function useAnswer(name, query, again = 0) {
  const [state, setState] = useState({ data: null, error: "" });
  const key = JSON.stringify(query);
  useEffect(() => {
    if (query === null) return undefined;
    let current = true;
    ask(name, query).then(
      (data) => current && setState({ data, error: "", key }),
      (error) => current && setState((old) => ({ data: old.key === key ? old.data : null, error: error.message, key })),
    );
    return () => { current = false; };
  }, [name, key, again]);
  return state.key === key ? state : { data: null, error: "", key };
}

// ------------------------------------------------------------------------------------------- state in the address

/** `#/run/NAME?x=steps` -> {page, rest, query}. */
export function readAddress() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page = "", ...rest] = path.split("/");
  return { page: page || "runs", rest: rest.map(decodeURIComponent).join("/"), query: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(page, rest = "", query = {}) {
  const kept = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const words = new URLSearchParams(kept).toString();
  const path = rest ? `/${rest.split("/").map(encodeURIComponent).join("/")}` : "";
  return `#/${page}${path}${words ? `?${words}` : ""}`;
}

/** Change parts of the query; a view that a person would go back to makes an entry of the history. */
export function setQuery(changes, { push = false } = {}) {
  const { page, rest, query } = readAddress();
  const fresh = address(page, rest, { ...query, ...changes });
  if (fresh === location.hash) return;
  if (push) location.hash = fresh;
  else {
    history.replaceState(null, "", fresh);
    dispatchEvent(new HashChangeEvent("hashchange"));
  }
}

export function useAddress() {
  const [hash, setHash] = useState(location.hash);
  useEffect(() => {
    const changed = () => setHash(location.hash);
    addEventListener("hashchange", changed);
    changed(); // it may have changed between the first drawing and this effect
    return () => removeEventListener("hashchange", changed);
  }, []);
  return useMemo(readAddress, [hash]);
}

// ------------------------------------------------------------------------------------------------------------- pieces

export const Wait = ({ error, what = "" }) =>
  error
    ? html`<p class="fault" role="alert">${error}</p>`
    : html`<p class="wait" role="status">${what || "reading …"}</p>`;

export const Empty = ({ title, children }) => html`<div class="empty"><b>${title}</b><p>${children}</p></div>`;

export const Card = ({ title, note, children, style = "" }) => html`
  <section class=${`card ${style}`}>
    ${title ? html`<h3>${title}</h3>` : null}
    ${note ? html`<p class="note">${note}</p>` : null}
    ${children}
  </section>`;

export const State = ({ state }) => html`<span class=${`state ${state}`}><i></i>${state}</span>`;

export function Interval({ value, low, high }) {
  const edge = (one) => number(Math.abs(one) < 1e-9 * Math.abs(high) ? 0 : one); // a bound of 0 that was rounded
  if (value === null || value === undefined) return html`<span class="soft">–</span>`;
  return html`<span class="interval"><b>${number(value)}</b>${
    low !== null && low !== undefined && high !== null && high !== undefined && low !== high
      ? html`<small>${edge(low)} to ${edge(high)}</small>`
      : null
  }</span>`;
}

export function Spark({ values, label }) {
  const known = values.filter((one) => one !== null);
  if (known.length < 2) return html`<span class="soft">–</span>`;
  const low = Math.min(...known);
  const high = Math.max(...known);
  const width = 110;
  const height = 24;
  const points = values
    .map((one, place) => [place, one])
    .filter(([, one]) => one !== null)
    .map(([place, one]) => `${((place / (values.length - 1)) * width).toFixed(1)},${(height - 2 - ((one - low) / (high - low || 1)) * (height - 4)).toFixed(1)}`);
  return html`<svg class="spark" viewBox="0 0 ${width} ${height}" width=${width} height=${height} role="img"
    aria-label=${label || `from ${number(known[0])} to ${number(known[known.length - 1])}`}><polyline points=${points.join(" ")} /></svg>`;
}

/** A table: `columns` are {title, cell(row), number, title_of}; closed tags only, as htm takes an open one in silence. */
export function Table({ columns, rows, empty = "nothing here", onRow, chosen }) {
  if (!rows.length) return html`<p class="soft pad">${empty}</p>`;
  return html`
    <div class="scroll"><table>
      <thead><tr>${columns.map((one) => html`<th class=${one.number ? "n" : ""} title=${one.hint || ""}>${one.title}</th>`)}</tr></thead>
      <tbody>${rows.map((row, place) => html`
        <tr class=${`${onRow ? "link" : ""} ${chosen && chosen(row) ? "chosen" : ""}`} onClick=${onRow ? () => onRow(row, place) : undefined}>
          ${columns.map((one) => html`<td class=${`${one.number ? "n" : ""} ${one.style || ""}`}>${one.cell(row, place)}</td>`)}
        </tr>`)}</tbody>
    </table></div>`;
}

/** Colours of series: 8 that differ, then the same dashed. */
export const PALETTE = 8;
export const colour = (place) => getComputedStyle(document.documentElement).getPropertyValue(`--p${place % PALETTE}`).trim();
export const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
