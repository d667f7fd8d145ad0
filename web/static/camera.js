// The camera: one track to show, and the small picture of oneself.

import { troubleOf } from "./media.js";

// A model looks at a few small pictures a second; more would only cost the line.
const PICTURE = { width: { ideal: 640 }, height: { ideal: 480 }, frameRate: { ideal: 15, max: 30 } };

export function cameraIsPossible() {
  return window.isSecureContext && navigator.mediaDevices?.getUserMedia !== undefined;
}

/** `view` is a video element; `lost()` is told when the camera goes by itself. */
export class Camera {
  track = null;
  #view;
  #lost;
  #opening = 0;

  constructor({ view, lost }) {
    this.#view = view;
    this.#lost = lost;
  }

  /** Resolves to whether it is open; false when it was closed meanwhile. Throws MediaTrouble. */
  async open() {
    const opening = ++this.#opening;
    let stream;
    try {
      stream = await navigator.mediaDevices.getUserMedia({ audio: false, video: PICTURE });
    } catch (error) {
      throw troubleOf(error, "camera");
    }
    const [track] = stream.getVideoTracks();
    if (opening !== this.#opening) {
      track.stop();
      return false;
    }
    track.onended = () => {
      if (this.track !== track) return;
      this.close();
      this.#lost();
    };
    this.track = track;
    this.#view.srcObject = stream;
    this.#view.hidden = false;
    this.#view.play().catch(() => {}); // it is muted, and a picture that stands still is no harm
    return true;
  }

  close() {
    this.#opening += 1;
    this.track?.stop();
    this.track = null;
    this.#view.srcObject = null;
    this.#view.hidden = true;
  }
}
