/** Sliders for the entries of a class's pose; what is decoded follows. */

import { latest, post } from "./client.js";
import { byId, element, setBusy, setSlider, signed } from "./dom.js";

const REACH = 0.5; // how far a slider moves an entry; a pose is at most 1 long

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
  /** @type {HTMLInputElement[]} */
  let sliders = [];

  const offsets = () => Array.from({ length: model.pose_size }, (_, index) => store.get().offsets?.[index] ?? 0);
  const isMoved = () => offsets().some((offset) => offset !== 0);
  const busy = (/** @type {boolean} */ value) => setBusy(panel, value);

  const ask = latest(async () => {
    const image = page.picture?.png;
    const request = { model: model.id, image, class_index: page.known(model, store.get().poseClass) };
    found = image ? await post("/api/reconstruct", request) : null;
    moved = found;
    build();
    if (isMoved()) decode();
  }, page.refused, busy);

  const decode = latest(async () => {
    if (!found) return;
    const pose = found.pose.map((/** @type {number} */ value, /** @type {number} */ index) =>
      Math.min(Math.max(value + offsets()[index], -2), 2));
    moved = isMoved() ? await post("/api/reconstruct", { model: model.id, pose, class_index: found.class_index }) : found;
    show();
  }, page.refused, busy);

  const build = () => {
    page.fillClasses(byId("pose-class"), model, store.get().poseClass, found?.label);
    if (!found) return view.replaceChildren(page.emptyNote());
    const name = (/** @type {number} */ index) => t("entry", { number: index + 1 });
    sliders = offsets().map((_, index) => element("input", {
      type: "range", min: -REACH, max: REACH, step: 0.01, "aria-label": name(index), oninput: () => slide(),
    }));
    view.replaceChildren(
      element("div", { class: "decoded" },
        figure("pose-image", t("imageNow")), figure("pose-found", t("decodedFound")), figure("pose-moved", t("decodedMoved")),
        element("p", { class: "small muted", id: "pose-note" })),
      element("div", { class: "sliders" }, ...sliders.map((slider, index) => element("div", { class: "slider" },
        element("span", { class: "slider-name", text: String(index + 1), "aria-hidden": "true" }), slider,
        element("output", {})))));
    return show();
  };
  const figure = (/** @type {string} */ id, /** @type {string} */ caption) => element("figure", {},
    element("img", { id, alt: caption, class: "pixels" }), element("figcaption", { class: "small", text: caption }));

  const show = () => {
    if (!found || !sliders.length) return;
    const pictures = { "pose-image": page.picture?.png, "pose-found": found.reconstruction, "pose-moved": moved.reconstruction };
    for (const [id, png] of Object.entries(pictures)) if (png) byId(id).src = `data:image/png;base64,${png}`;
    sliders.forEach((slider, index) => {
      const value = found.pose[index] + offsets()[index];
      setSlider(slider, offsets()[index], signed(value, 2));
    });
    byId("pose-note").textContent =
      t("poseNote", { length: moved.length.toFixed(2), value: moved.milliseconds.toFixed(1) });
    byId("pose-reset").disabled = !isMoved();
  };
  const slide = () => {
    const values = sliders.map((slider) => Number(slider.value));
    store.set({ offsets: values.some((value) => value !== 0) ? values : null });
  };

  store.listen((state, changed) => {
    if (state.tab === "pose" && changed.has("offsets") && !changed.has("source")) decode();
  });
  byId("pose-reset").addEventListener("click", () => store.set({ offsets: null }));
  byId("pose-class").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ poseClass: event.target.value === "" ? null : Number(event.target.value), offsets: null }));
  return { tab: "pose", keys: ["poseClass"], model: () => model, refresh: ask, redraw: build };
}
