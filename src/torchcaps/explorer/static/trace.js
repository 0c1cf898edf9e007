/** Pure functions over the answers of `/api/trace`. */

/**
 * @typedef {{activations: number[], poses: number[][], objective: number|null, by_place: number[][][],
 *   by_type: number[][], point_couplings: number[][], centres: number[][]}} Step
 * @typedef {{classes: number[], points: number[][][], variance_shares: number[], places: number[][]}} Plane
 * @typedef {{routing: {algorithm: string, num_iterations: number|null}, steps: Step[], plane: Plane, best: number,
 *   label: string, milliseconds: number}} Trace
 */

/**
 * A straight line from one nest of numbers to another.
 * @template T
 * @param {T} from
 * @param {T} to
 * @param {number} part 0 to 1
 * @returns {T}
 */
export function between(from, to, part) {
  if (Array.isArray(from) && Array.isArray(to)) {
    return /** @type {any} */ (from.map((value, index) => between(value, to[index], part)));
  }
  return /** @type {any} */ (Number(from) + part * (Number(to) - Number(from)));
}

/**
 * The step at a time between two; times after the last are the last.
 * @param {Step[]} steps
 * @param {number} time
 * @returns {Step}
 */
export function stepAt(steps, time) {
  const index = Math.min(Math.floor(time), steps.length - 1);
  const part = index === steps.length - 1 ? 0 : time - index;
  if (part === 0) return steps[index];
  const [from, to] = [steps[index], steps[index + 1]];
  return /** @type {Step} */ (Object.fromEntries(Object.keys(from).map((key) => [
    key,
    key === "objective" ? from.objective : between(/** @type {any} */ (from)[key], /** @type {any} */ (to)[key], part),
  ])));
}

/** @param {number[][][]} byPlace (rows, columns, J) @param {number} index of a class @returns {number[][]} */
export const mapOf = (byPlace, index) => byPlace.map((row) => row.map((cell) => cell[index]));

/** @param {number[][]} matrix @returns {number[][]} */
export const transposed = (matrix) => matrix[0].map((_, column) => matrix.map((row) => row[column]));

/**
 * The rectangle around all votes and centres, a little wider.
 * @param {Trace[]} traces that share a plane
 * @returns {{left: number, right: number, bottom: number, top: number}}
 */
export function extent(traces) {
  const points = traces.flatMap(({ plane, steps }) => [...plane.points.flat(), ...steps.flatMap((step) => step.centres)]);
  const [xs, ys] = [points.map(([x]) => x), points.map(([, y]) => y)];
  const [left, right, bottom, top] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const [dx, dy] = [0.06 * (right - left) || 1, 0.06 * (top - bottom) || 1];
  return { left: left - dx, right: right + dx, bottom: bottom - dy, top: top + dy };
}

/**
 * The ranges of values in all traces, so that pictures side by side share their colours.
 * @param {Trace[]} traces
 * @returns {Record<"place" | "type" | "pose" | "point", {least: number, most: number}>}
 */
export function ranges(traces) {
  const range = (/** @type {(step: Step, trace: Trace) => any} */ pick) => {
    const values = traces.flatMap((trace) => trace.steps.flatMap((step) => pick(step, trace).flat(3)));
    return { least: Math.min(...values), most: Math.max(...values) };
  };
  return {
    place: range((step, { plane }) => plane.classes.map((index) => mapOf(step.by_place, index))),
    type: range((step) => step.by_type),
    pose: range((step) => step.poses),
    point: range((step) => step.point_couplings),
  };
}

/** Where a value lies in a range, 0 to 1. @param {number} value @param {{least: number, most: number}} range */
export const within = (value, { least, most }) => (value - least) / Math.max(most - least, 1e-9);
