/** The view of routing: couplings, votes and poses, iteration by iteration; two routings side by side. */

import { latest, post } from "./client.js";
import { byId, fillSelect, setBusy, setSlider } from "./dom.js";
import { createView } from "./routing_view.js";
import { extent, ranges } from "./trace.js";

const MOVE = 550; // milliseconds from one iteration to the next
const HOLD = 1150; // milliseconds per iteration while playing

/** @param {import("./app.js").Page} page */
export function createRouting(page) {
  const { store, t } = page;
  const panel = byId("panel-routing");
  const model = page.model("capsules");
  /** @type {import("./trace.js").Trace[]} */
  let traces = [];
  /** @type {ReturnType<typeof createView>[]} */
  let views = [];
  /** @type {any} */
  let frames = null; // what all pictures of these traces share: extent and colours
  let time = 0; // where the picture is, in iterations
  let frame = 0;
  let timer = 0;

  const lastStep = () => Math.max(...traces.map(({ steps }) => steps.length), 1) - 1;
  const wanted = () => Math.min(store.get().step ?? lastStep(), lastStep());

  /** Routings that this network can use: some only after it was trained with them. */
  const usable = () =>
    page.catalogue.routings.filter((/** @type {any} */ one) => one.by_any_network || one.algorithm === model.routing.algorithm);
  /** A link may name a routing that is not among them. @param {string|null} name */
  const offered = (name) => (usable().some((/** @type {any} */ one) => one.algorithm === name) ? name : null);
  const settings = () => {
    const now = store.get();
    return { ...now, algorithm: offered(now.algorithm), versus: offered(now.versus) };
  };

  const ask = latest(async () => {
    const { algorithm, iterations, versus, versusIterations } = settings();
    const picture = page.picture;
    if (!picture) {
      traces = [];
      return redraw();
    }
    const request = { model: model.id, image: picture.png };
    const first = await post("/api/trace", { ...request, routing: choice(algorithm, iterations) });
    const answers = [first];
    if (versus) {
      const routing = choice(versus, versusIterations);
      answers.push(await post("/api/trace", { ...request, routing, classes: first.plane.classes }));
    }
    traces = answers;
    frames = { box: extent(traces), found: ranges(traces) };
    time = wanted();
    return redraw();
  }, page.refused, (busy) => setBusy(panel, busy));

  /** What the service is to route with; null for the model's own. @param {string|null} name @param {number|null} count */
  const choice = (name, count) => {
    const algorithm = name ?? model.routing.algorithm;
    const known = algorithm === model.routing.algorithm ? model.routing.num_iterations : null;
    const { min_iterations: low, max_iterations: high } = range(algorithm);
    const number = high === null ? null : count ?? known;
    return number === null ? { algorithm } : { algorithm, num_iterations: Math.min(Math.max(number, low), high) };
  };
  const range = (/** @type {string} */ algorithm) =>
    page.catalogue.routings.find((/** @type {any} */ one) => one.algorithm === algorithm) ?? { min_iterations: null, max_iterations: null };

  const showControls = () => {
    const { algorithm, versus, iterations, versusIterations } = settings();
    const names = usable().map((/** @type {any} */ one) => [one.algorithm, page.routingName(one.algorithm)]);
    const own = algorithm ?? model.routing.algorithm;
    fillSelect(byId("routing-algorithm"), names, own);
    fillSelect(byId("versus-algorithm"), [["", t("nothing")], ...names], versus ?? "");
    showIterations(byId("routing-iterations"), own, iterations, traces[0]);
    byId("versus-iterations-row").hidden = !versus;
    if (versus) showIterations(byId("versus-iterations"), versus, versusIterations, traces[1]);
    const last = lastStep();
    const now = wanted();
    byId("step").max = String(last);
    byId("step").disabled = byId("play").disabled = last === 0;
    byId("step-back").disabled = now === 0;
    byId("step-forward").disabled = now === last;
    byId("play").textContent = timer ? t("pause") : t("play");
    const label = t("iterationOf", { number: now + 1, count: last + 1 });
    setSlider(byId("step"), now, label);
    byId("step-label").textContent = label;
  };
  /** @param {HTMLInputElement} slider @param {string} algorithm @param {number|null} count @param {any} trace */
  const showIterations = (slider, algorithm, count, trace) => {
    const { min_iterations: low, max_iterations: high } = range(algorithm);
    slider.disabled = high === null;
    [slider.min, slider.max] = [String(low ?? 0), String(high ?? 1)];
    const answered = trace?.routing.algorithm === algorithm ? trace.routing.num_iterations : null;
    setSlider(slider, count ?? answered ?? low ?? 0, high === null ? "–" : String(count ?? answered ?? "–"));
  };

  const redraw = () => {
    showControls();
    byId("routing-note").textContent = t("trainedWith", { routing: page.routingName(model.routing.algorithm) });
    const root = byId("routing-views");
    root.classList.toggle("single", traces.length === 1);
    if (views.length !== traces.length || !traces.length) {
      views = traces.map(() => createView(page));
      root.replaceChildren(...(views.length ? views.map(({ root: one }) => one) : [page.emptyNote()]));
    }
    paint();
  };
  const paint = () => {
    if (!traces.length || panel.hidden) return;
    views.forEach((view, index) => view.show(traces[index], time, frames));
    panel.dataset.time = time.toFixed(2);
  };

  /** Moves the picture to the wanted iteration. */
  const move = () => {
    cancelAnimationFrame(frame);
    const [start, from, to] = [performance.now(), time, wanted()];
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches || document.hidden;
    const tick = (/** @type {number} */ now) => {
      const part = still ? 1 : Math.min(Math.max((now - start) / MOVE, 0), 1);
      time = from + (to - from) * part * part * (3 - 2 * part);
      paint();
      if (part < 1) frame = requestAnimationFrame(tick);
    };
    tick(start);
  };
  const stop = () => {
    clearInterval(timer);
    timer = 0;
  };
  const go = (/** @type {number} */ step) => store.set({ step: step === lastStep() ? null : step });

  byId("play").addEventListener("click", () => {
    if (timer) stop();
    else {
      if (wanted() === lastStep()) {
        time = 0;
        go(0);
      }
      timer = setInterval(() => {
        if (wanted() < lastStep()) go(wanted() + 1);
        if (wanted() === lastStep()) stop();
        showControls();
      }, HOLD);
    }
    showControls();
  });
  const by = (/** @type {number} */ step) => {
    stop();
    go(step);
    const [now, count] = [wanted() + 1, lastStep() + 1];
    const best = traces[0]?.steps[Math.min(now, traces[0].steps.length) - 1].activations;
    if (!best) return;
    const index = best.indexOf(Math.max(...best));
    page.announce(`${t("iterationOf", { number: now, count })}: ${model.labels[index]} ${best[index].toFixed(2)}`);
  };
  byId("step").addEventListener("input", (/** @type {any} */ event) => by(Number(event.target.value)));
  byId("step-back").addEventListener("click", () => by(Math.max(wanted() - 1, 0)));
  byId("step-forward").addEventListener("click", () => by(Math.min(wanted() + 1, lastStep())));
  byId("routing-algorithm").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ algorithm: event.target.value, iterations: null, step: null }));
  byId("versus-algorithm").addEventListener("change", (/** @type {any} */ event) =>
    store.set({ versus: event.target.value || null, versusIterations: null, step: null }));
  byId("routing-iterations").addEventListener("input", (/** @type {any} */ event) =>
    store.set({ iterations: Number(event.target.value), step: null }));
  byId("versus-iterations").addEventListener("input", (/** @type {any} */ event) =>
    store.set({ versusIterations: Number(event.target.value), step: null }));
  store.listen((_, changed) => {
    if (!changed.has("step")) return;
    showControls();
    move();
  });
  new ResizeObserver(paint).observe(panel);

  return {
    tab: "routing",
    keys: ["algorithm", "iterations", "versus", "versusIterations"],
    model: () => model,
    refresh: () => {
      showControls();
      ask();
    },
    redraw,
  };
}
