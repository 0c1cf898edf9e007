/** The picture of one routing at one moment: head, votes, activations, couplings, poses. */

import { showBars } from "./bars.js";
import { drawn, element, signed } from "./dom.js";
import { classColour, diverging, paintMatrix, sequential } from "./palette.js";
import { paintPlane } from "./plane.js";
import { mapOf, stepAt, transposed, within } from "./trace.js";

const MOST_NAMES = 12; // more classes than this have no names below the maps
const SHAPES = [ // the markers of plane.js
  "M5 0A5 5 0 1 0 15 0A5 5 0 1 0 5 0", "M10-6 16 5H4Z", "M5-5H15V5H5Z", "M10-6 16 0 10 6 4 0Z", "M10 6 16-5H4Z",
];

/** @param {import("./app.js").Page} page */
export function createView(page) {
  const { t } = page;
  const labels = page.model("capsules").labels;
  const title = element("h3");
  const note = element("p", { class: "small muted" });
  const canvas = element("canvas", { class: "plane", role: "img" });
  const legend = element("figcaption", { class: "legend" });
  const bars = element("ol", { class: "bars" });
  const barsTitle = element("p", { class: "small muted" });
  const maps = element("div", { class: "maps" });
  const root = element("article", { class: "view" },
    element("header", {}, title, note),
    element("figure", { class: "votes" }, canvas, legend),
    element("div", { class: "now" }, barsTitle, bars),
    maps);

  /** A matrix with a caption and the names of its columns. @param {string} caption @param {any} picture @param {string[]} names */
  const framed = (caption, picture, names = []) => element("figure", {},
    picture,
    element("div", { class: "axis", "aria-hidden": "true" }, ...names.map((text) => element("span", { text }))),
    element("figcaption", { class: "small", text: caption }));

  /**
   * @param {import("./trace.js").Trace} trace
   * @param {number} time
   * @param {{box: any, found: any}} frames extent and colours, shared by views side by side
   */
  const show = (trace, time, { box, found }) => {
    const step = stepAt(trace.steps, time);
    const { classes, variance_shares: shares } = trace.plane;
    const count = trace.routing.num_iterations;
    const name = page.routingName(trace.routing.algorithm);
    const spent = t("milliseconds", { value: trace.milliseconds.toFixed(1) });
    const goal = step.objective === null ? [] : [t("objective", { value: signed(step.objective, 2) })];
    title.textContent = count === null ? name : `${name} · ${t(count === 1 ? "oneIteration" : "iterationCount", { count })}`;
    note.textContent = [t("says", { label: trace.label }), spent, ...goal].join(" · ");
    barsTitle.textContent = t("activationsNow");
    bars.setAttribute("aria-label", t("activationsNow"));
    showBars(bars, labels, step.activations, step.activations.indexOf(Math.max(...step.activations)));
    paintPlane(canvas, trace, step, Math.min(time, trace.steps.length - 1), box, Math.max(found.point.most, 1e-9));
    const centres = classes.map((index) => `${labels[index]} ${step.activations[index].toFixed(2)}`).join(", ");
    canvas.setAttribute("aria-label", t("planeLabel", { centres }));
    legend.replaceChildren(
      ...classes.map((index, place) => element("span", {},
        drawn("svg", { viewBox: "3 -7 14 14", width: 14, height: 14, "aria-hidden": "true" },
          drawn("path", { d: SHAPES[place], fill: classColour(place) })),
        t("className", { label: labels[index] }))),
      element("span", { class: "muted", text: t("variance", { share: Math.round(100 * (shares[0] + shares[1])) }) }));
    const shown = classes.map((index) => [labels[index], mapOf(step.by_place, index)]);
    const names = labels.length > MOST_NAMES ? [] : labels;
    const rounded = (/** @type {{least: number, most: number}} */ { least, most }) =>
      ({ least: least.toFixed(2), most: most.toFixed(2) });
    const byType = t("byType", rounded(found.type));
    const key = JSON.stringify([classes, byType]);
    if (maps.dataset.key !== key) {
      maps.dataset.key = key;
      const picture = (/** @type {string} */ label, kind = "") =>
        element("canvas", { class: `matrix ${kind}`, role: "img", "aria-label": label });
      maps.replaceChildren(
        element("div", {},
          element("div", { class: "places" }, ...shown.map(([label]) =>
            framed(t("className", { label }), picture(t("placeLabel", { label }), "square")))),
          element("p", { class: "small muted scale" })),
        element("div", { class: "tables" },
          framed(byType, picture(byType), names), framed(t("poses"), picture(t("poses"), "poses"), names)));
    }
    maps.querySelector(".scale").textContent = t("byPlace", rounded(found.place));
    const pictures = [...maps.querySelectorAll("canvas")];
    shown.forEach(([, map], place) =>
      paintMatrix(pictures[place], /** @type {any} */ (map), (value) => sequential(within(value, found.place))));
    paintMatrix(pictures[shown.length], step.by_type, (value) => sequential(within(value, found.type)));
    const longest = Math.max(-found.pose.least, found.pose.most, 1e-9);
    paintMatrix(pictures[shown.length + 1], transposed(step.poses), (value) => diverging(value / longest));
  };
  return { root, show };
}
