/**
 * The language of the filter field: terms that must all match.
 *
 *     attention.py            a word in the call stack, the category, the phase, or what has the block
 *     0x7f3a00                an address: of blocks that begin with it or contain it
 *     size>=1MiB size<1GiB    the size
 *     category:activation     a column's value; "…" around a value with spaces
 *
 * The field is the only state of a filter, so that a link in the page's address reproduces it. The
 * menus next to the field write terms into it.
 */

export type Term =
  | { kind: "word"; text: string }
  | { kind: "address"; digits: string }
  | { kind: "size"; least: number; most: number }
  | { kind: "value"; key: string; value: string };

const UNITS = " KMGTPE";
const TERM = /([a-z]+):"([^"]*)"|"([^"]*)"|(\S+)/g;

/** Return the terms of a filter, and an error for those that cannot be read. */
export function parseFilter(filter: string): { terms: Term[]; error: string } {
  const terms: Term[] = [];
  let error = "";
  for (const match of filter.matchAll(TERM)) {
    const [, key, quotedValue, quoted, plain] = match;
    if (key !== undefined) terms.push({ kind: "value", key, value: quotedValue! });
    else if (quoted !== undefined) addWord(terms, quoted);
    else if (/^size[<>]/.test(plain!)) {
      const term = sizeTerm(plain!);
      if (term) terms.push(term);
      else error = `"${plain}" is not a size condition. Write it as size>=1MiB or size<512KiB.`;
    } else terms.push(plainTerm(plain!));
  }
  return { terms, error };
}

function addWord(terms: Term[], text: string): void {
  if (text !== "") terms.push({ kind: "word", text: text.toLowerCase() });
}

function plainTerm(text: string): Term {
  const address = /^0x([0-9a-f]+)$/i.exec(text);
  if (address) return { kind: "address", digits: address[1]!.toLowerCase() };
  const value = /^([a-z]+):([^/\\:].*)$/.exec(text); // not a path such as c:\train.py
  if (value && VALUE_KEYS.has(value[1]!)) {
    return { kind: "value", key: value[1]!, value: value[2]! };
  }
  return { kind: "word", text: text.toLowerCase() };
}

/** The keys of value terms. Other words with a colon, such as `train.py:31`, are searched for. */
export const VALUE_KEYS: ReadonlySet<string> = new Set([
  "action", "category", "phase", "state", "stream",
]);

function sizeTerm(text: string): Term | null {
  const match = /^size(>=|<=|>|<)(\d+(?:\.\d+)?)\s*(?:([KMGTPE])(?:i?B)?|B)?$/i.exec(text);
  if (!match) return null;
  const power = match[3] ? UNITS.indexOf(match[3].toUpperCase()) : 0;
  const bytes = Number(match[2]) * 1024 ** power;
  switch (match[1]) {
    case ">=": return { kind: "size", least: bytes, most: Infinity };
    case "<=": return { kind: "size", least: 0, most: bytes };
    case ">": return { kind: "size", least: Math.floor(bytes) + 1, most: Infinity };
    default: return { kind: "size", least: 0, most: Math.ceil(bytes) - 1 };
  }
}

/** Return the value of a key in a filter; "" if the filter has no such term. */
export function valueOf(filter: string, key: string): string {
  for (const term of parseFilter(filter).terms) {
    if (term.kind === "value" && term.key === key) return term.value;
  }
  return "";
}

/** Return the filter with the term `key:value` in place of other terms of the key; "" removes. */
export function withValue(filter: string, key: string, value: string): string {
  const kept: string[] = [];
  for (const match of filter.matchAll(TERM)) {
    const [text, quotedKey, , , plain] = match;
    const isOfKey = quotedKey === key || (plain !== undefined && plain.startsWith(`${key}:`));
    if (!isOfKey) kept.push(text);
  }
  if (value !== "") {
    const clean = value.replaceAll('"', "");
    kept.push(/^\w[\w.-]*$/.test(clean) ? `${key}:${clean}` : `${key}:"${clean}"`);
  }
  return kept.join(" ");
}

/**
 * Return the ranges of offsets whose addresses, written in hexadecimal, begin with the digits.
 *
 * @param base The address of offset 0.
 * @returns Pairs of a first and a last offset; both are within the exact integers of a number.
 */
export function addressRanges(digits: string, base: bigint): [number, number][] {
  const prefix = BigInt(`0x${digits}`);
  const ranges: [number, number][] = [];
  for (let length = digits.length; length <= 16; length++) {
    const shift = BigInt(4 * (length - digits.length));
    const first = (prefix << shift) - base;
    const last = ((prefix + 1n) << shift) - 1n - base;
    const most = BigInt(Number.MAX_SAFE_INTEGER);
    if (last < -most || first > most) continue;
    ranges.push([Number(first < -most ? -most : first), Number(last > most ? most : last)]);
    if (prefix === 0n) break; // leading zeros: longer addresses do not begin with 0
  }
  return ranges;
}
