// The page: which view the address names, and the bar above it.

import { address, ask, html, readAddress, render, useAddress, useEffect, useState } from "/static/base.js";
import { ChatPage, ComparePage, DataPage, DecisionsPage, EvaluationPage, LabPage, LanesPage, SystemPage, WorldPage } from "/static/pages.js";
import { QueuePage } from "/static/queue.js";
import { PreferencesPage, RolloutsPage } from "/static/rollouts.js";
import { RunPage } from "/static/run.js";
import { RunsPage } from "/static/runs.js";

const OF_A_RUN = { run: RunPage, rollouts: RolloutsPage, preferences: PreferencesPage, evaluation: EvaluationPage, world: WorldPage, lanes: LanesPage, system: SystemPage, data: DataPage, chat: ChatPage };
const ALONE = { runs: RunsPage, compare: ComparePage, lab: LabPage, decisions: DecisionsPage, queue: QueuePage };

function App() {
  const { page, rest } = useAddress();
  const [offers, setOffers] = useState({});
  useEffect(() => { ask("runs").then((data) => setOffers(data), () => {}); }, []);
  useEffect(() => { document.title = rest ? `${rest.split("/").pop()} · hone watch` : "hone watch"; scrollTo(0, 0); }, [page, rest]);
  const Own = OF_A_RUN[page];
  const Alone = ALONE[page] || RunsPage;
  const links = [["runs", "Runs"], ["compare", "Compare"], ["decisions", "Decisions", offers.has_service], ["queue", "Queue", offers.has_queue], ["lab", "Lab", offers.has_lab]].filter(([, , there]) => there !== false);
  const dark = useDark();
  return html`<div class="top"><a class="brand" href=${address("runs")}><img src="/static/icon.svg" alt="" />hone watch</a>
      <nav aria-label="pages">${links.map(([name, words]) => html`<a href=${address(name)} aria-current=${page === name ? "page" : undefined}>${words}</a>`)}
        ${Own && offers.has_chat ? html`<a href=${address("chat", rest)} aria-current=${page === "chat" ? "page" : undefined}>Chat</a>` : null}</nav>
      <span class="right">${offers.root || ""}</span></div>
    <main key=${`${page}/${rest}/${dark}`}>${Own && rest ? html`<${Own} run=${rest} />` : html`<${Alone} />`}</main>`;
}

/** True in dark colours; charts are drawn anew when that changes. */
function useDark() {
  const asked = matchMedia("(prefers-color-scheme: dark)");
  const [dark, setDark] = useState(asked.matches);
  useEffect(() => {
    const changed = () => setDark(asked.matches);
    asked.addEventListener("change", changed);
    return () => asked.removeEventListener("change", changed);
  }, []);
  return dark;
}

render(html`<${App} />`, document.getElementById("page"));
