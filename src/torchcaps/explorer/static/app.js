/** The page as a whole: what is installed, which view is open, what the network says of the picture. */

import { createAttack } from "./attack.js";
import { clearBars, showBars } from "./bars.js";
import { get, latest, post, Refusal } from "./client.js";
import { byId, element, fillSelect, setBusy } from "./dom.js";
import { createTranslator, preferredLanguage, translateDocument } from "./i18n.js";
import { createInterests } from "./interests.js";
import { createOrigins } from "./origins.js";
import { createPad } from "./pad.js";
import { createPose } from "./pose.js";
import { createRouting } from "./routing.js";
import { createStore, TABS, writeHash } from "./state.js";
import { createText } from "./text.js";
import { createToys } from "./toys.js";

/**
 * What the views are given.
 * @typedef {ReturnType<typeof createPage>} Page
 * @typedef {{tab: string, keys: string[], model: () => any, refresh: () => void, redraw: () => any, stale?: boolean}} View
 */

/** @param {any} catalogue the answers of /api/models and /api/roles */
function createPage(catalogue) {
  const store = createStore(location.hash);
  const language = () => store.get().language ?? preferredLanguage(navigator.languages);
  const t = createTranslator(language);
  const model = (/** @type {string} */ role) =>
    catalogue.models.find((/** @type {any} */ one) => one.id === catalogue.roles[role]) ?? null;
  const problem = (/** @type {string} */ text) => {
    byId("problem").textContent = text;
    byId("problem").hidden = !text;
  };
  /** A class that the model has, or null for the winner. @param {any} of @param {number|null} index */
  const known = (of, index) => (index !== null && index < of.labels.length ? index : null);
  return {
    catalogue, store, language, t, model, problem, known,
    /** @param {string} algorithm @returns {string} its name for people; of one that is not offered, what it is called */
    routingName: (algorithm) =>
      catalogue.routings.find((/** @type {any} */ one) => one.algorithm === algorithm)?.label[language()] ?? algorithm,
    /** @type {any[]} */
    examples: [],
    /** @type {{canvas: HTMLCanvasElement, png: string} | null} */
    picture: null,
    announce: (/** @type {string} */ text) => { byId("announcer").textContent = text; },
    refused: (/** @type {Error} */ error) => {
      if (!(error instanceof Refusal)) throw error; // a mistake of ours
      const { status, wait, message } = error;
      problem(status === 0 ? t("offline") : wait ? t("busy") : message);
    },
    emptyNote: () => element("p", { class: "note", text: t("empty") }),
    key: () => element("p", { class: "key small" },
      element("span", { class: "key-for", text: t("speaksFor") }), element("span", { class: "key-against", text: t("speaksAgainst") })),
    /** @param {any} select @param {any} of @param {number|null} index @param {string} [winner] */
    fillClasses: (select, of, index, winner = "–") => fillSelect(select, [
      ["", t("winner", { label: known(of, index) === null ? winner : "…" })],
      ...of.labels.map((/** @type {string} */ label, /** @type {number} */ at) => [String(at), label]),
    ], String(known(of, index) ?? "")),
  };
}

/** What the network says of the picture. @param {Page} page */
function createAnswer(page) {
  const { t } = page;
  const model = page.model("capsules");
  /** @type {any} */
  let last = null;
  const redraw = () => {
    const picture = last?.picture;
    byId("answer").textContent = picture ? last.said.label : "–";
    byId("answer-note").textContent = picture ? `${t(`${model.scores}One`)} ${last.said.scores[last.said.best].toFixed(2)}` : t("empty");
    if (!picture) {
      clearBars(byId("activations"));
      byId("timing").textContent = "";
      return;
    }
    showBars(byId("activations"), model.labels, last.said.scores, last.said.best);
    byId("timing").textContent = t("timing", { spent: last.spent.toFixed(0), value: last.said.milliseconds.toFixed(1) });
    byId("timing").dataset.milliseconds = last.spent.toFixed(1);
  };
  const ask = latest(async (/** @type {any} */ picture, /** @type {boolean} */ settled) => {
    const start = performance.now();
    const said = picture && await post("/api/predict", { model: model.id, image: picture.png });
    last = { picture, said, spent: performance.now() - start };
    page.problem("");
    redraw();
    if (settled && said) page.announce(t("saysNow", { label: said.label, score: said.scores[said.best].toFixed(2) }));
  }, page.refused, (busy) => setBusy(byId("room-digit"), busy));
  return { ask, redraw };
}

