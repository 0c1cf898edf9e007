/** Votes in the plane of their two main directions, and the centres that routing moves. */

import { classColour, marker } from "./palette.js";

const LARGEST_DOT = 8; // pixels, of the strongest coupling
const MARGIN = 8;

/**
 * @param {HTMLCanvasElement} canvas
 * @param {import("./trace.js").Trace} trace
 * @param {import("./trace.js").Step} step perhaps between two iterations
 * @param {number} time
 * @param {ReturnType<typeof import("./trace.js").extent>} box
 * @param {number} strongest the largest coupling
 */
export function paintPlane(canvas, trace, step, time, box, strongest) {
  const ratio = window.devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [Math.round(ratio * width), Math.round(ratio * height)];
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const ink = getComputedStyle(canvas).color;
  const at = (/** @type {number[]} */ [x, y]) => [
    MARGIN + ((x - box.left) / (box.right - box.left)) * (width - 2 * MARGIN),
    height - MARGIN - ((y - box.bottom) / (box.top - box.bottom)) * (height - 2 * MARGIN),
  ];
  paintAxes(context, at([0, 0]), width, height, ink);
  context.globalAlpha = 0.5;
  trace.plane.classes.forEach((_, place) => {
    context.fillStyle = classColour(place);
    trace.plane.points.forEach((votes, point) => {
      const radius = LARGEST_DOT * Math.sqrt(Math.max(step.point_couplings[point][place], 0) / strongest);
      const [x, y] = at(votes[place]);
      marker(context, place, x, y, Math.max(radius, 0.6));
      context.fill();
    });
  });
  context.globalAlpha = 1;
  context.strokeStyle = ink;
  context.lineJoin = "round";
  trace.plane.classes.forEach((_, place) => {
    const way = trace.steps.slice(0, Math.floor(time) + 1).map((past) => at(past.centres[place]));
    const [x, y] = at(step.centres[place]);
    context.lineWidth = 1.5;
    context.beginPath();
    for (const [pastX, pastY] of [...way, [x, y]]) context.lineTo(pastX, pastY);
    context.stroke();
    marker(context, place, x, y, 9);
    context.fillStyle = classColour(place);
    context.fill();
    context.lineWidth = 2;
    context.stroke();
  });
}

/** Thin lines through the origin. @param {CanvasRenderingContext2D} context @param {number[]} origin
 *  @param {number} width @param {number} height @param {string} ink */
function paintAxes(context, [x, y], width, height, ink) {
  context.globalAlpha = 0.18;
  context.strokeStyle = ink;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.moveTo(0, y);
  context.lineTo(width, y);
  context.stroke();
  context.globalAlpha = 1;
}
