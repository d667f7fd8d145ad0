// A carrier of events: one WebSocket.

const KEY_PREFIX = "openai-insecure-api-key.";

export class Socket {
  kind = "websocket";
  #url;
  #protocols;
  #socket = null;

  /** `page` is an absolute http(s) URL of the folder that `path` is in. */
  constructor({ page, path, model, key }) {
    this.#url = new URL(path, page);
    this.#url.protocol = this.#url.protocol === "https:" ? "wss:" : "ws:";
    if (model) this.#url.searchParams.set("model", model);
    this.#protocols = key ? ["realtime", KEY_PREFIX + key] : ["realtime"];
  }

  begin(told) {
    this.#socket = new WebSocket(this.#url, this.#protocols);
    this.#socket.onopen = told.opened;
    this.#socket.onmessage = ({ data }) => told.message(data);
    this.#socket.onclose = ({ code, reason }) => told.closed({ code, reason });
  }

  get open() {
    return this.#socket?.readyState === WebSocket.OPEN;
  }

  get waitingBytes() {
    return this.#socket?.bufferedAmount ?? 0;
  }

  send(text) {
    this.#socket.send(text);
  }

  close(code) {
    this.#socket?.close(code);
  }
}
