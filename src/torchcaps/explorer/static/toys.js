/** The parse tree of a rendered toy: which capsule belongs to which. */

import { clearBars, showBars } from "./bars.js";
import { get, latest, post } from "./client.js";
import { createDial } from "./dial.js";
import { byId, drawn, element, setBusy, setSlider } from "./dom.js";
import { showThumbs, titleThumbs } from "./pad.js";
import { fromPng } from "./picture.js";

const [WIDTH, LEVEL, LEAF, TOP, SIDE] = [640, 88, 26, 34, 70]; // of the drawing: layers, leaves, margins
const TILE = 46; // largest side of the picture of a capsule
const PAINTED = 8;

/** @typedef {{layers: string[], nodes: any[], edges: {parent: number, child: number, coupling: number}[]}} Tree */

/**
 * Where nodes stand: leaves side by side, parents over the middle of their children.
 * @param {Tree} tree
 * @returns {{places: number[][], leaf: number, width: number, height: number}}
 */
export function layout({ layers, nodes, edges }) {
  /** @type {number[][]} */
  const children = nodes.map(() => []);
  const seen = new Set([0]);
  for (const { parent, child } of edges) {
    if (!seen.has(child)) children[parent].push(child);
    seen.add(child);
  }
  const numLeaves = children.filter((list, node) => !list.length && seen.has(node)).length;
  const leaf = Math.max(LEAF, (WIDTH - SIDE) / numLeaves);
  /** @type {number[][]} */
  const places = nodes.map(() => [0, 0]);
  let leaves = 0;
  const put = (/** @type {number} */ node) => {
    children[node].forEach(put);
    const xs = children[node].map((child) => places[child][0]);
    const x = xs.length ? (Math.min(...xs) + Math.max(...xs)) / 2 : SIDE + leaf * (leaves + 0.5);
    if (!xs.length) leaves += 1;
    places[node] = [x, TOP + LEVEL * (layers.length - 1 - nodes[node].layer)];
  };
  put(0);
  return { places, leaf, width: SIDE + leaf * numLeaves, height: 2 * TOP + LEVEL * (layers.length - 1) };
}

