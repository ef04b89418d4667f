"use strict";
// Chooses light or dark before anything is drawn, so that a page never flashes in the other.
(() => {
  const root = document.documentElement;
  const mode = localStorage.getItem("mode") || "auto";
  const dark = mode === "dark" || (mode === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.mode = mode;
  root.dataset.theme = dark ? "dark" : "light";
})();
