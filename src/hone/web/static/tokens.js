// The token view: every token of an answer in the colour of a figure; arrow keys read one after another.

import { html, ink, number, share, signed, useEffect, useMemo, useRef, useState } from "/static/base.js";

export const FIGURES = {
  ratio: "ratio: how often the policy chooses the token after the step's updates, against before",
  advantage: "advantage: green was rewarded, red was punished",
  logp: "log-probability: pale tokens were sure, strong ones a surprise",
  entropy: "entropy: how undecided the policy was",
  mismatch: "mismatch: how far engine and trainer differ",
  value: "value: what the critic expects from here on; pale is the least of this answer, strong the most",
};

const exp = (one) => (one === null || one === undefined ? null : Math.exp(one));

export function figureOf(tokens, name, place, advantage) {
  const at = (column) => (tokens[column] ? tokens[column][place] : null);
  switch (name) {
    case "ratio": {
      const before = at("logp_now") ?? at("logp");
      const after = at("logp_last") ?? at("logp_now");
      return before === null || after === null ? null : exp(after - before);
    }
    case "advantage": return tokens.mask[place] ? at("advantages") ?? advantage : null;
    case "logp": return at("logp") ?? at("logp_now");
    case "entropy": return at("entropy");
    case "value": return at("values");
    case "mismatch": return at("logp") === null || at("logp_now") === null ? null : Math.abs(at("logp_now") - at("logp"));
    default: return null;
  }
}

/** Strength from -1 (minus) to 1 (plus), and whether the figure has two sides. */
function strength(name, value, most, least) {
  if (value === null || Number.isNaN(value)) return 0;
  if (name === "value") return 0.05 + (0.95 * (value - least)) / (most - least || 1);
  if (name === "ratio") return Math.max(-1, Math.min(1, Math.log(value) / 0.4));
  if (name === "advantage") return most ? Math.max(-1, Math.min(1, value / most)) : 0;
  if (name === "logp") return -Math.min(1, -value / 4);
  if (name === "entropy") return Math.min(1, value / Math.max(1, most));
  return -Math.min(1, value / Math.max(0.05, most));
}

const mix = (tone, part) => { const value = tone.replace("#", ""); const at = (from) => parseInt(value.slice(from, from + 2), 16); return `rgba(${at(0)},${at(2)},${at(4)},${part.toFixed(3)})`; };

const shown = (text) => (text === "\n" ? "↵\n" : text.replaceAll("\n", "↵\n").replaceAll("\t", "⇥"));

