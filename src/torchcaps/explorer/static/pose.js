/** Sliders for what a class's pose says: properties, main directions, entries, or the way to another thing of its class. */

import { latest, post } from "./client.js";
import { byId, element, setBusy, setSlider, signed } from "./dom.js";
import { showThumbs, titleThumbs } from "./pad.js";

const REACH = 0.5; // how far a slider moves an entry where no real things are known; a pose is at most 1 long
const FAR = 2; // the service takes no entry beyond

/**
 * A way to move a pose: by `offset` times `vector`, from `low` to `high`.
 * @typedef {{title: string, short: string, vector: number[], low: number, high: number}} Axis
 */

/** @param {import("./app.js").Page} page */
export function createPose(page) {
  const { store, t } = page;
  const panel = byId("panel-pose");
  const view = byId("pose-view");
  const model = page.model("capsules");
  /** @type {any} */
  let found = null; // the pose as routed
  /** @type {any} */
  let moved = null; // what is decoded from the pose with the offsets
  /** @type {any} */
  let known = null; // directions of the class and some things of it, if there are test images
  /** @type {HTMLInputElement[]} */
  let sliders = [];
  /** @type {Axis[]} */
  let axes = [];

  const way = () => (known ? store.get().poseBy : "entries");
  const offsets = () => axes.map((_, index) => store.get().offsets?.[index] ?? 0);
  const isMoved = () => offsets().some((offset) => offset !== 0);
  const busy = (/** @type {boolean} */ value) => setBusy(panel, value);

  const ask = latest(async () => {
    const image = page.picture?.png;
    const request = { model: model.id, image, class_index: page.known(model, store.get().poseClass) };
    found = image ? await post("/api/reconstruct", request) : null;
    moved = found;
    if (found && known?.class_index !== found.class_index) {
      known = await post("/api/poses", { model: model.id, class_index: found.class_index }).catch(() => null);
    }
    build();
    if (isMoved()) decode();
  }, page.refused, busy);

  const decode = latest(async () => {
    if (!found) return;
    const moves = offsets();
    const pose = found.pose.map((/** @type {number} */ value, /** @type {number} */ entry) => {
      const there = axes.reduce((sum, axis, index) => sum + moves[index] * axis.vector[entry], value);
      return Math.min(Math.max(there, -FAR), FAR);
    });
    moved = isMoved() ? await post("/api/reconstruct", { model: model.id, pose, class_index: found.class_index }) : found;
    show();
  }, page.refused, busy);

  /** One unit of a slider is the whole range of real things. @param {any} direction @returns {Axis} */
  const toAxis = ({ name, number, vector, low, high }) => {
    const range = Math.max(high - low, 1e-6);
    const at = vector.reduce((/** @type {number} */ sum, /** @type {number} */ part, /** @type {number} */ entry) =>
      sum + part * (found.pose[entry] - known.mean[entry]), 0);
    const word = t(`property.${name}`);
    return {
      title: number === null ? word : t("entryNamed", { number: number + 1, name: word }),
      short: number === null ? word : `${number + 1} · ${word}`,
      vector: vector.map((/** @type {number} */ part) => part * range),
      low: Math.min((low - at) / range, 0), high: Math.max((high - at) / range, 0),
    };
  };
  const findAxes = () => {
    if (!known) {
      return found.pose.map((/** @type {number} */ _, /** @type {number} */ index) => ({
        title: t("entry", { number: index + 1 }), short: String(index + 1), low: -REACH, high: REACH,
        vector: found.pose.map((/** @type {number} */ _part, /** @type {number} */ entry) => (entry === index ? 1 : 0)),
      }));
    }
    if (way() === "morph") {
      const other = known.members[Math.min(store.get().morph, known.members.length - 1)];
      const vector = found.pose.map((/** @type {number} */ value, /** @type {number} */ entry) => other.pose[entry] - value);
      return [{ title: t("morphShare"), short: t("morphShort"), vector, low: 0, high: 1 }];
    }
    const lists = { properties: known.told, directions: known.principal, entries: known.entries };
    return lists[/** @type {keyof lists} */ (way())].map(toAxis);
  };

  const build = () => {
    page.fillClasses(byId("pose-class"), model, store.get().poseClass, found?.label);
    byId("pose-ways").classList.toggle("hidden", !known);
    panel.querySelectorAll("input[name=pose-way]").forEach((/** @type {any} */ input) => {
      input.checked = input.value === way();
    });
    if (!found) return view.replaceChildren(page.emptyNote());
    axes = findAxes();
    sliders = axes.map(({ title, low, high }) => element("input", {
      type: "range", min: low.toFixed(2), max: high.toFixed(2), step: 0.01, "aria-label": title, oninput: () => slide(),
    }));
    view.replaceChildren(
      element("div", { class: "decoded" },
        figure("pose-image", t("imageNow")), figure("pose-found", t("decodedFound")), figure("pose-moved", t("decodedMoved")),
        element("p", { class: "small muted", id: "pose-note" })),
      element("div", {},
        element("p", { class: "small muted", text: t(known ? `way.${way()}` : "way.plain") }),
        ...(way() === "morph" ? [members()] : []),
        element("div", { class: "sliders" }, ...sliders.map((slider, index) => element("div", { class: "slider" },
          element("span", { class: "slider-name", text: axes[index].short, "aria-hidden": "true" }), slider,
          element("output", {}))))));
    return show();
  };
  const figure = (/** @type {string} */ id, /** @type {string} */ caption) => element("figure", {},
    element("img", { id, alt: caption, class: "pixels" }), element("figcaption", { class: "small", text: caption }));
  const members = () => {
    const root = element("div", { class: "thumbs members", role: "radiogroup", "aria-label": t("morphWith") });
    const shown = known.members.map((/** @type {any} */ member) => ({ image: member.image, label: known.label }));
    showThumbs(root, "member", shown, (index) => store.set({ morph: index }));
    titleThumbs(root, shown, t);
    root.querySelectorAll("input").forEach((/** @type {any} */ input, /** @type {number} */ index) => {
      input.checked = index === Math.min(store.get().morph, shown.length - 1);
    });
    return root;
  };

  const show = () => {
    if (!found || !sliders.length) return;
    const pictures = { "pose-image": page.picture?.png, "pose-found": found.reconstruction, "pose-moved": moved.reconstruction };
    for (const [id, png] of Object.entries(pictures)) if (png) byId(id).src = `data:image/png;base64,${png}`;
    const shares = offsets();
    sliders.forEach((slider, index) => setSlider(slider, shares[index], signed(shares[index], 2)));
    byId("pose-note").textContent =
      t("poseNote", { length: moved.length.toFixed(2), value: moved.milliseconds.toFixed(1) });
    byId("pose-reset").disabled = !isMoved();
  };
  const slide = () => {
    const values = sliders.map((slider) => Number(slider.value));
    store.set({ offsets: values.some((value) => value !== 0) ? values : null });
  };

  store.listen((state, changed) => {
    if (state.tab !== "pose" || changed.has("source")) return;
    if (found && (changed.has("poseBy") || changed.has("morph"))) build();
    if (changed.has("offsets") || changed.has("poseBy") || changed.has("morph")) decode();
  });
  byId("pose-reset").addEventListener("click", () => store.set({ offsets: null }));
  byId("pose-ways").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ poseBy: event.target.value, offsets: null }));
  byId("pose-class").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ poseClass: event.target.value === "" ? null : Number(event.target.value), offsets: null }));
  return { tab: "pose", keys: ["poseClass"], model: () => model, refresh: ask, redraw: build };
}
