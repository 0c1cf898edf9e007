/** The words of the page in its languages. */

import { CHINESE } from "./words_zh.js";
import { ENGLISH } from "./words_en.js";

/** @type {Record<string, Record<string, string>>} */
const TABLES = { en: ENGLISH, zh: CHINESE };

/**
 * @param {() => string} language now
 * @returns {(key: string, values?: Record<string, any>) => string} words for a key, with {names} filled in
 */
export function createTranslator(language) {
  return (key, values = {}) => {
    const words = TABLES[language()][key];
    if (words === undefined) throw new Error(`no words for ${key} in ${language()}`);
    return words.replace(/\{(\w+)\}/g, (_, name) => String(values[name]));
  };
}

/** Fills in what the document marks with data-i18n and data-i18n-label. @param {(key: string) => string} t */
export function translateDocument(t) {
  document.querySelectorAll("[data-i18n]").forEach((node) => {
    node.textContent = t(/** @type {HTMLElement} */ (node).dataset.i18n ?? "");
  });
  document.querySelectorAll("[data-i18n-label]").forEach((node) => {
    node.setAttribute("aria-label", t(/** @type {HTMLElement} */ (node).dataset.i18nLabel ?? ""));
  });
}

/** @param {readonly string[]} wishes of the browser @returns {string} */
export const preferredLanguage = (wishes) =>
  wishes.map((wish) => wish.slice(0, 2).toLowerCase()).find((wish) => wish in TABLES) ?? "en";