export function TokenView({ answer }) {
  const tokens = answer.tokens_of;
  const available = useMemo(() => Object.keys(FIGURES).filter((name) => tokens.ids.some((_, place) => figureOf(tokens, name, place, answer.advantage) !== null)), [answer]);
  const [wanted, setWanted] = useState("ratio");
  const [at, setAt] = useState(-1);
  const box = useRef(null);
  const name = available.includes(wanted) ? wanted : available[0] || "logp";
  const values = useMemo(() => tokens.ids.map((_, place) => figureOf(tokens, name, place, answer.advantage)), [answer, name]);
  const known = values.filter((one) => one !== null);
  const most = name === "value" ? Math.max(...known) : known.reduce((top, one) => Math.max(top, Math.abs(one)), 0);
  const least = Math.min(...known);
  useEffect(() => setAt(-1), [answer]);
  const first = tokens.mask.findIndex(Boolean);
  const moved = values.map((one, place) => [one, place]).filter(([one]) => one !== null);
  const far = name === "ratio" ? moved.filter(([one]) => Math.abs(one - 1) > 0.2).length : 0;
  const clipped = tokens.clipped.filter(Boolean).length;
  const press = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    if (!step && event.key !== "Home" && event.key !== "End") return;
    event.preventDefault();
    const next = event.key === "Home" ? first : event.key === "End" ? tokens.ids.length - 1 : at < 0 ? Math.max(0, first) : at + step;
    setAt(Math.max(0, Math.min(tokens.ids.length - 1, next)));
  };
  useEffect(() => { if (at >= 0) box.current?.querySelector(".at")?.scrollIntoView({ block: "nearest" }); }, [at]);
  const plus = ink(name === "entropy" ? "p3" : name === "value" ? "p0" : "p2");
  const minus = ink(name === "logp" || name === "mismatch" ? "p1" : "p4");
  return html`
    <div class="bar"><div class="chips" role="group" aria-label="colour of the tokens">${available.map((one) => html`<button aria-pressed=${one === name ? "true" : "false"} title=${FIGURES[one]} onClick=${() => setWanted(one)}>${one}</button>`)}</div>
      <span class="spring"></span>
      <small>${name === "ratio" && far ? `${far} of ${moved.length} tokens leave 0.8 to 1.2; ` : ""}${clipped ? `${clipped} clipped, underlined` : "none clipped"}</small></div>
    <p class="note">${FIGURES[name]}</p>
    <div class="tokens mono" tabindex="0" ref=${box} onKeyDown=${press} aria-label="tokens; arrow keys read one after another">${tokens.ids.map((id, place) => {
      const piece = tokens.text ? tokens.text[place] : `${id} `;
      const special = piece.startsWith("\u0002");
      const force = tokens.mask[place] ? strength(name, values[place], most, least) : 0;
      const seam = place > 0 && tokens.versions[place] !== null && tokens.versions[place - 1] !== null && tokens.versions[place] !== tokens.versions[place - 1];
      const style = force ? { background: mix(force > 0 ? plus : minus, 0.08 + 0.62 * Math.abs(force)) } : { background: "transparent" };
      return html`<span class=${`${tokens.mask[place] ? "" : "world"} ${special ? "special" : ""} ${tokens.clipped[place] ? "clipped" : ""} ${place === at ? "at" : ""} ${seam ? "seam" : ""}`}
        style=${style} onMouseEnter=${() => setAt(place)} onClick=${() => setAt(place)}>${special ? piece.slice(1) : shown(piece)}</span>`;
    })}</div>
    <div class="token-read" role="status">${at < 0 ? html`<span>point at a token, or press the arrow keys</span>` : html`<${TokenRead} tokens=${tokens} at=${at} answer=${answer} />`}</div>`;
}

function TokenRead({ tokens, at, answer }) {
  const cell = (title, value) => html`<div><span>${title}</span> <b>${value}</b></div>`;
  const ratio = figureOf(tokens, "ratio", at, null);
  const gap = figureOf(tokens, "mismatch", at, null);
  const advantage = figureOf(tokens, "advantage", at, answer.advantage);
  return html`
    ${cell("token", `${at + 1} of ${tokens.ids.length}, id ${tokens.ids[at]}`)}
    ${cell("of", tokens.mask[at] ? "the policy" : "prompt or world")}
    ${tokens.logp[at] !== null ? cell("engine", `${number(tokens.logp[at])} nats (${share(Math.exp(tokens.logp[at]))})`) : null}
    ${tokens.logp_now[at] !== null ? cell("trainer", `${number(tokens.logp_now[at])} nats (${share(Math.exp(tokens.logp_now[at]))})`) : null}
    ${tokens.logp_last[at] !== null ? cell("after the update", `${number(tokens.logp_last[at])} nats (${share(Math.exp(tokens.logp_last[at]))})`) : null}
    ${ratio !== null ? cell("ratio", number(ratio)) : null}
    ${gap !== null ? cell("mismatch", `${number(gap)} nats`) : null}
    ${advantage !== null && advantage !== undefined ? cell("advantage", signed(advantage)) : null}
    ${tokens.entropy[at] !== null ? cell("entropy", `${number(tokens.entropy[at])} nats`) : null}
    ${tokens.values[at] !== null ? cell("value", number(tokens.values[at])) : null}
    ${tokens.clipped[at] !== null ? cell("gradient", tokens.clipped[at] ? "clipped to 0" : "taken") : null}
    ${tokens.versions[at] !== null ? cell("version", number(tokens.versions[at])) : null}`;
}
