/** What the page shows, as one flat record that a link carries after its `#`. */

import { decodeStrokes, encodeStrokes } from "./strokes.js";

export const TABS = ["routing", "origins", "pose", "attack", "toys", "text", "interests"];

/**
 * Where the picture comes from.
 * @typedef {{kind: "example", index: number} | {kind: "ink", strokes: import("./strokes.js").Stroke[]} |
 *           {kind: "image", png: string}} Source
 */

/**
 * How a value is written in a link; `read` gives undefined for what makes no sense.
 * @typedef {{key: string, initial: any, read: (text: string) => any, write: (value: any) => string}} Field
 */

/** @param {string} key @param {string[]} names @param {string|null} initial @returns {Field} */
const choice = (key, names, initial) => ({
  key, initial, read: (text) => (names.includes(text) ? text : undefined), write: String,
});

/** A name that only the service knows. @param {string} key @returns {Field} */
const name = (key) => ({ key, initial: null, read: (text) => (/^[\w-]{1,40}$/.test(text) ? text : undefined), write: String });

/** @param {string} key @param {number} low @param {number} high @param {number|null} initial @returns {Field} */
const whole = (key, low, high, initial) => ({
  key, initial, read: (text) => within(/^\d{1,4}$/.test(text) ? Number(text) : NaN, low, high), write: String,
});

/** @type {Record<string, Field>} */
export const FIELDS = {
  tab: choice("view", TABS, "routing"),
  language: choice("lang", ["en", "zh"], null),
  theme: choice("theme", ["light", "dark"], null),
  source: { key: "in", initial: { kind: "example", index: 0 }, read: readSource, write: writeSource },
  fit: { key: "fit", initial: true, read: (text) => text !== "0", write: (value) => (value ? "1" : "0") },
  algorithm: name("routing"),
  iterations: whole("iterations", 0, 10, null),
  versus: name("versus"),
  versusIterations: whole("versus-iterations", 0, 10, null),
  step: whole("step", 0, 10, null),
  originsClass: whole("origins", 0, 9999, null),
  poseClass: whole("class", 0, 9999, null),
  poseBy: choice("by", ["properties", "directions", "entries", "morph"], "properties"),
  morph: whole("with", 0, 99, 0),
  offsets: { key: "pose", initial: null, read: readOffsets, write: (value) => value.map(hundredths).join(",") },
  attack: choice("attack", ["fgsm", "bim"], "fgsm"),
  epsilon: {
    key: "epsilon", initial: 0.1, write: String,
    read: (text) => within(/^\d(\.\d{1,3})?$/.test(text) ? Number(text) : NaN, 0, 0.5),
  },
  attackSteps: whole("steps", 1, 20, 10),
  toy: whole("toy", 0, 999, 0),
  node: whole("capsule", 0, 99, 0),
  side: whole("side", 0, 99, 0),
  textModel: choice("text-model", ["english", "chinese"], null),
  sentence: { key: "text", initial: null, read: (text) => text.slice(0, 2000), write: String },
  otherSentence: { key: "other", initial: null, read: (text) => text.slice(0, 2000), write: String },
  textClass: whole("text-class", 0, 9999, null),
  used: { key: "used", initial: null, read: readItems, write: JSON.stringify },
  formingStep: whole("forming", 0, 10, null),
};

/** @param {string} hash of a link @returns {Record<string, any>} the whole state */
export function readHash(hash) {
  const given = new URLSearchParams(hash.replace(/^#/, ""));
  return Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => {
    const text = given.get(field.key);
    return [name, (text === null ? undefined : field.read(text)) ?? field.initial];
  }));
}

/** @param {Record<string, any>} state @returns {string} what differs from the start, for a link */
export function writeHash(state) {
  const written = new URLSearchParams();
  for (const [name, field] of Object.entries(FIELDS)) {
    const text = textOf(field, state[name]);
    if (text !== null && text !== textOf(field, field.initial)) written.set(field.key, text);
  }
  return `#${written}`;
}

/** @param {Field} field @param {any} value */
const textOf = (field, value) => (value === null || value === undefined ? null : field.write(value));

/** @param {number} value @param {number} low @param {number} high */
const within = (value, low, high) => (value >= low && value <= high ? value : undefined);

/** @param {number} value */
const hundredths = (value) => Math.round(100 * value);

/** @param {string} text @returns {number[]|undefined} */
function readOffsets(text) {
  const numbers = text.split(",").map(Number);
  const sensible = numbers.length <= 64 && numbers.every((number) => Math.abs(number) <= 200);
  return sensible ? numbers.map((number) => number / 100) : undefined;
}

/** @param {string} text @returns {string[]|undefined} */
function readItems(text) {
  try {
    const items = JSON.parse(text);
    return Array.isArray(items) && items.length <= 30 && items.every((item) => typeof item === "string") ? items : undefined;
  } catch {
    return undefined; // somebody changed the link
  }
}

/** @param {string} text @returns {Source|undefined} */
function readSource(text) {
  const rest = text.slice(1);
  if (/^e\d{1,3}$/.test(text)) return { kind: "example", index: Number(rest) };
  if (/^p[\w-]{1,8000}$/.test(text)) return { kind: "image", png: rest.replace(/-/g, "+").replace(/_/g, "/") };
  const strokes = text.startsWith("d") ? decodeStrokes(rest) : null;
  return strokes ? { kind: "ink", strokes } : undefined;
}

/** @param {Source} source */
function writeSource(source) {
  if (source.kind === "example") return `e${source.index}`;
  if (source.kind === "ink") return `d${encodeStrokes(source.strokes)}`;
  return `p${source.png.replace(/=+$/, "").replace(/\+/g, "-").replace(/\//g, "_")}`;
}

/**
 * Holds the state, tells who listens what changed, and keeps the address of the page up to date.
 * @param {string} hash
 */
export function createStore(hash) {
  let state = readHash(hash);
  /** @type {((state: Record<string, any>, changed: Set<string>) => void)[]} */
  const listeners = [];
  let timer = 0;
  const apply = (/** @type {Record<string, any>} */ next) => {
    const changed = new Set(Object.keys(FIELDS).filter(
      (name) => textOf(FIELDS[name], next[name]) !== textOf(FIELDS[name], state[name])));
    state = next;
    if (changed.size) for (const listener of listeners) listener(state, changed);
  };
  return {
    get: () => state,
    /** @param {Record<string, any>} patch */
    set(patch) {
      apply({ ...state, ...patch });
      clearTimeout(timer);
      timer = setTimeout(() => history.replaceState(null, "", writeHash(state)), 200); // browsers limit how often
    },
    /** @param {string} text */
    restore: (text) => apply(readHash(text)),
    /** @param {(state: Record<string, any>, changed: Set<string>) => void} listener */
    listen: (listener) => void listeners.push(listener),
  };
}
