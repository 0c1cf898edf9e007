/** Sentences: class activations and the words behind them. */

import { clearBars, showBars } from "./bars.js";
import { get, latest, post } from "./client.js";
import { byId, element, fillSelect, setBusy, signed } from "./dom.js";
import { createMatching } from "./matching.js";
import { css, diverging } from "./palette.js";

const START = { english: "a warm and funny film with a wonderful cast", chinese: "这家酒店的服务很好，房间干净，下次还会再来" };
const FAINT = 0.08; // words that say less than this share of what the strongest says are not marked

/** @param {import("./app.js").Page} page */
export function createText(page) {
  const { store, t } = page;
  const panel = byId("panel-text");
  const area = byId("sentence");
  area.maxLength = page.catalogue.limits.text_characters;
  /** @type {Record<string, any[]>} */
  const examples = {};
  /** @type {any} */
  let last = null;

  const roles = ["english", "chinese"].filter((role) => page.model(role));
  const role = () => {
    const wanted = store.get().textModel ?? (page.language() === "zh" ? "chinese" : "english");
    return roles.includes(wanted) ? wanted : roles[0];
  };
  const sentence = () => store.get().sentence ?? examples[role()]?.[0]?.text ?? START[/** @type {"english"} */ (role())];

  const matching = createMatching(page, () => page.model(role()), sentence);
  const ask = latest(async () => {
    const model = page.model(role());
    if (model) {
      examples[role()] ??= (await get(`/api/examples?model=${encodeURIComponent(model.id)}`)).examples;
      const text = sentence();
      const class_index = page.known(model, store.get().textClass);
      last = null;
      if (text.trim()) {
        const start = performance.now();
        const said = await post("/api/predict", { model: model.id, text });
        const spent = performance.now() - start;
        const explains = model.abilities.includes("explain");
        last = { said, spent, why: explains ? await post("/api/explain", { model: model.id, text, class_index }) : null };
        page.announce(t("saysNow", { label: said.label, score: said.scores[said.best].toFixed(2) }));
      }
    }
    redraw();
    matching.ask();
  }, page.refused, (busy) => setBusy(panel, busy));

  const redraw = () => {
    byId("room-text").classList.toggle("missing", !roles.length);
    document.querySelectorAll("input[name=text-language]").forEach((node) => {
      const input = /** @type {HTMLInputElement} */ (node);
      input.disabled = !roles.includes(input.value);
      input.checked = input.value === role();
    });
    byId("text-key").replaceChildren();
    matching.redraw();
    if (!roles.length) return byId("words").replaceChildren(element("span", { class: "note", text: t("noText") }));
    const texts = examples[role()] ?? [];
    const named = texts.map(({ text, label }, index) => [String(index), `${label}: ${shortened(text)}`]);
    fillSelect(byId("text-examples"), [["", t("chooseSentence")], ...named], "");
    byId("text-examples").disabled = !texts.length;
    if (area.value !== sentence()) area.value = sentence();
    area.lang = role() === "chinese" ? "zh" : "en";
    return showAnswer();
  };

  const showAnswer = () => {
    const model = page.model(role());
    page.fillClasses(byId("text-class"), model, store.get().textClass, last?.said.label);
    const [answer, note, timing] = [byId("text-answer"), byId("text-note"), byId("text-timing")];
    if (!last) {
      clearBars(byId("text-activations"));
      [answer.textContent, note.textContent, timing.textContent] = ["–", "", ""];
      byId("words-note").textContent = "";
      return byId("words").replaceChildren(element("span", { class: "note", text: t("noSentence") }));
    }
    const { said, why, spent } = last;
    answer.textContent = said.label;
    note.textContent = `${t(`${model.scores}One`)} ${said.scores[said.best].toFixed(2)}`;
    timing.textContent = t("timing", { spent: spent.toFixed(0), value: said.milliseconds.toFixed(1) });
    showBars(byId("text-activations"), model.labels, said.scores, said.best);
    if (!why) return byId("words").replaceChildren(element("span", { class: "note", text: t("noWords") }));
    const most = Math.max(...why.words.map((/** @type {any} */ one) => Math.abs(one.value)), 1e-9);
    byId("words").replaceChildren(...why.words.map((/** @type {any} */ one) => colouredWord(one, most)));
    byId("text-key").replaceChildren(page.key());
    byId("words-note").textContent = t("wordsNote", { label: why.label, score: why.score.toFixed(2) });
    return undefined;
  };

  /** @param {{word: string, value: number}} one @param {number} most */
  const colouredWord = ({ word, value }, most) => {
    const number = signed(value, most < 0.1 ? 3 : 2);
    const side = Math.abs(value) < FAINT * most ? "faint" : value < 0 ? "against" : "for";
    const made = element("span", { class: `word ${side}` }, element("span", { class: "word-text", text: word }),
      element("span", { class: "word-value", text: value > 0 && Number(number) > 0 ? `+${number}` : number }));
    made.style.backgroundColor = css(diverging(value / most, 140));
    return made;
  };

  area.addEventListener("input", () => store.set({ sentence: area.value }));
  byId("text-examples").addEventListener("change", (/** @type {any} */ event) => {
    const chosen = (examples[role()] ?? [])[Number(event.target.value)];
    if (event.target.value !== "" && chosen) store.set({ sentence: chosen.text, textClass: null });
  });
  byId("text-class").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ textClass: event.target.value === "" ? null : Number(event.target.value) }));
  document.querySelectorAll("input[name=text-language]").forEach((input) =>
    input.addEventListener("change", (/** @type {any} */ event) =>
      store.set({ textModel: event.target.value, sentence: null, textClass: null })));
  const model = () => page.model(role());
  return { tab: "text", keys: ["sentence", "textClass", "textModel", "otherSentence"], model, refresh: ask, redraw };
}

/** @param {string} text */
const shortened = (text) => (text.length > 48 ? `${text.slice(0, 47)}…` : text);