/** @param {Page} page @param {View[]} views @param {() => void} redrawAll */
function watchState(page, views, redrawAll) {
  const { store, t } = page;
  const showTab = () => {
    const { tab } = store.get();
    for (const name of TABS) {
      const chosen = name === tab;
      byId(`tab-${name}`).setAttribute("aria-selected", String(chosen));
      byId(`tab-${name}`).tabIndex = chosen ? 0 : -1;
      byId(`panel-${name}`).hidden = !chosen;
    }
    byId("room-toys").hidden = tab !== "toys";
    byId("room-text").hidden = tab !== "text";
    byId("room-interests").hidden = tab !== "interests";
    byId("room-digit").hidden = ["toys", "text", "interests"].includes(tab);
  };
  const showWords = () => {
    document.documentElement.lang = page.language() === "zh" ? "zh-Hans" : "en";
    document.title = t("title");
    translateDocument(t);
    byId("language").value = page.language();
    const { theme } = store.get();
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    byId("theme").value = theme ?? "";
  };
  const freshen = () => {
    const open = views.find(({ tab }) => tab === store.get().tab);
    showAbout(page, open?.model());
    if (!open?.stale) return;
    open.stale = false;
    open.refresh();
  };
  const wear = (/** @type {View[]} */ worn) => {
    for (const view of worn) view.stale = true;
    freshen();
  };
  store.listen((_, changed) => {
    if (changed.has("tab")) showTab();
    if (changed.has("language") || changed.has("theme")) {
      showWords();
      redrawAll();
    }
    wear(views.filter((view) => view.keys.some((key) => changed.has(key))));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawAll);
  window.addEventListener("hashchange", () => store.restore(location.hash));
  showTab();
  showWords();
  return { wear };
}

/** Switches and tabs. @param {Page} page */
function wireHeader(page) {
  const { store, t } = page;
  byId("language").addEventListener("change", (/** @type {any} */ event) => store.set({ language: event.target.value }));
  byId("theme").addEventListener("change", (/** @type {any} */ event) => store.set({ theme: event.target.value || null }));
  byId("skip").addEventListener("click", (/** @type {Event} */ event) => {
    event.preventDefault(); // the part of the address after # is ours
    byId("main").focus();
  });
  byId("copy-link").addEventListener("click", async () => {
    const link = location.origin + location.pathname + writeHash(store.get());
    const copied = await navigator.clipboard?.writeText(link).then(() => true, () => false);
    byId("copy-link").textContent = copied ? "✓" : t("copyLink");
    setTimeout(() => { byId("copy-link").textContent = t("copyLink"); }, 1500);
    page.announce(t(copied ? "linkCopied" : "linkInBar"));
  });
  byId("tabs").addEventListener("click", (/** @type {any} */ event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) store.set({ tab: tab.id.replace("tab-", "") });
  });
  byId("tabs").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    const now = TABS.indexOf(store.get().tab);
    const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: -1 }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    const tab = TABS.at(next % TABS.length) ?? TABS[0];
    store.set({ tab });
    byId(`tab-${tab}`).focus();
  });
}

/** What is known of a model. @param {Page} page @param {any} model */
function showAbout({ catalogue, language, t }, model) {
  if (!model) return;
  const { title, num_parameters: count, accuracy, dataset } = model;
  const right = accuracy === null ? "" : t("aboutAccuracy", { accuracy: (100 * accuracy).toFixed(2), dataset: dataset ?? "?" });
  const parameters = count.toLocaleString(language());
  byId("about").textContent = t("about", { version: catalogue.version, model: title, parameters, accuracy: right });
}

async function start() {
  const [answered, roles] = await Promise.all([get("/api/models"), get("/api/roles")]);
  const catalogue = { ...answered, roles };
  const page = createPage(catalogue);
  const hasCapsules = page.model("capsules") !== null;
  page.examples = hasCapsules ? (await get(`/api/examples?model=${encodeURIComponent(catalogue.roles.capsules)}`)).examples : [];
  const digitViews = hasCapsules ? [createRouting(page), createOrigins(page), createPose(page), createAttack(page)] : [];
  /** @type {View[]} */
  const views = [...digitViews, createToys(page), createText(page), createInterests(page)];
  const answer = hasCapsules ? createAnswer(page) : null;
  const redrawAll = () => {
    answer?.redraw();
    pad?.retitle();
    for (const view of views) if (!view.stale) view.redraw();
  };
  for (const view of views) view.stale = true;
  const { wear } = watchState(page, views, redrawAll);
  wireHeader(page);
  const pad = hasCapsules ? createPad(page, (picture, settled) => {
    page.picture = picture;
    answer?.ask(picture, settled);
    if (settled) wear(digitViews);
  }) : null;
  if (pad) {
    pad.retitle();
    pad.show();
  } else {
    byId("room-digit").replaceChildren(element("p", { class: "note", text: page.t("noModel") }));
    wear([]);
  }
  document.documentElement.dataset.ready = "true";
}

start().catch((error) => {
  byId("problem").textContent = error instanceof Refusal ? error.message : `${error}`;
  byId("problem").hidden = false;
});
