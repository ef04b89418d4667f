"use strict";
// Elements that the calculator's and the planner's pages are made of: fields, tables, stacked bars. No text becomes markup.

(function () {
  function make(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (value === false || value === null || value === undefined) continue;
      element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...children.filter((child) => child !== null));
    return element;
  }

  function fill(element, ...children) {
    element.replaceChildren(...children.filter((child) => child !== null));
  }

  function table(caption, heads, rows, numbers = []) {
    const kind = (place) => (numbers.includes(place) ? "number" : null);
    const head = make("tr", {}, ...heads.map((text, place) => make("th", { scope: "col", class: kind(place) }, text)));
    const body = rows.map(function (row) {
      return make("tr", {}, ...row.map(function (text, place) {
        return place ? make("td", { class: kind(place) }, text) : make("th", { scope: "row" }, text);
      }));
    });
    const inside = make("table", { class: "dalle-table" },
      make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...body));
    return make("div", { class: "dalle-scroll", tabindex: "0", role: "region", "aria-label": caption }, inside);
  }

  // A stacked bar for each row { label, sizes: {term: number} }, on one scale, with a line at the limit { name, size };
  // the numbers are bytes, or what `textOf` tells.
  function bars(rows, limit, textOf = dalle.calculator.bytesText) {
    const totals = rows.map((row) => sum(Object.values(row.sizes)));
    const largest = Math.max(...totals, limit ? limit.size : 0) || 1;
    const parts = rows.map(function (row, place) {
      const pieces = Object.entries(row.sizes).filter(([, size]) => size > 0);
      const told = pieces.map(([term, size]) => term + " " + textOf(size)).join(", ");
      const track = make("div", {
        class: "dalle-bar", role: "img",
        "aria-label": row.label + ": " + textOf(totals[place]) + ". " + told + (limit ? ". " + limitText(limit) : ""),
      }, ...pieces.map(([term, size]) => piece(term, size / largest, textOf(size))), limit ? line(limit, largest) : null);
      return make("div", { class: "dalle-bar-row" },
        make("div", { class: "dalle-bar-label" }, make("span", {}, row.label), make("span", { class: "dalle-bar-total" }, textOf(totals[place]))),
        track);
    });
    return make("div", { class: "dalle-bars" }, ...parts, limit ? make("p", { class: "dalle-limit" }, make("span", { class: "dalle-limit-mark", "aria-hidden": "true" }), limitText(limit)) : null);
  }

  const limitText = (limit) => limit.name + " has " + dalle.calculator.bytesText(limit.size);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  function piece(term, share, size) {
    const text = (term + ": " + size + ". " + dalle.calculator.formulaOf(term)).trim();
    const made = make("span", { title: text, "aria-hidden": "true" });
    made.style.width = 100 * share + "%";
    made.style.backgroundColor = colourOf(term);
    return made;
  }

  function line(limit, largest) {
    const made = make("span", { class: "dalle-fit-line", title: limitText(limit), "aria-hidden": "true" });
    made.style.left = (100 * limit.size) / largest + "%";
    return made;
  }

  const colourOf = (term) => dalle.offer.colours[term] || "#778398";

  // The terms of some bars, each with its colour.
  function legend(terms) {
    return make("ul", { class: "dalle-legend" }, ...terms.map(function ([term, text]) {
      const mark = make("span", { class: "dalle-mark", "aria-hidden": "true" });
      mark.style.backgroundColor = colourOf(term);
      return make("li", {}, mark, make("span", {}, term), make("span", { class: "number" }, text));
    }));
  }

  function folded(title, ...children) {
    return make("details", { class: "dalle-folded" }, make("summary", {}, title), ...children);
  }

  // A button that copies the page's address, which holds the settings.
  function copyButton() {
    const told = make("span", { role: "status", class: "dalle-note" });
    const button = make("button", { type: "button", class: "dalle-button" }, "Copy a link to these settings");
    button.addEventListener("click", async function () {
      try {
        await navigator.clipboard.writeText(location.href);
        told.textContent = "Copied.";
      } catch (error) {
        told.textContent = "Your browser does not let this page copy: take the address from its address bar.";
      }
    });
    return make("p", { class: "dalle-share" }, button, " ", told);
  }

  function keepInAddress(pairs) {
    const text = new URLSearchParams(pairs).toString();
    try {
      history.replaceState(null, "", text ? "#" + text : location.pathname + location.search);
    } catch (error) { // a page that was opened as a file
      location.replace("#" + text);
    }
  }

  dalle.elements = { bars, copyButton, fill, folded, keepInAddress, legend, make, sum, table };
})();
