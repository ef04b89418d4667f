// What a reader wants to know of themselves: is my peer counted, what are all my machines doing, what have I given.
"use strict";

(function (dalle) {
  const { make, text, fill } = dalle;
  const STORED = "dalle-name", MIN_ID = 6; // letters of the end of a peer's id that name it
  const ADVICE = {
    joining: "It has joined and has not ended its first epoch yet. On a slow line that takes minutes, since it first " +
      "downloads the model's state.",
    lagging: "It is behind the others, and what it computes does not count until it has caught up, which it does by " +
      "itself. If it stays so for an hour, its line or its device may be too slow: run dalle-lib doctor there.",
    paused:
      "It computes nothing for now; the reason is in the table. It goes on by itself, or, where its volunteer has " +
      "paused it, by dalle-lib resume on its machine.",
    flagged: "It trains, but the monitor doubts what it tells; the reason is in the table. If you cannot explain it, " +
      "update the kit, start the peer again, and ask the organiser.",
    gone: "It was there and is no longer. Has the machine gone to sleep, or the notebook's session ended? Start it " +
      "again.",
    unknown: "The monitor tells no state that this page knows.",
  };

  // The browser may refuse to keep anything: then the name is forgotten with the page.
  const stored = {
    read() {
      try {
        return localStorage.getItem(STORED) || "";
      } catch (error) {
        console.info(`your name is not remembered: ${error.name}`);
        return "";
      }
    },
    write(name) {
      try {
        if (name) localStorage.setItem(STORED, name);
        else localStorage.removeItem(STORED);
      } catch (error) {
        console.info(`your name is not remembered: ${error.name}`);
      }
    },
  };

  const NOBODY = { peers: [], user: null, owner: "", isShared: false, isByPeer: false };

  // Returns whom a name means: the `owner`, their row of the leaderboard and their peers, or the one that is named
  // (`isByPeer`); `isShared` where several users are meant. Anybody may call a peer as a user is called, so users come
  // first; and what is spelt so comes before what only reads alike.
  dalle.found = (name, { peers, users }) => {
    const exact = name.trim(), key = dalle.key(name);
    const isAlike = (other) => dalle.key(other) === key, isEnd = (id) => exact.length >= MIN_ID && id?.endsWith(exact);
    const ways = [
      [true, (row) => row.id === exact],
      [false, (row) => row.user === exact],
      [false, (row) => isAlike(row.user)],
      [true, (row) => row.name === exact || isEnd(row.id)],
      [true, (row) => isAlike(row.name)],
    ];
    for (const [isByPeer, is] of key ? ways : []) {
      const mine = peers.filter(is), owners = new Set([...mine, ...users.filter(is)].map((row) => row.user));
      const [owner] = owners, user = users.find((row) => row.user === owner) || null;
      if (owners.size > 1) return { ...NOBODY, isShared: true };
      if (owners.size) return { peers: mine, user, owner, isShared: false, isByPeer };
    }
    return NOBODY;
  };

  const count = (peers, state) => peers.filter((peer) => peer.state === state).length;
  const whole = (value) => dalle.count(value, true);

  const isCut = (status) => status.allPeers > status.peers.length;

  // Returns the answer to "is my peer counted?": a title and sentences.
  dalle.answer = ({ peers, user, isShared }, status) => {
    if (isShared) return ["Several people are called so, or call a peer so.",
      ["Give your user name just as your peer tells it, or the end of your peer's id."]];
    const training = count(peers, "training");
    if (peers.length && training === peers.length) {
      const told = peers.length === 1 ? "It trains" : `All ${whole(peers.length)} of its peers train`;
      return ["Yes, it is counted.", [`${told} with the others, and the gradients go into the averages.`]];
    }
    const advice = Object.keys(ADVICE).filter((state) => count(peers, state)).map((state) => ADVICE[state]);
    if (training) return [`Yes, ${whole(training)} of ${whole(peers.length)} peers are counted.`, advice];
    if (peers.length) {
      const isFlagged = count(peers, "flagged") === peers.length;
      return [isFlagged ? "It is in doubt." : count(peers, "joining") ? "Not yet." : "Not now.", advice];
    }
    if (user && isCut(status)) {
      const listed = `Of ${whole(status.allPeers)} peers, the monitor lists ${whole(status.peers.length)}`;
      return ["That is not told here.", [`${listed}, and none of this name. What was given stays counted.`]];
    }
    const isOpen = status.state === "open";
    const goOn = isOpen ? " To go on, start a peer again." : "";
    if (user) return ["Not now: no peer of this name is there.", [`What was given stays counted.${goOn}`]];
    return ["No: the monitor tells nobody of this name.", null];
  };

  function whatToDo(status, place) {
    const late = place.repository ? "up to half an hour, since the monitor sends word to the Hub four times an hour" :
      "a minute";
    return make("ol", {}, ...[
      make("li", {}, "Is it the right name? Your peer tells its name and the end of its id when it starts, and ",
        make("code", {}, "dalle-lib status"), " shows both."),
      make("li", {}, `Has it joined just now? It takes ${late}, until it is told here.`),
      make("li", {}, "Does it train in this run? The head of this page tells which run this is."),
      make("li", {}, "Do you want no name told? Then one like “anonymous-1a2b3c4d” stands in place of yours."),
      isCut(status) ? make("li", {}, "There are more peers than the monitor lists: yours may be among them.") : null,
      make("li", {}, "If nothing of this helps, run ", make("code", {}, "dalle-lib doctor"),
        " where the peer is: it says what to do."),
    ].filter(Boolean));
  }

  const given = (user) => `${dalle.hours(user.compute_s)} of computing, ${dalle.amount(user.samples, "sample")}, ` +
    `${dalle.percent(user.share)} of all gradients: rank ${whole(user.rank)}.`;

  dalle.You = class {
    constructor() {
      [this.name, this.owner, this.listeners, this.loader] = [stored.read(), "", [], null];
      this.input = make("input", { id: "dalle-your-name", type: "text", maxlength: 100, autocomplete: "off",
        spellcheck: "false" });
      this.input.value = this.name;
      this.forget = make("button", { type: "button", class: "dalle-button" }, "Forget me");
      this.forget.addEventListener("click", () => this.remember(""));
      const look = (event) => {
        event.preventDefault();
        this.remember(this.input.value.trim());
      };
      this.result = make("div", { role: "status" });
      this.machines = new dalle.Table({ caption: "All your machines", columns: dalle.peerColumns() });
      this.sum = make("p", { class: "dalle-note" });
      this.title = make("h3", {}, "All your machines");
      this.found = make("div", {}, this.title, this.sum, this.machines.element);
      const label = make("label", { for: "dalle-your-name" }, "Your user name, or a peer's name or id");
      const ask = make("button", { type: "submit", class: "dalle-button dalle-main" }, "Is it counted?");
      const form = make("form", { class: "dalle-form", onsubmit: look }, label, this.input, ask, this.forget);
      const note = make("p", { class: "dalle-note" }, "This browser remembers the name. It is sent nowhere.");
      this.element = make("div", {}, form, note, this.result, this.found);
    }

    // Returns whether a user is the one who was typed, or whose peer that is.
    isYou(user) {
      return user !== "" && user === this.owner;
    }

    remember(name) {
      [this.name, this.input.value] = [name, name];
      stored.write(name);
      if (this.loader) this.show(this.loader);
      this.listeners.forEach((told) => told());
    }

    show(loader) {
      this.loader = loader;
      const { status, place } = loader, found = dalle.found(this.name, status);
      this.owner = found.owner;
      this.forget.hidden = !this.name;
      this.found.hidden = !found.peers.length;
      if (!this.name) return void fill(this.result);
      const [title, told] = dalle.answer(found, status);
      const parts = told ? told.map((line) => make("p", {}, line)) : [whatToDo(status, place)];
      const unsure = dalle.warnings(loader).filter(([kind]) => kind !== "good").map(([, warning]) => warning);
      if (loader.isOnce) unsure.push("This is a snapshot of the past.");
      if (unsure.length) parts.push(make("p", { class: "dalle-note" }, `But: ${unsure.join(" ")}`));
      const what = found.peers.length > 1 ? "These are peers of " : "This is a peer of ";
      if (found.user) parts.unshift(make("p", {}, text(found.user.user, 40), ` has given ${given(found.user)}`));
      if (found.isByPeer && found.owner) parts.unshift(make("p", {}, what, text(found.owner, 40), "."));
      const answer = make("div", { class: "dalle-answer" }, make("p", {}, make("strong", {}, title)), ...parts);
      if (this.result.textContent !== answer.textContent) fill(this.result, answer); // else it would be read out again
      const training = found.peers.filter((peer) => peer.state === "training");
      const speed = training.reduce((sum, peer) => sum + (peer.samples_per_s || 0), 0);
      this.sum.textContent = `${dalle.amount(found.peers.length, "peer")}, of which ${whole(training.length)} ` +
        `train with ${dalle.count(speed)} samples/s together.`;
      this.machines.show(found.peers);
    }
  };
})(globalThis.dalle);
