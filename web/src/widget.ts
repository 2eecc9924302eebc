// The notebook's side of the widget: the page in an isolated frame, and its selection as a property of the model.
// Nothing of a trace reaches the notebook's document: it gets a state of the page's own making, and four numbers.

interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(name: string, heard: (content: unknown, buffers?: unknown) => void): void;
  off(name: string, heard: (content: unknown, buffers?: unknown) => void): void;
}

const MARK = "headscope:";
const LONGEST_STATE = 20_000;

/** The colour of the notebook behind an element, as light or dark; null where nothing says. */
function surround(element: Element): "light" | "dark" | null {
  const pixel = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  let node: Element | null = element;
  while (pixel && node) {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = getComputedStyle(node).backgroundColor;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
    if (a > 127) return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128 ? "dark" : "light";
    const root = node.getRootNode();
    node = node.parentElement ?? (root instanceof ShadowRoot ? root.host : null);
  }
  return null;
}

const isNumber = (value: unknown): boolean => typeof value === "number" && Number.isInteger(value);
const isSelection = (value: unknown): value is (number | null)[] =>
  Array.isArray(value) && value.length === 4 && value.every((part, n) => isNumber(part) || (n > 1 && part === null));

function render({ model, el }: { model: Model; el: HTMLElement }): () => void {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.allow = "clipboard-write";
  frame.title = String(model.get("_title"));
  frame.style.cssText = `width:100%;height:${Number(model.get("height"))}px;border:0;display:block`;
  let theme = surround(el);
  frame.name = MARK + [model.get("state"), theme && `around=${theme}`].filter(Boolean).join("&");
  frame.srcdoc = String(model.get("_page"));
  const tell = (message: object): void => frame.contentWindow?.postMessage({ headscope: message }, "*");

  const heard = ({ source, data }: MessageEvent): void => {
    if (source !== frame.contentWindow || typeof data?.headscope !== "object" || !data.headscope) return;
    const { ready, id, request, state, selection } = data.headscope as Record<string, unknown>;
    if (ready) return tell({ selection: model.get("selection"), around: theme });
    if (isNumber(id)) return model.send({ id, request });
    if (typeof state === "string" && state.length <= LONGEST_STATE) model.set("state", state);
    if (isSelection(selection)) model.set("selection", selection);
    model.save_changes();
  };
  const set = (): void => tell({ selection: model.get("selection") });
  const go = (): void => tell({ state: model.get("state") });
  const grow = (): void => { frame.style.height = `${Number(model.get("height"))}px`; };
  const answer = (content: unknown, buffers?: unknown): void => {
    const { id, error } = (content ?? {}) as { id?: number; error?: string };
    const view = (buffers as DataView[] | undefined)?.[0];
    const bytes = view && view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength);
    if (isNumber(id)) tell({ id, bytes, error });
  };
  const look = (): void => setTimeout(() => {
    const now = surround(el);
    if (now === theme) return;
    theme = now;
    tell({ around: theme });
  }, 300) as unknown as void;

  addEventListener("message", heard);
  model.on("change:selection", set);
  model.on("change:state", go);
  model.on("change:height", grow);
  model.on("msg:custom", answer);
  const observer = new MutationObserver(look);
  for (const node of [document.documentElement, document.body]) observer.observe(node, { attributes: true });
  const system = matchMedia("(prefers-color-scheme: dark)");
  system.addEventListener("change", look);
  el.replaceChildren(frame);
  // a notebook attaches the element later: only then is there anything behind it
  look();
  return () => {
    removeEventListener("message", heard);
    model.off("change:selection", set);
    model.off("change:state", go);
    model.off("change:height", grow);
    model.off("msg:custom", answer);
    observer.disconnect();
    system.removeEventListener("change", look);
  };
}

export default { render };
