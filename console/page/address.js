// What is looked at, as the address has it behind "#": /VIEW/WHAT?name=value. Reload, back and a link that is
// sent to a colleague show the same.

/** The parts of an address: the view's name, what it is of, and the parameters. */
export function parsed(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name, rest: rest.map(readable).join("/"), params: new URLSearchParams(query) };
}

/** What the address says, or the words as they stand if they can't be decoded. */
export function readable(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Set parameters of the address as it is, without a new entry in the browser's history; null takes one out.
 * Returns the address. Instants keep their colons, so that a person can read them.
 */
export function keep(changes, hash = location.hash || "#/cluster") {
  const [path, query = ""] = hash.split("?");
  const params = new URLSearchParams(query);
  for (const name of Object.keys(changes)) params.delete(name);
  for (const [name, value] of Object.entries(changes)) {
    if (value !== null && value !== "" && value !== undefined) params.set(name, value);
  }
  const text = params.toString().replaceAll("%3A", ":");
  const next = text ? `${path}?${text}` : path;
  if (next !== location.hash) history.replaceState(null, "", next);
  return next;
}
