// Where a page's data come from, and fetching them again and again: size-limited, patient, never in a hidden tab.
"use strict";

(function (dalle) {
  const HUB = "https://huggingface.co";
  const STATUS_S = 60, HISTORY_S = 300, MAX_DELAY_S = 900;
  const MAX_BYTES = { "status.json": 8e6, "history.json": 12e6, "page/prompts.json": 1e6, "run.json": 1e6 };
  const TIMEOUT_MS = 30000;
  const REPOSITORY = /^[A-Za-z0-9][\w.-]{0,95}\/[A-Za-z0-9][\w.-]{0,95}$/;

  const onHub = (hub, repository) => `${hub}/${repository}/resolve/main/`;

  // Returns {base, repository} of what a person names: a folder's address, that of its status.json, or owner/name.
  // Throws an Error with what to do for all else.
  dalle.placeOf = (named, hub = HUB) => {
    const text = String(named).trim();
    if (REPOSITORY.test(text)) return { base: onHub(hub, text), repository: text };
    let url = null;
    try {
      if (/^(https?:\/\/|\.{0,2}\/)/i.test(text)) url = new URL(text, document.baseURI);
    } catch {
      url = null; // as for any other text, told below
    }
    if (!url || !["http:", "https:"].includes(url.protocol) || url.username || url.password || text.length > 2000)
      throw new Error("expected owner/name of a run on the Hugging Face Hub, or the http address of a monitor's " +
        `folder, but got “${dalle.plain(text, 100)}”`);
    url.search = url.hash = "";
    const [, owner, name, rest] = url.pathname.split("/");
    if (url.origin === new URL(hub).origin && name && !rest && REPOSITORY.test(`${owner}/${name}`))
      return { base: onHub(hub, `${owner}/${name}`), repository: `${owner}/${name}` };
    url.pathname = url.pathname.replace(/(status|history)\.json$/, "").replace(/\/?$/, "/");
    return { base: url.href, repository: null };
  };

  // Returns the address of a picture below a base, or null if its name is none that a monitor gives.
  dalle.pictureUrl = (base, name) => {
    if (!/^[\w-]{1,40}\/[\w-]{1,80}\.(webp|png|jpg)$/.test(name)) return null;
    return new URL(name, new URL(base || "./", document.baseURI)).href;
  };

  class Missing extends Error {} // what is not at an address

  // Returns what a JSON file holds. Throws an Error that says why it cannot, in words for people.
  async function fetched(base, name) {
    const cut = new AbortController(), timer = setTimeout(() => cut.abort(), TIMEOUT_MS);
    try {
      const answer = await fetch(new URL(name, base), {
        signal: cut.signal, cache: "no-cache", credentials: "omit", referrerPolicy: "no-referrer",
      });
      if (answer.status === 404) throw new Missing(`there is no ${name} at this address`);
      if ([401, 403].includes(answer.status)) throw new Missing("it is not public, or there is no such run");
      if (!answer.ok) throw new Error(`the server answers with error ${answer.status}`);
      const text = await limited(answer, MAX_BYTES[name], cut);
      try {
        return JSON.parse(text);
      } catch {
        throw new Error(`${name} is no JSON`);
      }
    } catch (error) {
      if (error.name === "AbortError") throw new Error(`no answer within ${TIMEOUT_MS / 1000} seconds`);
      if (error instanceof TypeError) throw new Error("the server cannot be reached, or does not let pages read it");
      throw error;
    } finally {
      clearTimeout(timer);
    }
  }

  async function limited(answer, most, cut) {
    const tooLarge = () => new Error(`it is larger than ${dalle.bytes(most)}, which no monitor writes`);
    const refuse = () => {
      const error = tooLarge();
      cut.abort();
      throw error;
    };
    if (Number(answer.headers.get("content-length")) > most) refuse();
    const reader = answer.body.getReader(), parts = [];
    let size = 0;
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      size += part.value.length;
      if (size > most) refuse();
      parts.push(part.value);
    }
    return new Blob(parts).text();
  }

  // A run's data at one place. `changed` is told after each attempt; what was had before stays when one fails.
  dalle.Loader = class {
    constructor(place, changed) {
      Object.assign(this, { place, changed, status: null, history: dalle.readHistory(null), prompts: [] });
      Object.assign(this, { hasHistory: false, problem: "", historyProblem: "", failures: 0, isBusy: false });
      Object.assign(this, { asked: 0, due: 0, historyDue: 0, timer: 0 });
      this.isOnce = place.data !== undefined;
    }

    start() {
      if (this.isOnce) return this.take(this.place.data);
      document.addEventListener("visibilitychange", () => this.plan());
      return this.refresh();
    }

    take(data) {
      try {
        this.status = dalle.readStatus(data.status);
        this.history = dalle.readHistory(data.history);
        this.hasHistory = true;
        this.prompts = dalle.readPrompts(data.prompts);
      } catch (error) {
        this.problem = error.message;
      }
      this.changed();
    }

    // Waits until the next attempt is due; in a hidden tab until it is seen again.
    plan() {
      clearTimeout(this.timer);
      if (document.visibilityState === "hidden" || this.isBusy) return;
      this.timer = setTimeout(() => this.refresh(), Math.max(0, this.due - Date.now()));
    }

    async refresh() {
      if (this.isBusy) return;
      this.isBusy = true;
      clearTimeout(this.timer);
      try {
        await this.load();
        [this.problem, this.failures] = ["", 0];
      } catch (error) {
        this.problem = error.message;
        this.failures++;
      }
      this.asked = Date.now();
      this.due = this.asked + 1000 * Math.min(MAX_DELAY_S, STATUS_S * 2 ** Math.min(10, this.failures));
      this.isBusy = false;
      this.plan();
      this.changed();
    }

    async load() {
      let told;
      try {
        told = await fetched(this.place.base, "status.json");
      } catch (error) {
        if (!(error instanceof Missing) || !(await this.follow())) throw error;
        told = await fetched(this.place.base, "status.json");
      }
      this.status = dalle.readStatus(told);
      if (Date.now() < this.historyDue) return;
      this.changed(); // the head need not wait for the history
      this.historyDue = Date.now() + 1000 * HISTORY_S;
      try {
        this.history = dalle.readHistory(await fetched(this.place.base, "history.json"));
        [this.hasHistory, this.historyProblem] = [true, ""];
      } catch (error) {
        this.historyProblem = error.message;
        return;
      }
      if (this.history.pictures === null) return;
      const drawn = await fetched(this.place.base, "page/prompts.json").catch(() => null); // the pictures go without
      if (drawn) this.prompts = dalle.readPrompts(drawn);
    }

    // Goes to the repository of checkpoints that the card of a run names; returns whether there is another one.
    async follow() {
      if (!this.place.repository || this.status) return false;
      const card = await fetched(this.place.base, "run.json").catch(() => null), named = card && card.checkpoints;
      if (typeof named !== "string" || !REPOSITORY.test(named) || named === this.place.repository) return false;
      this.place = { ...this.place, repository: named, base: onHub(this.place.hub || HUB, named) };
      return true;
    }
  };

  // Returns the place whose data a page shows: of its link, else its own, else what came along with it.
  dalle.placeOfPage = (element) => {
    const hub = element.getAttribute("data-hub") || HUB, named = new URLSearchParams(location.search).get("run");
    if (named) return { ...dalle.placeOf(named, hub), hub };
    const source = element.getAttribute("data-source");
    if (source && location.protocol !== "file:") return { ...dalle.placeOf(source, hub), hub };
    return dalle.data ? { base: String(dalle.data.base || ""), data: dalle.data } : null;
  };
})(globalThis.dalle);
