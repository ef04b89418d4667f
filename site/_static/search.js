"use strict";
// The search's index is loaded when somebody begins to search, from a script, since a page in a file may not fetch.
(() => {
  const here = document.currentScript.src;
  let isLoading = false;

  const loadIndex = () => {
    if (isLoading) return;
    isLoading = true;
    const script = document.createElement("script");
    script.src = new URL("../searchindex.js", here).href;
    document.head.append(script);
  };

  DOCUMENTATION_OPTIONS.search_as_you_type = true;
  // Summaries of results are fetched page by page, which a browser forbids where pages are files.
  if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
  document.addEventListener("focusin", (event) => {
    if (event.target.matches("input[name=q]")) loadIndex();
  });
  document.addEventListener("DOMContentLoaded", () => {
    const field = document.querySelector(".bd-search-container input[name=q]");
    if (!field) return;
    loadIndex();
    field.focus();
  });
})();
