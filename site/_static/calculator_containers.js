"use strict";
// Python's lists, tuples, dictionaries and sets, and the methods of texts and numbers, for the translated calculator.
// Methods look at their arguments without taking them over, and give a reference of their own.

(function () {
  const python = window.dalle.python;
  const { Counted, drop, inc, isObject } = python;

  // Under what a key is found: equal keys give the same.
  function keyOf(value) {
    return value instanceof Tuple ? "tuple " + value.a.map((part) => typeof part + String(keyOf(part))).join("\u0000") : value;
  }

  class Sequence extends Counted {
    constructor(items) {
      super();
      this.a = items || [];
    }
    free() {
      this.a.forEach(drop);
    }
    index(value) {
      return this.a.findIndex((item) => python.equal(item, value));
    }
  }

  class Tuple extends Sequence {}

  class List extends Sequence {
    append(value) {
      this.a.push(inc(value));
      return null;
    }
    pop(place = this.a.length - 1) {
      if (!this.a.length) throw new RangeError("pop from an empty list");
      return this.a.splice(place, 1)[0];
    }
    clear() {
      this.a.splice(0).forEach(drop);
      return null;
    }
    extend(values) {
      python.items(values).forEach((value) => this.a.push(inc(value)));
      return null;
    }
  }

  class Dict extends Counted {
    constructor(missing) {
      super();
      this.map = new Map();
      this.missing = missing;
    }
    static of(pairs) {
      const made = new Dict();
      pairs.forEach(([key, value]) => made.put(key, value));
      return made;
    }
    free() {
      this.clear();
    }
    put(key, value) { // takes both over
      const found = this.map.get(keyOf(key));
      this.map.set(keyOf(key), [found ? found[0] : key, value]);
      if (found) {
        drop(key);
        drop(found[1]);
      }
    }
    find(key) {
      const found = this.map.get(keyOf(key));
      if (found) return inc(found[1]);
      if (this.missing !== undefined) return this.missing;
      throw new RangeError("no key " + String(key));
    }
    has(key) {
      return this.map.has(keyOf(key));
    }
    get(key, otherwise = null) {
      const found = this.map.get(keyOf(key));
      return inc(found ? found[1] : otherwise);
    }
    setdefault(key, value = null) {
      if (!this.has(key)) this.put(inc(key), inc(value));
      return this.find(key);
    }
    pop(key, otherwise) {
      if (!this.has(key)) return inc(otherwise);
      const [own, value] = this.map.get(keyOf(key));
      this.map.delete(keyOf(key));
      drop(own);
      return value;
    }
    clear() {
      const pairs = [...this.map.values()];
      this.map.clear();
      pairs.flat().forEach(drop);
      return null;
    }
    keys() {
      return new List([...this.map.values()].map(([key]) => inc(key)));
    }
    values() {
      return new List([...this.map.values()].map(([, value]) => inc(value)));
    }
    items() {
      return new List([...this.map.values()].map(([key, value]) => new Tuple([inc(key), inc(value)])));
    }
  }

  class Collection extends Counted { // a set
    constructor(values) {
      super();
      this.map = new Map();
      (values || []).forEach((value) => this.add(value));
    }
    free() {
      const values = [...this.map.values()];
      this.map.clear();
      values.forEach(drop);
    }
    add(value) {
      if (!this.map.has(keyOf(value))) this.map.set(keyOf(value), inc(value));
      return null;
    }
    has(value) {
      return this.map.has(keyOf(value));
    }
  }

  class Counting extends Counted { // itertools.count
    constructor() {
      super();
      this.number = 0;
    }
    free() {}
  }

  for (const kind of [Tuple, List, Dict, Collection, Counting]) kind.prototype.isBuiltin = true;

  const texts = {
    startswith: (text, start) => text.startsWith(start),
    endswith: (text, end) => text.endsWith(end),
    strip: (text) => text.trim(),
    lower: (text) => text.toLowerCase(),
    removeprefix: (text, start) => (text.startsWith(start) ? text.slice(start.length) : text),
    removesuffix: (text, end) => (text.endsWith(end) ? text.slice(0, text.length - end.length) : text),
    replace: (text, old, other) => text.split(old).join(other),
    join: (text, parts) => python.items(parts).join(text),
  };
  const numbers = { is_integer: (number) => Number.isInteger(number) };

  // The items of anything that can be walked through, as an array that holds no references of its own.
  function items(value) {
    if (value instanceof Sequence) return value.a;
    if (value instanceof Dict) return [...value.map.values()].map(([key]) => key);
    if (value instanceof Collection) return [...value.map.values()];
    if (typeof value === "string") return [...value];
    throw new TypeError("cannot walk through " + python.repr(value));
  }

  // A sequence to walk through, made of something that it takes over.
  function walk(value) {
    if (value instanceof Sequence) return value;
    const made = new List(items(value).map(inc));
    drop(value);
    return made;
  }

  // The parts of something that it takes over, each with a reference of its own.
  function unpack(value, count, star) {
    const parts = items(value).map(inc);
    drop(value);
    if (star === undefined ? parts.length !== count : parts.length < count - 1) {
      throw new python.ValueError("expected " + count + " parts, but got " + parts.length);
    }
    if (star !== undefined) parts.splice(star, parts.length - count + 1, new List(parts.slice(star, parts.length - count + 1 + star)));
    return parts;
  }

  function at(value, key) {
    if (value instanceof Dict) return value.find(key);
    const all = typeof value === "string" ? value : value.a;
    const place = key < 0 ? all.length + key : key;
    if (!(place in all) && typeof value !== "string") throw new RangeError("no item " + key);
    return inc(all[place]);
  }

  function getItem(value, key) {
    const found = at(value, key);
    drop(value);
    drop(key);
    return found;
  }

  function setItem(value, key, item) {
    if (value instanceof Dict) {
      value.put(key, item);
    } else {
      const place = key < 0 ? value.a.length + key : key;
      drop(value.a[place]);
      value.a[place] = item;
    }
    drop(value);
  }

  function slice(value, start, end) {
    const from = start === null ? undefined : start, to = end === null ? undefined : end;
    if (typeof value === "string") return value.slice(from, to);
    const made = new value.constructor(value.a.slice(from, to).map(inc));
    drop(value);
    return made;
  }

  function spread(value) { // the items of something that it takes over, for a call with a star
    const all = items(value).map(inc);
    drop(value);
    return all;
  }

  function pairs(value) {
    const all = value.items();
    drop(value);
    return spread(all).map((pair) => unpack(pair, 2));
  }

  const named = (value) => Object.fromEntries(pairs(value));

  function truth(value) {
    if (value instanceof Sequence) return value.a.length > 0;
    if (value instanceof Dict || value instanceof Collection) return value.map.size > 0;
    return isObject(value) || Boolean(value);
  }

  function test(value) {
    const result = truth(value);
    drop(value);
    return result;
  }

  function and(value, other) {
    if (!truth(value)) return value;
    drop(value);
    return other();
  }

  function or(value, other) {
    if (truth(value)) return value;
    drop(value);
    return other();
  }

  const otherwise = (value, other) => (value === undefined ? other() : value);

  function nothing() {
    throw new RangeError("nothing was found");
  }

  Object.assign(python, {
    and, or, named, nothing, otherwise, pairs, spread,
    Collection, Counting, Dict, List, Sequence, Tuple, getItem, items, numbers, setItem, slice, test, texts, truth, unpack, walk,
  });
})();
