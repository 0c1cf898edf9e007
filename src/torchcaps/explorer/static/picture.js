/** Pictures on their way to the service: drawings, embedded examples, images of the user. */

import { fitted, paintStrokes } from "./strokes.js";

const FINE = 4; // a drawing is made this much finer than the network sees it, then averaged
const WORK_SIZE = 256; // longer side of an opened image while it is prepared
const INK = 0.2; // brighter than this share of the brightest is ink

/** @typedef {{channels: number, height: number, width: number}} Input */

/** @param {number} width @param {number} height @returns {CanvasRenderingContext2D} */
function scratch(width, height) {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height];
  return /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", { willReadFrequently: true }));
}

/** @param {HTMLCanvasElement} canvas @returns {string} base64 of a PNG */
export const toPng = (canvas) => canvas.toDataURL("image/png").split(",")[1];

/**
 * A drawing as the network sees it: white on black, means of blocks.
 * @param {import("./strokes.js").Stroke[]} strokes
 * @param {Input} input
 * @param {boolean} fit
 * @returns {HTMLCanvasElement}
 */
export function fromStrokes(strokes, input, fit) {
  const fine = scratch(FINE * input.width, FINE * input.height);
  paintStrokes(fine, fit ? fitted(strokes) : strokes);
  const source = fine.getImageData(0, 0, fine.canvas.width, fine.canvas.height).data;
  const greys = blockMeans(source, fine.canvas.width, fine.canvas.height, FINE);
  const small = scratch(input.width, input.height);
  const image = small.createImageData(input.width, input.height);
  greys.forEach((grey, index) => image.data.set([grey, grey, grey, 255], 4 * index));
  small.putImageData(image, 0, 0);
  return forCameras(small.canvas, input);
}

/**
 * @param {Uint8ClampedArray} pixels red, green, blue, opacity of each
 * @param {number} width
 * @param {number} height
 * @param {number} block
 * @returns {number[]} means of the red of square blocks, row by row
 */
export function blockMeans(pixels, width, height, block) {
  const columns = width / block;
  const sums = new Array(columns * (height / block)).fill(0);
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      sums[Math.floor(y / block) * columns + Math.floor(x / block)] += pixels[4 * (y * width + x)];
    }
  }
  return sums.map((sum) => Math.round(sum / (block * block)));
}

/** Two cameras see the same picture, side by side. @param {HTMLCanvasElement} canvas @param {Input} input */
function forCameras(canvas, input) {
  if (input.channels !== 2) return canvas;
  const both = scratch(2 * input.width, input.height);
  both.drawImage(canvas, 0, 0);
  both.drawImage(canvas, input.width, 0);
  return both.canvas;
}

/** @param {string} png base64 @returns {Promise<HTMLCanvasElement>} */
export async function fromPng(png) {
  const image = new Image();
  image.src = `data:image/png;base64,${png}`;
  await image.decode();
  const context = scratch(image.naturalWidth, image.naturalHeight);
  context.drawImage(image, 0, 0);
  return context.canvas;
}

/**
 * An image of the user at the size of the network's input. Where the network reads white digits on black, ink on paper
 * is turned round, stretched to full contrast and, if wanted, moved to the middle at the size of MNIST's digits.
 * @param {Blob} file
 * @param {Input} input
 * @param {boolean} fit
 * @returns {Promise<HTMLCanvasElement>}
 */
export async function fromFile(file, input, fit) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(WORK_SIZE / Math.max(bitmap.width, bitmap.height), 1);
  const work = scratch(Math.max(Math.round(scale * bitmap.width), 1), Math.max(Math.round(scale * bitmap.height), 1));
  work.imageSmoothingQuality = "high";
  work.fillRect(0, 0, work.canvas.width, work.canvas.height);
  work.drawImage(bitmap, 0, 0, work.canvas.width, work.canvas.height);
  const ink = input.channels === 3 ? null : toWhiteInk(work);
  const { width, height } = work.canvas;
  const box = fit && ink ? ink : { left: 0, top: 0, width, height };
  const room = fit && ink ? 20 / 28 : 1;
  const small = scratch(input.width, input.height);
  small.imageSmoothingQuality = "high";
  small.fillRect(0, 0, input.width, input.height);
  const grow = Math.min((room * input.width) / box.width, (room * input.height) / box.height);
  const [across, down] = [grow * box.width, grow * box.height];
  small.drawImage(work.canvas, box.left, box.top, box.width, box.height,
    (input.width - across) / 2, (input.height - down) / 2, across, down);
  return forCameras(small.canvas, input);
}

/**
 * Makes a picture grey, bright on dark and of full contrast.
 * @param {CanvasRenderingContext2D} context
 * @returns {{left: number, top: number, width: number, height: number} | null} the box around the ink
 */
function toWhiteInk(context) {
  const { width, height } = context.canvas;
  const image = context.getImageData(0, 0, width, height);
  const greys = Array.from({ length: width * height }, (_, index) => {
    const [red, green, blue] = image.data.subarray(4 * index, 4 * index + 3);
    return 0.299 * red + 0.587 * green + 0.114 * blue;
  });
  const isEdge = (/** @type {number} */ index) =>
    index < width || index >= width * (height - 1) || index % width === 0 || index % width === width - 1;
  const edge = greys.filter((_, index) => isEdge(index)).sort((a, b) => a - b);
  const paper = edge[Math.floor(edge.length / 2)];
  const inked = greys.map((grey) => (paper > 127 ? paper - grey : grey - paper));
  const most = inked.reduce((high, value) => Math.max(high, value), 1);
  let [left, top, right, bottom] = [width, height, -1, -1];
  inked.forEach((value, index) => {
    const bright = Math.max(value / most, 0);
    image.data.set([255 * bright, 255 * bright, 255 * bright, 255], 4 * index);
    if (bright < INK) return;
    const [x, y] = [index % width, Math.floor(index / width)];
    [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
  });
  context.putImageData(image, 0, 0);
  return right < 0 ? null : { left, top, width: right - left + 1, height: bottom - top + 1 };
}
