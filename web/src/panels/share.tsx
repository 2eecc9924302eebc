// The dialog that hands on what is on the screen: one file, or a link and who can open it.
import { useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";
import { fits, readers, saveFile, sharedMegabytes, shareLink } from "../share";
import * as state from "../state/state";
import { doc, docs, reason } from "../state/store";
import { say } from "../words";
import { Dialog } from "./dialog";

export const Share = () => doc.value && <Dialog open={state.sharing} title={say("share_title")}><Ways /></Dialog>;

function Ways() {
  const input = useRef<HTMLInputElement>(null);
  const done = useSignal("");
  const link = shareLink();
  const save = async (): Promise<void> => {
    try {
      done.value = say("share_making");
      done.value = say("saved", { name: await saveFile() });
    } catch (error) {
      done.value = say("share_failed", { why: reason(error) });
    }
  };
  const copy = async (): Promise<void> => {
    input.current!.select();
    done.value = await navigator.clipboard.writeText(link!).then(() => say("copied"), () => say("copy_failed"));
  };
  return (
    <>
      <h2>{say("share_file")}</h2>
      {!fits() ? <p>{say("share_long")}</p> : <><p>{say("share_file_says", { n: docs.value.length, mb: sharedMegabytes().toFixed(1) })}</p>
      <p><button class="strong" data-test="share-save" onClick={() => void save()}>{say("share_save")}</button></p></>}
      <h2>{say("share_link")}</h2>
      {link !== null && <p class="row"><input class="link" ref={input} readOnly value={link} aria-label={say("share_link")} data-test="share-link" onFocus={(event) => event.currentTarget.select()} />
        <button data-test="share-copy" onClick={() => void copy()}>{say("share_copy")}</button></p>}
      <p data-test="share-who">{say(readers())}</p>
      <p class="quiet" role="status" data-test="share-done">{done.value || "\u00a0"}</p>
    </>
  );
}
