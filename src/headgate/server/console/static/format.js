// Numbers, lengths of time and moments, as people read them.

import { Big } from "./api.js";
import { settings } from "./settings.js";

const grouped = new Intl.NumberFormat("en-US");

export const count = (n) => (n == null ? "–" : grouped.format(n));

export function short(n) {
  if (n == null) return "–";
  if (Math.abs(n) < 10_000) return grouped.format(Math.round(n));
  for (const [size, unit] of [
    [1e12, "T"],
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ])
    if (Math.abs(n) >= size) return (n / size).toFixed(n / size < 100 ? 1 : 0) + unit;
  return String(n);
}

export function rate(n) {
  if (n == null) return "–";
  return n === 0 ? "0/s" : n < 0.1 ? "<0.1/s" : n < 10 ? n.toFixed(1) + "/s" : short(n) + "/s";
}

export function bytes(n) {
  if (n == null) return "–";
  for (const [size, unit] of [
    [2 ** 40, "TB"],
    [2 ** 30, "GB"],
    [2 ** 20, "MB"],
    [2 ** 10, "kB"],
  ])
    if (n >= size) return (n / size).toFixed(n / size < 10 ? 1 : 0) + " " + unit;
  return n + " B";
}

/** Seconds: 4 s, 3 m 20 s, 2 h 5 m, 3 d 4 h. */
export function length(seconds) {
  if (seconds == null || !isFinite(seconds)) return "–";
  if (seconds < 1) return seconds < 0.001 ? "0 s" : Math.round(seconds * 1000) + " ms";
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${s % 60} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

export const milliseconds = (n) => (n == null ? "–" : length(n / 1000));

/** A moment, in the form that was chosen. */
export function moment(text) {
  if (!text) return "–";
  const at = new Date(text);
  if (settings.time === "relative") {
    const seconds = (Date.now() - at) / 1000;
    return seconds >= 0 ? (seconds < 1 ? "now" : length(seconds) + " ago") : "in " + length(-seconds);
  }
  if (settings.time === "UTC") return at.toISOString().slice(0, 23).replace("T", " ") + "Z";
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  const isToday = at.toDateString() === new Date().toDateString();
  return `${isToday ? "" : day + " "}${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}.${String(at.getMilliseconds()).padStart(3, "0")}`;
}

const DEEPEST = 1000; // levels that are laid out

/** JSON, spaced, with numbers of any size as they are. */
export function json(value, indent = 0) {
  if (indent > DEEPEST) return '"… (deeper than is shown)"';
  if (value instanceof Big) return value.digits;
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const pad = "  ".repeat(indent + 1);
  const parts = Array.isArray(value)
    ? value.map((v) => json(v, indent + 1))
    : Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${json(v, indent + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  return parts.length
    ? `${open}\n${parts.map((p) => pad + p).join(",\n")}\n${"  ".repeat(indent)}${close}`
    : open + close;
}

/** JSON in one line. */
export const flat = (value) => json(value).replace(/\s*\n\s*/g, " ");

export const oneLine = (value, most = 160) => {
  const text = typeof value === "string" ? value : flat(value);
  return text.length > most ? text.slice(0, most) + "…" : text;
};

/** A value as SQL writes it. */
export const literal = (s) =>
  s == null ? "null" : typeof s === "number" ? String(s) : `'${String(s).replaceAll("'", "''")}'`;
