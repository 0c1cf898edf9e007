/** The service behind the page. */

/** A refusal of the service, with its own sentence. */
export class Refusal extends Error {
  /** @param {string} message @param {number} status 0 = no answer @param {number} wait seconds after which to try again, 0 = never */
  constructor(message, status, wait) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

/** @param {string} path @returns {Promise<any>} */
export function get(path) {
  return send(path, {});
}

/** @param {string} path @param {object} body @returns {Promise<any>} */
export function post(path, body) {
  return send(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

/** @param {string} path @param {RequestInit} options */
async function send(path, options) {
  const response = await fetch(path, options).catch(() => {
    throw new Refusal("the service does not answer", 0, 0);
  });
  const answer = await response.json().catch(() => ({}));
  if (response.ok) return answer;
  const busy = response.status === 429 || response.status === 503;
  const wait = busy ? Math.min(Number(response.headers.get("Retry-After")) || 1, 5) : 0;
  throw new Refusal(answer.detail ?? `${response.status} ${response.statusText}`, response.status, wait);
}

/**
 * Runs work one at a time and only for the newest arguments; what came in between is dropped. A busy service is asked
 * again after the time it names, unless something newer has come.
 * @template {any[]} T
 * @param {(...given: T) => Promise<void>} work
 * @param {(problem: Error) => void} onProblem
 * @param {(busy: boolean) => void} [onBusy]
 * @returns {(...given: T) => void}
 */
export function latest(work, onProblem, onBusy = () => {}) {
  /** @type {T | null} */
  let next = null;
  let running = false;
  const run = async () => {
    running = true;
    onBusy(true);
    while (next) {
      const given = next;
      next = null;
      try {
        await work(...given);
      } catch (problem) {
        onProblem(/** @type {Error} */ (problem));
        if (problem instanceof Refusal && problem.wait) {
          await pause(problem.wait);
          next ??= given;
        }
      }
    }
    running = false;
    onBusy(false);
  };
  return (...given) => {
    next = given;
    if (!running) run();
  };
}

/** @param {number} seconds */
function pause(seconds) {
  return new Promise((resolve) => setTimeout(resolve, 1000 * seconds));
}
