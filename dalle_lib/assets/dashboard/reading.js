// What a monitor has written, in the shape that the page works with, whatever came: numbers or null, texts, lists.
"use strict";

(function (dalle) {
  const MAX_ROWS = 20000; // of each list; what is beyond is not shown
  const USER_COLUMNS = ["rank", "user", "team", "compute_s", "present_s", "samples", "share", "percentile", "peers",
    "last_seen", "day", "week", "month"]; // as dalle_lib.run.newest has them
  const TEAM_COLUMNS = ["rank", "team", "compute_s", "samples", "share", "members"];
  const TEXTS = new Set(["user", "team", "first", "best", "name"]);
  dalle.STATES = ["flagged", "training", "joining", "lagging", "paused", "gone"];
  dalle.TABLES = {
    epochs: ["epoch", "ended", "loss", "peers", "samples_per_s", "samples", "counted_share", "spread",
      "farthest"],
    hours: ["hour", "peers", "users", "most", "up_mbps", "down_mbps"],
    evaluations: ["epoch", "made", "loss", "low", "high", "rank", "rank_chance", "rank_ceiling", "exact", "nearest",
      "nearest_held_out"],
    pictures: ["epoch", "first", "best"],
  };

  const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
  const objectOf = (value) => (isObject(value) ? value : {});
  const listOf = (value) => (Array.isArray(value) ? value.slice(0, MAX_ROWS) : []);
  const own = (value, name) => (Object.hasOwn(value, name) ? value[name] : undefined);
  const textOf = (value, most) => (typeof value === "string" ? value.slice(0, most) : "");
  const numbers = (told, names) => Object.fromEntries(names.map((name) => [name, dalle.number(own(told, name))]));

  // Returns rows of columns, with the names of columns that they have; null where the table is missing or empty.
  function tableOf(told, columns) {
    const lists = columns.map((name) => [name, own(objectOf(told), name)]).filter(([, list]) => Array.isArray(list));
    const length = Math.min(MAX_ROWS, Math.max(0, ...lists.map(([, list]) => list.length)));
    const rows = [];
    for (let at = 0; at < length; at++) {
      const row = {};
      for (const [name, list] of lists) row[name] = TEXTS.has(name) ? textOf(list[at], 400) : dalle.number(list[at]);
      rows.push(row);
    }
    return rows.length ? rows : null;
  }

  // Returns rows of lists of values.
  function listed(told, columns) {
    return listOf(told).filter(Array.isArray).map((values) => {
      const of = (name, at) => (TEXTS.has(name) ? textOf(values[at], 400) : dalle.number(values[at]));
      return Object.fromEntries(columns.map((name, at) => [name, of(name, at)]));
    });
  }

  function peerOf(told, written) {
    const state = own(told, "state"), { since } = numbers(told, ["since"]);
    return {
      ...numbers(told, ["epoch", "samples_per_s"]),
      here_s: since === null || written === null ? null : Math.max(0, written - since),
      id: textOf(own(told, "id"), 100), name: textOf(own(told, "name"), 400), user: textOf(own(told, "user"), 400),
      team: textOf(own(told, "team"), 400), why: textOf(own(told, "why"), 1000), kit: textOf(own(told, "kit"), 100),
      hardware: textOf(own(told, "hardware"), 400), state: dalle.STATES.includes(state) ? state : "unknown",
    };
  }

  function checkpointOf(told) {
    return {
      ...numbers(told, ["epoch", "made", "bytes"]), sha256: textOf(own(told, "sha256"), 64),
      isSent: own(told, "is_sent") === true,
      figures: numbers(objectOf(own(told, "figures")), ["held_out_loss", "half_width", "rows"]),
    };
  }

  // Returns what a status says. Throws an Error if it is none at all.
  dalle.readStatus = (told) => {
    if (!isObject(told)) throw new Error("it is no status of a monitor");
    const objects = (name) => listOf(own(told, name)).filter(isObject);
    const { written } = numbers(told, ["written"]);
    const peers = objects("peers").map((peer) => peerOf(peer, written));
    const byState = objectOf(own(told, "peers_by_state"));
    const counted = dalle.STATES.map((state) => [state, dalle.number(own(byState, state)) ??
      peers.filter((peer) => peer.state === state).length]);
    return {
      ...numbers(told, ["written", "played", "looked", "epoch", "total_epochs", "target_batch_size", "epoch_s",
        "samples_per_s", "left_s", "loss"]),
      run: textOf(own(told, "run"), 400), message: textOf(own(told, "message"), 4000),
      state: textOf(own(told, "state"), 40), peers, peersByState: Object.fromEntries(counted),
      allPeers: counted.reduce((sum, [, count]) => sum + count, 0),
      users: listed(own(told, "users"), USER_COLUMNS), teams: listed(own(told, "teams"), TEAM_COLUMNS),
      totals: numbers(objectOf(own(told, "totals")), ["users", "peers", "samples", "compute_s", "listed", "teams"]),
      alarms: objects("alarms").map((alarm) => ({
        kind: textOf(own(alarm, "kind"), 40), told: textOf(own(alarm, "told"), 1000),
        ...numbers(alarm, ["since", "until"]),
      })),
      checkpoints: objects("checkpoints").map(checkpointOf),
    };
  };

  // Returns the tables of a history, each as rows; null for one that is not there.
  dalle.readHistory = (told) => Object.fromEntries(
    Object.entries(dalle.TABLES).map(([name, columns]) => [name, tableOf(own(objectOf(told), name), columns)]));

  // Returns the prompts of the pictures in their order, each with whether the model has seen it in training.
  dalle.readPrompts = (told) => ["seen", "unseen"].flatMap((kind) =>
    listOf(own(objectOf(told), kind)).slice(0, 200).map((prompt) => ({ prompt: textOf(prompt, 1000), kind })));

  // Returns the rows that a chart shows, by the name of its table; null if there are none.
  dalle.rowsOf = (name, model) => {
    if (Object.hasOwn(dalle.TABLES, name)) return model.history[name];
    const rows = name === "users" ? model.status.users : name === "teams" ? model.status.teams : [];
    const clean = ({ ...row }) => {
      for (const text of ["user", "team"]) if (text in row) row[text] = dalle.plain(row[text], 30);
      return row;
    };
    return rows.length ? rows.map(clean) : null;
  };
})(globalThis.dalle);