/** @param {import("./app.js").Page} page */
export function createToys(page) {
  const { store, t } = page;
  const panel = byId("panel-toys");
  const model = page.model("matrix");
  const dial = createDial(page, model);
  /** @type {any[]} */
  let toys = [];
  let turns = false;
  /** @type {any} */
  let last = null;

  const ask = latest(async () => {
    if (model) {
      if (!toys.length) await load();
      const toy = toys[store.get().toy] ?? toys[0];
      last = toy ? await explained(toy) : null;
    }
    redraw();
    if (last && turns) dial.ask(toys.indexOf(last.toy));
  }, page.refused, (busy) => setBusy(panel, busy));
  const load = async () => {
    ({ examples: toys, turns } = await get(`/api/examples?model=${encodeURIComponent(model.id)}`));
    showThumbs(byId("toys"), "toy", toys, (index) => store.set({ toy: index, node: 0 }));
  };
  const explained = async (/** @type {any} */ toy) => {
    const request = { model: model.id, image: toy.image };
    const [said, why] = [await post("/api/predict", request), await post("/api/explain", request)];
    return { toy, said, why, canvas: await fromPng(toy.image) };
  };

  const redraw = () => {
    dial.redraw();
    byId("room-toys").classList.toggle("missing", !model);
    if (!last) {
      clearBars(byId("toy-activations"));
      [byId("toy-answer").textContent, byId("toy-note").textContent] = ["–", ""];
      return byId("tree-view").replaceChildren(element("p", { class: "note", text: t(model ? "noToys" : "noMatrix") }));
    }
    const { said, why, toy } = last;
    titleThumbs(byId("toys"), toys, t);
    byId("toys").querySelectorAll("input").forEach((/** @type {HTMLInputElement} */ input, /** @type {number} */ index) => {
      input.checked = toys[index] === toy;
    });
    byId("toy-answer").textContent = said.label;
    byId("toy-note").textContent = t("truth", { label: toy.label });
    showBars(byId("toy-activations"), model.labels, said.scores, said.best);
    return why.tree ? showTree(why.tree) : byId("tree-view").replaceChildren(page.emptyNote());
  };

  /** @param {Tree} tree */
  const showTree = (tree) => {
    const { places, leaf, width, height } = layout(tree);
    const svg = drawn("svg", {
      viewBox: `0 0 ${width} ${height}`, class: "tree", role: "img",
      "aria-label": t("treeLabel", { count: tree.nodes.length, label: last.why.label }),
    });
    svg.style.minWidth = "520px";
    tree.layers.forEach((name, layer) => svg.append(
      drawn("text", { x: 4, y: TOP + 4 + LEVEL * (tree.layers.length - 1 - layer), text: name.replace("_", " ") })));
    const most = Math.max(...tree.edges.map(({ coupling }) => coupling), 1e-9);
    for (const { parent, child, coupling } of tree.edges) {
      const [[x, y], [toX, toY]] = [places[parent], places[child]];
      svg.append(drawn("path", {
        d: `M${x} ${y}C${x} ${(y + toY) / 2} ${toX} ${(y + toY) / 2} ${toX} ${toY}`, "data-child": child,
        class: "edge", "stroke-width": (0.8 + (4 * coupling) / most).toFixed(2),
      }));
    }
    tree.nodes.forEach((node, index) => {
      const side = Math.min(TILE, 0.92 * leaf) * (0.6 + 0.4 * node.activation);
      svg.append(drawn("g", {
        class: "node", "data-node": index, onclick: () => store.set({ node: index }),
        onpointerenter: () => point(index), onpointerleave: () => point(chosen()),
      }, ...shape(node, places[index], side)));
    });
    const picture = element("canvas", { class: "large", role: "img", "aria-label": t("toyImage") });
    const slider = element("input", {
      type: "range", min: 0, max: tree.nodes.length - 1, step: 1, "aria-label": t("capsuleChosen"),
      oninput: (/** @type {any} */ event) => store.set({ node: Number(event.target.value) }),
    });
    const words = element("p", { class: "small" });
    const chosen = () => Math.min(store.get().node, tree.nodes.length - 1);
    point = (index) => {
      const text = describe(tree, index);
      setSlider(slider, index, text);
      words.textContent = text;
      paintToy(picture, tree.nodes[index].window);
      svg.querySelectorAll("[data-node]").forEach((/** @type {Element} */ one) =>
        one.classList.toggle("chosen", one.getAttribute("data-node") === String(index)));
      svg.querySelectorAll("[data-child]").forEach((/** @type {Element} */ one) =>
        one.classList.toggle("chosen", one.getAttribute("data-child") === String(index)));
    };
    byId("tree-view").replaceChildren(
      element("div", { class: "tree-frame", tabindex: 0, role: "group", "aria-label": t("tabToys") }, svg),
      element("div", { class: "tree-picked" }, picture, element("div", {}, slider, words)));
    point(chosen());
  };
  /** @type {(index: number) => void} */
  let point = () => {};

  /** @param {Tree} tree @param {number} index */
  const describe = ({ layers, nodes, edges }, index) => {
    const node = nodes[index];
    const activation = node.activation.toFixed(2);
    if (node.label !== null) return t("classCapsule", { label: node.label, activation });
    const coupling = edges.find(({ child }) => child === index)?.coupling ?? 0;
    return t("capsuleAt", {
      layer: layers[node.layer], row: node.row + 1, column: node.column + 1, type: node.type + 1, activation,
      coupling: coupling.toFixed(2),
    });
  };

  /** A capsule: what it sees, or for the class its name. @param {any} node @param {number[]} place @param {number} side */
  const shape = (node, [x, y], side) => {
    if (node.window === null) {
      return [drawn("circle", { cx: x, cy: y, r: 11 }), drawn("text", { x: x + 20, y: y + 5, class: "root", text: node.label })];
    }
    const box = { x: x - side / 2, y: y - side / 2, width: side, height: side };
    const { top, left, width, height } = node.window;
    const part = document.createElement("canvas");
    [part.width, part.height] = [width, height];
    part.getContext("2d")?.drawImage(firstCamera(), -left, -top);
    return [drawn("image", { ...box, href: part.toDataURL(), preserveAspectRatio: "none" }), drawn("rect", { ...box, rx: 4 })];
  };

  /** The first camera's picture, as the network sees it. @returns {HTMLCanvasElement} */
  const firstCamera = () => {
    const { channels, height, width } = model.input;
    const { image_height: high = height, image_width: wide = width } = last.why.places ?? {};
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [wide, high];
    const across = channels === 2 ? last.canvas.width / 2 : last.canvas.width;
    const [left, top] = [(across - wide) / 2, (last.canvas.height - high) / 2];
    canvas.getContext("2d")?.drawImage(last.canvas, left, top, wide, high, 0, 0, wide, high);
    return canvas;
  };

  /** The picture with what a capsule sees framed. @param {HTMLCanvasElement} canvas @param {any} seen */
  const paintToy = (canvas, seen) => {
    const camera = firstCamera();
    [canvas.width, canvas.height] = [PAINTED * camera.width, PAINTED * camera.height];
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.imageSmoothingEnabled = false;
    context.scale(PAINTED, PAINTED);
    context.drawImage(camera, 0, 0);
    if (!seen) return;
    context.strokeStyle = "#E69F00";
    context.lineWidth = 0.6;
    context.strokeRect(seen.left, seen.top, seen.width, seen.height);
  };

  store.listen((state, changed) => {
    if (changed.has("node") && state.tab === "toys" && last?.why.tree) {
      point(Math.min(state.node, last.why.tree.nodes.length - 1));
    }
  });
  return { tab: "toys", keys: ["toy"], model: () => model, refresh: ask, redraw };
}
