/** Class activations as bars. */

import { element } from "./dom.js";

/**
 * @param {HTMLElement} list an `ol`
 * @param {string[]} labels
 * @param {number[]} scores in [0, 1]
 * @param {number} best index of the answer, which stands out
 * @param {number[]} [before] earlier scores, shown as a mark
 */
export function showBars(list, labels, scores, best, before) {
  if (list.dataset.labels !== JSON.stringify(labels)) {
    list.dataset.labels = JSON.stringify(labels);
    list.replaceChildren(...labels.map((label) => element("li", {},
      element("span", { class: "bar-label", text: label, title: label }),
      element("span", { class: "bar-track", "aria-hidden": "true" },
        element("span", { class: "bar-fill" }), element("span", { class: "bar-mark", hidden: true })),
      element("span", { class: "bar-value" }))));
  }
  [...list.children].forEach((row, index) => {
    const [, track, value] = /** @type {HTMLElement[]} */ ([...row.children]);
    const [fill, mark] = /** @type {HTMLElement[]} */ ([...track.children]);
    fill.style.width = percent(scores[index]);
    mark.hidden = !before;
    if (before) mark.style.left = percent(before[index]);
    value.textContent = scores[index].toFixed(2);
    row.classList.toggle("best", index === best);
  });
}

/** @param {HTMLElement} list */
export function clearBars(list) {
  delete list.dataset.labels;
  list.replaceChildren();
}

/** @param {number} value */
const percent = (value) => `${(100 * Math.min(Math.max(value, 0), 1)).toFixed(1)}%`;
