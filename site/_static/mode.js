"use strict";
// Chooses light or dark before anything is drawn, so that a page never flashes in the other.
(() => {
  // Where a browser keeps nothing for this site, asking throws: the theme's scripts then remember until the page is left.
  for (const name of ["localStorage", "sessionStorage"]) {
    try {
      window[name].getItem("mode");
    } catch (error) {
      const kept = new Map(), getItem = (key) => kept.get(key) ?? null;
      const setItem = (key, text) => kept.set(key, String(text)), removeItem = (key) => kept.delete(key);
      Object.defineProperty(window, name, { value: { getItem, setItem, removeItem } });
    }
  }
  const root = document.documentElement;
  const mode = localStorage.getItem("mode") || "auto";
  const dark = mode === "dark" || (mode === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.mode = mode;
  root.dataset.theme = dark ? "dark" : "light";
})();
