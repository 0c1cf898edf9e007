/** Drawings as strokes on a grid of 256 x 256, so that a link can carry them; and pictures made of them. */

/** @typedef {[number, number]} Point */
/** @typedef {Point[]} Stroke */

export const GRID = 256;
const PEN = 23; // width of a stroke on the grid, 2.5 pixels of 28
const NEAR = 3; // points nearer than this to the last one add nothing
const INNER = 20 / 28; // share of the picture that a fitted digit fills, as in MNIST
const LARGEST = 3; // a fitted drawing grows at most this much: a dot stays a dot
const MOST_POINTS = 4000;

/** @param {Stroke[]} strokes @returns {string} two hexadecimal digits per coordinate, strokes divided by dots */
export function encodeStrokes(strokes) {
  return strokes.map((stroke) => stroke.flat().map((n) => n.toString(16).padStart(2, "0")).join("")).join(".");
}

/** @param {string} text @returns {Stroke[]|null} null if it is no drawing */
export function decodeStrokes(text) {
  if (!text) return [];
  if (text.length > 4 * MOST_POINTS || !/^([0-9a-f]{4})+(\.([0-9a-f]{4})+)*$/.test(text)) return null;
  return text.split(".").map((part) => (part.match(/..../g) ?? []).map(
    (four) => [parseInt(four.slice(0, 2), 16), parseInt(four.slice(2), 16)]));
}

/** @param {number} value @returns {number} on the grid */
const onGrid = (value) => Math.min(Math.max(Math.round(value), 0), GRID - 1);

/**
 * The strokes with one more point at the end of the last.
 * @param {Stroke[]} strokes
 * @param {number} x in [0, 1]
 * @param {number} y in [0, 1]
 * @param {boolean} starts a new stroke
 * @returns {Stroke[]} the same array if the point adds nothing
 */
export function addPoint(strokes, x, y, starts) {
  const point = /** @type {Point} */ ([onGrid(x * GRID), onGrid(y * GRID)]);
  if (strokes.reduce((sum, stroke) => sum + stroke.length, 0) >= MOST_POINTS) return strokes;
  const last = strokes.at(-1);
  if (starts || !last) return [...strokes, [point]];
  const [before] = last.slice(-1);
  if (Math.hypot(point[0] - before[0], point[1] - before[1]) < NEAR) return strokes;
  return [...strokes.slice(0, -1), [...last, point]];
}

/**
 * Moves and scales a drawing to where the digits of MNIST stand: its longer side fills 20 of 28 pixels, in the middle.
 * @param {Stroke[]} strokes
 * @returns {Stroke[]}
 */
export function fitted(strokes) {
  if (!strokes.length) return strokes;
  const points = strokes.flat();
  const [left, right] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const [top, bottom] = [Math.min(...points.map(([, y]) => y)), Math.max(...points.map(([, y]) => y))];
  const room = INNER * GRID - PEN;
  const scale = Math.min(room / Math.max(right - left, bottom - top, 1), LARGEST);
  const [middleX, middleY] = [(left + right) / 2, (top + bottom) / 2];
  const moved = (/** @type {Point} */ [x, y]) =>
    /** @type {Point} */ ([GRID / 2 + scale * (x - middleX), GRID / 2 + scale * (y - middleY)]);
  return strokes.map((stroke) => stroke.map(moved));
}

/**
 * Draws white strokes over a whole canvas that is black.
 * @param {CanvasRenderingContext2D} context
 * @param {Stroke[]} strokes
 */
export function paintStrokes(context, strokes) {
  const { width, height } = context.canvas;
  const scale = Math.min(width, height) / GRID;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.fillStyle = "#000";
  context.fillRect(0, 0, width, height);
  context.setTransform(scale, 0, 0, scale, (width - scale * GRID) / 2, (height - scale * GRID) / 2);
  context.strokeStyle = "#fff";
  context.lineWidth = PEN;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(...stroke[0]);
    context.lineTo(...stroke[0]);
    for (let index = 1; index < stroke.length; index += 1) {
      const [x, y] = stroke[index - 1];
      context.quadraticCurveTo(x, y, (x + stroke[index][0]) / 2, (y + stroke[index][1]) / 2);
    }
    context.lineTo(...stroke[stroke.length - 1]);
    context.stroke();
  }
  context.setTransform(1, 0, 0, 1, 0, 0);
}
