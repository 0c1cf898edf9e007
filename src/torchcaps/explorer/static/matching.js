/** Two texts as sets of capsules: which parts of them match. */

import { latest, post } from "./client.js";
import { byId, element, setBusy } from "./dom.js";
import { css, diverging } from "./palette.js";

/**
 * The lower part of the view of texts, for models on a pretrained encoder.
 * @param {import("./app.js").Page} page
 * @param {() => any} model that is asked
 * @param {() => string} sentence it is compared with
 */
export function createMatching(page, model, sentence) {
  const { store, t } = page;
  const panel = byId("matching");
  const area = byId("other-sentence");
  area.maxLength = page.catalogue.limits.text_characters;
  /** @type {any} */
  let last = null;

  const ask = latest(async () => {
    const [asked, text, other] = [model(), sentence(), store.get().otherSentence ?? ""];
    const able = asked?.abilities.includes("match") && text.trim() && other.trim();
    last = able ? await post("/api/match", { model: asked.id, text, other }) : null;
    redraw();
  }, page.refused, (busy) => setBusy(panel, busy));

  const redraw = () => {
    panel.hidden = !model()?.abilities.includes("match");
    const other = store.get().otherSentence ?? "";
    if (area.value !== other) area.value = other;
    const view = byId("matches");
    if (!last) return view.replaceChildren(element("p", { class: "note", text: t("noOther") }));
    const head = element("tr", {}, ...["matchFirst", "matchSecond", "matchShare", "matchAlike"].map((key) =>
      element("th", { scope: "col", text: t(key) })));
    const rows = last.matches.map((/** @type {any} */ one) => element("tr", {},
      words(last.first[one.first].words), words(last.second[one.second].words),
      element("td", { class: "share", text: `${(100 * one.share).toFixed(0)} %` }), alike(one.similarity)));
    view.replaceChildren(
      element("p", {}, element("strong", { text: t("similarity", { value: last.similarity.toFixed(2) }) })),
      element("div", { class: "scroll" },
        element("table", { class: "forming matches" }, element("thead", {}, head), element("tbody", {}, ...rows))));
    return undefined;
  };

  /** @param {string[]} held by a capsule; none if it shares all its words with others that hold more of them */
  const words = (held) => element("td", { text: held.join(" ") || t("noOwnWords") });

  area.addEventListener("input", () => store.set({ otherSentence: area.value }));
  return { ask, redraw };
}

/** How alike two parts are. @param {number} value from -1 to 1 */
function alike(value) {
  const made = element("td", { class: "share", text: value.toFixed(2) });
  made.style.backgroundColor = css(diverging(value, 140));
  return made;
}
