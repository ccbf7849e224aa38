// What this browser remembers of its user: nothing that is secret.

const NAME = "headgate-console";
const DEFAULTS = { theme: "system", time: "local", isLive: true };

function load() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(NAME) || "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export const settings = load();

export function remember(change) {
  Object.assign(settings, change);
  try {
    localStorage.setItem(NAME, JSON.stringify(settings));
  } catch {
    // then it is forgotten
  }
  apply();
}

/** Takes over what another tab has remembered. */
export function reload() {
  Object.assign(settings, load());
  apply();
}

export function apply() {
  const root = document.documentElement;
  if (settings.theme === "system") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", settings.theme);
}
