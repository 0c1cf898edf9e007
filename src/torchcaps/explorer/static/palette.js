/** Colours told apart by the colour-blind (Okabe and Ito), each with a marker of its own; and colour maps. */

export const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00"];
const DARK_COLOURS = ["#56B4E9", "#E8743B", "#2DBE92", "#DD8FBA", "#F0B429"]; // the same hues, lighter

const CIVIDIS = ["#00224e", "#1a386f", "#434e6c", "#61656f", "#7d7c78", "#9b9476", "#bcae6c", "#dec958", "#fee838"];
export const FOR = [230, 120, 20]; // orange: speaks for
export const AGAINST = [124, 92, 190]; // purple: speaks against

/** @typedef {[number, number, number, number]} Colour red, green, blue, opacity, all 0 to 255 */

/** @returns {boolean} */
export function isDark() {
  const wanted = document.documentElement.dataset.theme;
  return wanted ? wanted === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** @param {number} place @returns {string} */
export function classColour(place) {
  return (isDark() ? DARK_COLOURS : COLOURS)[place % COLOURS.length];
}

/** @param {string} hex */
const channels = (hex) => [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
const STOPS = CIVIDIS.map(channels);

/** @param {number} value in [0, 1] @returns {Colour} from dark blue to yellow */
export function sequential(value) {
  const place = Math.min(Math.max(value, 0), 1) * (STOPS.length - 1);
  const index = Math.min(Math.floor(place), STOPS.length - 2);
  const part = place - index;
  const mixed = STOPS[index].map((low, channel) => Math.round(low + part * (STOPS[index + 1][channel] - low)));
  return /** @type {Colour} */ ([...mixed, 255]);
}

/** @param {number} value in [-1, 1] @param {number} [strongest] opacity at the ends @returns {Colour} purple, nothing, orange */
export function diverging(value, strongest = 255) {
  const opacity = Math.round(strongest * Math.min(Math.abs(value), 1));
  return /** @type {Colour} */ ([...(value < 0 ? AGAINST : FOR), opacity]);
}

/** @param {Colour} colour @returns {string} */
export const css = ([red, green, blue, opacity]) => `rgba(${red}, ${green}, ${blue}, ${(opacity / 255).toFixed(3)})`;

/**
 * Adds the marker of a class to the path: disc, triangle, square, diamond, triangle on its tip.
 * @param {CanvasRenderingContext2D} context
 * @param {number} place of the class
 * @param {number} x
 * @param {number} y
 * @param {number} radius
 */
export function marker(context, place, x, y, radius) {
  context.beginPath();
  const corners = [
    null,
    [[0, -1.15], [1.05, 0.75], [-1.05, 0.75]],
    [[-0.85, -0.85], [0.85, -0.85], [0.85, 0.85], [-0.85, 0.85]],
    [[0, -1.2], [1.2, 0], [0, 1.2], [-1.2, 0]],
    [[0, 1.15], [1.05, -0.75], [-1.05, -0.75]],
  ][place % COLOURS.length];
  if (!corners) context.arc(x, y, radius, 0, 2 * Math.PI);
  else for (const [dx, dy] of corners) context.lineTo(x + radius * dx, y + radius * dy);
  context.closePath();
}

/**
 * Paints a matrix, one pixel per entry; the style sheet enlarges it.
 * @param {HTMLCanvasElement} canvas
 * @param {number[][]} matrix
 * @param {(value: number) => Colour} colour
 */
export function paintMatrix(canvas, matrix, colour) {
  [canvas.width, canvas.height] = [matrix[0].length, matrix.length];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const image = context.createImageData(canvas.width, canvas.height);
  image.data.set(matrix.flatMap((row) => row.flatMap(colour)));
  context.putImageData(image, 0, 0);
}

/** @param {number[][]} matrix @returns {number} the largest absolute value */
export const largest = (matrix) => Math.max(...matrix.map((row) => Math.max(...row.map(Math.abs))), 1e-9);
