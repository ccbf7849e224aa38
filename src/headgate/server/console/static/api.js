// Calls of the public API. Addresses are relative, so that a proxy may put the console below a path.

export const session = { me: null, onlogout: null };

export class ApiError extends Error {
  constructor(status, code, message, hint) {
    super(message);
    Object.assign(this, { status, code, hint });
  }
}

/** A number that a double cannot hold: its digits. */
export class Big {
  constructor(digits) {
    this.digits = digits;
  }
  toString() {
    return this.digits;
  }
}

function revive(key, value, context) {
  const source = context?.source;
  if (typeof value !== "number" || !source) return value;
  if (/^-?\d+$/.test(source)) return Number.isSafeInteger(value) ? value : new Big(source);
  const digits = source.replace(/e.*$/i, "").replace(/\D/g, "").replace(/^0+/, "");
  return isFinite(value) && digits.length <= 17 ? value : new Big(source);
}

function parsed(text) {
  try {
    return JSON.parse(text, revive);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return JSON.parse(text); // too deep to be walked through
  }
}

export async function call(method, path, body, options = {}) {
  const headers = { "X-Headgate-Console": "1", Accept: "application/json", ...options.headers };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      body: typeof body === "string" ? body : JSON.stringify(body),
      credentials: "same-origin",
      signal: options.signal,
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer.", "See whether it runs.");
  }
  const text = await answer.text();
  let found;
  try {
    found = parsed(text);
  } catch {
    throw new ApiError(
      answer.status,
      "no_json",
      `The server answered ${answer.status} and something that is not JSON.`,
      "",
    );
  }
  if (!answer.ok) {
    const { code, message, hint } = found.error || {};
    if (answer.status === 401 && !options.quiet) session.onlogout?.();
    throw new ApiError(answer.status, code, message || `The server answered ${answer.status}.`, hint);
  }
  return options.whole ? found : found.data;
}

export const get = (path, query, options) => call("GET", path + queryString(query), undefined, options);
export const post = (path, body) => call("POST", path, body ?? undefined);
export const patch = (path, body) => call("PATCH", path, body);
export const put = (path, body) => call("PUT", path, body);
export const remove = (path, body) => call("DELETE", path, body);

export function queryString(query) {
  const pairs = Object.entries(query || {}).filter(([, v]) => v != null && v !== "");
  return pairs.length
    ? "?" + pairs.map(([k, v]) => `${encodeURIComponent(k)}=${encodeURIComponent(v)}`).join("&")
    : "";
}

export const streamPath = (stream, ...more) =>
  ["api/streams", stream, ...more].map((p, i) => (i ? encodeURIComponent(p) : p)).join("/");
export const consumerPath = (stream, consumer, ...more) => streamPath(stream, "consumers", consumer, ...more);

export const may = (scope) =>
  !!session.me && (session.me.scopes.includes("admin") || session.me.scopes.includes(scope));
export const isAdmin = () => may("admin");
/** Whether the token is for all streams: what is about the whole database is shown to no other. */
export const isForAll = () => !!session.me?.everywhere;
