"use strict";
// Draws charts of the recorded run in pages of prose: into each element with data-dalle="chart", over what it holds.

(function (dalle) {
  const history = dalle.readHistory(dalle.recorded), all = dalle.charts || {};
  for (const element of document.querySelectorAll('[data-dalle="chart"]')) {
    const name = element.dataset.chart, chart = all[name];
    if (!chart || !history[chart.table]) continue; // what the page holds in its place stays
    dalle.charts = { [name]: chart };
    const plots = new dalle.Plots([chart.table], new dalle.Axis());
    element.replaceChildren(plots.element);
    element.classList.add("dalle-dashboard");
    plots.show({ history });
  }
  dalle.charts = all;
})(globalThis.dalle);
