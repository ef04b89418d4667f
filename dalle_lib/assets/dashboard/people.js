// Who gives what: users by hours of computing, teams; and who takes part now: peers by state, and alarms.
"use strict";

(function (dalle) {
  const { make, text, fill, numbers } = dalle;
  const whole = (value) => dalle.count(value, true);
  const rank = () => numbers("Rank", "rank", whole, { isRank: true });

  function share(title = "Share") {
    const long = (value) => `width:${4 * Math.min(1, Math.max(0, value || 0))}rem`;
    const bar = (value) => make("span", { class: "dalle-share" }, dalle.percent(value),
      make("span", { class: "dalle-bar", "aria-hidden": "true", style: long(value) }));
    return { title, isNumber: true, value: (row) => row.share, cell: (row) => bar(row.share),
      hint: "Part of all gradients that were averaged" };
  }

  const named = (title, name, more = {}) => ({ title, value: (row) => row[name], ...more });

  // The users, of whom one may be the reader.
  dalle.Leaderboard = class {
    constructor(you) {
      this.note = make("p", { class: "dalle-note" });
      const user = (row) => make("span", {}, text(row.user || "(no name)", 40), " ",
        you.isYou(row.user) ? make("strong", { class: "dalle-tag dalle-tag-you" }, "you") : null);
      this.users = new dalle.Table({
        caption: "People by hours of computing", isOwn: (row) => you.isYou(row.user),
        empty: "Nobody is listed yet: people are listed from ten minutes of computing on.",
        sorted: { column: 0, direction: "ascending" },
        columns: [
          rank(), named("User", "user", { isHead: true, cell: user }), named("Team", "team"),
          numbers("Computing", "compute_s", dalle.hours, { hint: "Hours of computing, over all peers of the user" }),
          numbers("Presence", "present_s", dalle.hours,
            { hint: "Hours in which a peer was there, paused ones too, over all peers" }),
          numbers("Samples", "samples", whole), share(), numbers("Peers", "peers", whole),
          numbers("Last seen", "last_seen", dalle.ago),
        ],
      });
      this.teams = new dalle.Table({
        caption: "Teams by hours of computing", empty: "No team is listed yet.",
        sorted: { column: 0, direction: "ascending" },
        columns: [
          rank(), named("Team", "team", { isHead: true }), numbers("Computing", "compute_s", dalle.hours),
          numbers("Samples", "samples", whole), share(), numbers("Members", "members", whole),
        ],
      });
      this.teamsTitle = make("h3", {}, "Teams");
      this.element = make("div", {}, this.note, this.users.element, this.teamsTitle, this.teams.element);
      you.listeners.push(() => this.users.show(this.users.rows, true));
    }

    show({ status }) {
      const { totals, users, teams } = status, listed = totals.listed ?? users.length, came = totals.users ?? listed;
      const cut = ` Of ${dalle.amount(listed, "listed user")}, the first ${whole(users.length)} are here.`;
      const all = dalle.amount(came, "person has", "people have");
      const rule = came > listed ? " Whoever has computed for ten minutes is listed." : "";
      this.note.textContent = `${all} taken part.${rule}${listed > users.length ? cut : ""}`;
      this.users.show(users);
      this.teams.show(teams);
      this.teamsTitle.hidden = this.teams.element.hidden = !teams.length;
    }
  };

  const MEANS = {
    flagged: "the monitor doubts what it tells", training: "its gradients count", joining: "has not ended an epoch yet",
    lagging: "behind the others", paused: "computes nothing for now", gone: "no longer there",
    unknown: "no state is told",
  };

  dalle.stateTag = (state) => make("span", { class: `dalle-tag dalle-peer-${state}`, title: MEANS[state] }, state);

  const peerName = (row) => make("span", {}, text(row.name || "(no name)", 40),
    make("span", { class: "dalle-id" }, " …", text(row.id.slice(-6), 6)));
  const peerState = (row) => make("div", { class: row.why && "dalle-reason" }, dalle.stateTag(row.state),
    row.why ? make("span", { class: "dalle-why" }, " ", text(row.why, 300)) : null);

  // Returns the columns of tables of peers.
  dalle.peerColumns = () => [
    named("Peer", "name", { isHead: true, cell: peerName }),
    { title: "State", value: (row) => dalle.STATES.indexOf(row.state), cell: peerState },
    named("User", "user"), numbers("Epoch", "epoch", whole), numbers("Samples/s", "samples_per_s"),
    named("Hardware", "hardware", { cell: (row) => make("div", { class: "dalle-wide" }, text(row.hardware, 60)) }),
    named("Kit", "kit", { cell: (row) => text(row.kit, 20) }),
    { title: "Here for", isNumber: true, value: (row) => row.here_s,
      cell: (row) => (row.here_s === null ? "–" : dalle.duration(row.here_s)) },
  ];

  dalle.Peers = class {
    constructor(you) {
      this.states = make("ul", { class: "dalle-states" });
      const options = dalle.STATES.map((state) => make("option", { value: state }, state));
      this.filter = make("select", { id: "dalle-filter", onchange: () => this.list() },
        make("option", { value: "" }, "all"), ...options);
      this.note = make("p", { class: "dalle-note" });
      const isOwn = (row) => you.isYou(row.user), empty = "No such peer is there now.";
      this.table = new dalle.Table({ caption: "Peers", columns: dalle.peerColumns(), empty, isOwn });
      this.element = make("div", {}, this.states, this.note,
        make("p", {}, make("label", { for: "dalle-filter" }, "Show peers that are "), this.filter), this.table.element);
      you.listeners.push(() => this.table.show(this.table.rows, true));
    }

    show({ status }) {
      this.peers = status.peers;
      const counted = (state) => make("strong", {}, whole(status.peersByState[state]));
      const meaning = (state) => make("span", { class: "dalle-note" }, ` ${MEANS[state]}`);
      fill(this.states, ...dalle.STATES.map((state) =>
        make("li", {}, counted(state), " ", dalle.stateTag(state), meaning(state))));
      const told = `Of ${dalle.amount(status.allPeers, "peer")}, the monitor lists ${whole(this.peers.length)}.`;
      this.note.textContent = status.allPeers > this.peers.length ? told : "";
      this.list();
    }

    list() {
      const state = this.filter.value;
      this.table.show(state ? this.peers.filter((peer) => peer.state === state) : this.peers);
    }
  };

  function alarm({ told, since, until }) {
    const when = until === null ? ["since ", dalle.moment(since)] : [dalle.moment(since), " to ", dalle.moment(until)];
    const [kind, word] = until === null ? ["dalle-warning dalle-bad", "Now: "] : ["", ""];
    return make("li", { class: kind }, make("strong", {}, word), text(told, 400), " ",
      make("span", { class: "dalle-note" }, ...when));
  }

  // What is wrong with the run, and what was.
  dalle.Alarms = class {
    constructor() {
      this.none = make("p", { class: "dalle-note" });
      this.now = make("ul", { class: "dalle-alarms" });
      this.past = make("ul", { class: "dalle-alarms" });
      this.before = make("details", {}, make("summary", {}, "What is over"), this.past);
      this.element = make("div", {}, this.none, this.now, this.before);
    }

    show({ status }) {
      const isOpen = (each) => each.until === null;
      const now = status.alarms.filter(isOpen), past = status.alarms.filter((each) => !isOpen(each));
      this.none.textContent = now.length ? "" : "The monitor sees nothing wrong now.";
      fill(this.now, ...now.slice(0, 200).map(alarm));
      fill(this.past, ...past.slice(0, 200).map(alarm));
      this.before.hidden = !past.length;
    }
  };
})(globalThis.dalle);
