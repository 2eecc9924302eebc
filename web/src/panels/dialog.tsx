// A dialog over the page: the browser traps the focus in it and restores it.
import { useEffect, useRef } from "preact/hooks";
import type { ComponentChildren } from "preact";
import type { Signal } from "@preact/signals";
import { say } from "../words";

export function Dialog({ open, title, children }: { open: Signal<boolean>; title: string; children: ComponentChildren }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const wanted = open.value;
  useEffect(() => {
    if (wanted === dialog.current!.open) return;
    if (wanted) dialog.current!.showModal();
    else dialog.current!.close();
  }, [wanted]);
  const close = (): void => { open.value = false; };
  return (
    <dialog ref={dialog} aria-label={title} onClose={close} onClick={(event) => { if (event.target === event.currentTarget) close(); }}>
      <div class="dialog">{wanted && <><div class="row spread"><h1>{title}</h1><button onClick={close}>{say("close")}</button></div>{children}</>}</div>
    </dialog>
  );
}
