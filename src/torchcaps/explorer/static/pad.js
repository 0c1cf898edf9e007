/** The pad: draw with mouse, finger, pen or keys; drop or open an image; choose an example; undo. */

import { byId, element } from "./dom.js";
import { fromFile, fromPng, fromStrokes, toPng } from "./picture.js";
import { addPoint, paintStrokes } from "./strokes.js";

const KEY_STEP = 1 / 32; // of the pad, per press of an arrow key
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const DIGITS = "0,1,2,3,4,5,6,7,8,9";

/**
 * @param {import("./app.js").Page} page
 * @param {(picture: {canvas: HTMLCanvasElement, png: string} | null, settled: boolean) => void} onPicture
 */
export function createPad(page, onPicture) {
  const { store, t } = page;
  const pad = byId("pad");
  const context = pad.getContext("2d");
  const model = page.model("capsules");
  const isDigits = model.labels.join() === DIGITS;
  /** @type {import("./state.js").Source[]} */
  const past = [];
  let drawing = false;
  let cursor = [0.5, 0.5];
  let penDown = false;
  let turn = 0;

  const change = (/** @type {import("./state.js").Source} */ source, remember = true) => {
    if (remember) past.push(store.get().source);
    store.set({ source, poseClass: null, offsets: null, originsClass: null });
  };
  const strokesNow = () => (store.get().source.kind === "ink" ? store.get().source.strokes : []);

  const addAt = (/** @type {number} */ x, /** @type {number} */ y, /** @type {boolean} */ starts) => {
    const before = strokesNow();
    const after = addPoint(before, x, y, starts);
    if (after !== before) change({ kind: "ink", strokes: after }, starts);
  };
  const place = (/** @type {PointerEvent} */ event) => {
    const box = pad.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  pad.addEventListener("pointerdown", (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0) return;
    event.preventDefault();
    pad.focus({ preventScroll: true });
    pad.setPointerCapture(event.pointerId);
    drawing = true;
    const [x, y] = place(event);
    addAt(x, y, true);
  });
  pad.addEventListener("pointermove", (/** @type {PointerEvent} */ event) => {
    if (!drawing) return;
    const all = event.getCoalescedEvents?.() ?? [];
    for (const one of all.length ? all : [event]) {
      const [x, y] = place(one);
      addAt(x, y, false);
    }
  });
  const lift = () => {
    if (!drawing) return;
    drawing = false;
    show(true);
  };
  for (const name of ["pointerup", "pointercancel", "lostpointercapture"]) pad.addEventListener(name, lift);

  pad.addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const move = ARROWS[/** @type {keyof typeof ARROWS} */ (event.key)];
    if (move) {
      cursor = cursor.map((value, axis) => Math.min(Math.max(value + KEY_STEP * move[axis], 0), 1));
      if (penDown) addAt(cursor[0], cursor[1], false);
      paint();
    } else if (event.key === " " || event.key === "Enter") {
      penDown = !penDown;
      if (penDown) addAt(cursor[0], cursor[1], true);
      page.announce(t(penDown ? "penDown" : "penUp"));
      paint();
    } else return;
    event.preventDefault();
  });
  pad.addEventListener("blur", () => { penDown = false; paint(); });
  pad.addEventListener("focus", () => paint());

  byId("undo").addEventListener("click", () => {
    const before = past.pop();
    if (before) change(before, false);
  });
  byId("clear").addEventListener("click", () => change({ kind: "ink", strokes: [] }));
  byId("fit").addEventListener("change", (/** @type {any} */ event) => store.set({ fit: event.target.checked }));

  const open = async (/** @type {Blob|undefined} */ file) => {
    if (!file) return;
    try {
      const canvas = await fromFile(file, model.input, isDigits && store.get().fit);
      change({ kind: "image", png: toPng(canvas) });
    } catch {
      page.problem(t("badImage"));
    }
  };
  byId("file").addEventListener("change", (/** @type {any} */ event) => {
    open(event.target.files[0]);
    event.target.value = "";
  });
  const frame = byId("pad-frame"); // the whole page takes files: one dropped beside the pad must not replace it
  const hasFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    frame.classList.add("over");
  });
  document.addEventListener("dragleave", () => frame.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    frame.classList.remove("over");
    if (!byId("room-digit").hidden) open(event.dataTransfer?.files[0]);
  });
  document.addEventListener("paste", (event) => {
    if (!byId("room-digit").hidden) open(event.clipboardData?.files[0]);
  });

  /** @returns {Promise<HTMLCanvasElement|null>} the picture as the network sees it, null if there is none */
  const picture = async () => {
    const { source, fit } = store.get();
    if (source.kind === "ink") {
      return source.strokes.length ? fromStrokes(source.strokes, model.input, isDigits && fit) : null;
    }
    const png = source.kind === "image" ? source.png : page.examples[source.index]?.image;
    return png ? fromPng(png) : null;
  };

  /** @type {HTMLCanvasElement|null} */
  let shown = null;
  const paint = () => {
    const { source } = store.get();
    if (source.kind === "ink" || !shown) paintStrokes(context, strokesNow());
    else {
      paintStrokes(context, []);
      context.imageSmoothingEnabled = false;
      const width = model.input.channels === 2 ? shown.width / 2 : shown.width;
      const scale = Math.min(pad.width / width, pad.height / shown.height);
      const [across, down] = [scale * width, scale * shown.height];
      context.drawImage(shown, 0, 0, width, shown.height,
        (pad.width - across) / 2, (pad.height - down) / 2, across, down);
    }
    byId("pad-hint").hidden = shown !== null || drawing;
    if (document.activeElement === pad && pad.matches(":focus-visible")) paintCursor();
  };
  const paintCursor = () => {
    const [x, y] = [cursor[0] * pad.width, cursor[1] * pad.height];
    context.strokeStyle = penDown ? "#E69F00" : "#56B4E9";
    context.lineWidth = 4;
    context.beginPath();
    context.arc(x, y, 22, 0, 2 * Math.PI);
    context.stroke();
  };

  const show = async (/** @type {boolean} */ settled) => {
    turn += 1;
    const mine = turn;
    const canvas = await picture().catch(() => null);
    if (mine !== turn) return; // something newer is on its way
    shown = canvas;
    paint();
    const seen = byId("seen");
    [seen.width, seen.height] = canvas ? [canvas.width, canvas.height] : [model.input.width, model.input.height];
    if (canvas) seen.getContext("2d").drawImage(canvas, 0, 0);
    byId("undo").disabled = past.length === 0;
    byId("fit").checked = store.get().fit;
    byId("fit-row").hidden = !isDigits;
    markExample();
    onPicture(canvas && { canvas, png: toPng(canvas) }, settled);
  };

  const markExample = () => {
    const { source } = store.get();
    const index = source.kind === "example" ? source.index : -1;
    byId("examples").querySelectorAll("input").forEach((/** @type {HTMLInputElement} */ input, /** @type {number} */ at) => {
      input.checked = at === index;
    });
  };

  store.listen((_, changed) => {
    if (changed.has("source") || changed.has("fit")) show(!drawing);
  });
  byId("examples-frame").hidden = page.examples.length === 0;
  const choose = (/** @type {number} */ index) => change({ kind: "example", index });
  showThumbs(byId("examples"), "example", page.examples, choose);
  return { show: () => show(true), retitle: () => titleThumbs(byId("examples"), page.examples, t) };
}

/**
 * Examples to choose from, as radio buttons so that arrow keys move between them.
 * @param {HTMLElement} root
 * @param {string} name
 * @param {{label: string, image: string}[]} examples
 * @param {(index: number) => void} choose
 */
export function showThumbs(root, name, examples, choose) {
  root.replaceChildren(...examples.map((example, index) => element("label", { class: "thumb" },
    element("input", { type: "radio", name, value: index, onchange: () => choose(index) }),
    element("img", { src: `data:image/png;base64,${example.image}`, alt: "" }))));
}

/**
 * Names for those who do not see them.
 * @param {HTMLElement} root
 * @param {{label: string}[]} examples
 * @param {(key: string, values?: Record<string, any>) => string} t
 */
export function titleThumbs(root, examples, t) {
  root.querySelectorAll("input").forEach((input, index) => {
    input.setAttribute("aria-label", t("exampleNumber", { number: index + 1, label: examples[index].label }));
  });
}
