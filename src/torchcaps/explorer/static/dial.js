/** A toy on a turntable: the side it is shown from, and the side that is read from the pose of its class. */

import { get, latest } from "./client.js";
import { byId, drawn, element, setSlider } from "./dom.js";

const [MIDDLE, RADIUS] = [100, 84]; // of the dial

/** How far two angles are apart. @param {number} first @param {number} second */
const apart = (first, second) => Math.abs(((first - second + 540) % 360) - 180);

/** Where an angle lies on the dial, 0 at the top. @param {number} degrees @param {number} radius */
const place = (degrees, radius) => {
  const angle = (degrees * Math.PI) / 180;
  return [MIDDLE + radius * Math.sin(angle), MIDDLE - radius * Math.cos(angle)];
};

/** @param {import("./app.js").Page} page @param {any} model */
export function createDial(page, model) {
  const { store, t } = page;
  const view = byId("dial-view");
  /** @type {any} */
  let turned = null;
  let wanted = -1;

  const fetchSides = latest(async () => {
    turned = await get(`/api/turn?model=${encodeURIComponent(model.id)}&toy=${wanted}`);
    redraw();
  }, page.refused, () => {});
  const ask = (/** @type {number} */ toy) => {
    if (toy === wanted && turned) return;
    [wanted, turned] = [toy, null];
    redraw();
    fetchSides();
  };

  const chosen = () => Math.min(store.get().side, turned.sides.length - 1);
  const line = (/** @type {string} */ id) => drawn("line", { id, x1: MIDDLE, y1: MIDDLE, class: "needle" });
  /** Turn to the side nearest to the pointer. @param {any} event */
  const point = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const box = event.currentTarget.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left - box.width / 2, event.clientY - box.top - box.height / 2];
    const angle = (Math.atan2(x, -y) * 180) / Math.PI;
    const away = turned.sides.map((/** @type {any} */ side) => apart(side.azimuth, (angle + 360) % 360));
    store.set({ side: away.indexOf(Math.min(...away)) });
  };

  const redraw = () => {
    view.classList.toggle("hidden", !turned);
    if (!turned) return view.replaceChildren();
    const ticks = turned.sides.map((/** @type {any} */ { azimuth }) => {
      const [[x1, y1], [x2, y2]] = [place(azimuth, RADIUS - 8), place(azimuth, RADIUS)];
      return drawn("line", { x1, y1, x2, y2, class: "tick" });
    });
    const dial = drawn("svg", {
      viewBox: `0 0 ${2 * MIDDLE} ${2 * MIDDLE}`, class: "dial", role: "img", "aria-label": t("dialLabel"),
      onpointerdown: point, onpointermove: point,
    }, drawn("circle", { cx: MIDDLE, cy: MIDDLE, r: RADIUS }), ...ticks, line("needle-shown"), line("needle-found"));
    const slider = element("input", {
      type: "range", min: 0, max: turned.sides.length - 1, step: 1, "aria-label": t("azimuth"), id: "side",
      oninput: (/** @type {any} */ event) => store.set({ side: Number(event.target.value) }),
    });
    view.replaceChildren(
      element("h3", { text: t("dialTitle") }),
      element("p", { class: "small muted", text: t("dialLead", { label: turned.label }) }),
      element("div", { class: "dial-frame" },
        element("img", { id: "side-image", class: "pixels", alt: t("dialImage") }), dial,
        element("div", {}, slider, element("p", { id: "dial-note" }),
          element("p", { class: "small", id: "dial-error", text: t("dialError", { mean: Math.round(turned.degrees_off) }) }))));
    return show();
  };
  const show = () => {
    const { azimuth, found, image } = turned.sides[chosen()];
    for (const [id, degrees, length] of [["needle-shown", azimuth, RADIUS - 14], ["needle-found", found, RADIUS - 26]]) {
      const [x2, y2] = place(degrees, length);
      byId(id).setAttribute("x2", x2.toFixed(1));
      byId(id).setAttribute("y2", y2.toFixed(1));
    }
    byId("side-image").src = `data:image/png;base64,${image}`;
    const off = Math.round(apart(azimuth, found));
    setSlider(byId("side"), chosen(), t("degrees", { value: azimuth }));
    byId("dial-note").textContent = t("dialNote", { shown: azimuth, found: Math.round(found), off });
  };

  store.listen((state, changed) => {
    if (changed.has("side") && turned) show();
  });
  return { ask, redraw };
}
