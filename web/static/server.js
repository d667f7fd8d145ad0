// What the server tells over HTTP.

async function json(url, key) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  const answer = await fetch(url, { headers, cache: "no-store" });
  if (!answer.ok) throw answer;
  return answer.json();
}

/**
 * {state, models, iceServers}; state is "well", "refused" (the key), "full" (no room, or the model
 * is still starting) or "away". Asked of `page`, an absolute URL of the folder that holds `v1`.
 */
export async function ask(page, key) {
  const nothing = { models: [], iceServers: [] };
  try {
    // Health is never an error, so that a server that starts leaves no red lines in the console.
    const { detail } = await json(new URL("health", page), "");
    if (detail !== undefined) return { state: "full", ...nothing };
    const [{ data }, ice] = await Promise.all([
      json(new URL("v1/models", page), key),
      json(new URL("v1/realtime/ice_servers", page), key),
    ]);
    const models = Array.isArray(data) ? data : [];
    return { state: "well", models, iceServers: ice.ice_servers };
  } catch (answer) {
    const { status } = answer;
    if (status === 401 || status === 403) return { state: "refused", ...nothing };
    if (status === 429 || status === 503) return { state: "full", ...nothing };
    return { state: "away", ...nothing };
  }
}
