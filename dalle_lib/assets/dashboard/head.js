// The head of the page: which run, how it stands, how old that is; and its key figures.
"use strict";

(function (dalle) {
  const SILENT_S = 600, SILENT_ON_HUB_S = 2700; // on the Hub a status comes at least every 15 minutes
  const BLIND_S = 600; // a monitor that has not looked at the swarm for so long sees nothing
  const FUTURE_S = 120;
  const { make, text, fill } = dalle;

  // Returns what a reader must know before they believe the figures: [kind, title, sentence] each.
  dalle.warnings = (loader, now = Date.now() / 1000) => {
    const { status, place, isOnce, hasHistory } = loader, found = [];
    if (loader.problem) {
      const kept = loader.status ? " What came before is still shown." : "";
      const again = isOnce ? "" : ` It is tried again in ${dalle.duration(Math.max(0, loader.due / 1000 - now))}.`;
      found.push(["bad", "No new data.", `${loader.problem}.${again}${kept}`]);
    }
    if (!status) return found;
    if (loader.historyProblem)
      found.push(["bad", hasHistory ? "No new charts and pictures." : "No charts and pictures.",
        `${loader.historyProblem}.${hasHistory ? " Those below are of before." : ""}`]);
    const moment = status.played ?? status.written; // a replay tells of another day than it was played on
    const age = moment === null ? null : now - moment;
    if (status.played !== null && status.written !== null)
      found.push(["open", "This is a recording.", `It tells how the run stood ${dalle.ago(status.written, now)}.`]);
    if (status.state === "finished") found.push(["good", "This run is finished.", "There is nothing left to train."]);
    if (status.state === "paused")
      found.push(["open", "This run is paused.", "Its organiser has paused it: nobody can join now."]);
    if (isOnce || status.state === "finished") return found;
    const open = status.alarms.filter((alarm) => alarm.until === null).length;
    if (open) found.push(["bad", `${dalle.amount(open, "alarm")} now.`, "See “Is anything wrong?” below."]);
    if (age === null)
      found.push(["open", "Nobody knows how old this is.", "The monitor does not tell when it wrote it."]);
    else if (age > (place.repository ? SILENT_ON_HUB_S : SILENT_S))
      found.push(["bad", "The monitor is silent.", `Its last word is ${dalle.duration(age)} old. Peers may train on ` +
        "without it, but nothing below says so."]);
    else if (age < -FUTURE_S)
      found.push(["open", "A clock is wrong.", `The monitor's clock is ${dalle.duration(-age)} ahead of yours.`]);
    else if (status.looked !== null && status.written - status.looked > BLIND_S)
      found.push(["bad", "The monitor does not see the swarm.", "It writes, but its last look at the peers is " +
        `${dalle.duration(status.written - status.looked)} older.`]);
    else if (status.state === "open" && status.peersByState.training === 0)
      found.push(["open", "Nobody trains now.", "The run is open: whoever joins goes on with it."]);
    return found;
  };

  function age(loader, now) {
    const { status } = loader;
    if (!status) return loader.problem ? "" : "Loading …";
    if (loader.isOnce) return `A snapshot, ${dalle.ago(status.written, now)}. It does not refresh.`;
    const since = (moment) => dalle.duration(Math.max(0, Math.floor(now - moment)));
    const asked = loader.asked ? `, asked ${since(loader.asked / 1000)} ago` : "";
    return status.written === null ? "" : `The monitor wrote this ${since(status.written)} ago${asked}.`;
  }

  const STATES = ["open", "paused", "finished"];

  dalle.Head = class {
    constructor(loader) {
      this.loader = loader;
      this.name = make("h2", { class: "dalle-name", id: "dalle-top" }, "…");
      this.state = make("span", { class: "dalle-state", hidden: true });
      this.message = make("p", { class: "dalle-message", hidden: true });
      this.age = make("span", { class: "dalle-age" });
      this.source = make("span", { class: "dalle-source" });
      this.warnings = make("div", { role: "status", class: "dalle-warnings" });
      const refresh = make("button", { type: "button", class: "dalle-button", hidden: loader.isOnce,
        onclick: () => loader.refresh() }, "Refresh now");
      const title = make("div", { class: "dalle-title" }, this.name, this.state);
      const line = make("p", { class: "dalle-note" }, this.age, " ", refresh);
      this.element = make("header", { class: "dalle-head" }, title, this.message, line, this.warnings, this.source);
      setInterval(() => this.tick(), 1000);
    }

    tick() {
      if (document.visibilityState === "hidden") return;
      const now = Date.now() / 1000, told = age(this.loader, now);
      if (this.age.textContent !== told) this.age.textContent = told;
      this.warn(now);
    }

    // Shows the warnings; those that stay are changed in place, so that a screen reader does not say them again.
    warn(now) {
      const found = dalle.warnings(this.loader, now), kinds = found.map(([kind, title]) => kind + title).join();
      if (this.kinds !== kinds)
        fill(this.warnings, ...found.map(([kind, title, told]) => make("p", { class: `dalle-warning dalle-${kind}` },
          make("strong", {}, title), " ", make("span", { "aria-live": "off" }, text(told, 400)))));
      else found.forEach(([, , told], at) => {
        const place = this.warnings.children[at].querySelector("bdi"), plain = dalle.plain(told, 400);
        if (place.textContent !== plain) place.textContent = plain;
      });
      this.kinds = kinds;
    }

    show() {
      const { status, place } = this.loader;
      if (status) {
        fill(this.name, text(status.run || "A run without a name", 100));
        document.title = `${dalle.plain(status.run, 60)} · dashboard`;
        const isKnown = STATES.includes(status.state), state = isKnown ? status.state : "state unknown";
        this.state.textContent = status.played === null ? state : `${state} then`;
        this.state.className = `dalle-state dalle-state-${isKnown ? state : "unknown"}`;
        this.state.hidden = false;
        this.message.hidden = !status.message.trim();
        fill(this.message, make("span", { class: "dalle-label" }, "The organiser says: "), text(status.message, 600));
      }
      fill(this.source, ...(this.loader.isOnce ? [] : ["Data of ", text(place.repository || place.base, 200)]));
      this.tick();
    }
  };

  function card(title, value, note = "", more = null) {
    return make("div", { class: "dalle-card" }, make("dt", {}, title), make("dd", {},
      make("span", { class: "dalle-value" }, value), more, note ? make("span", { class: "dalle-note" }, note) : null));
  }

  function progress(status) {
    const { epoch, total_epochs: total } = status;
    if (epoch === null || !total || total <= 0) return card("Epoch", dalle.count(epoch, true));
    const share = Math.min(1, Math.max(0, epoch / total));
    const bar = make("progress", { max: 1, value: share, "aria-label": "Share of the epochs that are done" });
    const value = `${dalle.count(epoch, true)} of ${dalle.count(total, true)}`;
    return card("Epoch", value, `${dalle.percent(share)} done`, bar);
  }

  // The key figures, as a list of terms.
  dalle.Figures = class {
    constructor() {
      this.element = make("dl", { class: "dalle-cards" });
    }

    show({ status }) {
      const { totals, peersByState: peers } = status, isDone = status.state === "finished";
      const batch = status.target_batch_size === null ? "" : `${dalle.amount(status.target_batch_size, "sample")} each`;
      const others = dalle.STATES.filter((state) => state !== "training" && peers[state] > 0)
        .map((state) => `${dalle.count(peers[state], true)} ${state}`);
      fill(this.element,
        progress(status),
        card("Time left", isDone ? "none" : dalle.duration(status.left_s), isDone ? "" : "at today's pace"),
        card("Pace", status.epoch_s === null ? dalle.count(null) : `${dalle.duration(status.epoch_s)} an epoch`, batch),
        card("Speed", `${dalle.count(status.samples_per_s)} samples/s`, "of all peers together"),
        card("Objective", dalle.figure(status.loss), "loss, in nats; less is better"),
        card("Peers that train", dalle.count(peers.training, true), others.length ? `and ${others.join(", ")}` : "now"),
        card("People so far", dalle.count(totals.users, true), `with ${dalle.amount(totals.peers, "peer")}`),
        card("Given so far", dalle.hours(totals.compute_s), `${dalle.amount(totals.samples, "sample")}`));
    }
  };
})(globalThis.dalle);
