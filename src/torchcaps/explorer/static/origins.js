/** Where in the picture the votes for a class come from. */

import { latest, post } from "./client.js";
import { byId, element, setBusy } from "./dom.js";
import { css, diverging } from "./palette.js";

const PAINTED = 12; // pixels of the painted picture per pixel of the network's

/**
 * Shares of the windows over each pixel, averaged.
 * @param {{shares: number[][], window: any, image_height: number, image_width: number}} places
 * @returns {number[][]}
 */
export function overPixels({ shares, window: seen, image_height: height, image_width: width }) {
  const sums = Array.from({ length: height }, () => new Array(width).fill(0));
  const counts = Array.from({ length: height }, () => new Array(width).fill(0));
  shares.forEach((cells, row) => cells.forEach((share, column) => {
    const [top, left] = [seen.top + row * seen.row_step, seen.left + column * seen.column_step];
    for (let y = Math.max(top, 0); y < Math.min(top + seen.height, height); y += 1) {
      for (let x = Math.max(left, 0); x < Math.min(left + seen.width, width); x += 1) {
        sums[y][x] += share;
        counts[y][x] += 1;
      }
    }
  }));
  return sums.map((line, y) => line.map((sum, x) => sum / Math.max(counts[y][x], 1)));
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
    const paint = (/** @type {number[]|null} */ cell) => paintOver(canvas, picture.canvas, places, cell);
    paint(null);
    return view.replaceChildren(
      element("figure", {}, canvas, element("figcaption", { class: "small", text: t("originsOver", { label }) })),
      element("figure", {}, cellTable(places.shares, paint),
        element("figcaption", { class: "small", text: t("originsCells", { label, score: explained.score.toFixed(2) }) }),
        page.key()));
  };

  /** @param {number[][]} shares @param {(cell: number[]|null) => void} point */
  const cellTable = (shares, point) => {
    const most = Math.max(...shares.flat().map(Math.abs), 1e-9);
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
  return { tab: "origins", keys: ["originsClass"], refresh: ask, redraw };
}

/**
 * The picture in grey with the shares over it; the window of one cell is framed.
 * @param {HTMLCanvasElement} canvas
 * @param {HTMLCanvasElement} picture
 * @param {any} places
 * @param {number[]|null} cell
 */
function paintOver(canvas, picture, places, cell) {
  const { image_height: height, image_width: width, window: seen } = places;
  [canvas.width, canvas.height] = [PAINTED * width, PAINTED * height];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.scale(PAINTED, PAINTED);
  context.imageSmoothingEnabled = false;
  context.fillRect(0, 0, width, height);
  context.drawImage(picture, Math.min((width - picture.width) / 2, 0), Math.min((height - picture.height) / 2, 0));
  const shares = overPixels(places);
  const most = Math.max(...shares.flat().map(Math.abs), 1e-9);
  shares.forEach((line, y) => line.forEach((share, x) => {
    context.fillStyle = css(diverging(share / most, 190));
    context.fillRect(x, y, 1, 1);
  }));
  if (!cell) return;
  context.strokeStyle = "#fff";
  context.lineWidth = 0.4;
  context.strokeRect(seen.left + cell[1] * seen.column_step, seen.top + cell[0] * seen.row_step, seen.width, seen.height);
}
