// What went wrong, in words, and what to do about it.

/**
 * {title, advice, action} by the reason that MediaTrouble or LineTrouble gives. `action` names the
 * button: "talk", "retry", "key" or null.
 */
const WORDS = {
  refused: {
    title: "The browser keeps the microphone closed.",
    advice:
      "Allow it for this page (the icon beside the address), then try again. You can also type.",
    action: "talk",
  },
  none: {
    title: "No microphone was found.",
    advice: "Plug one in and try again, or type below: the answer is spoken all the same.",
    action: "talk",
  },
  busy: {
    title: "The microphone is in use elsewhere.",
    advice: "Close the other program or tab that holds it, then try again.",
    action: "talk",
  },
  gone: {
    title: "The chosen microphone is not there any more.",
    advice: "Choose another one in the settings, or try again with the system's own.",
    action: "talk",
  },
  insecure: {
    title: "This address is not secure, so browsers give it no microphone.",
    advice:
      "Open the page over https (start the server with a certificate) or on localhost. Typing works.",
    action: null,
  },
  broken: {
    title: "The microphone could not be opened.",
    advice: "Try again, or choose another one in the settings.",
    action: "talk",
  },
  silent: {
    title: "The browser can't start its sound.",
    advice: "Is a loudspeaker connected, and free? Then try again.",
    action: "talk",
  },
  unplugged: {
    title: "The microphone went away.",
    advice: "Plug it in again or choose another one, then press the button.",
    action: "talk",
  },
  "camera:refused": {
    title: "The browser keeps the camera closed.",
    advice: "Allow it for this page (the icon beside the address), then turn it on again.",
    action: null,
  },
  "camera:none": {
    title: "No camera was found.",
    advice: "Plug one in and turn it on again; the conversation goes on without it.",
    action: null,
  },
  "camera:busy": {
    title: "The camera is in use elsewhere.",
    advice: "Close the other program or tab that holds it, then turn it on again.",
    action: null,
  },
  "camera:broken": {
    title: "The camera could not be opened.",
    advice: "The conversation goes on without it.",
    action: null,
  },
  "camera:unplugged": {
    title: "The camera went away.",
    advice: "Plug it in again and turn it on; the conversation goes on without it.",
    action: null,
  },
  speaker: {
    title: "That speaker can't be used.",
    advice: "The sound stays where it was. Choose another one in the settings.",
    action: null,
  },
  key: {
    title: "This server asks for a key.",
    advice: "Enter the key that its owner set. It is kept until you close this tab.",
    action: "key",
  },
  wrongKey: {
    title: "The server did not accept the key.",
    advice: "Check it for missing characters and enter it again.",
    action: "key",
  },
  policy: {
    title: "The server ended the conversation.",
    advice: "It may have been too slow a line, or a rule of the server. Connect again to go on.",
    action: "retry",
  },
  done: {
    title: "The server closed the conversation.",
    advice: "Press the button or type to begin again; what was said is remembered.",
    action: "retry",
  },
  full: {
    title: "The server is full just now.",
    advice: "It holds as many conversations as its machine can. It is asked again by itself.",
    action: "retry",
  },
  draining: {
    title: "The server is restarting.",
    advice: "The conversation goes on by itself as soon as it is back.",
    action: "retry",
  },
  absent: {
    title: "The model is restarting.",
    advice: "That may take a minute on a slow machine. Say or type it again then.",
    action: null,
  },
  lost: {
    title: "The line to the server is broken.",
    advice: "It is opened again by itself. Is the server running, and are you online?",
    action: "retry",
  },
};

const BUTTONS = { talk: "Try again", retry: "Try now", key: "Enter a key" };

export function wordsFor(reason, detail = "") {
  const words = WORDS[reason] ?? WORDS.broken;
  return detail ? { ...words, advice: `${words.advice} (${detail})` } : words;
}

/** The one place on the page where trouble is told; the newest replaces what was there. */
export class Banner {
  reason = null;
  #parts;
  #act = null;

  /** `parts` has the elements box, title, advice, act and close. */
  constructor(parts) {
    this.#parts = parts;
    parts.close.addEventListener("click", () => this.hide());
    parts.act.addEventListener("click", () => {
      const act = this.#act;
      this.hide();
      act?.();
    });
  }

  /** Tell a known trouble; `act` is what its button does. */
  tell(reason, detail = "", act = null) {
    const { title, advice, action } = wordsFor(reason, detail);
    this.#show(reason, title, advice, act && BUTTONS[action], act);
  }

  /** Tell something in the server's or our own words. */
  say(title, advice) {
    this.#show("said", title, advice, "", null);
  }

  #show(reason, title, advice, label, act) {
    this.reason = reason;
    this.#act = act;
    this.#parts.title.textContent = title;
    this.#parts.advice.textContent = advice;
    this.#parts.act.textContent = label ?? "";
    this.#parts.act.hidden = !label;
    this.#parts.box.hidden = false;
  }

  hide() {
    this.reason = null;
    this.#act = null;
    this.#parts.box.hidden = true;
  }
}

// Answers to events that crossed on the way: nothing is wrong and nobody needs to know.
const HARMLESS = new Set([
  "response_cancel_not_active",
  "conversation_already_has_active_response",
  "item_retrieve_invalid_item_id",
  "item_create_duplicate_item_id",
  "input_audio_buffer_commit_empty",
]);

export function isHarmless(error) {
  return HARMLESS.has(error.code) || /already shorter/.test(error.message ?? "");
}
