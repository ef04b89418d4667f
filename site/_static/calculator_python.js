"use strict";
// What Python's code, translated to JavaScript by site/machinery/translation, needs to run: objects whose references
// are counted. The memory calculator frees a tensor when nothing refers to it, as Python and PyTorch do, so that each
// reference counts here, too: an expression gives a reference of its own, a call takes its arguments over.

var dalle = window.dalle || {};
window.dalle = dalle;

dalle.python = (function () {
  const dying = [];
  let isFreeing = false;

  function isObject(value) {
    return typeof value === "object" && value !== null;
  }

  function inc(value) {
    if (isObject(value)) value.references++;
    return value;
  }

  function drop(value) {
    if (isObject(value) && --value.references === 0) {
      dying.push(value);
      if (!isFreeing) free();
    }
  }

  function free() { // a loop, because a chain of operations is longer than the stack
    isFreeing = true;
    while (dying.length) dying.pop().free();
    isFreeing = false;
  }

  function swap(old, value) {
    drop(old);
    return value;
  }

  class Counted {
    constructor() {
      this.references = 1;
    }
  }

  class Cell extends Counted { // a variable that inner functions see
    constructor(value) {
      super();
      this.v = value;
    }
    free() {
      drop(this.v);
    }
  }

  class Instance extends Counted {
    free() {
      if (this.__del__) {
        this.references = 1e9;
        this.__del__(this);
      }
      for (const name of Object.keys(this)) drop(this[name]);
    }
  }

  class Namespace extends Instance {
    constructor(fields) {
      super();
      Object.assign(this, fields);
    }
  }

  class Callable extends Counted { // an inner function, with the variables that it sees and the defaults it was made with
    constructor(code, defaults, cells) {
      super();
      Object.assign(this, { code, defaults, cells: cells.map(inc) });
    }
    free() {
      this.cells.forEach(drop);
      Object.values(this.defaults).forEach(drop);
    }
    call(args, named, isHeld) {
      return callCode(this.code, args, named, isHeld, this.defaults);
    }
  }

  class Partial extends Counted { // a function with its first arguments: functools.partial, or a method of an object
    constructor(code, first) {
      super();
      Object.assign(this, { code, first });
    }
    free() {
      drop(this.code);
      this.first.forEach(drop);
    }
    call(args, named) {
      const all = this.first.map(inc).concat(args);
      return call(inc(this.code), all, named, true);
    }
  }

  function define(names, code, star, keywords) {
    return Object.assign(code, { names, star, keywords });
  }

  function bind(code, args, named, defaults) {
    const star = code.star === undefined ? -1 : code.names.indexOf(code.star);
    const left = { ...named };
    const bound = code.names.map(function (name, place) {
      if (place === star) return new dalle.python.Tuple(args.slice(star));
      if (name === code.keywords) return undefined;
      const isPositional = place < args.length && (star < 0 || place < star);
      if (isPositional) return args[place];
      const value = left[name];
      delete left[name];
      return value === undefined && defaults ? inc(defaults[name]) : value;
    });
    if (code.keywords !== undefined) {
      bound[code.names.indexOf(code.keywords)] = dalle.python.Dict.of(Object.entries(left));
    } else if (Object.keys(left).length) {
      throw new TypeError("unexpected argument " + Object.keys(left)[0]);
    }
    return bound;
  }

  function callCode(code, args, named, isHeld, defaults) {
    if (isHeld) args.forEach(inc);
    const isPlain = !named && !defaults && code.star === undefined && code.keywords === undefined;
    const result = code(...(isPlain ? args : bind(code, args, named, defaults)));
    if (isHeld) args.forEach(drop);
    return result;
  }

  // Calls what is callable; with isHeld the arguments live until the call is over, as those of a call with a star do.
  function call(callee, args, named, isHeld) {
    if (typeof callee !== "function") {
      const result = callee.call(args, named, isHeld);
      drop(callee);
      return result;
    }
    if (callee.prototype instanceof Counted) return make(callee, args, named, isHeld);
    return callCode(callee, args, named, isHeld);
  }

  function make(kind, args, named, isHeld) {
    if (kind === Namespace) return new Namespace(named);
    const made = new kind();
    const [code] = [kind.prototype.__init__];
    callCode(code, [inc(made), ...args], named, isHeld);
    return made;
  }

  // Calls a method of an object that it takes over, as it does the arguments.
  function method(object, name, args, named, isHeld) {
    if (typeof object === "string" || typeof object === "number" || object.isBuiltin) {
      const kind = typeof object;
      const methods = kind === "object" ? null : kind === "string" ? dalle.python.texts : dalle.python.numbers;
      const result = methods ? methods[name](object, ...args) : object[name](...args, named);
      args.forEach(drop);
      drop(object);
      return result;
    }
    if (typeof object === "function") return callCode(object[name], [object, ...args], named, isHeld);
    const found = object[name];
    if (Object.hasOwn(object, name)) {
      const result = call(inc(found), args, named, isHeld);
      drop(object);
      return result;
    }
    return callCode(found, [object, ...args], named, isHeld);
  }

  function get(object, name) {
    const value = object[name];
    if (typeof value === "function" && !Object.hasOwn(object, name)) return new Partial(value, [object]);
    inc(value);
    drop(object);
    return value;
  }

  function set(object, name, value) {
    const old = Object.hasOwn(object, name) ? object[name] : undefined;
    object[name] = value;
    drop(old);
  }

  // A class: its parent, its methods and properties, values of its own, and, if it is a dataclass, its fields.
  function defineClass(name, parent, parts) {
    const kind = { [name]: class extends (parent || Instance) {} }[name];
    Object.assign(kind.prototype, parts.methods, parts.values);
    Object.assign(kind, parts.ofClass, parts.values);
    for (const [property, getter] of Object.entries(parts.properties || {})) {
      Object.defineProperty(kind.prototype, property, {
        get() {
          return getter(inc(this));
        },
        set(value) { // a field of the same name in a class below
          Object.defineProperty(this, property, { value, writable: true, enumerable: true });
        },
      });
    }
    if (parts.fields) addFields(kind, parts.fields);
    return kind;
  }

  function addFields(kind, fields) {
    kind.fields = fields;
    const names = ["self", ...fields.map((field) => field.name)];
    kind.prototype.__init__ = define(names, function (self, ...values) {
      fields.forEach(function (field, place) {
        const value = values[place];
        self[field.name] = value === undefined ? defaultOf(kind, field) : value;
      });
      if (self.__post_init__) self.__post_init__(inc(self));
      drop(self);
      return null;
    });
  }

  function defaultOf(kind, field) {
    if (field.factory) return new dalle.python[field.factory]();
    if (field.default === undefined) throw new TypeError(kind.name + " needs " + field.name);
    return inc(field.default);
  }

  class ValueError extends Error {}

  return {
    Callable, Cell, Counted, Instance, Namespace, Partial, ValueError,
    call, define, defineClass, drop, get, inc, isObject, make, method, set, swap,
  };
})();
