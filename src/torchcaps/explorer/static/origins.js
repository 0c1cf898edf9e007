/** Where in the picture the votes for a class come from. */

import { latest, post } from "./client.js";
import { byId, element, setBusy } from "./dom.js";
import { css, diverging, largest } from "./palette.js";

const PAINTED = 12; // pixels of the painted picture per pixel of the network's
const SPREAD = 0.6; // standard deviation of a place over the picture, in steps of the grid

/**
 * Shares spread over the pixels: each place counts most in the middle of its window.
 * @param {{shares: number[][], window: any, image_height: number, image_width: number}} places
 * @returns {number[][]}
 */
export function overPixels({ shares, window: seen, image_height: height, image_width: width }) {
  const spread = SPREAD * Math.max(seen.row_step, seen.column_step, 1);
  const bell = (/** @type {number} */ distance) => Math.exp(-0.5 * (distance / spread) ** 2);
  const middle = (/** @type {number} */ start, /** @type {number} */ size) => start + (size - 1) / 2;
  const rows = shares.map((_, row) => middle(seen.top + row * seen.row_step, seen.height));
  const columns = shares[0].map((_, column) => middle(seen.left + column * seen.column_step, seen.width));
  const sum = (/** @type {number[]} */ values) => values.reduce((total, value) => total + value, 0);
  const across = Array.from({ length: width }, (_, x) => columns.map((column) => bell(x - column)));
  return Array.from({ length: height }, (_, y) => {
    const down = rows.map((row) => bell(y - row));
    const line = columns.map((_, column) => sum(rows.map((__, row) => down[row] * shares[row][column])));
    return across.map((weights) =>
      sum(weights.map((weight, column) => weight * line[column])) / (sum(down) * sum(weights) + 1e-9));
  });
}

/** @param {import("./app.js").Page} page */
export function createOrigins(page) {
  const { store, t } = page;
  const panel = byId("panel-origins");
  const view = byId("origins-view");
  const model = page.model("capsules");
  /** @type {{explained: any, picture: any} | null} */
  let last = null;

  const ask = latest(async () => {
    const picture = page.picture;
    const wanted = page.known(model, store.get().originsClass);
    const request = { model: model.id, image: picture?.png, class_index: wanted };
    last = picture ? { explained: await post("/api/explain", request), picture } : null;
    redraw();
  }, page.refused, (busy) => setBusy(panel, busy));

  const redraw = () => {
    page.fillClasses(byId("origins-class"), model, store.get().originsClass, last?.explained.label);
    if (!last) return view.replaceChildren(page.emptyNote());
    const { explained, picture } = last;
    const { places, label } = explained;
    const canvas = element("canvas", { class: "large", role: "img", "aria-label": t("originsLabel", { label }) });
    const shares = overPixels(places);
    const paint = (/** @type {number[]|null} */ cell) =>
      paintOver(canvas, picture.canvas, places, shares, cell, model.input.channels);
    paint(null);
    return view.replaceChildren(
      element("figure", {}, canvas, element("figcaption", { class: "small", text: t("originsOver", { label }) })),
      element("figure", {}, cellTable(places.shares, paint),
        element("figcaption", { class: "small", text: t("originsCells", { label, score: explained.score.toFixed(2) }) }),
        page.key()));
  };

  /** @param {number[][]} shares @param {(cell: number[]|null) => void} point */
  const cellTable = (shares, point) => {
    const most = largest(shares);
    const rows = shares.map((cells, row) => element("tr", {}, ...cells.map((share, column) => {
      const cell = element("td", {
        text: share.toFixed(0), onpointerenter: () => point([row, column]), onpointerleave: () => point(null),
      });
      cell.style.backgroundColor = css(diverging(share / most, 200));
      return cell;
    })));
    return element("table", { class: "cells", "aria-label": t("originsTable") }, element("tbody", {}, ...rows));
  };

  byId("origins-class").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ originsClass: event.target.value === "" ? null : Number(event.target.value) }));
  return { tab: "origins", keys: ["originsClass"], model: () => model, refresh: ask, redraw };
}

/**
 * The picture in grey with the shares over it; the window of one cell is framed.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} picture
 * @param {any} places
 * @param {number[][]} shares of every pixel
 * @param {number[]|null} cell
 * @param {number} channels one is bright ink on black, which is shown the other way round; of two the first is shown
 */
function paintOver(canvas, picture, places, shares, cell, channels) {
  const isInk = channels === 1;
  const { image_height: height, image_width: width, window: seen } = places;
  [canvas.width, canvas.height] = [PAINTED * width, PAINTED * height];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(PAINTED, PAINTED);
  context.imageSmoothingEnabled = false;
  context.fillRect(0, 0, width, height);
  context.filter = isInk ? "invert(1)" : "none"; // ink on paper: colours show on it
  const seenWidth = channels === 2 ? picture.width / 2 : picture.width;
  context.drawImage(picture, 0, 0, seenWidth, picture.height,
    Math.min((width - seenWidth) / 2, 0), Math.min((height - picture.height) / 2, 0), seenWidth, picture.height);
  context.filter = "none";
  const most = largest(shares);
  if (isInk) context.globalCompositeOperation = "multiply";
  shares.forEach((line, y) => line.forEach((share, x) => {
    context.fillStyle = css(diverging(share / most, 190));
    context.fillRect(x, y, 1, 1);
  }));
  context.globalCompositeOperation = "source-over";
  if (!cell) return;
  context.strokeStyle = isInk ? "#000" : "#fff";
  context.lineWidth = 0.4;
  context.strokeRect(seen.left + cell[1] * seen.column_step, seen.top + cell[0] * seen.row_step, seen.width, seen.height);
}
