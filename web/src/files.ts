// Files that a page gives to its reader: how they are handed over, and what a cell of CSV and a text of SVG may hold.

/** Hand a file over as a download. */
export function download(content: BlobPart, type: string, name: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A part of a file's name: a model's last name, without what file systems trip over. */
export const plainPart = (name: string): string => name.split(/[\\/]/).pop()!.replace(/[^\w.-]+/g, "-") || "headscope";

/** A cell of CSV: quoted, and never read as a formula by a spreadsheet. src/headscope/view/tables.py has the same rule. */
export const csvCell = (value: string): string => `"${(/^[=+\-@\t\r\n＝＋－＠]/.test(value) ? `'${value}` : value).replace(/"/g, '""')}"`;

/** Text of a drawing that is written as a string; what XML can't hold is replaced. */
export const escaped = (text: string): string =>
  // eslint-disable-next-line no-control-regex
  text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f]/g, "�").replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/"/g, "&quot;");
