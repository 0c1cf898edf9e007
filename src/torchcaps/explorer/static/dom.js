/** Small helpers for the document. */

/**
 * @param {string} id
 * @returns {any} the element; it must exist
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`no element with id ${id}`);
  return found;
}

/**
 * A new element. Attributes named `on...` are listeners, `text` is its text, false and null are left out.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string)} children
 * @returns {any}
 */
export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/**
 * The same for SVG.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node|string)} children
 * @returns {any}
 */
export function drawn(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** @param {Element} made @param {Record<string, any>} attributes @param {(Node|string)[]} children */
function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name === "text") made.textContent = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

/**
 * Options of a select, kept if they are the same already (so that an open list is not disturbed).
 * @param {HTMLSelectElement} select
 * @param {[string, string][]} options value and name
 * @param {string} chosen
 */
export function fillSelect(select, options, chosen) {
  const wanted = JSON.stringify(options);
  if (select.dataset.options !== wanted) {
    select.replaceChildren(...options.map(([value, text]) => element("option", { value, text })));
    select.dataset.options = wanted;
  }
  select.value = chosen;
}

/**
 * The value of a slider and the number written beside it.
 * @param {HTMLInputElement} slider
 * @param {number} value
 * @param {string} [text]
 */
export function setSlider(slider, value, text = String(value)) {
  slider.value = String(value);
  slider.setAttribute("aria-valuetext", text);
  const output = slider.parentElement?.querySelector("output");
  if (output) output.textContent = text;
}

/** @param {any} panel @param {boolean} busy */
export function setBusy(panel, busy) {
  panel.setAttribute("aria-busy", String(busy));
}

/** @param {number} value @param {number} digits @returns {string} with a true minus sign, and none at zero */
export function signed(value, digits) {
  const size = Math.abs(value).toFixed(digits);
  return value < 0 && Number(size) > 0 ? `−${size}` : size;
}
