"use strict";
// Python's operators, built-in functions and formats of numbers, for the translated calculator.

(function () {
  const python = window.dalle.python;
  const { Callable, Collection, Counting, Dict, Instance, List, Namespace, Partial, Sequence, Tuple } = python;
  const { drop, inc, isObject, items, truth } = python;

  const kinds = { int: { name: "int" }, float: { name: "float" }, str: { name: "str" }, bool: { name: "bool" },
                  tuple: { name: "tuple" }, list: { name: "list" }, dict: { name: "dict" } };

  function kindOf(value) {
    if (typeof value === "boolean") return kinds.bool;
    if (typeof value === "number") return Number.isInteger(value) ? kinds.int : kinds.float;
    if (typeof value === "string") return kinds.str;
    if (value instanceof Tuple) return kinds.tuple;
    if (value instanceof List) return kinds.list;
    return value instanceof Dict ? kinds.dict : isObject(value) ? value.constructor : null;
  }

  function isInstance(value, kind) {
    if (kind instanceof Tuple) return kind.a.some((one) => isInstance(value, one));
    if (typeof kind === "function") return value instanceof kind;
    return kindOf(value) === kind || (kind === kinds.int && typeof value === "boolean");
  }

  function equal(a, b) {
    if (a instanceof Sequence && b instanceof Sequence) {
      return a.a.length === b.a.length && a.a.every((item, place) => equal(item, b.a[place]));
    }
    return a === b || (typeof a === "boolean" && Number(a) === b) || (typeof b === "boolean" && a === Number(b));
  }

  function isLess(a, b) {
    if (!(a instanceof Sequence)) return a < b;
    const place = a.a.findIndex((item, number) => number >= b.a.length || !equal(item, b.a[number]));
    if (place < 0) return a.a.length < b.a.length;
    return place < b.a.length && isLess(a.a[place], b.a[place]);
  }

  function isIn(value, holder) {
    if (typeof holder === "string") return holder.includes(value);
    if (holder instanceof Sequence) return holder.a.some((item) => equal(item, value));
    return holder.has(value);
  }

  function divide(a, b, result) {
    if (Number(b) === 0) throw new RangeError("division by zero");
    return result;
  }

  const modulo = (a, b) => ((a % b) + b) % b;
  const times = (sequence, number) => {
    const all = Array.from({ length: Math.max(0, Number(number)) }, () => sequence.a.map(inc)).flat();
    return new sequence.constructor(all);
  };

  function unite(a, b) { // two dictionaries, or two types
    if (!(a instanceof Dict)) return new Tuple([a, b]);
    return Dict.of([a, b].flatMap((one) => one.items().a.map((pair) => pair.a.map(inc))));
  }

  // Operators look at what they get, without taking it over.
  const operators = {
    "+": (a, b) => (a instanceof Sequence ? new a.constructor([...a.a, ...b.a].map(inc)) : a + b),
    "-": (a, b) => a - b,
    "*": (a, b) => (a instanceof Sequence ? times(a, b) : b instanceof Sequence ? times(b, a) : a * b),
    "/": (a, b) => divide(a, b, a / b),
    "//": (a, b) => divide(a, b, (a - modulo(a, b)) / b),
    "%": (a, b) => divide(a, b, modulo(a, b)),
    "**": (a, b) => a ** b,
    "|": unite,
    "==": equal,
    "!=": (a, b) => !equal(a, b),
    "<": isLess,
    ">": (a, b) => isLess(b, a),
    "<=": (a, b) => (a instanceof Sequence ? !isLess(b, a) : a <= b),
    ">=": (a, b) => (a instanceof Sequence ? !isLess(a, b) : a >= b),
    is: (a, b) => a === b,
    "is not": (a, b) => a !== b,
    in: isIn,
    "not in": (a, b) => !isIn(a, b),
  };

  function operate(operator, a, b) {
    const result = operators[operator](a, b);
    drop(a);
    drop(b);
    return result;
  }

  function addTo(a, b) { // a += b
    if (!(a instanceof List)) return operate("+", a, b);
    a.extend(b);
    drop(b);
    return a;
  }

  function round(number, digits = 0) { // a half goes to the even neighbour, as in Python
    const text = digits ? Number(number.toFixed(digits)) : Math.round(number);
    return !digits && Math.abs(number % 1) === 0.5 ? 2 * Math.round(number / 2) : text;
  }

  function repr(value) {
    if (value === null) return "None";
    if (typeof value === "boolean") return value ? "True" : "False";
    if (typeof value === "string") {
      const quote = value.includes("'") && !value.includes('"') ? '"' : "'";
      const text = value.replaceAll("\\", "\\\\").replaceAll("\n", "\\n").replaceAll("\t", "\\t");
      return quote + (quote === "'" ? text.replaceAll("'", "\\'") : text) + quote;
    }
    if (value instanceof List) return "[" + value.a.map(repr).join(", ") + "]";
    if (value instanceof Tuple) return "(" + value.a.map(repr).join(", ") + (value.a.length === 1 ? ",)" : ")");
    if (value instanceof Dict) return "{" + value.items().a.map((pair) => pair.a.map(repr).join(": ")).join(", ") + "}";
    return String(value);
  }

  function grouped(digits) {
    const [whole, ...rest] = digits.split(".");
    return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...rest].join(".");
  }

  function general(number, precision) { // the format g
    const digits = precision || 1;
    if (number === 0) return "0";
    const [mantissa, exponent] = number.toExponential(digits - 1).split("e");
    if (exponent >= -4 && exponent < digits) {
      const fixed = number.toFixed(Math.max(0, digits - 1 - exponent));
      return fixed.includes(".") ? fixed.replace(/\.?0+$/, "") : fixed;
    }
    const short = mantissa.includes(".") ? mantissa.replace(/\.?0+$/, "") : mantissa;
    return short + "e" + exponent[0] + exponent.slice(1).padStart(2, "0");
  }

  function formatNumber(number, comma, precision, kind) {
    const size = Math.abs(number);
    let text = String(size);
    if (kind === "f") text = fixed(size, precision ?? 6);
    if (kind === "%") text = fixed(100 * size, precision ?? 6) + "%";
    if (kind === "g") text = general(size, precision ?? 6);
    if (comma) text = grouped(text);
    return (number < 0 || Object.is(number, -0) ? "-" : "") + text;
  }

  function fixed(number, digits) { // toFixed gives no digits beyond 1e21, and rounds halves away from zero
    if (number >= 1e21) return BigInt(number).toString() + (digits ? "." + "0".repeat(digits) : "");
    const isHalf = digits < 20 && (number * 10 ** digits) % 1 === 0.5 && exactly(number, digits);
    return (isHalf ? round(number * 10 ** digits) / 10 ** digits : number).toFixed(digits);
  }

  function exactly(number, digits) {
    return number.toFixed(Math.min(100, digits + 30)).replace(/0+$/, "").split(".")[1].length === digits + 1;
  }

  function format(value, spec = "", shown = "") {
    const [, comma, precision, kind] = /^(,?)(?:\.(\d+))?([fg%]?)$/.exec(spec);
    let text = shown === "r" || isObject(value) || typeof value === "boolean" || value === null ? repr(value) : value;
    if (typeof value === "number") text = formatNumber(value, comma, precision && Number(precision), kind);
    else if (precision) text = String(text).slice(0, Number(precision));
    drop(value);
    return String(text);
  }

  function extreme(values, named, isBetter) {
    const all = values.length > 1 ? values : items(values[0]);
    if (!all.length && named && "default" in named) return inc(named.default);
    if (!all.length) throw new python.ValueError("expected at least one value, but got none.");
    return inc(all.reduce((best, value) => (isBetter(value, best) ? value : best)));
  }

  function rangeOf(...ends) {
    if (!ends.every((end) => Number.isInteger(Number(end)) && typeof end !== "string")) throw new TypeError("range");
    const [start, end, step] = ends.length === 1 ? [0, ends[0], 1] : [ends[0], ends[1], ends[2] ?? 1];
    return new List(Array.from({ length: Math.max(0, Math.ceil((end - start) / step)) }, (_, i) => Number(start) + i * step));
  }

  function zip(...sources) {
    const named = isNamed(sources.at(-1)) ? sources.pop() : {};
    const all = sources.map(items), lengths = all.map((one) => one.length);
    if (named.strict && new Set(lengths).size > 1) throw new python.ValueError("zip() arguments differ in length");
    return new List(Array.from({ length: Math.min(...lengths) }, (_, i) => new Tuple(all.map((one) => inc(one[i])))));
  }

  function isNamed(value) {
    return isObject(value) && Object.getPrototypeOf(value) === Object.prototype;
  }

  function plain(value) { // dataclasses.asdict
    if (value instanceof Instance) {
      return Dict.of(value.constructor.fields.map(({ name }) => [name, plain(value[name])]));
    }
    if (value instanceof Dict) return Dict.of(value.items().a.map((pair) => pair.a.map(plain)));
    return value instanceof Sequence ? new value.constructor(value.a.map(plain)) : inc(value);
  }

  function copyWith(value, named) { // dataclasses.replace
    const old = Object.fromEntries(value.constructor.fields.map(({ name }) => [name, value[name]]));
    return python.make(value.constructor, [], Object.fromEntries(
      Object.entries({ ...old, ...named }).map(([name, one]) => [name, inc(one)])));
  }

  const identities = new WeakMap();
  let lastIdentity = 0;

  function identity(value) {
    if (!identities.has(value)) identities.set(value, ++lastIdentity);
    return identities.get(value);
  }

  // Built-in functions look at their arguments without taking them over; the last one holds those that were named.
  const builtins = {
    abs: Math.abs,
    all: (values) => items(values).every(truth),
    any: (values) => items(values).some(truth),
    asdict: plain,
    bool: truth,
    count: () => new Counting(),
    Counter: () => new Dict(0),
    dict: (source) => Dict.of((source instanceof Dict ? source.items() : source || new List()).a.map((pair) => pair.a.map(inc))),
    enumerate: (values) => new List(items(values).map((value, place) => new Tuple([place, inc(value)]))),
    fields: (value) => new Tuple(value.fields || value.constructor.fields).a.reduce((all, one) => {
      all.a.push(new Namespace(one));
      return all;
    }, new Tuple()),
    float: Number,
    frozenset: (values) => new Collection(values ? items(values) : []),
    get_args: inc,
    getattr: (value, name) => inc(value[name]),
    heappop: (heap) => {
      const least = heap.a.reduce((best, item, place) => (isLess(item, heap.a[best]) ? place : best), 0);
      return heap.a.splice(least, 1)[0];
    },
    heappush: (heap, value) => heap.append(value),
    id: identity,
    int: Math.trunc,
    isinstance: isInstance,
    len: (value) => (value.map ? value.map.size : items(value).length),
    list: (values) => new List(items(values).map(inc)),
    map: (code, values) => new List(items(values).map((value) => python.call(inc(code), [inc(value)]))),
    max: (...values) => extreme(values, isNamed(values.at(-1)) && values.pop(), (a, b) => isLess(b, a)),
    min: (...values) => extreme(values, isNamed(values.at(-1)) && values.pop(), isLess),
    next: (source, otherwise) => (source instanceof Counting ? source.number++ : inc(source.a.length ? source.a[0] : otherwise)),
    partial: (code, ...first) => new Partial(inc(code), first.map(inc)),
    prod: (values) => items(values).reduce((a, b) => a * b, 1),
    range: rangeOf,
    replace: copyWith,
    round,
    set: (values) => new Collection(values ? items(values) : []),
    sorted: (values) => new List(items(values).map(inc).sort((a, b) => (isLess(a, b) ? -1 : isLess(b, a) ? 1 : 0))),
    str: String,
    sum: (values, start = 0) => items(values).reduce((a, b) => a + b, start),
    tuple: (values) => new Tuple(values ? items(values).map(inc) : []),
    type: kindOf,
    vars: (value) => Dict.of(Object.keys(value).filter((name) => name !== "references").map((name) => [name, inc(value[name])])),
    zip,
  };

  function builtin(name, args, named) {
    const result = builtins[name](...args, ...(named ? [named] : []));
    args.forEach(drop);
    if (named) Object.values(named).forEach(drop);
    return result;
  }

  Object.assign(python, { addTo, builtin, builtins, equal, format, isLess, kinds, operate, repr, Callable });
})();
