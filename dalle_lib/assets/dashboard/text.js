// How text of strangers, numbers and times become what a page shows. All other files use these functions alone.
"use strict";

globalThis.dalle = globalThis.dalle || {};

(function (dalle) {
  const MOST = 80; // letters of a name
  const FILLERS = "\\u034f\\u115f\\u1160\\u17b4\\u17b5\\u2800\\u3164\\uffa0\\u{1d159}";
  const VARIANTS = "\\u180b-\\u180f\\ufe00-\\ufe0e\\u{e0100}-\\u{e01ef}"; // they choose the form of a sign, seldom seen
  // What makes an emoji of the sign before it, where that can be none: only a pictograph can, or a digit on a key.
  const LONE_PICTURE = "(?<!\\p{Extended_Pictographic}|[#*0-9](?=\\ufe0f\\u20e3))\\ufe0f";
  // Signs that a reader cannot see, or that reorder the line around them: control, format (bidi marks, zero width,
  // tags), private, unassigned and lone surrogates, separators of lines, fillers, and marks stacked on one letter.
  const HIDDEN = new RegExp(`[\\p{C}\\p{Zl}\\p{Zp}${FILLERS}${VARIANTS}]|${LONE_PICTURE}|(?<=\\p{M}{3})\\p{M}`, "gu");

  function escaped(sign) {
    const code = sign.codePointAt(0);
    return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
  }

  // Returns text in one line with nothing hidden in it, at most `most` letters; "" for what is no text.
  dalle.plain = (value, most = MOST) => {
    if (typeof value === "number" || typeof value === "boolean") value = String(value);
    if (typeof value !== "string") return "";
    const line = value.slice(0, 4 * most).replace(/\s+/gu, " ").trim().replace(HIDDEN, escaped);
    const letters = Array.from(line); // what is escaped takes room, too
    const isCut = letters.length > most || value.length > 4 * most;
    return isCut ? `${letters.slice(0, most).join("")}…` : line;
  };

  // Returns an element that holds text of a stranger: as text, and in a direction of its own.
  dalle.text = (value, most = MOST) => {
    const element = document.createElement("bdi");
    element.textContent = dalle.plain(value, most);
    return element;
  };

  // Returns an element. Attributes are set as attributes, handlers by "on...", and children are elements or our text.
  dalle.make = (tag, attributes = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined));
    return element;
  };

  // Puts `children` in place of what an element holds.
  dalle.fill = (element, ...children) =>
    element.replaceChildren(...children.filter((child) => child !== null && child !== undefined));

  const LARGEST = 1e20; // beyond what any monitor measures; charts cannot draw it

  // Returns a number, also where it came as text; null for all else.
  dalle.number = (value) => {
    if (typeof value === "string" && /^\s*[-+]?[\d.]{1,25}(e[-+]?\d{1,3})?\s*$/i.test(value)) value = Number(value);
    return typeof value === "number" && Math.abs(value) <= LARGEST ? value : null;
  };

  const NONE = "–";
  const format = (digits) => new Intl.NumberFormat("en", { maximumFractionDigits: digits });
  const WHOLE = format(0), ONE = format(1), TWO = format(2);
  const LONG = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

  // Returns a number as people read it: whole from 100 on, and in words such as 1.2M from ten million on.
  dalle.count = (value, isWhole = false) => {
    const number = dalle.number(value), size = Math.abs(number);
    if (number === null) return NONE;
    if (size >= 1e15) return number.toExponential(1);
    if (size >= 1e7) return LONG.format(number);
    if (isWhole || size >= 100) return WHOLE.format(number);
    if (size >= 1 || number === 0) return (size >= 10 ? ONE : TWO).format(number);
    return String(Number(number.toPrecision(3)));
  };

  // Returns a measured figure with as many digits as it is worth.
  dalle.figure = (value, digits = 3) => {
    const number = dalle.number(value);
    const isPlain = number === null || number === 0 || Math.abs(number) >= 1000;
    return isPlain ? dalle.count(number) : number.toPrecision(digits);
  };

  dalle.percent = (value) => {
    const number = dalle.number(value);
    if (number === null) return NONE;
    const share = 100 * number;
    if (share > 0 && share < 0.1) return "< 0.1%";
    return `${dalle.count(share < 10 ? Math.round(10 * share) / 10 : Math.round(share))}%`;
  };

  dalle.bytes = (value) => {
    let number = dalle.number(value);
    if (number === null || number < 0) return NONE;
    for (const unit of ["B", "kB", "MB", "GB"]) {
      if (number < 1000) return `${dalle.count(number)} ${unit}`;
      number /= 1000;
    }
    return `${dalle.count(number)} TB`;
  };

  const several = (count, unit) => `${WHOLE.format(count)} ${unit}${count === 1 ? "" : "s"}`;

  // Returns "1 person" or "3 people": the number as `count` tells it, and the word that fits it.
  dalle.amount = (value, one, many = `${one}s`) => `${dalle.count(value, true)} ${value === 1 ? one : many}`;

  // Returns seconds in the units that people use, at most two of them.
  dalle.duration = (value) => {
    const seconds = dalle.number(value);
    if (seconds === null || seconds < 0) return NONE;
    if (seconds < 10) return `${dalle.count(Math.round(10 * seconds) / 10)} s`;
    if (seconds < 89.5) return several(Math.round(seconds), "second");
    const minutes = Math.round(seconds / 60);
    if (minutes < 90) return several(minutes, "minute");
    const hours = Math.floor(minutes / 60);
    if (hours < 10 && minutes % 60) return `${hours} h ${minutes % 60} min`;
    if (hours < 48) return several(Math.round(minutes / 60), "hour");
    const days = minutes / 1440;
    if (days < 730) return days < 10 ? `${ONE.format(days)} days` : several(Math.round(days), "day");
    return days < 365e4 ? `${ONE.format(days / 365.25)} years` : "more than 10,000 years";
  };

  dalle.hours = (seconds) => {
    const number = dalle.number(seconds);
    return number === null ? NONE : `${dalle.count(Math.round(number / 36) / 100)} h`;
  };

  const isDate = (seconds) => seconds !== null && seconds > 0 && seconds < 4102444800; // to the year 2100

  // Returns a moment, seconds since 1970, as date and time in UTC.
  dalle.moment = (value) => {
    const seconds = dalle.number(value);
    if (!isDate(seconds)) return document.createTextNode(NONE);
    const told = new Date(1000 * seconds).toISOString();
    return dalle.make("time", { datetime: told }, `${told.slice(0, 16).replace("T", " ")} UTC`);
  };

  dalle.ago = (value, now = Date.now() / 1000) => {
    const seconds = dalle.number(value);
    return isDate(seconds) ? `${dalle.duration(Math.max(0, now - seconds))} ago` : "at an unknown time";
  };

  // Returns how a name is compared to others: without regard to case and to blanks around it.
  dalle.key = (value) => (typeof value === "string" ? value.slice(0, 400).normalize("NFC").trim().toLowerCase() : "");
})(globalThis.dalle);
