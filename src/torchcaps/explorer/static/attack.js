/** Attacks on the capsules and, beside them, on the small convolutional network. */

import { showBars } from "./bars.js";
import { latest, post } from "./client.js";
import { byId, element, setBusy, setSlider } from "./dom.js";

/** @param {import("./app.js").Page} page */
export function createAttack(page) {
  const { store, t } = page;
  const panel = byId("panel-attack");
  const models = [page.model("capsules"), page.model("rival")];
  const views = models.filter(Boolean).map((model, place) => createView(page, model, place === 0 ? "capsules" : "rival"));
  /** @type {any[]} */
  let answers = [];

  const ask = latest(async () => {
    const { attack, epsilon, attackSteps } = store.get();
    const image = page.picture?.png;
    const steps = attack === "bim" ? { num_steps: attackSteps } : {};
    answers = [];
    for (const { model } of image ? views : []) {
      answers.push(await post("/api/attack", { model: model.id, image, attack, epsilon, ...steps }));
    }
    redraw();
  }, page.refused, (busy) => setBusy(panel, busy));

  const showControls = () => {
    const { attack, epsilon, attackSteps } = store.get();
    panel.querySelectorAll("input[name=attack]").forEach((/** @type {HTMLInputElement} */ input) => {
      input.checked = input.value === attack;
    });
    setSlider(byId("epsilon"), epsilon, epsilon.toFixed(2));
    setSlider(byId("attack-steps"), attackSteps);
    byId("attack-steps-row").hidden = attack !== "bim";
  };
  const redraw = () => {
    showControls();
    const root = byId("attack-views");
    if (!answers.length) return root.replaceChildren(page.emptyNote());
    views.forEach((view, index) => view.show(answers[index]));
    const missing = models[1] ? [] : [element("p", { class: "note", text: t("noRival") })];
    return root.replaceChildren(...views.map(({ root: one }) => one), ...missing);
  };

  panel.addEventListener("change", (/** @type {any} */ event) => {
    if (event.target.name === "attack") store.set({ attack: event.target.value });
  });
  byId("epsilon").addEventListener("input", (/** @type {any} */ event) => store.set({ epsilon: Number(event.target.value) }));
  byId("attack-steps").addEventListener("input", (/** @type {any} */ event) =>
    store.set({ attackSteps: Number(event.target.value) }));
  store.listen((_, changed) => {
    if (["attack", "epsilon", "attackSteps"].some((key) => changed.has(key))) showControls();
  });
  return { tab: "attack", keys: ["attack", "epsilon", "attackSteps"], model: () => models[0], refresh: ask, redraw };
}

/** One network under attack. @param {import("./app.js").Page} page @param {any} model @param {string} role */
function createView(page, model, role) {
  const { t } = page;
  const title = element("h3");
  const verdict = element("p", { class: "outcome" });
  const perturbed = element("img", { class: "pixels", "data-picture": "perturbed" });
  const difference = element("img", { class: "pixels", "data-picture": "difference" });
  const captions = [element("figcaption", { class: "small" }), element("figcaption", { class: "small" })];
  const bars = element("ol", { class: "bars" });
  const note = element("p", { class: "small muted" });
  const root = element("article", { class: "view attacked", "data-role": role },
    element("header", {}, title, verdict),
    element("div", { class: "pictures" },
      element("figure", {}, perturbed, captions[0]), element("figure", {}, difference, captions[1])),
    bars, note);
  const show = (/** @type {any} */ answer) => {
    const { before, after, succeeded } = answer;
    title.textContent = `${t(role)} · ${model.title}`;
    verdict.textContent = succeeded ? t("fooled", { before: before.label, after: after.label })
      : t("holds", { label: after.label });
    verdict.classList.toggle("bad", succeeded);
    perturbed.src = `data:image/png;base64,${answer.perturbed}`;
    difference.src = `data:image/png;base64,${answer.difference}`;
    [captions[0].textContent, captions[1].textContent] = [t("perturbed"), t("difference")];
    [perturbed.alt, difference.alt] = [t("perturbed"), t("difference")];
    bars.setAttribute("aria-label", t(model.scores));
    showBars(bars, model.labels, after.scores, after.best, before.scores);
    note.textContent = `${t(model.scores)}; ${t("markBefore")} · ${t("milliseconds", { value: answer.milliseconds.toFixed(1) })}`;
  };
  return { root, model, show };
}
