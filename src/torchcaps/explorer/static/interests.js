/** People: items that somebody used, the interests that form from them, and what each recommends. */

import { get, latest, post } from "./client.js";
import { byId, element, setBusy, setSlider } from "./dom.js";
import { css, diverging } from "./palette.js";

const NUM_START = 6; // items to begin with, the most used
const MOST_USED = 30;

/** @param {import("./app.js").Page} page */
export function createInterests(page) {
  const { store, t } = page;
  const panel = byId("panel-interests");
  const model = page.model("recommender");
  /** @type {Record<string, string>} */
  const titles = {};
  /** @type {string[]} */
  let start = [];
  /** @type {any[]} */
  let listed = [];
  /** @type {any} */
  let last = null;

  const used = () => store.get().used ?? start;
  const list = async (/** @type {string} */ search) => {
    const address = `/api/items?model=${encodeURIComponent(model.id)}&search=${encodeURIComponent(search)}`;
    listed = (await get(address)).items;
    for (const { item, title } of listed) titles[item] = title;
  };

  const find = latest(async (/** @type {string} */ search) => {
    await list(search);
    page.problem("");
    showListed();
  }, page.refused);

  const ask = latest(async () => {
    if (!model) return redraw();
    if (!start.length) {
      await list("");
      start = listed.slice(0, NUM_START).map(({ item }) => item);
    }
    last = null;
    if (used().length) {
      last = await post("/api/interests", { model: model.id, items: used() });
      used().forEach((/** @type {string} */ item, /** @type {number} */ at) => { titles[item] = last.used[at]; });
    }
    page.problem("");
    redraw();
    return undefined;
  }, page.refused, (busy) => setBusy(panel, busy));

  const redraw = () => {
    byId("room-interests").classList.toggle("missing", !model);
    if (!model) {
      byId("interests-view").replaceChildren(element("p", { class: "note", text: t("noRecommender") }));
      return;
    }
    showListed();
    byId("items-used").replaceChildren(...used().map((/** @type {string} */ item) => element("li", {},
      element("span", { class: "item-title", text: titles[item] ?? item }),
      element("button", {
        type: "button", "aria-label": t("removeItem", { item: titles[item] ?? item }), text: "×",
        onclick: () => store.set({ used: used().filter((/** @type {string} */ other) => other !== item) }),
      }))));
    showForming();
  };

  const showListed = () => byId("items-found").replaceChildren(...listed
    .filter(({ item }) => !used().includes(item))
    .slice(0, 12)
    .map(({ item, title }) => element("button", {
      type: "button", text: title, disabled: used().length >= MOST_USED,
      onclick: () => store.set({ used: [...used(), item] }),
    })));

  const showForming = () => {
    const view = byId("interests-view");
    byId("forming-player").hidden = !last;
    if (!last) return view.replaceChildren(element("p", { class: "note", text: t("noItems") }));
    const most = last.steps.length - 1;
    const step = Math.min(store.get().formingStep ?? most, most);
    byId("forming-step").max = String(most);
    setSlider(byId("forming-step"), step, `${step + 1} / ${most + 1}`);
    const { couplings, activations } = last.steps[step];
    const head = element("tr", {}, element("th", { scope: "col", text: t("itemUsed") }),
      ...last.interests.map((/** @type {any} */ one, /** @type {number} */ at) => element("th", { scope: "col" },
        t("interest", { number: one.number + 1 }),
        element("span", { class: "small muted", text: ` ${activations[at].toFixed(2)}` }))));
    const rows = last.used.map((/** @type {string} */ title, /** @type {number} */ row) => element("tr", {},
      element("th", { scope: "row", text: title }), ...couplings[row].map((/** @type {number} */ value) => share(value))));
    const likes = element("tr", { class: "likes" }, element("th", { scope: "row", text: t("recommends") }),
      ...last.interests.map((/** @type {any} */ one) => element("td", {},
        element("ol", {}, ...one.recommended.map((/** @type {any} */ each) => element("li", { text: each.title }))))));
    view.replaceChildren(element("div", { class: "scroll" },
      element("table", { class: "forming" }, element("thead", {}, head), element("tbody", {}, ...rows, likes))));
    return undefined;
  };

  byId("item-search").addEventListener("input", (/** @type {any} */ event) => find(event.target.value));
  byId("items-clear").addEventListener("click", () => store.set({ used: [] }));
  byId("forming-step").addEventListener("input", (/** @type {any} */ event) =>
    store.set({ formingStep: Number(event.target.value) }));
  store.listen((_, changed) => { if (changed.has("formingStep") && last) showForming(); });
  return { tab: "interests", keys: ["used"], model: () => model, refresh: ask, redraw };
}

/** What an item gives to an interest. @param {number} value from 0 to 1 */
function share(value) {
  const made = element("td", { class: "share", text: value.toFixed(2) });
  made.style.backgroundColor = css(diverging(Math.min(value, 1), 140));
  return made;
}
